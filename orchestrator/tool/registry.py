"""A tool registry small enough to be adopted by a host that has its own.

Guarantees of `ToolRegistry.call`: it answers with a `ToolResult` whatever the tool does, an exception becomes
``Error: …``; only the cancellation of the calling task passes through, after the call was settled. Each identity sees
``tools/call`` first and ``tools/result`` last, once; ``tools/progress`` only in between: once the handling of the
final result has begun, `ToolExecution.report_progress` returns ``False`` and dispatches nothing. Observers change
nothing.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

import msgspec

from orchestrator.sessions.text import error_text
from orchestrator.signals import AbortController, AbortSignal
from orchestrator.tool.events import (
    ContentBlock,
    ProgressView,
    TextContent,
    ToolCallIdentity,
    ToolCallStarted,
    ToolCard,
    ToolProgressed,
    ToolResult,
    ToolResultCard,
    ToolSettled,
    copy_view,
)
from orchestrator.tool.listeners import ToolEvents
from protocol.errors import WorkflowError

__all__ = [
    "Execution",
    "GenericPresenter",
    "PromptSection",
    "ToolDefinition",
    "ToolError",
    "ToolExecution",
    "ToolOutput",
    "ToolPresenter",
    "ToolRegistry",
]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every model provider accepts as the name of a tool."""

CLOSE_GRACE = 10.0
"""Seconds a closing session waits for its calls: twice the engine's default grace for agents that ignore the abort."""


