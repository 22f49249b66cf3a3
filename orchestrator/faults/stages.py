"""The crash table: every stage of a run × every way its worker can die × every moment a cancel can come.

A cell is data; `orchestrator.faults.crash_table` runs it. `expected_end` says what must come of it, so a harness can
show the table in its own words.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from protocol.errors import ErrorCode
from protocol.events import StopReason

__all__ = ["AGENT_STAGES", "CancelMoment", "CrashCell", "ExpectedEnd", "Stage", "Way", "crash_cells", "expected_end"]


class Stage(StrEnum):
    """How far a run has come, as its host sees it, when its worker dies."""

    ZYGOTE_STARTING = "zygote starting"
    """The process workers are forked from is not ready yet, and is the one that dies."""
    WORKER_STARTING = "worker starting"
    """Nothing was heard of the worker yet."""
    READY = "ready"
    """It said that it is ready; the script has not reached it."""
    LOADING = "loading"
    """It has the script and has not answered."""
    BEFORE_GO = "before go"
    """It has compiled the script; the word to go has not reached it."""
    FIRST_SLICE = "first slice"
    """The script runs, spins, and has not been heard of."""
    NARRATING = "narrating"
    """In the middle of a flood of log messages."""
    AGENT_STARTING = "agent starting"
    """One agent runs, the provider is starting a second, a third waits for its slot."""
    AGENT_RUNNING = "agent running"
    """Two agents run, a third waits for its slot."""
    AGENT_SETTLING = "agent settling"
    """An agent has ended; its answer has not reached the worker."""
    RESULT_IN_FLIGHT = "result in flight"
    """Half of the result has arrived."""
    AFTER_RESULT = "after result"
    """The whole result has arrived, unread."""
    DISPOSING = "disposing"
    """The holder disposes the run; its agents are being disposed."""


class Way(StrEnum):
    """How it dies."""

    EXIT_0 = "exit 0"
    EXIT_3 = "exit 3"
    SIGKILL = "SIGKILL"
    SIGSEGV = "SIGSEGV"
    SIGTERM = "SIGTERM"
    MEMORY = "out of memory"
    """It allocates up to its limit and aborts, as the engine does."""
    HALF_PREFIX = "half a length prefix"
    """Two bytes of the next message's length, then end of file."""
    HALF_FRAME = "half a frame"
    """A length and the beginning of the message, then end of file."""
    SOCKET_CLOSED = "socket closed"
    STOPS_READING = "stops reading"
    """It neither dies nor works: only a cancel, a dispose or a limit ends its run."""

    @property
    def signal(self) -> int | None:
        """The number of the signal it dies of."""
        return _SIGNALS.get(self)


_SIGNALS = {Way.SIGKILL: signal.SIGKILL, Way.SIGSEGV: signal.SIGSEGV, Way.SIGTERM: signal.SIGTERM}


class CancelMoment(StrEnum):
    """When the run is cancelled, measured by the death of its worker."""

    NEVER = "no cancel"
    BEFORE = "cancel before"
    AT = "cancel at"
    """After the death, before the host can know of it."""
    AFTER = "cancel after"
    """Once the run has settled: nothing may change any more."""


class CrashCell(msgspec.Struct, frozen=True):
    """One cell of the table."""

    stage: Stage
    way: Way
    cancel: CancelMoment = CancelMoment.NEVER

    def __str__(self) -> str:
        return f"{self.stage}, {self.way}, {self.cancel}"


class ExpectedEnd(msgspec.Struct, frozen=True):
    """What must come of a cell.

    Args:
        stop_reason: of the result; ``None`` when there is no run because `WorkflowEngine.start` raises.
        code: of the result's error, or of the error raised.
        text: words the error must contain.
    """

    stop_reason: StopReason | None
    code: ErrorCode | None
    text: str = ""


AGENT_STAGES = (Stage.AGENT_STARTING, Stage.AGENT_RUNNING, Stage.AGENT_SETTLING, Stage.DISPOSING)
"""Those in which a provider has an agent at work when the worker dies."""


def crash_cells(*, stages: Iterable[Stage] = Stage, ways: Iterable[Way] = Way, cancels: bool = True) -> list[CrashCell]:
    """Every cell of the table, or of the given stages and ways. ``cancels=False`` leaves out those with a cancel."""
    moments = tuple(CancelMoment) if cancels else (CancelMoment.NEVER,)
    return [CrashCell(*cell) for cell in itertools.product(stages, ways, moments)]


def expected_end(cell: CrashCell) -> ExpectedEnd:
    """What must come of ``cell``."""
    if cell.cancel in (CancelMoment.BEFORE, CancelMoment.AT) or cell.stage is Stage.DISPOSING:
        return ExpectedEnd("cancelled", ErrorCode.CANCELLED, "workflow run cancelled")
    if cell.stage is Stage.ZYGOTE_STARTING:
        return ExpectedEnd(None, ErrorCode.WORKER_DIED, "the worker server")
    if cell.stage is Stage.AFTER_RESULT:
        return ExpectedEnd("completed", None)
    match cell.way:
        case Way.STOPS_READING:  # its holder gives up
            return ExpectedEnd("cancelled", ErrorCode.CANCELLED, "workflow run cancelled")
        case Way.MEMORY:
            return ExpectedEnd("error", ErrorCode.WORKER_MEMORY, "ran out of memory")
        case Way.EXIT_0:
            return ExpectedEnd("error", ErrorCode.WORKER_DIED, "exited with code 0")
        case Way.EXIT_3:
            return ExpectedEnd("error", ErrorCode.WORKER_DIED, "exited with code 3")
        case Way.SIGKILL | Way.SIGSEGV | Way.SIGTERM:
            return ExpectedEnd("error", ErrorCode.WORKER_DIED, f"was killed by {cell.way}")
        case Way.HALF_PREFIX | Way.HALF_FRAME | Way.SOCKET_CLOSED:
            return ExpectedEnd("error", ErrorCode.WORKER_DIED, "the workflow worker")
