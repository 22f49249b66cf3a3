"""Every stage × every way of dying × every moment of a cancel, on real workers; and that the table would notice."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from orchestrator import AgentRequest, AgentResult, WorkflowError, WorkflowStartRequest
from orchestrator.faults import (
    AGENT_STAGES,
    BENCH_CONFIG,
    CancelMoment,
    CellReport,
    CrashBench,
    CrashCell,
    CrashPoint,
    FaultEngine,
    Stage,
    Way,
    crash_cells,
    run_crash_cell,
)
from tests.conftest import run_async
from tests.faults.conftest import SharedBench
from tests.support import META

CELLS = [cell for cell in crash_cells() if cell.stage is not Stage.ZYGOTE_STARTING]
ZYGOTE_CELLS = [cell for cell in crash_cells() if cell.stage is Stage.ZYGOTE_STARTING]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_worker_that_dies_costs_its_run_and_nothing_else(cell: CrashCell, bench: SharedBench) -> None:
    report = bench.run(cell)
    report.check()


@pytest.mark.parametrize("cell", ZYGOTE_CELLS, ids=str)
def test_a_zygote_that_dies_while_it_starts_costs_that_start_and_nothing_else(cell: CrashCell) -> None:
    """Each on an engine of its own, whose zygote changes."""
    report = run_async(run_crash_cell(cell.stage, cell.way, cancel=cell.cancel))
    report.check()


EVENTS: dict[Stage, list[str]] = {
    Stage.WORKER_STARTING: ["start", "end"],
    Stage.READY: ["start", "end"],
    Stage.LOADING: ["start", "end"],
    Stage.BEFORE_GO: ["start", "end"],
    Stage.FIRST_SLICE: ["start", "end"],
    Stage.NARRATING: ["start", "log", "log", "log", "end"],
    Stage.AGENT_STARTING: ["start", "agent-start", "agent-end", "end"],
    Stage.AGENT_RUNNING: ["start", "agent-start", "agent-start", "agent-end", "agent-end", "end"],
    Stage.RESULT_IN_FLIGHT: ["start", "end"],
    Stage.AFTER_RESULT: ["start", "end"],
    Stage.DISPOSING: ["start", "agent-start", "agent-start", "agent-end", "agent-end", "end"],
}


@pytest.mark.parametrize("stage", EVENTS)
def test_the_events_of_a_death_are_those_of_its_stage_and_no_others(stage: Stage, bench: SharedBench) -> None:
    report = bench.run(CrashCell(stage, Way.SIGKILL))
    report.check()
    assert list(report.events) == EVENTS[stage]


def test_the_table_has_every_cell_once() -> None:
    cells = crash_cells()
    assert len(cells) == len(set(map(str, cells))) == len(Stage) * len(Way) * len(CancelMoment)
    assert len(crash_cells(cancels=False)) == len(Stage) * len(Way)
    assert len(crash_cells(stages=AGENT_STAGES, ways=[Way.SIGKILL])) == len(AGENT_STAGES) * len(CancelMoment)


# ------------------------------------------------------------------------------------------------- providers


async def polite(request: AgentRequest) -> str:
    await asyncio.sleep(0)
    return "ok"


class _Run:
    def __init__(self, request: AgentRequest) -> None:
        self.id = f"child-{request.seq}"
        self.request = request

    @property
    def result(self) -> Any:
        return self._result()

    async def _result(self) -> AgentResult:
        return AgentResult(text="ok")

    async def dispose(self) -> None:
        return


class LeavesATask:
    """A provider under test that forgets what it started."""

    def __init__(self) -> None:
        self.forgotten: list[asyncio.Task[Any]] = []

    async def start(self, request: AgentRequest) -> Any:
        self.forgotten.append(asyncio.create_task(asyncio.sleep(3600), name="forgotten"))
        return _Run(request)

    async def tidy_up(self) -> None:
        for task in self.forgotten:
            task.cancel()
        await asyncio.wait(self.forgotten)


class RefusesAfterTheFirst:
    """A provider under test that breaks once it has been in a crash."""

    def __init__(self) -> None:
        self.starts = 0

    async def start(self, request: AgentRequest) -> Any:
        self.starts += 1
        if self.starts > 5:  # three in the bench's own first run, two in the cell
            raise RuntimeError("broken since the crash")
        return _Run(request)


class LeavesAThread:
    """A provider under test whose thread nobody ends."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.forgotten: list[threading.Thread] = []

    async def start(self, request: AgentRequest) -> Any:
        self.forgotten.append(threading.Thread(target=self.release.wait, name="forgotten"))
        self.forgotten[-1].start()
        return _Run(request)

    async def tidy_up(self) -> None:
        self.release.set()
        for thread in self.forgotten:
            thread.join()


