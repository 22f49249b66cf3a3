"""Fault injection for hosts: make workers, or their stand-ins, fail on purpose and see what your code does.

Everything public is here. See docs/fault-injection.md.
"""

from orchestrator.faults.crash_point import CrashPoint, FaultEngine, FaultPool
from orchestrator.faults.crash_table import BENCH_CONFIG, CellReport, CrashBench, run_crash_cell
from orchestrator.faults.fake_worker import FakePool, FakeWorker, FakeWorkerEngine, FakeWorkerScript
from orchestrator.faults.probe import ProbedAgent, ProbeProvider
from orchestrator.faults.stages import (
    AGENT_STAGES,
    CancelMoment,
    CrashCell,
    ExpectedEnd,
    Stage,
    Way,
    crash_cells,
    expected_end,
)

__all__ = [
    "AGENT_STAGES",
    "BENCH_CONFIG",
    "CancelMoment",
    "CellReport",
    "CrashBench",
    "CrashCell",
    "CrashPoint",
    "ExpectedEnd",
    "FakePool",
    "FakeWorker",
    "FakeWorkerEngine",
    "FakeWorkerScript",
    "FaultEngine",
    "FaultPool",
    "ProbeProvider",
    "ProbedAgent",
    "Stage",
    "Way",
    "crash_cells",
    "expected_end",
    "run_crash_cell",
]
