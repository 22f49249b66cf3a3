"""Every stage × every way of dying × every moment of a cancel, on real workers; and that the table would notice."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from orchestrator import AgentRequest, AgentResult
from orchestrator.faults import (
    BENCH_CONFIG,
    CancelMoment,
    CellReport,
    CrashBench,
    CrashCell,
    Stage,
    Way,
    crash_cells,
    run_crash_cell,
)
from tests.conftest import run_async
from tests.faults.conftest import SharedBench

CELLS = [cell for cell in crash_cells() if cell.stage is not Stage.ZYGOTE_STARTING]
ZYGOTE_CELLS = [cell for cell in crash_cells() if cell.stage is Stage.ZYGOTE_STARTING]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_worker_that_dies_costs_its_run_and_nothing_else(cell: CrashCell, bench: SharedBench) -> None:
    report = bench.run(cell)
    assert report.ok, report


@pytest.mark.parametrize("cell", ZYGOTE_CELLS, ids=str)
def test_a_zygote_that_dies_while_it_starts_costs_that_start_and_nothing_else(cell: CrashCell) -> None:
    """Each on an engine of its own, whose zygote changes."""
    report = run_async(run_crash_cell(cell.stage, cell.way, cancel=cell.cancel))
    assert report.ok, report


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
    assert report.ok, report
    assert list(report.events) == EVENTS[stage]


def test_the_table_has_every_cell_once() -> None:
    cells = list(crash_cells())
    assert len(cells) == len(set(map(str, cells))) == len(Stage) * len(Way) * len(CancelMoment)
    assert len(list(crash_cells(cancels=False))) == len(Stage) * len(Way)


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


class RefusesAfterTheFirst:
    """A provider under test that breaks once it has been in a crash."""

    def __init__(self) -> None:
        self.starts = 0

    async def start(self, request: AgentRequest) -> Any:
        self.starts += 1
        if self.starts > 2:
            raise RuntimeError("broken since the crash")
        return _Run(request)


def of_provider(provider: Any, stage: Stage = Stage.AGENT_RUNNING, way: Way = Way.SIGKILL) -> CellReport:
    async def main() -> CellReport:
        report = await run_crash_cell(stage, way, provider=provider)
        for task in getattr(provider, "forgotten", ()):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        return report

    return run_async(main())


@pytest.mark.parametrize("stage", [Stage.AGENT_STARTING, Stage.AGENT_RUNNING, Stage.AGENT_SETTLING, Stage.DISPOSING])
def test_the_table_runs_on_a_hosts_own_provider(stage: Stage) -> None:
    assert of_provider(polite, stage).ok


def test_the_table_notices_a_provider_that_leaves_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.faults.crash_table._SETTLE_TIMEOUT", 0.1)
    report = of_provider(LeavesATask())
    assert any("tasks left: ['forgotten'" in problem for problem in report.problems), report


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
                    assert report.ok, report

    run_async(main())
