"""One run: the only place that turns the lifecycle's instructions into asyncio work.

`RunDriver` owns the connection, the agents' tasks and the timers; `WorkflowRun` is what its holder gets. Events are
handled one at a time, in the order they came, also when carrying out an instruction causes the next one.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any, assert_never, cast

import msgspec

from orchestrator import lifecycle as lc
from orchestrator import lifecycle_events as ev
from orchestrator.agents import PASS_THROUGH_OPTIONS, AgentProvider, AgentRequest
from orchestrator.bus import Backlog, EventBus, EventStream
from orchestrator.child import Child
from orchestrator.config import EngineConfig
from orchestrator.connection import WorkerConnection
from orchestrator.jsonvalue import well_formed
from orchestrator.meta import validate_meta
from orchestrator.pool import WorkerPool
from orchestrator.results import WorkflowResult
from orchestrator.schemas import AgentSchema, compile_schema
from orchestrator.signals import ABORTED, AbortController, AbortSignal
from orchestrator.zygote_client import Worker
from protocol import messages as wire
from protocol.errors import ErrorCode, WorkflowError
from protocol.events import RunId, WorkflowEvent, WorkflowMeta, WorkflowRunInfo

__all__ = ["ResultAwaitable", "RunDriver", "WorkflowRun"]

_log = logging.getLogger(__name__)

_FRAME_FACTOR = 3  # the script's side counts UTF-16 units; UTF-8 needs up to three bytes for each
_FRAME_SLACK = 512 * 1024  # a message's own fields beside the value it carries
_HISTORY = 256  # events a late `WorkflowRun.events()` still sees
_STUCK_AFTER = 5.0  # seconds without progress after which a listener no longer slows the run down


class _Call(msgspec.Struct, frozen=True):
    """What the host keeps of an ``agent()`` call until its agent starts."""

    message: wire.AgentCalled
    label: str
    schema: AgentSchema | None
    provider: AgentProvider


class RunDriver:
    """Drives one lifecycle. Made by the engine, one per start."""

    def __init__(
        self,
        *,
        run_id: RunId,
        config: EngineConfig,
        bus: EventBus,
        pool: WorkerPool,
        worker: Worker,
        provider: AgentProvider,
        provider_name: str,
        find_provider: Callable[[str], AgentProvider | None],
        meta: WorkflowMeta | None,
        max_total_agents: int,
        parent: Any,
        signal: AbortSignal | None,
        explain_parse_error: Callable[[str], str],
        on_settled: Callable[[RunDriver], None],
    ) -> None:
        self._run_id = run_id
        self._config = config
        self._bus = bus
        self._pool = pool
        self._worker = worker
        self._provider = provider
        self._provider_name = provider_name
        self._find_provider = find_provider
        self._parent = parent
        self._signal = signal
        self._explain_parse_error = explain_parse_error
        self._on_settled = on_settled
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        limits = lc.RunLimits(
            agent_slots=config.agent_slots,
            max_total_agents=max_total_agents,
            run_timeout=config.run_timeout,
            dispose_grace=config.dispose_grace,
            sync_timeout=config.sync_timeout,
            cpu_limit=config.cpu_limit,
            memory_limit=config.memory_limit,
            base_memory=pool.ready.base_memory if pool.ready is not None else 0,
        )
        self.machine = lc.Lifecycle(limits, None if meta is None else WorkflowRunInfo(run_id, meta))
        self._inbox: collections.deque[ev.Event] = collections.deque()
        self._handling = False
        self._last: wire.WorkerMessage | None = None
        self._value: Any = None
        self._calls: dict[int, _Call] = {}
        self._children: dict[int, Child] = {}
        self._abort = AbortController()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._admission: asyncio.Future[WorkflowRunInfo] = self._loop.create_future()
        self.settled: asyncio.Future[WorkflowResult] = self._loop.create_future()
        self._history: collections.deque[WorkflowEvent] = collections.deque(maxlen=_HISTORY)
        self._streams: list[EventStream] = []
        self._drain_task: asyncio.Task[None] | None = None
        self._remove_signal_listener: Callable[[], None] = lambda: None
        self._connection = WorkerConnection(worker.connection, self, config.max_frame * _FRAME_FACTOR + _FRAME_SLACK)
        worker.on_exit = self._worker_exited

    # ---------------------------------------------------------------- start and end

    async def start(self, load: wire.Load) -> WorkflowRun:
        """Loads the script. Raises `WorkflowError` when there will be no run; then nothing is left behind."""
        self._connection.send(wire.encode(load))
        self._connection.resume()
        self._perform(ev.ArmDeadline("load", self.machine.limits.load_timeout))
        if self._worker.exited:
            self._worker_exited(self._worker.report)
        try:
            if self._signal is not None:
                self._remove_signal_listener = self._signal.add_listener(self._signal_aborted)
            info = await self._admission
        except BaseException:
            self._abandon()
            raise
        return WorkflowRun(self, info)

    def _abandon(self) -> None:
        """Nobody will get the run: it was refused, or the task that started it was cancelled."""
        self._remove_signal_listener()  # now: a run that is closing already has nothing to hear from it any more
        if self.machine.state is lc.RunState.LOADING:  # nothing was announced, and nothing will be
            self._release()
            self._pool.kill(self._worker)
            self.settled.cancel()
            self._on_settled(self)
        else:
            self.feed(ev.CancelRequested("the task that started the run was cancelled"))

    def cancel(self, reason: str | None) -> None:
        """From any thread; the first reason wins."""
        text = "workflow cancelled" if reason is None else well_formed(str(reason))
        if self._loop.is_closed():
            return  # nothing runs any more that could be cancelled
        if threading.get_ident() == self._thread:
            self.feed(ev.CancelRequested(text))
        else:
            with contextlib.suppress(RuntimeError):  # closed in this very moment
                self._loop.call_soon_threadsafe(self.feed, ev.CancelRequested(text))

    def _signal_aborted(self, reason: str) -> None:
        started = self.machine.state is not lc.RunState.LOADING
        text = "workflow signal aborted" if started else "workflow start signal already aborted"
        self.cancel(text if reason == ABORTED else f"{text}: {reason}")

    async def dispose(self) -> None:
        """Cancels, then waits until the result is there and the worker is gone, within the grace."""
        if self._loop.is_closed():
            return
        self.cancel("workflow disposed")
        await asyncio.shield(self.settled)
        if not self._worker.gone.done():
            await asyncio.wait({self._worker.gone}, timeout=max(1.0, self._config.dispose_grace))
        tasks = [child.task for child in self._children.values() if not child.task.done()]
        for task in tasks:
            _log.warning("an agent of run %s ignores its abort and still runs after dispose", self._run_id)
            task.add_done_callback(_consume)

    def events(self) -> EventStream:
        stream = EventStream(self._history, self._close_stream)
        self._streams.append(stream)
        return stream

    def _close_stream(self, stream: EventStream) -> None:
        if stream in self._streams:
            self._streams.remove(stream)

    def _release(self) -> None:
        """Gives back everything the run holds in the loop and on the caller's signal."""
        self._remove_signal_listener()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._connection.close()
        if self._drain_task is not None:
            self._drain_task.cancel()

    # ---------------------------------------------------------------- the one inlet

    def feed(self, event: ev.Event) -> None:
        """Hands an event to the machine and carries out what it says. Re-entrant calls wait their turn."""
        self._inbox.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._inbox:
                for instruction in self.machine.handle(self._inbox.popleft()):
                    self._perform(instruction)
        finally:
            self._handling = False

    def _perform(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.Emit(event=event):
                self._emit(event)
            case ev.Send(message=message):
                self._connection.send(wire.encode(message), more=len(self._children) > 1)
            case ev.StartAgent(seq=seq):
                self._start_child(seq)
            case ev.DisposeAgent(seq=seq):
                self._children[seq].dispose()
            case ev.AbortAgents(reason=reason):
                self._abort.abort(reason)
            case ev.KillWorker():
                self._connection.close()
                self._pool.kill(self._worker)
            case ev.ArmDeadline(kind=kind, seconds=seconds):
                self._timers[kind] = self._loop.call_later(seconds, self.feed, ev.DeadlinePassed(kind))
            case ev.Admit(info=info):
                if not self._admission.done():
                    self._admission.set_result(info)
            case ev.Refuse(code=code, message=message):
                self._release()
                self.settled.cancel()
                self._on_settled(self)
                if not self._admission.done():
                    self._admission.set_exception(WorkflowError(ErrorCode(code), message))
            case ev.Settle(outcome=outcome):
                self._settle(outcome)
            case _:
                assert_never(instruction)

    def _emit(self, event: WorkflowEvent) -> None:
        self._history.append(event)
        for stream in tuple(self._streams):
            stream.deliver(event)
        self._bus.emit(event)

    def _settle(self, outcome: ev.Outcome) -> None:
        self._release()
        if not self.settled.done():
            self.settled.set_result(self._result(outcome))
        self._on_settled(self)
        for child in self._children.values():
            child.give_up()

    def cut_off(self) -> WorkflowResult | None:
        """The result of a run whose event loop was closed under it: nothing can settle it any more."""
        if self.settled.done() or not self._loop.is_closed():
            return None
        text = "workflow run cancelled: its event loop was closed"
        return self._result(ev.Outcome("cancelled", error=text, code=ErrorCode.CANCELLED))

    def _result(self, outcome: ev.Outcome) -> WorkflowResult:
        machine = self.machine
        counts, phases = machine.counts, machine.phases
        return WorkflowResult(
            value=self._value if outcome.stop_reason == "completed" else None,
            stop_reason=outcome.stop_reason,
            error=outcome.error,
            code=outcome.code,
            agents_started=machine.agents_started,
            agents_completed=counts["completed"],
            agents_failed=counts["failed"],
            agents_cancelled=counts["cancelled"],
            failures=tuple(machine.failures),
            warnings=tuple(machine.warnings),
            input_tokens=sum(phase.input_tokens for phase in phases),
            output_tokens=machine.output_tokens,
            phases=phases,
        )

    # ---------------------------------------------------------------- the worker

    def frame_received(self, frame: bytes) -> None:
        """One message of the worker: decoded, checked, and handed on as an event."""
        try:
            message = wire.decode_worker_message(frame)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            self.feed(ev.BadMessage(f"a message that cannot be read ({_short(error)})"))
            return
        if self._last is None and not isinstance(message, wire.Ready):
            self.feed(ev.BadMessage("a message before ready"))
            return
        match message:
            case wire.LogCalled() | wire.PhaseCalled() | wire.ScriptFailed():
                self.feed(message)
            case wire.AgentCalled():
                self.feed(self._admit_call(message))
            case wire.ResultReturned():
                try:
                    self._value = msgspec.json.decode(message.value)
                except (msgspec.MsgspecError, RecursionError, ValueError) as error:
                    self.feed(ev.BadMessage(f"a result that cannot be read ({_short(error)})"))
                    return
                self.feed(message)
            case wire.Ready(walls=walls):
                self._check_walls(walls)
            case wire.Loaded(meta=meta):
                self.feed(self._loaded(meta))
            case wire.Rejected(code=code, message=text):
                explained = text + self._explain_parse_error(text) if code == ErrorCode.SCRIPT_PARSE else text
                known = code if code in (ErrorCode.SCRIPT_PARSE, ErrorCode.META_INVALID) else ErrorCode.PROTOCOL
                self.feed(ev.ScriptRefused(known, explained))
            case _:
                assert_never(message)
        self._last = message

    def frames_broken(self, reason: str) -> None:
        self.feed(ev.BadMessage(reason))

    def hung_up(self) -> None:
        self.feed(ev.HungUp(_describe(self._last)))

    def write_blocked(self, blocked: bool) -> None:
        self.feed(ev.WriteBlocked(blocked))

    def _worker_exited(self, report: wire.ExitReport | None) -> None:
        if self._worker.failure is not None:
            self.feed(ev.WorkerFailed(f"no worker could be started: {self._worker.failure}"))
        else:
            self.feed(ev.Exited(report))

    def _check_walls(self, walls: tuple[wire.WallReport, ...]) -> None:
        if self._last is not None:
            self.feed(ev.BadMessage("ready was sent twice"))
            return
        self._pool.walls = walls
        if self._config.sandbox == "required":
            down = [f"{wall.name} ({wall.detail or 'not available'})" for wall in walls if not wall.up]
            if down:
                lacks = ", ".join(down)
                text = f"sandbox='required', but this system lacks: {lacks}; use sandbox='auto' to run without"
                self.feed(ev.WorkerFailed(text))

    def _loaded(self, meta: msgspec.Raw | msgspec.UnsetType) -> ev.Event:
        if self.machine.info is not None:
            return ev.ScriptLoaded(self.machine.info)
        if meta is msgspec.UNSET:
            return ev.BadMessage("no meta came back for the header")
        try:
            return ev.ScriptLoaded(WorkflowRunInfo(self._run_id, validate_meta(msgspec.json.decode(meta))))
        except WorkflowError as error:
            return ev.ScriptRefused(error.code, error.message)
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return ev.BadMessage("a meta that cannot be read")

    def batch_received(self) -> None:
        """Reads no further while a listener is far behind; a listener that is stuck is not waited for."""
        if self._drain_task is not None or self.machine.state is not lc.RunState.RUNNING:
            return
        if self._backlogs():
            self._connection.pause()
            self._drain_task = self._loop.create_task(self._drain_listeners(), name="wait for event listeners")

    def _backlogs(self) -> list[Backlog]:
        mine: list[Backlog] = [stream for stream in self._streams if stream.congested_by(self._run_id)]
        return [*mine, *self._bus.backlogs(self._run_id)]

    async def _drain_listeners(self) -> None:
        try:
            idle = 0.0
            last = -1
            while backlogs := self._backlogs():
                behind = sum(len(backlog) for backlog in backlogs)
                idle = idle + 0.01 if behind >= last >= 0 else 0.0
                last = behind
                if idle >= _STUCK_AFTER:
                    for backlog in backlogs:
                        backlog.stuck = True
                    _log.warning(
                        "a workflow event listener is stuck and loses log and phase events until it catches up"
                    )
                    break
                await asyncio.sleep(0.01)
        finally:
            self._drain_task = None
        self._connection.resume()

    # ---------------------------------------------------------------- agents

    def _admit_call(self, call: wire.AgentCalled) -> ev.Event:
        """Checks what only the host can: provider, options, schema, budget."""
        provider, named = self._provider, self._provider_name
        if call.provider is not None and (chosen := self._find_provider(call.provider)) is not None:
            provider, named = chosen, call.provider
        options = call.options or {}
        supported = cast(tuple[str, ...], tuple(getattr(provider, "supported_options", ())))
        for name in options:
            if name not in PASS_THROUGH_OPTIONS:
                return ev.BadMessage(f"an agent call with the unknown option {name[:40]!r}")
            if name not in supported:
                known = ", ".join(("label, phase, schema, provider, model", *supported))
                text = f'agent() option "{name}" is not supported by the agent provider "{named}" (supported: {known})'
                return ev.CallRefused(call.seq, ErrorCode.UNSUPPORTED_OPTION, text)
        budget = self._config.token_budget
        if budget is not None and self.machine.output_tokens >= budget:
            spent = self.machine.output_tokens
            text = f"this run has spent {spent} of its {budget} output tokens; no further agent starts"
            return ev.CallRefused(call.seq, ErrorCode.BUDGET_EXCEEDED, text)
        schema = None
        if call.schema is not msgspec.UNSET:
            try:
                schema = compile_schema(bytes(call.schema))
            except WorkflowError as error:
                return ev.CallRefused(call.seq, error.code, error.message)
        label = call.label if call.label is not None else default_label(call.prompt)
        self._calls[call.seq] = _Call(call, label, schema, provider)
        return ev.CallAdmitted(call.seq, label, call.phase)

    def _start_child(self, seq: int) -> None:
        call = self._calls.pop(seq)
        assert self.machine.info is not None
        request = AgentRequest(
            prompt=call.message.prompt,
            seq=seq,
            label=call.label,
            run=self.machine.info,
            signal=self._abort.signal,
            schema=None if call.schema is None else call.schema.value,
            phase=call.message.phase,
            provider=call.message.provider,
            model=call.message.model,
            parent=self._parent,
            options=call.message.options or {},
        )
        self._children[seq] = Child(
            call.provider, request, call.schema, self.feed, self._child_gone, self._config.max_frame
        )

    def _child_gone(self, seq: int) -> None:
        self._children.pop(seq, None)


def default_label(prompt: str) -> str:
    """The prompt's first line, cut to 48 characters (as the reference labels a call)."""
    line = prompt.split("\n", 1)[0]
    return line if len(line) <= 48 else f"{line[:47]}…"


def _short(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200]


def _describe(message: wire.WorkerMessage | None) -> str:
    """The last thing a worker was seen to do, for the text of its death."""
    match message:
        case None:
            return "starting"
        case wire.Ready():
            return "reading the script"
        case wire.Loaded():
            return "running the script's first lines"
        case wire.LogCalled(message=text):
            return f"log({text[:60]!r})"
        case wire.PhaseCalled(title=title):
            return f"phase({title[:60]!r})"
        case wire.AgentCalled(seq=seq):
            return f"agent call {seq}"
        case _:
            return type(message).__name__


def _consume(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


class ResultAwaitable:
    """Resolves with the `WorkflowResult`, never raises, and may be awaited any number of times.

    Cancelling a task that waits here cancels the run: whoever waits for a result is its holder.
    """

    __slots__ = ("_driver",)

    def __init__(self, driver: RunDriver) -> None:
        self._driver = driver

    def __await__(self) -> Generator[Any, None, WorkflowResult]:
        if (cut_off := self._driver.cut_off()) is not None:
            return cut_off
        try:
            return (yield from asyncio.shield(self._driver.settled).__await__())
        except asyncio.CancelledError:
            self._driver.cancel("the task that waited for the result was cancelled")
            raise

    def done(self) -> bool:
        """Whether the result is there."""
        return self._driver.settled.done() or self._driver.cut_off() is not None


class WorkflowRun:
    """A live run, owned by whoever started it. ``async with`` it, or call `dispose` on every path."""

    def __init__(self, driver: RunDriver, info: WorkflowRunInfo) -> None:
        self._driver = driver
        self.info = info

    @property
    def id(self) -> RunId:
        return self.info.id

    @property
    def meta(self) -> WorkflowMeta:
        """The engine's own normalised copy."""
        return self.info.meta

    @property
    def result(self) -> Awaitable[WorkflowResult]:
        """Resolves once everything is at rest, with whatever happened; never raises."""
        return cast(Awaitable[WorkflowResult], ResultAwaitable(self._driver))

    def cancel(self, reason: str | None = None) -> None:
        """Ends the run as ``cancelled``. Idempotent, from any thread; the first reason wins."""
        self._driver.cancel(reason)

    async def dispose(self) -> None:
        """Ends the run if it still runs and waits, within ``dispose_grace``, until nothing of it is left."""
        await self._driver.dispose()

    def events(self) -> EventStream:
        """This run's events as an async iterator, from the start of the run, or the last 256 before this call."""
        return self._driver.events()

    async def __aenter__(self) -> WorkflowRun:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.dispose()

    def __repr__(self) -> str:
        return f"<WorkflowRun {self.id} {self.meta.name!r} {self._driver.machine.state.name.lower()}>"
