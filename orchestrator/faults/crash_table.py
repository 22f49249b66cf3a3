"""Runs cells of the crash table on a real engine, with your provider or ours, and says what was wrong.

    async with CrashBench(my_provider) as bench:
        for cell in crash_cells():
            (await bench.run(cell)).check()

A cell is right when: there is one result (or one refusal to start) with the stop reason, code and words `expected_end`
names; the events are in order and nothing follows the end; every agent that started was aborted and disposed once;
no task, thread, descriptor, process or callback is left; and the next run on the same engine works. What a provider
keeps for good (a connection pool, a server) is there from a first run, before anything is counted.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import msgspec
import psutil

from orchestrator.agents import AgentFunction, AgentProvider, AgentRegistry, AgentRequest
from orchestrator.config import EngineConfig
from orchestrator.engine import WorkflowStartRequest
from orchestrator.faults.crash_point import CrashPoint, FaultEngine
from orchestrator.faults.probe import ProbedAgent, ProbeProvider
from orchestrator.faults.stages import CancelMoment, CrashCell, Stage, Way, expected_end
from orchestrator.results import WorkflowResult
from orchestrator.signals import AbortController
from protocol.errors import WorkflowError
from protocol.events import AgentEnded, AgentStarted, WorkflowEvent
from protocol.invariants import EventOrderError, check_events

__all__ = ["BENCH_CONFIG", "CellReport", "CrashBench", "run_crash_cell"]

BENCH_CONFIG = EngineConfig(max_concurrent_agents=2, spare_workers=0, memory_limit=64 << 20, dispose_grace=5.0)
"""Two agents at once, no spare workers, and a memory limit that is reached soon."""

_What = TypeVar("_What")

_PROVIDER = "crash-table"
_META = {"name": "crash-table", "description": "A run whose worker dies."}
_NEXT = "return [args, (await agent('Answer with one word.', {label: 'next run'})) !== undefined]"
_AGENTS = (
    "return await parallel([1, 2, 3].map(i => () => agent(`Answer with the number ${i}.`, {label: `agent ${i}`})))"
)
_SCRIPTS = {
    Stage.FIRST_SLICE: "log('running'); for (;;) await null",
    Stage.NARRATING: "for (let i = 1; ; i++) { log(`line ${i}`); await null }",
    Stage.AGENT_STARTING: _AGENTS,
    Stage.AGENT_RUNNING: _AGENTS,
    Stage.AGENT_SETTLING: _AGENTS,
    Stage.DISPOSING: _AGENTS,
    Stage.RESULT_IN_FLIGHT: "return 'x'.repeat(1000)",
}
_WARM_UP = "warm-up"
_LOOPS_OWN_THREADS = "asyncio_"  # the executor behind asyncio.to_thread belongs to the loop and ends with it


class CellReport(msgspec.Struct, frozen=True):
    """What came of one cell.

    Args:
        cell: which.
        result: the run's result, ``None`` when there was no run.
        refused: what `WorkflowEngine.start` raised instead.
        events: the types of the run's events, without ``workflow/``.
        agents: every agent the provider was asked for.
        problems: everything that is not as it must be; empty when all is well.
    """

    cell: CrashCell
    result: WorkflowResult | None
    refused: str | None
    events: tuple[str, ...]
    agents: tuple[ProbedAgent, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems

    def check(self) -> None:
        """Raises `AssertionError` with everything that was wrong, and what happened, unless the cell is right."""
        if self.problems:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        if self.ok:
            return f"{self.cell}: ok"
        if self.result is not None:
            end = f"{self.result.stop_reason} {self.result.code or ''} {self.result.error or ''}".strip()
        else:
            end = self.refused or "none"
        lines = [f"{self.cell}:", *(f"  * {problem}" for problem in self.problems), f"  end: {end}"]
        lines.append(f"  events: {', '.join(self.events) or 'none'}")
        lines += [f"  {agent}" for agent in self.agents]
        return "\n".join(lines)


async def answer_at_once(request: AgentRequest) -> str:
    """The provider of the bench where none is given."""
    return f"done: {request.prompt}"


class CrashBench:
    """One engine on which any number of cells run, one after the other. Use it as an async context manager.

    Args:
        provider: the provider under test, or an async function; left out, one that answers at once. The bench does
            not close it.
        config: of the engine: `BENCH_CONFIG` with what you need changed.
        cell_timeout: seconds one cell may take, for a provider that takes its time; ours take some milliseconds.
        settle_timeout: seconds the kernel and the loop get to let go of what has ended, before it counts as left.

    Raises:
        ValueError: ``config`` has not the two agents at a time, or not the memory limit, that the table is made for.
        WorkflowError: on entering: workers of this engine are spawned, not forked.
    """

    def __init__(
        self,
        provider: AgentProvider | AgentFunction | None = None,
        *,
        config: EngineConfig = BENCH_CONFIG,
        cell_timeout: float = 30.0,
        settle_timeout: float = 5.0,
    ) -> None:
        if config.agent_slots != 2:
            raise ValueError(f"the crash table needs max_concurrent_agents=2, not {config.agent_slots}")
        if config.memory_limit is None:
            raise ValueError("the crash table needs a memory_limit: one way to die is to use it up")
        self._cell_timeout = cell_timeout
        self._settle_timeout = settle_timeout
        registry = AgentRegistry()
        registry.register(_PROVIDER, provider if provider is not None else answer_at_once)
        self._provider = registry.get(_PROVIDER)
        self._config = config
        self._engine: FaultEngine | None = None
        self._heard: list[WorkflowEvent] = []

    async def __aenter__(self) -> CrashBench:
        self._engine = FaultEngine(self._config)
        self._engine.events.subscribe(self._heard.append)
        await self._engine.__aenter__()
        try:
            await self._warm_up(self._engine)
        except BaseException:
            await self._engine.aclose()
            raise
        return self

    async def _warm_up(self, engine: FaultEngine) -> None:
        """Whatever the provider makes once and keeps is made here."""
        remove = engine.agents.register(_WARM_UP, self._provider)
        request = WorkflowStartRequest(script=_AGENTS, meta=_META, subagent_provider=_WARM_UP)
        async with asyncio.timeout(self._cell_timeout), await engine.start(request) as run:
            await run.result
        remove()

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._engine is not None:
            await self._engine.aclose()

    async def run(self, cell: CrashCell) -> CellReport:
        """Runs one cell and the next run after it."""
        assert self._engine is not None, "use CrashBench as an async context manager"
        if cell.stage is Stage.ZYGOTE_STARTING:
            await self._engine.pool.drop_zygote()
        timeouts = self._cell_timeout, self._settle_timeout
        return await _Cell(self._engine, self._provider, cell, self._heard, *timeouts).run()


async def run_crash_cell(
    stage: Stage,
    way: Way,
    *,
    cancel: CancelMoment = CancelMoment.NEVER,
    provider: AgentProvider | AgentFunction | None = None,
) -> CellReport:
    """Runs one cell on an engine of its own. For many cells, `CrashBench` is quicker."""
    async with CrashBench(provider) as bench:
        return await bench.run(CrashCell(stage, way, cancel))


class _Cell:
    """One cell being run."""

    def __init__(
        self,
        engine: FaultEngine,
        provider: AgentProvider,
        cell: CrashCell,
        heard: list[WorkflowEvent],
        timeout: float,
        settle_timeout: float,
    ) -> None:
        self.engine = engine
        self.cell = cell
        self.heard = heard
        self.timeout = timeout
        self.settle_timeout = settle_timeout
        self.controller = AbortController()
        self.point = CrashPoint(
            cell.stage,
            cell.way,
            before=self.cancel if cell.cancel is CancelMoment.BEFORE else lambda: None,
            after=self.cancel if cell.cancel is CancelMoment.AT else lambda: None,
        )
        self.probe = ProbeProvider(provider, self.point)
        self.two_announced = asyncio.Event()
        self.result: WorkflowResult | None = None
        self.refused: WorkflowError | None = None
        self.problems: list[str] = []
        self.next_agents: list[ProbedAgent] = []

    def cancel(self) -> None:
        self.controller.abort("the cell cancels")

    async def run(self) -> CellReport:
        before = _Belongings(asyncio.all_tasks(), _threads(), _children(), _descriptors())
        self.heard.clear()
        forget_provider = self.engine.agents.register(_PROVIDER, self.probe)
        forget_listener = self.engine.events.subscribe(self._listen)
        try:
            async with asyncio.timeout(self.timeout):
                await self._live()
        except TimeoutError:
            self.problems.append(f"not over after {self.timeout:g} s")
            self.cancel()
        finally:
            forget_listener()
        events = tuple(self.heard)
        self._check_end()
        self._check_events(events)
        if not self.problems:
            await self._check_next_run()
            await self._check_rest(before)
        self._check_agents(events)
        forget_provider()
        return CellReport(
            self.cell,
            self.result,
            None if self.refused is None else str(self.refused),
            tuple(event.type.removeprefix("workflow/") for event in events),
            tuple(self.probe.agents),
            tuple(self.problems),
        )

    def _listen(self, event: WorkflowEvent) -> None:
        if isinstance(event, AgentStarted) and event.seq == 2:
            self.two_announced.set()
            if self.cell.stage is Stage.AGENT_RUNNING:
                self.point.trip_at_once()

    async def _live(self) -> None:
        cell, point = self.cell, self.point
        self.engine.arm(point)
        if cell.stage is Stage.ZYGOTE_STARTING and cell.cancel is CancelMoment.BEFORE:
            self.cancel()
        life = asyncio.create_task(self._start_and_wait(), name="crash cell")
        try:
            if cell.stage is Stage.ZYGOTE_STARTING:
                if cell.cancel is CancelMoment.AT:
                    await asyncio.sleep(0)
                    self.cancel()
            else:
                reached = asyncio.create_task(point.reached.wait())
                await asyncio.wait({reached, life}, return_when=asyncio.FIRST_COMPLETED)
                reached.cancel()
                if not point.reached.is_set():
                    self.problems.append("the run ended before its stage was reached")
                elif cell.way is Way.STOPS_READING and cell.stage is not Stage.AFTER_RESULT:
                    self.cancel()  # its holder gives up: nothing else ends it
            await life
        finally:
            life.cancel()
            await asyncio.wait({life})
        if cell.cancel is CancelMoment.AFTER:
            self.cancel()

    async def _start_and_wait(self) -> None:
        request = WorkflowStartRequest(
            script=_SCRIPTS.get(self.cell.stage, "return 'done'"),
            meta=_META,
            signal=self.controller.signal,
            subagent_provider=_PROVIDER,
        )
        try:
            run = await self.engine.start(request)
        except WorkflowError as error:
            self.refused = error
            await self.engine.pool.zygote_settled()
            return
        async with run:
            if self.cell.stage is Stage.DISPOSING:
                await self.two_announced.wait()
                await run.dispose()
            self.result = await run.result
            if self.cell.cancel is CancelMoment.AFTER:
                run.cancel("after the end")
                if await run.result is not self.result:
                    self.problems.append("a cancel after the end changed the result")
        await self.engine.pool.zygote_settled()

    def _check_end(self) -> None:
        expected = expected_end(self.cell)
        if self.result is not None:
            reason, code, error = self.result.stop_reason, self.result.code, self.result.error or ""
        elif self.refused is not None:
            reason, code, error = None, self.refused.code, str(self.refused)
        else:
            self.problems.append("there was neither a result nor a refusal")
            return
        if (reason, code) != (expected.stop_reason, expected.code) or expected.text not in error:
            self.problems.append(f"ended as {reason} {code} ({error!r}), expected {expected}")
        if reason == "completed" and self.result is not None and self.result.value != "done":
            self.problems.append(f"the value came as {self.result.value!r:.60}")

    def _check_events(self, events: tuple[WorkflowEvent, ...]) -> None:
        try:
            check_events(events)
        except EventOrderError as error:
            self.problems.append(str(error))
        if bool(events) != (self.result is not None):
            self.problems.append(f"{len(events)} events for a result of {self.result}")
        if self.result is None:
            return
        ended = [event.outcome for event in events if isinstance(event, AgentEnded)]
        told = (self.result.agents_completed, self.result.agents_failed, self.result.agents_cancelled)
        if told != tuple(ended.count(outcome) for outcome in ("completed", "failed", "cancelled")):
            self.problems.append(f"the result counts {told}, the events say {ended}")
        if self.cell.stage in (Stage.AGENT_STARTING, Stage.AGENT_RUNNING, Stage.DISPOSING):
            wanted = 1 if self.cell.stage is Stage.AGENT_STARTING else 2
            if ended != ["cancelled"] * wanted:
                self.problems.append(f"expected {wanted} cancelled agents, the events say {ended}")

    async def _check_next_run(self) -> None:
        self.point.stage = Stage.READY  # the probe holds nothing any more
        before = len(self.heard)
        agents = len(self.probe.agents)
        request = WorkflowStartRequest(script=_NEXT, meta=_META, args=7, subagent_provider=_PROVIDER)
        try:
            async with asyncio.timeout(self.timeout), await self.engine.start(request) as run:
                result = await run.result
        except (WorkflowError, TimeoutError) as error:
            self.problems.append(f"the next run could not be started: {error!r}")
            return
        if result.value != [7, True]:
            self.problems.append(f"the next run ended with {result}")
        check_events(self.heard[before:])
        self.next_agents = self.probe.agents[agents:]
        del self.probe.agents[agents:]

    async def _check_rest(self, before: _Belongings) -> None:
        await self.engine.pool.released()
        if self.controller.signal.listener_count:
            self.problems.append(f"{self.controller.signal.listener_count} callbacks left on the caller's signal")
        left = await self._until(lambda: [task.get_name() for task in asyncio.all_tasks() - before.tasks])
        if left:
            self.problems.append(f"tasks left: {left}")
        threads = await self._until(lambda: [thread.name for thread in _threads() - before.threads])
        if threads:
            self.problems.append(f"threads left: {threads}")
        alive = await self._until(lambda: self.engine.describe().workers_alive)
        if alive:
            self.problems.append(f"{alive} workers left")
        children = await self._until(lambda: _children() - before.children - {self.engine.describe().zygote_pid})
        if children:
            self.problems.append(f"child processes left: {_describe(children)}")
        restarted = self.cell.stage is Stage.ZYGOTE_STARTING  # the new one's socket counts
        if not restarted and (more := await self._until(lambda: max(0, _descriptors() - before.descriptors))):
            self.problems.append(f"{more} descriptors left")

    async def _until(self, left: Callable[[], _What]) -> _What:
        """Waits until ``left()`` is empty, within the bound, and returns what it is then."""
        deadline = time.monotonic() + self.settle_timeout
        pause = 0.0
        while (what := left()) and time.monotonic() < deadline:
            await asyncio.sleep(pause)
            pause = min(0.02, pause + 0.001)
        return what

    def _check_agents(self, events: tuple[WorkflowEvent, ...]) -> None:
        announced = {event.seq for event in events if isinstance(event, AgentStarted)}
        for agent in self.probe.agents:
            if agent.disposed != agent.started:
                times = f"{agent.disposed} times"
                self.problems.append(f"agent {agent.seq} ({agent.started=}) was disposed {times}")
            if not agent.aborted:
                self.problems.append(f"agent {agent.seq} was never aborted")
            if agent.seq in announced and not agent.started:
                self.problems.append(f"agent {agent.seq} was announced without a start")
        if self.cell.stage is Stage.AGENT_STARTING and 2 in announced:
            self.problems.append("an agent whose start fulfilled after the end was announced")
        for agent in self.next_agents:
            if agent.disposed != 1:
                self.problems.append(f"an agent of the next run was disposed {agent.disposed} times")


class _Belongings(msgspec.Struct, frozen=True):
    """What this process has before a cell."""

    tasks: set[asyncio.Task[object]]
    threads: set[threading.Thread]
    children: set[int]
    descriptors: int


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(_LOOPS_OWN_THREADS)}


def _children() -> set[int]:
    """Process ids, zombies included."""
    return {child.pid for child in psutil.Process().children()}


def _describe(pids: set[int]) -> list[str]:
    found: list[str] = []
    for pid in sorted(pids):
        try:
            child = psutil.Process(pid)
            found.append(f"{pid} {child.name()} ({child.status()})")
        except psutil.NoSuchProcess:
            continue
    return found


def _descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0  # not told on this system
