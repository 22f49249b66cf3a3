"""The model-facing ``workflow`` tool: starts a run, waits for it, and leaves nothing behind.

Guarantees: the run is disposed on every path before the call returns, so script and children are at rest; any stop
reason but ``completed`` is an error that names it, never partial output; what is recorded in the calling agent's
session is empty or a legal prefix; the progress state of the call is freed when it returns.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast

import msgspec

from orchestrator.engine import WorkflowStartRequest
from orchestrator.sessions.log import SessionLog
from orchestrator.sessions.recorder import WorkflowRecorder
from orchestrator.sessions.text import error_text, one_line, replace_lone_surrogates
from orchestrator.tool.authoring import DESCRIPTION, PARAMETERS, prompt_section
from orchestrator.tool.events import ToolCard, ToolResult, ToolResultCard
from orchestrator.tool.progress import EventSource, ProgressCapture, ProgressRouter
from orchestrator.tool.registry import Execution, ToolDefinition, ToolError, ToolOutput
from orchestrator.tool.titles import header_name
from protocol.events import RunId, StopReason, WorkflowMeta, WorkflowRunInfo

__all__ = [
    "EngineLike",
    "ResultLike",
    "RunLike",
    "WorkflowPresenter",
    "WorkflowTool",
    "read_arguments",
    "render_success",
]

_log = logging.getLogger(__name__)

MAX_TITLE = 200
RESULT_AFTER_DISPOSE = 1.0
"""Seconds to wait for the result of a disposed run; it is there already unless the engine is broken."""


class ResultLike(Protocol):
    """What the tool reads of a `WorkflowResult`."""

    @property
    def value(self) -> Any: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def error(self) -> str | None: ...
    @property
    def agents_started(self) -> int: ...


class RunLike(Protocol):
    """What the tool needs of a `WorkflowRun`."""

    @property
    def id(self) -> RunId: ...
    @property
    def meta(self) -> WorkflowMeta: ...
    @property
    def result(self) -> Awaitable[ResultLike]: ...
    def cancel(self, reason: str | None = None) -> None: ...
    async def dispose(self) -> None: ...


class EngineLike(Protocol):
    """What the tool needs of a `WorkflowEngine`."""

    @property
    def events(self) -> EventSource: ...
    async def start(self, request: WorkflowStartRequest, /) -> RunLike: ...


class WorkflowPresenter:
    """A generic card titled ``workflow: <meta.name>`` with the script as raw input, also on malformed arguments."""

    def present_call(self, arguments: object) -> ToolCard:
        script = _field(arguments, "script")
        name = _field(_field(arguments, "meta"), "name")
        if name is None and isinstance(script, str):
            name = header_name(script)
        shown = one_line(replace_lone_surrogates(name), MAX_TITLE) if isinstance(name, str) else ""
        # Without a script there is nothing better to show than what was sent.
        raw = script if isinstance(script, str) else arguments
        return ToolCard(title=f"workflow: {shown or '(unnamed)'}", raw_input=raw)

    def present_result(self, arguments: object, result: ToolResult) -> ToolResultCard:
        return ToolResultCard()


class WorkflowTool:
    """The tool over an engine. Register `definition`, or call `execute` from a registry of your own.

    Args:
        engine: runs the scripts.
        tool_name: what the model calls it.
        max_result_chars: where the text shown to the model is cut; the canonical value never is.
        subagent_provider: the agent provider of every run; the holder's policy, invisible to scripts.
        max_total_agents: a lower cap on the agents of every run.

    Raises:
        ValueError: a senseless setting.
    """

    def __init__(
        self,
        engine: EngineLike,
        tool_name: str = "workflow",
        max_result_chars: int = 50_000,
        *,
        subagent_provider: str | None = None,
        max_total_agents: int | None = None,
    ) -> None:
        if type(max_result_chars) is not int or max_result_chars < 1:
            raise ValueError(f"max_result_chars must be a whole number of at least 1, not {max_result_chars!r}")
        self._engine = engine
        self._max_result_chars = max_result_chars
        self._subagent_provider = subagent_provider
        self._max_total_agents = max_total_agents
        self.progress = ProgressRouter(engine.events)
        """The live progress of the calls at work."""
        self.definition = ToolDefinition(
            name=tool_name,
            description=DESCRIPTION,
            parameters=PARAMETERS,
            execute=self.execute,
            presenter=WorkflowPresenter(),
            prompt=prompt_section(tool_name),
        )

    async def execute(self, arguments: Mapping[str, Any], execution: Execution) -> ToolOutput:
        """Runs one workflow to its end.

        Raises:
            ToolError, WorkflowError: the run was refused, failed or was cancelled; the message is for the model.
        """
        if execution.agent is None:
            raise ToolError("workflow tool requires a calling agent (exec.agent was undefined)")
        fields = read_arguments(arguments)
        signal = execution.signal
        if signal.aborted:
            raise _failure("cancelled", f"workflow run cancelled: {signal.reason}")
        request = WorkflowStartRequest(
            script=fields["script"],
            meta=fields.get("meta"),
            parent=execution.agent,
            signal=signal,
            subagent_provider=self._subagent_provider,
            max_total_agents=self._max_total_agents,
            **({"args": fields["args"]} if "args" in fields else {}),
        )
        capture = self.progress.capture()
        try:
            run = await self._engine.start(request)
            return await self._follow(run, execution, capture)
        finally:
            capture.close()

    def close(self) -> None:
        """Frees the progress state of all calls; they go on without progress. Idempotent."""
        self.progress.close()

    async def _follow(self, run: RunLike, execution: Execution, capture: ProgressCapture) -> ToolOutput:
        recorder = WorkflowRecorder(_session_of(execution), WorkflowRunInfo(run.id, run.meta))
        unlink = _nothing
        result: ResultLike | None = None
        try:
            unlink = execution.signal.add_listener(_canceller(run))
            recorder.start()
            capture.bind(run.id, run.meta.name, execution.report_progress, recorder.feed)
            result = await run.result
        except asyncio.CancelledError:
            run.cancel("the tool call was cancelled")
            raise
        finally:
            unlink()
            await _complete(_settle(run, result, recorder))
        assert result is not None  # else the cancellation was raised again
        return self._output(run, result)

    def _output(self, run: RunLike, result: ResultLike) -> ToolOutput:
        if result.stop_reason != "completed":
            raise _failure(result.stop_reason, result.error, result)
        value = {"runId": run.id, "agentsStarted": result.agents_started, "result": result.value}
        text = render_success(run.meta.name, result.agents_started, result.value, self._max_result_chars)
        return ToolOutput(value=value, text=text, details=result)


def render_success(name: str, agents_started: int, value: Any, max_chars: int) -> str:
    """The text of a completed run, as the model is shown it."""
    shown = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if len(shown) > max_chars:
        shown = f"{shown[:max_chars]}\n… [truncated: {len(shown) - max_chars} more characters]"
    agents = f"{agents_started} agent{'' if agents_started == 1 else 's'}"
    return f'workflow "{name}" completed ({agents}).\nReturn value:\n{shown}'


def _failure(stop_reason: str, error: str | None, details: Any = None) -> ToolError:
    match stop_reason:
        case "cancelled":
            text = "workflow run was cancelled" + (f" ({error})" if error else "")
        case "error":
            text = f"workflow run failed: {error or 'unknown error'}"
        case _:
            text = f"workflow run ended abnormally ({stop_reason})"
    return ToolError(text, details)


def read_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that were given, with ``args`` as an object.

    Raises:
        ToolError: they are none the tool takes; the message says what to send.
    """
    unknown = [str(name) for name in arguments if name not in ("script", "meta", "args")]
    if unknown:
        names = ", ".join(repr(one_line(name, 40)) for name in unknown[:10])
        raise ToolError(f"the workflow tool has no parameter {names}; it takes script, meta and args")
    script = arguments.get("script")
    if not isinstance(script, str):
        raise ToolError(
            "workflow script must be a string: the JavaScript body, ending in `return <json value>`"
            if script is None
            else f"workflow script must be a string, not {_json_type(script)}"
        )
    # A model that has nothing to say about an optional parameter often sends null.
    fields = {name: value for name, value in arguments.items() if value is not None}
    if "args" in fields:
        fields["args"] = _object(fields["args"])
    return fields