class ToolError(Exception):
    """A tool refused or failed in a way the model can act on: its message becomes ``Error: <message>``.

    Args:
        message: what happened and what to do.
        details: facts for the host, carried by `ToolResult.details`.
    """

    def __init__(self, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.details = details


class ToolOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A success: the canonical ``value``, and the ``text`` or ``content`` the model is shown."""

    value: Any = None
    text: str | None = None
    content: tuple[ContentBlock, ...] = ()
    details: Any = None


class PromptSection(msgspec.Struct, frozen=True):
    """Guidance that belongs in the system prompt while the tool is available."""

    name: str
    text: str


class ToolPresenter(Protocol):
    """Shows a call. Both are pure functions of what they are given, which may be malformed: never raise for that."""

    def present_call(self, arguments: object) -> ToolCard:
        """The card of a pending call."""
        ...

    def present_result(self, arguments: object, result: ToolResult) -> ToolResultCard:
        """The card of a settled call."""
        ...


class GenericPresenter:
    """The name of the tool, and its arguments as they came."""

    def __init__(self, title: str) -> None:
        self._title = title

    def present_call(self, arguments: object) -> ToolCard:
        return ToolCard(title=self._title, raw_input=arguments)

    def present_result(self, arguments: object, result: ToolResult) -> ToolResultCard:
        return ToolResultCard()


class Execution(Protocol):
    """What a tool needs of a call. A host with a registry of its own passes its own object."""

    @property
    def signal(self) -> AbortSignal:
        """Aborts when the call is no longer wanted."""
        ...

    @property
    def agent(self) -> Any:
        """The agent that called, ``None`` when there is none."""
        ...

    @property
    def parent(self) -> Any:
        """The execution inside which this one runs, ``None`` for a top-level call."""
        ...

    def report_progress(self, view: ProgressView) -> bool:
        """Shows a snapshot. ``False`` when the call no longer takes any."""
        ...


ExecuteFunction = Callable[[Mapping[str, Any], Any], Awaitable[Any]]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """One tool.

    Args:
        name: 1 to 64 letters, digits, ``_`` and ``-``.
        description: what the model reads.
        parameters: the JSON Schema of the arguments.
        execute: ``await execute(arguments, execution)``. It returns a `ToolOutput`, a text, or any JSON value, and
            raises `ToolError` for what the model can correct.
        presenter: shows its calls; ``None`` shows the name and the arguments.
        prompt: its section of the system prompt.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    execute: ExecuteFunction
    presenter: ToolPresenter | None = None
    prompt: PromptSection | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a tool's name is 1 to 64 letters, digits, _ and -, not {self.name!r}")


class ToolExecution:
    """One call at work. Made by the registry."""

    def __init__(
        self,
        identity: ToolCallIdentity,
        signal: AbortSignal,
        agent: Any,
        parent: ToolExecution | None,
        events: ToolEvents,
    ) -> None:
        self.identity = identity
        self.signal = signal
        self.agent = agent
        self.parent = parent
        self._events = events
        self._active = True

    @property
    def session_id(self) -> str:
        """The session the call belongs to."""
        return self.identity.session_id

    @property
    def call_id(self) -> str:
        """The call's id, unique in its session."""
        return self.identity.call_id

    @property
    def active(self) -> bool:
        """Whether progress is still taken."""
        return self._active

    def report_progress(self, view: ProgressView | Mapping[str, Any]) -> bool:
        """Dispatches a copy of ``view`` as ``tools/progress``. Call it in the event loop of the call.

        Returns:
            ``True`` when it was dispatched, ``False`` (and nothing happens) once the final result is being handled.

        Raises:
            ValueError: an active call reported something that is no view.
        """
        if not self._active:
            return False
        copied = copy_view(view)
        self._events.emit(ToolProgressed(identity=self.identity, parent=self.parent_identity, view=copied))
        return True

    @property
    def parent_identity(self) -> ToolCallIdentity | None:
        """The identity of the parent, where there is one."""
        return None if self.parent is None else self.parent.identity

    def end_progress(self) -> None:
        """From here on `report_progress` returns ``False``. Idempotent."""
        self._active = False

    def __repr__(self) -> str:
        who = self.identity
        return f"<ToolExecution {who.tool} {who.session_id}/{who.call_id} {'active' if self._active else 'settled'}>"


class _Call:
    """One running call, for those who close sessions."""

    def __init__(self, execution: ToolExecution, controller: AbortController) -> None:
        self.execution = execution
        self.controller = controller
        self.done = asyncio.Event()


class ToolRegistry:
    """Tools by name, and the calls at work."""

    def __init__(self) -> None:
        self.events = ToolEvents()
        self._tools: dict[str, ToolDefinition] = {}
        self._calls: dict[tuple[str, str], _Call] = {}
        self._closed = False

    def register(self, definition: ToolDefinition) -> Callable[[], None]:
        """Adds a tool. Returns its remover (idempotent; calls at work go on).

        Raises:
            ValueError: a tool of that name exists.
        """
        if definition.name in self._tools:
            raise ValueError(f"a tool named {definition.name!r} is registered already: remove it first")
        self._tools[definition.name] = definition

        def remove() -> None:
            if self._tools.get(definition.name) is definition:
                del self._tools[definition.name]

        return remove

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The tools, in the order of their registration."""
        return tuple(self._tools.values())

    def schemas(self) -> list[dict[str, Any]]:
        """Name, description and parameters of each tool, ready to be sent to a model."""
        return [
            {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
            for tool in self._tools.values()
        ]

    def prompt_sections(self) -> tuple[PromptSection, ...]:
        """The system-prompt sections of the registered tools."""
        return tuple(tool.prompt for tool in self._tools.values() if tool.prompt is not None)

    @property
    def active(self) -> tuple[ToolExecution, ...]:
        """The calls at work."""
        return tuple(call.execution for call in self._calls.values())

    async def call(
        self,
        name: str,
        arguments: object,
        *,
        session_id: str,
        call_id: str,
        agent: Any = None,
        signal: AbortSignal | None = None,
        parent: ToolExecution | None = None,
    ) -> ToolResult:
        """Executes one call.

        Args:
            name: the tool.
            arguments: what the model sent; anything but a JSON object is an error result.
            session_id: the session it belongs to.
            call_id: its id, unique among the session's calls at work.
            agent: the calling agent.
            signal: aborts when the call is no longer wanted.
            parent: the execution inside which this call is made.
        """
        if self._closed:
            return _failure("the tool registry is closed")
        key = (session_id, call_id)
        if key in self._calls:
            return _failure(f"tool call {call_id!r} is at work in session {session_id!r}: give each call its own id")
        controller = AbortController()
        # Its own signal, so that closing a session can end the call without owning the caller's.
        unlink = signal.add_listener(controller.abort) if signal is not None else _nothing
        identity = ToolCallIdentity(session_id, call_id, name)
        execution = ToolExecution(identity, controller.signal, agent, parent, self.events)
        call = self._calls[key] = _Call(execution, controller)
        definition = self._tools.get(name)
        presenter = GenericPresenter(name) if definition is None else definition.presenter or GenericPresenter(name)
        try:
            card = _card(presenter, name, arguments)
            self.events.emit(ToolCallStarted(identity=identity, parent=execution.parent_identity, card=card))
            try:
                result = await self._execute(definition, name, arguments, execution)
            except asyncio.CancelledError:
                execution.end_progress()
                result = _failure(f"the call of {name} was cancelled")
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    self._settle(execution, presenter, arguments, result)
                    raise
                # Nobody cancelled this task: the tool awaited something that was cancelled on its own.
            execution.end_progress()
            self._settle(execution, presenter, arguments, result)
            return result
        finally:
            execution.end_progress()
            unlink()
            del self._calls[key]
            call.done.set()

    def cancel(self, session_id: str, call_id: str, reason: str = "cancelled") -> bool:
        """Aborts the signal of one call at work. ``False`` when there is none."""
        call = self._calls.get((session_id, call_id))
        if call is None:
            return False
        call.controller.abort(reason)
        return True

    async def close_session(
        self, session_id: str, reason: str = "session closed", *, grace: float = CLOSE_GRACE
    ) -> bool:
        """Aborts the session's calls and waits for them, at most ``grace`` seconds.

        Returns:
            Whether all are over. A call that is not has no more progress.
        """
        return await self._end([call for key, call in self._calls.items() if key[0] == session_id], reason, grace)

    async def aclose(self, *, grace: float = CLOSE_GRACE) -> bool:
        """Refuses new calls, aborts all at work and waits for them, at most ``grace`` seconds."""
        self._closed = True
        over = await self._end(list(self._calls.values()), "the tool registry is closing", grace)
        await self.events.aclose(grace)
        return over

    async def _end(self, calls: list[_Call], reason: str, grace: float) -> bool:
        for call in calls:
            call.controller.abort(reason)
        waiting = {asyncio.create_task(call.done.wait()) for call in calls}
        if not waiting:
            return True
        _done, late = await asyncio.wait(waiting, timeout=grace)
        for task in late:
            task.cancel()
        for call in calls:
            if not call.done.is_set():
                call.execution.end_progress()
                _log.warning("%r ignored the abort for %g s: %s", call.execution, grace, reason)
        return not late

    async def _execute(
        self, definition: ToolDefinition | None, name: str, arguments: object, execution: ToolExecution
    ) -> ToolResult:
        if definition is None:
            return _failure(f"there is no tool {name!r}; the tools are: {', '.join(self._tools) or 'none'}")
        if not isinstance(arguments, Mapping):
            return _failure(f"the arguments of {name} must be a JSON object, not {type(arguments).__name__}")
        try:
            return _normalise(await definition.execute(cast("Mapping[str, Any]", arguments), execution))
        except ToolError as error:
            return _failure(error_text(error), error.details)
        except WorkflowError as error:
            return _failure(error_text(error))
        except Exception as error:
            _log.warning("tool %s raised", name, exc_info=True)
            return _failure(error_text(error))

    def _settle(
        self, execution: ToolExecution, presenter: ToolPresenter, arguments: object, result: ToolResult
    ) -> None:
        try:
            card = presenter.present_result(arguments, result)
        except Exception:
            _log.exception("the presenter of %s raised", execution.identity.tool)
            card = ToolResultCard()
        self.events.emit(
            ToolSettled(identity=execution.identity, parent=execution.parent_identity, result=result, card=card)
        )


def _nothing() -> None:
    """The remover of no listener."""


def _card(presenter: ToolPresenter, name: str, arguments: object) -> ToolCard:
    try:
        return presenter.present_call(arguments)
    except Exception:
        _log.exception("the presenter of %s raised", name)
        return ToolCard(title=name, raw_input=arguments)


def _failure(message: str, details: Any = None) -> ToolResult:
    return ToolResult(content=(TextContent(f"Error: {message}"),), is_error=True, details=details)


def _normalise(output: object) -> ToolResult:
    if isinstance(output, ToolResult):
        return output
    if isinstance(output, ToolOutput):
        content = output.content if output.text is None else (TextContent(output.text), *output.content)
        return ToolResult(content=content, value=output.value, details=output.details)
    if isinstance(output, str):
        return ToolResult(content=(TextContent(output),), value=output)
    try:
        text = msgspec.json.encode(output).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"the tool returned something that is not JSON: {error}") from None
    return ToolResult(content=(TextContent(text),), value=output)
