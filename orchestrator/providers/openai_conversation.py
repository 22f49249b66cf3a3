"""One agent's conversation with a model: its requests, their retries, and what the answers amount to.

Guarantees: it ends in an `AgentResult` or in the cancellation of its task; a request that may succeed later is sent
again within the settings' bounds; what the server refuses of a request is left out once another way of asking worked.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import msgspec
from openai import Omit

from orchestrator.agents import AgentRequest, AgentResult, Usage
from orchestrator.providers.json_answer import replace_lone_surrogates
from orchestrator.providers.openai_failures import RequestFailed, Target, broken_off, malformed, read_failure
from orchestrator.providers.openai_settings import OpenAISettings, StructuredMode
from orchestrator.providers.structured import StructuredAnswerError, ask_structured, instruction
from protocol.errors import ErrorCode, WorkflowError

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionChunk

__all__ = ["Conversation", "Host", "ServerTraits"]

_log = logging.getLogger(__name__)

MAX_ANSWER = 16 << 20
"""Characters of one answer: a server that never stops must not fill the memory."""

_OPENAI = "https://api.openai.com/v1"
_MODES: tuple[StructuredMode, ...] = ("json_schema", "json_object", "instruct")
_FORMAT_WORDS = ("response_format", "json_schema", "json_object", "schema", "grammar", "structured")
_REFUSALS = (400, 404, 415, 422, 501)


class ServerTraits:
    """What was learnt about a server, for all further agents.

    Args:
        structured: the setting of that name.
    """

    def __init__(self, structured: str) -> None:
        self._structured = structured
        self._modes: dict[str, StructuredMode] = {}
        self._ignores_schema: set[str] = set()
        self.counts_tokens = True

    def mode(self, model: str) -> StructuredMode:
        """How to ask that model for a structured answer."""
        if self._structured == "auto":
            return self._modes.get(model, "json_schema")
        return cast(StructuredMode, self._structured)

    def lower_mode(self, model: str, mode: StructuredMode, failure: RequestFailed) -> StructuredMode | None:
        """The next way to ask after the server refused ``mode``; ``None`` when the refusal is about something else."""
        if self._structured != "auto" or mode == "instruct" or failure.status not in _REFUSALS:
            return None
        known = model in self._modes or failure.status == 404  # a 404 is mostly about the model
        if known and not failure.mentions(_FORMAT_WORDS):
            return None
        return _MODES[_MODES.index(mode) + 1]

    def mode_worked(self, model: str, mode: StructuredMode) -> None:
        """The model's further agents begin with it. A mode that was merely refused proves nothing."""
        self._modes[model] = mode

    def schema_was_ignored(self, model: str) -> None:
        """A server may take a schema and not apply it: from now on the model gets it in words too."""
        self._ignores_schema.add(model)

    def instructs(self, model: str, mode: StructuredMode) -> bool:
        """Whether the model has to be told its schema in words."""
        return mode != "json_schema" or model in self._ignores_schema


class Host(Protocol):
    """What a conversation needs of its provider."""

    settings: OpenAISettings
    traits: ServerTraits

    def count(self, name: str, number: int = 1) -> None: ...
    def wait_before_retry(self, retry: int, asked: float | None) -> float: ...
    def client(self, base_url: str, key: str) -> AbstractAsyncContextManager[AsyncOpenAI]: ...


class _Answer(msgspec.Struct):
    """One streamed answer, as far as it has come."""

    parts: list[str] = []
    refusal: list[str] = []
    size: int = 0
    finish_reason: str | None = None
    usage: Usage | None = None
    chunks: int = 0

    @property
    def text(self) -> str:
        return "".join(self.parts)

    def add(self, chunk: ChatCompletionChunk) -> None:
        self.chunks += 1
        if chunk.usage is not None:  # the last one counts: some servers send a running sum with every chunk
            self.usage = Usage(int(chunk.usage.prompt_tokens or 0), int(chunk.usage.completion_tokens or 0))
        for choice in chunk.choices or ():
            delta = cast(Any, choice.delta)  # the SDK builds it unchecked from what the server sent
            if delta is not None and delta.content:
                self.parts.append(str(delta.content))
                self.size += len(delta.content)
            if delta is not None and delta.refusal:
                self.refusal.append(str(delta.refusal))
                self.size += len(delta.refusal)
            self.finish_reason = choice.finish_reason or self.finish_reason


def _not_connected(**_body: object) -> Any:
    raise AssertionError("a conversation sends nothing before it runs")


class _ConversationFailed(Exception):
    """The agent failed in an ordinary way; the text is the reason."""