def _object(args: object) -> dict[str, Any]:
    if isinstance(args, str):
        try:
            held: object = json.loads(args)
        except (ValueError, RecursionError):
            raise ToolError(
                'workflow args must be a JSON object, such as {"files": ["a.py"]}; the string that was sent does not '
                "hold one: send the object itself"
            ) from None
        if not isinstance(held, dict):
            raise _not_an_object(f"a string that holds {_json_type(held)}")
        return cast("dict[str, Any]", held)
    if not isinstance(args, Mapping):
        raise _not_an_object(_json_type(args))
    return dict(cast("Mapping[str, Any]", args))


def _not_an_object(what: str) -> ToolError:
    return ToolError(
        f'workflow args must be a JSON object, not {what}: put it into a field, such as {{"items": …}}, and read it as '
        "args.items"
    )


def _field(holder: object, name: str) -> object:
    return cast("Mapping[Any, Any]", holder).get(name) if isinstance(holder, Mapping) else None


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, (list, tuple)) else "an object"


def _session_of(execution: Execution) -> SessionLog | None:
    """Where a top-level call is recorded: the calling agent's session. Nested calls write nothing."""
    session = None if execution.parent is not None else getattr(execution.agent, "session", None)
    return session if callable(getattr(session, "append", None)) else None


async def _settle(run: RunLike, result: ResultLike | None, recorder: WorkflowRecorder) -> None:
    """Brings the run to rest, whatever happens, and then writes the last record."""
    try:
        await run.dispose()
        if result is None:  # the waiting task was cancelled; a disposed run has its result
            async with asyncio.timeout(RESULT_AFTER_DISPOSE):
                result = await run.result
        recorder.finish(cast("StopReason", result.stop_reason))
    except Exception as error:
        _log.warning("run %s did not come to rest: %s", run.id, error_text(error))
    finally:
        recorder.abandon()


def _canceller(run: RunLike) -> Callable[[str], None]:
    """Bridges the call's signal to the run, from whichever thread aborts it."""
    loop = asyncio.get_running_loop()

    def cancel(reason: str) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            run.cancel(reason)
        else:
            loop.call_soon_threadsafe(run.cancel, reason)

    return cancel


def _nothing() -> None:
    """The remover of no listener."""


async def _complete(work: Awaitable[None]) -> None:
    """Awaits ``work`` to its end although the waiting task is cancelled meanwhile; the cancellation then follows."""
    waiter = asyncio.current_task()
    assert waiter is not None
    asked_before = waiter.cancelling()
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            # The work itself may have been cancelled: then nobody asked this task to stop.
            if waiter.cancelling() > asked_before:
                cancelled = error
    if cancelled is not None:
        raise cancelled
