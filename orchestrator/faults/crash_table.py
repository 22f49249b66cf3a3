"""Runs cells of the crash table on a real engine, with your provider or ours, and says what was wrong.

    async with CrashBench(my_provider) as bench:
        for cell in crash_cells():
            report = await bench.run(cell)
            assert not report.problems, report

A cell is right when: there is one result (or one refusal to start) with the stop reason, code and words `expected_end`
names; the events are in order and nothing follows the end; every agent that started was aborted and disposed once;
no task, descriptor, process or callback is left; and the next run on the same engine works.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import msgspec

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
_CELL_TIMEOUT = 30.0  # seconds; a cell takes some milliseconds
_SETTLE_TIMEOUT = 10.0  # seconds for the kernel and the loop to let go of what has ended


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


async def answer_at_once(request: AgentRequest) -> str:
    """The provider of the bench where none is given."""
    return f"done: {request.prompt}"


class CrashBench:
    """One engine on which any number of cells run, one after the other. Use it as an async context manager.

    Args:
        provider: the provider under test, or an async function; left out, one that answers at once.
        config: of the engine. The table expects two agents at a time and forked workers.
    """

    def __init__(
        self, provider: AgentProvider | AgentFunction | None = None, *, config: EngineConfig = BENCH_CONFIG
    ) -> None:
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
        return self

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
        return await _Cell(self._engine, self._provider, cell, self._heard).run()


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
        self, engine: FaultEngine, provider: AgentProvider, cell: CrashCell, heard: list[WorkflowEvent]
    ) -> None:
        self.engine = engine
        self.cell = cell
        self.heard = heard
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

    def cancel(self) -> None:
        self.controller.abort("the cell cancels")

    async def run(self) -> CellReport:
        tasks, descriptors = asyncio.all_tasks(), _descriptors()
        restarts = self.cell.stage is Stage.ZYGOTE_STARTING
        self.heard.clear()
        forget_provider = self.engine.agents.register(_PROVIDER, self.probe)
        forget_listener = self.engine.events.subscribe(self._listen)
        try:
            async with asyncio.timeout(_CELL_TIMEOUT):
                await self._live()
        except TimeoutError:
            self.problems.append(f"not over after {_CELL_TIMEOUT:g} s")
            self.cancel()
        finally:
            forget_listener()
        events = tuple(self.heard)
        self._check_end()
        self._check_events(events)
        if not self.problems:
            await self._check_next_run()
            await self._check_rest(tasks, None if restarts else descriptors)
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
            async with asyncio.timeout(_CELL_TIMEOUT), await self.engine.start(request) as run:
                result = await run.result
        except (WorkflowError, TimeoutError) as error:
            self.problems.append(f"the next run could not be started: {error!r}")
            return
        if result.value != [7, True]:
            self.problems.append(f"the next run ended with {result}")
        check_events(self.heard[before:])
        self.next_agents = self.probe.agents[agents:]
        del self.probe.agents[agents:]

    async def _check_rest(self, tasks: set[asyncio.Task[object]], descriptors: int | None) -> None:
        await self.engine.pool.released()
        if self.controller.signal.listener_count:
            self.problems.append(f"{self.controller.signal.listener_count} callbacks left on the caller's signal")
        left = await _until(lambda: [task.get_name() for task in asyncio.all_tasks() - tasks])
        if left:
            self.problems.append(f"tasks left: {left}")
        alive = await _until(lambda: self.engine.describe().workers_alive)
        if alive:
            self.problems.append(f"{alive} workers left")
        if descriptors is not None and (more := await _until(lambda: max(0, _descriptors() - descriptors))):
            self.problems.append(f"{more} descriptors left")

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


def _descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0  # not told on this system


async def _until(left: Callable[[], _What]) -> _What:
    """Waits until ``left()`` is empty, within a bound, and returns what it is then."""
    deadline = time.monotonic() + _SETTLE_TIMEOUT
    pause = 0.0
    while (what := left()) and time.monotonic() < deadline:
        await asyncio.sleep(pause)
        pause = min(0.02, pause + 0.001)
    return what