class Conversation:
    """The messages of one agent and what they cost.

    Args:
        host: its provider.
        request: the agent's call.

    Raises:
        WorkflowError: it cannot begin: no model is known, OpenAI's own server is to be asked without a key, or an
            option has a senseless value.
    """

    def __init__(self, host: Host, request: AgentRequest) -> None:
        settings = host.settings
        model = request.model or settings.model
        if model is None:
            raise _cannot_start("knows no model: write openai:MODEL, or set model where the agent is configured")
        self._base_url = settings.base_url or os.environ.get("OPENAI_BASE_URL") or _OPENAI
        self._key = os.environ.get(settings.api_key_env, "").strip()
        self._is_openai = urlsplit(self._base_url).hostname == urlsplit(_OPENAI).hostname
        if self._is_openai and not self._key:
            raise _cannot_start(f"has no API key: set the environment variable {settings.api_key_env}")
        self._stall = _stall_seconds(request.options.get("stallMs"))
        self._effort = _effort(request.options.get("effort"))
        self.request = request
        self._host = host
        self._settings = settings
        self._model = model
        self._target: Target = Target(
            host=_host(self._base_url),
            model=model,
            key_variable=settings.api_key_env,
            has_key=bool(self._key),
            secrets=(self._key, *settings.headers.values()),
        )
        self._create: Callable[..., Any] = _not_connected
        self._messages: list[dict[str, Any]] = []
        self._mode: StructuredMode | None = None if request.schema is None else host.traits.mode(model)
        self._usage: Usage | None = None

    async def run(self) -> AgentResult:
        """Asks until there is an answer or a reason why there is none."""
        prompt = replace_lone_surrogates(self.request.prompt)
        async with self._host.client(self._base_url, self._key) as client:
            self._create = client.chat.completions.create
            try:
                if self.request.schema is None:
                    return AgentResult(text=await self._ask(prompt), usage=self._usage)
                answer = await ask_structured(
                    self._ask, prompt, self.request.schema, retries=self._settings.structured_retries
                )
                return AgentResult(text=answer.text, structured=answer.value, usage=self._usage)
            except StructuredAnswerError as error:
                self._host.count("invalid_answers")
                return AgentResult(text=error.text, stop_reason="error", error=str(error), usage=self._usage)
            except _ConversationFailed as failure:
                return AgentResult(stop_reason="error", error=str(failure), usage=self._usage)

    async def _ask(self, text: str) -> str:
        """Continues the conversation with ``text``; the answer becomes a part of it."""
        if self._messages:  # only an invalid answer is asked for again
            self._host.count("invalid_answers")
            self._host.traits.schema_was_ignored(self._model)
        self._messages.append({"role": "user", "content": text})
        answer = await self._request_with_retries()
        self._messages.append({"role": "assistant", "content": answer})
        return answer

    async def _request_with_retries(self) -> str:
        retries = 0
        while True:
            try:
                answer = await self._send()
            except RequestFailed as failure:
                if self._ask_differently(failure):
                    continue
                if failure.kind == "refused" or retries == self._settings.max_retries:
                    raise _ConversationFailed(failure.reason + _after(retries)) from None
                retries += 1
                await self._wait(failure, retries)
            else:
                if self._mode is not None:
                    self._host.traits.mode_worked(self._model, self._mode)
                return self._judge(answer)

    async def _wait(self, failure: RequestFailed, retry: int) -> None:
        self._host.count("retries")
        counter = {"rate_limited": "rate_limited", "server_error": "server_errors"}.get(failure.kind, "connections")
        self._host.count(counter)
        wait = self._host.wait_before_retry(retry, failure.retry_after)
        _log.info("agent %d: %s; retry %d in %.1f s", self.request.seq, failure.reason, retry, wait)
        await asyncio.sleep(wait)

    def _ask_differently(self, failure: RequestFailed) -> bool:
        """Whether the server refused a part of the request that it can go without."""
        if failure.status not in _REFUSALS:
            return False
        if self._host.traits.counts_tokens and failure.mentions(("stream_options", "include_usage")):
            self._host.traits.counts_tokens = False
        elif self._mode is not None and (lower := self._host.traits.lower_mode(self._model, self._mode, failure)):
            self._mode = lower
        else:
            return False
        self._host.count("fallbacks")
        return True

    def _judge(self, answer: _Answer) -> str:
        if answer.refusal:
            raise _ConversationFailed(f"the model refused: {self._target.clean(''.join(answer.refusal))}")
        match answer.finish_reason:
            case "length":
                raise _ConversationFailed("the answer was cut off at the token limit; raise max_tokens")
            case "content_filter":
                raise _ConversationFailed(f"a content filter of {self._target.host} withheld the answer")
            case "stop" | "tool_calls" | "function_call" if not answer.text.strip():
                raise _ConversationFailed(f"the model {self._model!r} answered nothing")
            case _:
                return answer.text

    # --- one request ---

    async def _send(self) -> _Answer:
        """Sends the conversation and reads the whole answer. Raises `RequestFailed`."""
        answer = _Answer()
        self._host.count("requests")
        stall = asyncio.timeout(self._stall)
        try:
            async with asyncio.timeout(self._settings.timeout), stall:
                await self._stream_into(answer, stall)
        except TimeoutError:
            # Neither is retried: another hour of waiting is not what a limit is for.
            if stall.expired():
                raise _ConversationFailed(f"no sign of life for {self._stall:g} s (stallMs)") from None
            raise _ConversationFailed(f"no complete answer within {self._settings.timeout:g} s (timeout)") from None
        except Exception as error:
            failure = read_failure(error, self._target)
            if failure is None:
                raise
            raise failure from None
        finally:
            self._add_usage(answer.usage)
        if not answer.chunks:
            raise malformed(self._target)
        if answer.finish_reason is None:
            raise broken_off(self._target)
        return answer

    async def _stream_into(self, answer: _Answer, stall: asyncio.Timeout) -> None:
        loop = asyncio.get_running_loop()
        async with await self._create(**self._body()) as stream:
            async for chunk in stream:
                if self._stall is not None:
                    stall.reschedule(loop.time() + self._stall)
                try:
                    answer.add(chunk)
                except (AttributeError, TypeError, ValueError):  # its shape is whatever the server sent
                    raise malformed(self._target) from None
                if answer.size > MAX_ANSWER:
                    raise _ConversationFailed(f"the answer is longer than {MAX_ANSWER} characters")

    def _body(self) -> dict[str, Any]:
        settings = self._settings
        body: dict[str, Any] = {"model": self._model, "messages": self._whole_conversation(), "stream": True}
        if self._host.traits.counts_tokens:
            body["stream_options"] = {"include_usage": True}
        if settings.temperature is not None:
            body["temperature"] = settings.temperature
        if settings.max_tokens is not None:  # OpenAI's newer models know one name, most other servers the other
            body["max_completion_tokens" if self._is_openai else "max_tokens"] = settings.max_tokens
        if self._effort is not None:
            body["reasoning_effort"] = self._effort
        match self._mode:
            case "json_schema":
                described = {"name": "answer", "schema": self.request.schema, "strict": settings.strict_schema}
                body["response_format"] = {"type": "json_schema", "json_schema": described}
            case "json_object":
                body["response_format"] = {"type": "json_object"}
            case _:
                pass
        if not self._key and not any(name.lower() == "authorization" for name in settings.headers):
            body["extra_headers"] = {"Authorization": Omit()}
        if settings.extra_body:
            body["extra_body"] = settings.extra_body
        return body

    def _whole_conversation(self) -> list[dict[str, Any]]:
        """The messages as sent: what the agent is told beside its prompt depends on what the server takes."""
        messages = list(self._messages)
        schema = self.request.schema
        if schema is not None and self._mode is not None and self._host.traits.instructs(self._model, self._mode):
            first = messages[0]
            messages[0] = {**first, "content": f"{first['content']}\n\n{instruction(schema)}"}
        if self._settings.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self._settings.system_prompt})
        return messages

    def _add_usage(self, usage: Usage | None) -> None:
        if usage is None:
            return
        self._host.count("input_tokens", usage.input_tokens)
        self._host.count("output_tokens", usage.output_tokens)
        before = self._usage or Usage()
        self._usage = Usage(before.input_tokens + usage.input_tokens, before.output_tokens + usage.output_tokens)


def _cannot_start(reason: str) -> WorkflowError:
    return WorkflowError(ErrorCode.AGENT_START, f"the openai agent {reason}")


def _stall_seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise _cannot_start("takes a stallMs of more than 0 milliseconds")
    return value / 1000


def _effort(value: object) -> str | None:
    if value is None or (isinstance(value, str) and value):
        return value
    raise _cannot_start('takes an effort that is a string such as "low"')


def _host(url: str) -> str:
    """The server without what an address may hold beside it, such as a password."""
    return urlsplit(url).netloc.rpartition("@")[2]


def _after(retries: int) -> str:
    match retries:
        case 0:
            return ""
        case 1:
            return ", after 1 retry"
        case _:
            return f", after {retries} retries"
