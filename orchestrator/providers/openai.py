"""Agents that are one conversation with a model behind an OpenAI-compatible API (extra ``openai``).

Guarantees: rate limits, server errors and lost connections are retried within bounds and counted; every other failure
is an ordinary one with a reason; a structured answer is valid or the agent failed; tokens of all attempts are
reported. After an abort or ``dispose`` no connection and no task of the agent is left, and after the last agent none
of the provider: connections are kept for reuse only while an agent is at work.

Answers are streamed, because then closing the connection stops the model, and every chunk is a sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import random
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.agents import AgentRequest, AgentResult
from orchestrator.providers.openai_settings import OpenAISettings, openai_settings_from_spec
from orchestrator.signals import AbortSignal
from protocol.errors import ErrorCode, WorkflowError

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from orchestrator.providers.openai_conversation import Conversation

__all__ = ["OpenAIProvider", "OpenAISettings", "OpenAIStats", "openai_settings_from_spec"]

CONNECT_TIMEOUT = 10.0
_child_numbers = itertools.count(1)


class OpenAIStats(msgspec.Struct, frozen=True):
    """What a provider did since it was made.

    Args:
        requests: HTTP requests, each retry one more.
        retries: requests sent again, for these reasons: ``rate_limited``, ``server_errors``, ``connections`` (refused,
            lost, or an answer that made no sense).
        retry_seconds: how long it decided to wait before retries, added up.
        invalid_answers: structured answers that did not match their schema.
        fallbacks: times that the server refused a way of asking and another one was taken.
        input_tokens: as the server counts them, all attempts.
        output_tokens: likewise.
        active: agents at work now.
    """

    requests: int = 0
    retries: int = 0
    rate_limited: int = 0
    server_errors: int = 0
    connections: int = 0
    retry_seconds: float = 0.0
    invalid_answers: int = 0
    fallbacks: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    active: int = 0


class OpenAIProvider:
    """Answers each agent with a conversation of its own.

    Honours ``effort`` (sent as ``reasoning_effort``) and ``stallMs``. The API key is read from the environment when an
    agent starts.

    Args:
        settings: see `OpenAISettings`.

    Raises:
        ModuleNotFoundError: the extra ``openai`` is not installed; the message says how to install it.
    """

    supported_options = ("effort", "stallMs")

    def __init__(self, settings: OpenAISettings) -> None:
        _require_sdk()  # here and not in the first agent: importing it takes the loop of a running engine a second
        from orchestrator.providers.openai_conversation import Conversation, ServerTraits

        self.settings = settings
        self.random = random.Random()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._retry_seconds = 0.0
        self._clients: dict[asyncio.AbstractEventLoop, _SharedClient] = {}
        self._running: set[_OpenAIRun] = set()
        self._make_conversation = Conversation
        self.traits = ServerTraits(settings.structured)

    async def start(self, request: AgentRequest) -> _OpenAIRun:
        """Starts the conversation of one agent.

        Raises:
            WorkflowError: no model is known, OpenAI's own server is to be asked without a key, an option has a
                senseless value, or the run was aborted already.
        """
        if request.signal.aborted:
            raise WorkflowError(ErrorCode.CANCELLED, f"the run was aborted: {request.signal.reason}")
        run = _OpenAIRun(self._make_conversation(self, request), request.signal)
        self._running.add(run)
        run.task.add_done_callback(lambda _task: self._running.discard(run))
        return run

    @property
    def stats(self) -> OpenAIStats:
        """The counters as they are now."""
        with self._lock:
            counts: dict[str, Any] = {name: self._counts[name] for name in self._counts}
            return OpenAIStats(**counts, retry_seconds=self._retry_seconds, active=len(self._running))

    async def aclose(self) -> None:
        """Ends the agents that still run in this loop, and with them the connections."""
        loop = asyncio.get_running_loop()
        for run in [run for run in self._running if run.task.get_loop() is loop]:
            await run.dispose()

    # --- for the conversations ---

    def count(self, name: str, number: int = 1) -> None:
        """Adds to a counter of `OpenAIStats`; agents may run in loops of several threads."""
        with self._lock:
            self._counts[name] += number

    def wait_before_retry(self, retry: int, asked: float | None) -> float:
        """Seconds before retry number ``retry``: exponential, or what the server asked for; never the same for all."""
        settings = self.settings
        wait = min(settings.max_retry_delay, settings.retry_delay * 2.0 ** min(retry - 1, 32))
        wait *= 0.5 + self.random.random() / 2
        if asked is not None:  # waiting less is refused again; a little more keeps the agents from coming all at once
            wait = max(wait, asked * (1 + self.random.random() / 4))
        wait = min(wait, settings.max_retry_delay)
        with self._lock:
            self._retry_seconds += wait
        return wait

    @contextlib.asynccontextmanager
    async def client(self, base_url: str, key: str) -> AsyncGenerator[AsyncOpenAI]:
        """The loop's client. Its connections are shared while agents run, and closed with the last of them."""
        loop = asyncio.get_running_loop()
        shared = self._clients.get(loop)
        if shared is None or shared.asks != (base_url, key):  # the environment has changed
            client = _make_client(self.settings, base_url, key)
            shared = self._clients[loop] = _SharedClient(client, (base_url, key))
        shared.users += 1
        try:
            yield shared.client
        finally:
            shared.users -= 1
            if shared.users == 0:
                if self._clients.get(loop) is shared:
                    del self._clients[loop]
                await shared.client.close()


class _SharedClient:
    def __init__(self, client: AsyncOpenAI, asks: tuple[str, str]) -> None:
        self.client = client
        self.asks = asks
        self.users = 0


class _OpenAIRun:
    """The task of one conversation."""

    def __init__(self, conversation: Conversation, signal: AbortSignal) -> None:
        self.id = f"openai-{next(_child_numbers)}"
        loop = asyncio.get_running_loop()
        self._signal = signal
        self._stopped = False
        self.task = loop.create_task(conversation.run(), name=self.id)
        # An abort may come from any thread.
        self._remove_listener = signal.add_listener(lambda _reason: loop.call_soon_threadsafe(self._stop))

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._result()

    async def _result(self) -> AgentResult:
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if not self.task.cancelled():
                raise
            return AgentResult(stop_reason="cancelled", error=f"aborted: {self._signal.reason or 'disposed'}")

    async def dispose(self) -> None:
        """Closes the agent's connection and waits until it is closed."""
        self._remove_listener()
        self._stop()
        await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.exception()  # whoever awaited the result has seen it

    def _stop(self) -> None:
        """Cancels once: another cancel would interrupt the closing of the connection that the first one began."""
        if not self._stopped:
            self._stopped = True
            self.task.cancel()


def _require_sdk() -> None:
    try:
        importlib.import_module("openai.resources.chat")  # with what the SDK would import for its first request
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        raise ModuleNotFoundError(
            "the OpenAI SDK is missing: pip install 'workflow-orchestrator[openai]'", name="openai"
        ) from None


def _make_client(settings: OpenAISettings, base_url: str, key: str) -> AsyncOpenAI:
    import openai

    return openai.AsyncOpenAI(
        api_key=key or "none",  # the SDK insists on one; without a key the header is left out of the requests
        base_url=base_url,
        timeout=openai.Timeout(settings.timeout, connect=CONNECT_TIMEOUT, pool=None),
        max_retries=0,  # counted here, and with a wait that an abort ends
        default_headers=settings.headers,
    )