class LeavesAProcess:
    """A provider under test that starts a program for each agent and thinks no more of it."""

    def __init__(self) -> None:
        self.forgotten: list[subprocess.Popen[bytes]] = []

    async def start(self, request: AgentRequest) -> Any:
        self.forgotten.append(subprocess.Popen(["sleep", "99"]))  # noqa: ASYNC220
        return _Run(request)

    async def tidy_up(self) -> None:
        for process in self.forgotten:
            process.kill()
            process.wait()


class KeepsAServer:
    """A provider under test with a process, a thread and a descriptor that it starts once and keeps on purpose."""

    def __init__(self) -> None:
        self.server: subprocess.Popen[bytes] | None = None
        self.release = threading.Event()
        self.thread = threading.Thread(target=self.release.wait, name="of the server")

    async def start(self, request: AgentRequest) -> Any:
        if self.server is None:
            self.server = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # noqa: ASYNC220
            self.thread.start()
        return _Run(request)

    async def tidy_up(self) -> None:
        assert self.server is not None
        self.server.communicate()
        self.release.set()
        self.thread.join()


def of_provider(provider: Any, stage: Stage = Stage.AGENT_RUNNING, way: Way = Way.SIGKILL) -> CellReport:
    async def main() -> CellReport:
        async with CrashBench(provider, settle_timeout=0.1) as bench:
            report = await bench.run(CrashCell(stage, way))
        if (tidy_up := getattr(provider, "tidy_up", None)) is not None:
            await tidy_up()
        return report

    return run_async(main())


@pytest.mark.parametrize("stage", [Stage.AGENT_STARTING, Stage.AGENT_RUNNING, Stage.AGENT_SETTLING, Stage.DISPOSING])
def test_the_table_runs_on_a_hosts_own_provider(stage: Stage) -> None:
    assert of_provider(polite, stage).ok


@pytest.mark.parametrize(
    ("provider", "left"),
    [
        (LeavesATask, "tasks left: ['forgotten'"),
        (LeavesAThread, "threads left: ['forgotten'"),
        (LeavesAProcess, "child processes left: ['"),
    ],
)
def test_the_table_notices_what_a_provider_leaves(provider: Callable[[], Any], left: str) -> None:
    report = of_provider(provider())
    assert any(left in problem for problem in report.problems), report
    with pytest.raises(AssertionError, match=r"agent running, SIGKILL, no cancel:\n  \* .* left"):
        report.check()


def test_what_a_provider_starts_once_and_keeps_is_not_held_against_it() -> None:
    of_provider(KeepsAServer()).check()


def test_the_table_notices_a_provider_that_does_not_survive_the_crash() -> None:
    report = of_provider(RefusesAfterTheFirst())
    assert any("the next run ended with" in problem for problem in report.problems), report


def test_the_table_notices_a_cell_whose_end_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.faults import stages

    monkeypatch.setitem(stages._SIGNALS, Way.SIGKILL, 15)  # what it does is no longer what it says

    async def main() -> CellReport:
        async with CrashBench() as bench:
            return await bench.run(CrashCell(Stage.FIRST_SLICE, Way.SIGKILL))

    report = run_async(main())
    assert "SIGTERM" in report.problems[0]


@pytest.mark.parametrize("limit", [32, 64, 512])
def test_what_an_idle_worker_takes_is_not_held_against_a_small_memory_limit(limit: int) -> None:
    """A kill is a kill, and running out of memory is that, whatever the limit is."""

    async def main() -> None:
        async with CrashBench(config=msgspec.structs.replace(BENCH_CONFIG, memory_limit=limit << 20)) as bench:
            for stage in (Stage.READY, Stage.NARRATING, Stage.AGENT_RUNNING):
                for way in (Way.SIGKILL, Way.SIGSEGV, Way.MEMORY):
                    report = await bench.run(CrashCell(stage, way))
                    report.check()

    run_async(main())


@pytest.mark.parametrize(
    ("change", "text"),
    [({"max_concurrent_agents": 3}, "max_concurrent_agents=2"), ({"memory_limit": None}, "memory_limit")],
)
def test_a_configuration_the_table_is_not_made_for_is_refused_with_what_it_needs(change: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        CrashBench(config=msgspec.structs.replace(BENCH_CONFIG, **change))


@pytest.mark.parametrize("how", ["bench", "engine", "armed"])
def test_fault_injection_into_spawned_workers_is_refused_with_the_reason(how: str) -> None:
    config = msgspec.structs.replace(BENCH_CONFIG, worker_mode="spawn")

    async def main() -> None:
        engine = FaultEngine(config)
        engine.agents.register("default", polite)
        engine.arm(CrashPoint(Stage.READY, Way.EXIT_3))
        request = WorkflowStartRequest(script="return 1", meta=META)
        entering = {"bench": CrashBench(config=config).__aenter__, "engine": FaultEngine(config).__aenter__}
        with pytest.raises(WorkflowError, match="fault injection needs forked workers; here they are spawned: asked"):
            await entering.get(how, lambda: engine.start(request))()
        await engine.aclose()

    run_async(main())
