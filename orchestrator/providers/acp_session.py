"""One session of an Agent Client Protocol agent: its settings, its turns, and what it may do.

Guarantees: what an agent says is kept up to ``max_output`` and nothing else is kept; permission requests are answered
at once by the policy, and as cancelled once the turn is; a model, a mode or an effort the agent does not offer is an
error that lists what it offers.

Needs the extra ``acp``; import it only where that is known to be installed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import acp
import msgspec
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from acp.schema import NewSessionRequest, PromptRequest, TextContentBlock

from orchestrator.agents import Usage
from orchestrator.providers.acp_process import AgentError, AgentProcess, error_text, one_line
from orchestrator.providers.acp_settings import AcpSettings, AnswerText, PermissionPolicy
from orchestrator.providers.json_answer import replace_lone_surrogates

__all__ = ["AcpSession", "Turn", "permission_answer"]

CLOSE_GRACE = 1.0
"""How long an agent may take to close a session; nobody depends on it."""
OFFERS_SHOWN = 12
SET_MODEL = "session/set_model"
"""What agents have that list ``models``, from before the protocol had configuration options."""

_GRANTS: Mapping[PermissionPolicy, tuple[str, ...]] = {
    "allow": ("allow_once", "allow_always"),
    "refuse": ("reject_once", "reject_always"),
}


class Turn(msgspec.Struct, frozen=True):
    """The end of one prompt: what was said, why it ended (the protocol's word), and the tokens where reported."""

    text: str
    stop_reason: str
    usage: Usage | None


class _Option(msgspec.Struct, frozen=True):
    """Something an agent lets its client choose."""

    method: str
    params: dict[str, Any]
    key: str
    offers: tuple[tuple[str, str], ...]
    """Value and display name of each."""


class AcpSession:
    """A session that is open. Made by `open`.

    Args:
        process: where it is.
        session_id: its id there.
    """

    def __init__(self, process: AgentProcess, session_id: str) -> None:
        self._process = process
        self._id = session_id
        self._said = _Said(process.settings.answer, process.settings.max_output)
        self._turn: asyncio.Task[dict[str, Any]] | None = None
        self._stopping = False
        self._too_much: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.refused = 0
        """Permission requests that were not granted."""
        self.on_update: Callable[[], None] = lambda: None
        """Called at every sign of life."""
        process.listen(session_id, self._on_message)

    @classmethod
    async def open(
        cls, process: AgentProcess, *, model: str | None, mode: str | None, effort: str | None
    ) -> AcpSession:
        """Opens a session and sets what was chosen for it, within ``start_timeout``.

        Raises:
            AgentError: the agent opens none, or does not offer what was chosen.
        """
        settings = process.settings
        timeout = asyncio.timeout(settings.start_timeout)
        try:
            async with timeout:
                return await cls._open(process, settings, {"model": model, "mode": mode, "effort": effort})
        except TimeoutError:
            raise AgentError(
                f"{process.name} opened no session within {settings.start_timeout:g} s (start_timeout)"
            ) from None

    @classmethod
    async def _open(cls, process: AgentProcess, settings: AcpSettings, chosen: Mapping[str, str | None]) -> AcpSession:
        request = NewSessionRequest(cwd=_working_directory(settings), mcp_servers=[])
        try:
            answer = await process.request(AGENT_METHODS["session_new"], _dump(request))
        except acp.RequestError as error:
            raise AgentError(process.refusal(error)) from None
        session_id: object = answer.get("sessionId")
        if not isinstance(session_id, str) or not session_id:
            raise AgentError(f"{process.name} does not answer `session/new` as the Agent Client Protocol asks")
        session = cls(process, session_id)
        try:
            for what, wanted in chosen.items():
                if wanted is not None:
                    answer = await session._choose(what, wanted, answer)
        except BaseException:
            process.forget(session_id)
            raise
        return session

    async def prompt(self, text: str) -> Turn:
        """Sends a prompt and waits for the end of the turn. A caller that is cancelled must call `stop`.

        Raises:
            AgentError: the agent refused it, said too much, or is gone.
        """
        self._said.clear()
        request = PromptRequest(
            session_id=self._id, prompt=[TextContentBlock(type="text", text=replace_lone_surrogates(text))]
        )
        turn = asyncio.get_running_loop().create_task(
            self._process.request(AGENT_METHODS["session_prompt"], _dump(request)), name=f"acp turn of {self._id}"
        )
        turn.add_done_callback(_retrieve)
        self._turn = turn
        await asyncio.wait({turn, self._too_much}, return_when=asyncio.FIRST_COMPLETED)
        if self._too_much.done():
            limit = self._process.settings.max_output
            raise AgentError(f"{self._process.name} answered with more than {limit} characters (max_output)")
        try:
            answer = turn.result()
        except acp.RequestError as error:
            raise AgentError(f"{self._process.name} failed: {error_text(error)}") from None
        stop_reason: object = answer.get("stopReason")
        if not isinstance(stop_reason, str):
            raise AgentError(f"{self._process.name} does not answer `session/prompt` as the Agent Client Protocol asks")
        return Turn(self._said.text(), stop_reason, _usage(answer))

    async def stop(self) -> bool:
        """Cancels the turn at work, if any. Tells whether the agent is at rest: no answer within the grace is no."""
        turn = self._turn
        if turn is None or turn.done():
            return True
        self._stopping = True
        await self._process.notify(AGENT_METHODS["session_cancel"], {"sessionId": self._id})
        await asyncio.wait({turn}, timeout=self._process.settings.cancel_grace)
        return turn.done()

    async def close(self) -> None:
        """Closes the session where the agent can do that."""
        self._process.forget(self._id)
        if self._process.closes_sessions and self._process.usable:
            try:
                async with asyncio.timeout(CLOSE_GRACE):
                    await self._process.request(AGENT_METHODS["session_close"], {"sessionId": self._id})
            except (AgentError, acp.RequestError, TimeoutError):
                return

    # --- what the agent sends ---

    def _on_message(self, method: str, params: dict[str, Any]) -> Any:
        if method == CLIENT_METHODS["session_request_permission"]:
            self.on_update()
            policy = None if self._stopping else self._process.settings.permissions
            granted, answer = permission_answer(params.get("options"), policy)
            self.refused += not granted
            return answer
        update: object = params.get("update")
        if method == CLIENT_METHODS["session_update"] and isinstance(update, dict):
            self.on_update()
            if not self._said.add(cast("dict[str, Any]", update)) and not self._too_much.done():
                self._too_much.set_result(None)
        return None

    # --- choices ---

    async def _choose(self, what: str, wanted: str, session: dict[str, Any]) -> dict[str, Any]:
        """Sets one of model, mode and effort; returns what the session offers after that."""
        name = self._process.name
        option = _OPTIONS[what](session)
        if option is None:
            raise AgentError(f"{name} offers no choice of {_NAMES[what]}; call it without {_SETTINGS[what]}")
        folded = wanted.casefold()
        value = next((value for value, _ in option.offers if value == wanted), None) or next(
            (value for value, label in option.offers if folded in (value.casefold(), label.casefold())), None
        )
        if value is None:
            offers = ", ".join(one_line(value, 60) for value, _ in option.offers[:OFFERS_SHOWN])
            more = ", …" if len(option.offers) > OFFERS_SHOWN else ""
            raise AgentError(
                f"{name} has no {_NAMES[what]} {one_line(wanted, 60)!r} ({_SETTINGS[what]}); it offers: {offers}{more}"
            )
        try:
            answer = await self._process.request(
                option.method, {"sessionId": self._id, **option.params, option.key: value}
            )
        except acp.RequestError as error:
            raise AgentError(f"{name} does not take the {_NAMES[what]} {value!r}: {error_text(error)}") from None
        # Choosing a model may change which efforts there are.
        return {**session, "configOptions": answer["configOptions"]} if "configOptions" in answer else session


class _Said:
    """The agent's words of one turn."""

    def __init__(self, wanted: AnswerText, limit: int) -> None:
        self._all = wanted == "all"
        self._limit = limit
        self._messages: list[list[str]] = [[]]
        self._length = 0
        self._message_id: object = None

    def clear(self) -> None:
        self._messages = [[]]
        self._length = 0
        self._message_id = None

    def add(self, update: dict[str, Any]) -> bool:
        """Takes an update; ``False`` when that was too much."""
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": str(text)}}:
                message_id: object = update.get("messageId")
                if message_id is not None and self._message_id is not None and message_id != self._message_id:
                    self._next_message()
                self._message_id = message_id
                self._length += len(text)
                if self._length > self._limit:
                    return False
                self._messages[-1].append(text)
            case {"sessionUpdate": "tool_call"}:
                self._next_message()
            case _:
                pass
        return True

    def text(self) -> str:
        """The answer. Emoji that an agent cut in half between two chunks are whole again."""
        texts = ["".join(message) for message in self._messages]
        texts = [_well_formed(text) for text in texts if text.strip()]
        return "\n\n".join(texts) if self._all else texts[-1] if texts else ""

    def _next_message(self) -> None:
        if not "".join(self._messages[-1]).strip():
            return
        if not self._all:
            self._messages = self._messages[-1:]  # kept in case it was the last
        self._messages.append([])


def permission_answer(options: object, policy: PermissionPolicy | None) -> tuple[bool, dict[str, Any]]:
    """Whether a permission request was granted, and the answer to it.

    Args:
        options: what the agent lets its user choose from.
        policy: what to do; ``None`` when the turn was cancelled.
    """
    if policy is not None and isinstance(options, list):
        for kind in _GRANTS[policy]:
            for option in cast("list[Any]", options):
                match option:
                    case {"kind": str(found), "optionId": str(chosen)} if found == kind:
                        return policy == "allow", {"outcome": {"outcome": "selected", "optionId": chosen}}
                    case _:
                        pass
    return False, {"outcome": {"outcome": "cancelled"}}


# --- what a session offers ---


def _model_option(session: dict[str, Any]) -> _Option | None:
    option = _config_option(session, "model")
    if option is not None:
        return option
    offers = _offers(session.get("models"), "availableModels", "modelId")
    return _Option(SET_MODEL, {}, "modelId", offers) if offers else None


def _mode_option(session: dict[str, Any]) -> _Option | None:
    offers = _offers(session.get("modes"), "availableModes", "id")
    if offers:
        return _Option(AGENT_METHODS["session_set_mode"], {}, "modeId", offers)
    return _config_option(session, "mode")


def _effort_option(session: dict[str, Any]) -> _Option | None:
    return _config_option(session, "thought_level")


_OPTIONS: Mapping[str, Callable[[dict[str, Any]], _Option | None]] = {
    "model": _model_option,
    "mode": _mode_option,
    "effort": _effort_option,
}
_NAMES = {"model": "model", "mode": "session mode", "effort": "effort"}
_SETTINGS = {"model": "model", "mode": "agentType", "effort": "effort"}


def _config_option(session: dict[str, Any], category: str) -> _Option | None:
    for option in _dicts(session.get("configOptions")):
        if option.get("category") == category and isinstance(option.get("id"), str):
            found: list[tuple[str, str]] = []
            for choice in _dicts(option.get("options")):
                group = _dicts(choice.get("options"))  # choices may come in groups
                found += _pairs(group or [choice], "value")
            if found:
                method = AGENT_METHODS["session_set_config_option"]
                return _Option(method, {"configId": option["id"]}, "value", tuple(found))
    return None


def _offers(state: object, listing: str, key: str) -> tuple[tuple[str, str], ...]:
    return tuple(_pairs(_dicts(cast("dict[str, Any]", state).get(listing)), key)) if isinstance(state, dict) else ()


def _pairs(choices: Iterable[dict[str, Any]], key: str) -> list[tuple[str, str]]:
    return [
        (choice[key], name if isinstance(name := choice.get("name"), str) else choice[key])
        for choice in choices
        if isinstance(choice.get(key), str)
    ]


def _dicts(value: object) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


# --- messages ---


def _usage(answer: dict[str, Any]) -> Usage | None:
    """The tokens of a turn: the protocol's own field, or where Gemini CLI puts them."""
    match answer:
        case {"usage": {"inputTokens": int(given), "outputTokens": int(produced)}}:
            pass
        case {"_meta": {"quota": {"token_count": {"input_tokens": int(given), "output_tokens": int(produced)}}}}:
            pass
        case _:
            return None
    if given < 0 or produced < 0 or given + produced == 0:  # an agent whose model told it nothing says nothing
        return None
    return Usage(input_tokens=given, output_tokens=produced)


def _working_directory(settings: AcpSettings) -> str:
    return os.path.abspath(settings.cwd or os.getcwd())


def _well_formed(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _dump(request: NewSessionRequest | PromptRequest) -> dict[str, Any]:
    return request.model_dump(mode="json", by_alias=True, exclude_none=True)


def _retrieve(task: asyncio.Task[dict[str, Any]]) -> None:
    """An abandoned turn may fail: nobody is to be told."""
    if not task.cancelled():
        task.exception()
