"""What happens to a run and what to do about it: the vocabulary of `orchestrator.lifecycle` and its driver.

Events are named for what happened, instructions are imperatives; all are frozen data. The worker's own messages
(`protocol.messages`) are events as they are.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from protocol.events import StopReason, WorkflowEvent, WorkflowRunInfo
from protocol.messages import AgentReply, ExitReport, Go, LogCalled, PhaseCalled, ResultReturned, ScriptFailed

__all__ = [
    "AbortAgents",
    "Admit",
    "ArmDeadline",
    "BadMessage",
    "CallAdmitted",
    "CallRefused",
    "CancelRequested",
    "ChildAtRest",
    "ChildBroke",
    "ChildSettled",
    "ChildStarted",
    "DeadlineKind",
    "DeadlinePassed",
    "DisposeAgent",
    "Emit",
    "Event",
    "Exited",
    "HungUp",
    "Instruction",
    "KillWorker",
    "Outcome",
    "Refuse",
    "ScriptLoaded",
    "ScriptRefused",
    "Send",
    "Settle",
    "StartAgent",
    "StartRefused",
    "WorkerFailed",
    "WriteBlocked",
]

DeadlineKind = Literal["load", "run", "grace", "exit-report"]

# ------------------------------------------------------------------------------------------------- events


class ScriptLoaded(msgspec.Struct, frozen=True):
    """The script compiles and its meta is valid."""

    info: WorkflowRunInfo


class ScriptRefused(msgspec.Struct, frozen=True):
    """The script does not compile, or its header is invalid: there will be no run."""

    code: str
    message: str


class CallAdmitted(msgspec.Struct, frozen=True):
    """A valid ``agent()`` call."""

    seq: int
    label: str
    phase: str | None


class CallRefused(msgspec.Struct, frozen=True):
    """An ``agent()`` call whose options or schema the host refuses."""

    seq: int
    code: str
    message: str


class ChildStarted(msgspec.Struct, frozen=True):
    seq: int
    child_id: str


class StartRefused(msgspec.Struct, frozen=True):
    """The provider refused to start a child, or was stopped before it did."""

    seq: int
    message: str


class ChildSettled(msgspec.Struct, frozen=True):
    """A child ended in an ordinary way. ``value`` is JSON text; ``error`` the reason when it failed."""

    seq: int
    value: msgspec.Raw
    failed: bool = False
    error: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0


class ChildBroke(msgspec.Struct, frozen=True):
    """A started child raised, or answered something that is not JSON."""

    seq: int
    message: str


class ChildAtRest(msgspec.Struct, frozen=True):
    """Nothing of the child runs any more and it has been disposed."""

    seq: int


class BadMessage(msgspec.Struct, frozen=True):
    """The worker sent something malformed, out of order or over a limit."""

    reason: str


class WorkerFailed(msgspec.Struct, frozen=True):
    """There is no usable worker: it could not be started, or lacks a wall that is required."""

    message: str


class HungUp(msgspec.Struct, frozen=True):
    """End of file on the worker's socket. ``doing``: the last thing it was seen to do."""

    doing: str


class Exited(msgspec.Struct, frozen=True):
    """The worker's process is gone. ``report`` is ``None`` when its zygote died too."""

    report: ExitReport | None


class CancelRequested(msgspec.Struct, frozen=True):
    reason: str


class DeadlinePassed(msgspec.Struct, frozen=True):
    kind: DeadlineKind


class WriteBlocked(msgspec.Struct, frozen=True):
    """The worker does not read what it is sent (or does again)."""

    blocked: bool


Event = (
    ScriptLoaded
    | ScriptRefused
    | PhaseCalled
    | LogCalled
    | CallAdmitted
    | CallRefused
    | ResultReturned
    | ScriptFailed
    | ChildStarted
    | StartRefused
    | ChildSettled
    | ChildBroke
    | ChildAtRest
    | BadMessage
    | WorkerFailed
    | HungUp
    | Exited
    | CancelRequested
    | DeadlinePassed
    | WriteBlocked
)

# ------------------------------------------------------------------------------------------------- instructions


class Send(msgspec.Struct, frozen=True):
    message: Go | AgentReply


class StartAgent(msgspec.Struct, frozen=True):
    seq: int


class DisposeAgent(msgspec.Struct, frozen=True):
    seq: int


class AbortAgents(msgspec.Struct, frozen=True):
    reason: str


class Emit(msgspec.Struct, frozen=True):
    event: WorkflowEvent


class KillWorker(msgspec.Struct, frozen=True):
    pass


class ArmDeadline(msgspec.Struct, frozen=True):
    kind: DeadlineKind
    seconds: float


class Refuse(msgspec.Struct, frozen=True):
    """There is no run: whoever waits for the start gets this error."""

    code: str
    message: str


class Admit(msgspec.Struct, frozen=True):
    """There is a run: whoever waits for the start gets it."""

    info: WorkflowRunInfo


class Outcome(msgspec.Struct, frozen=True):
    stop_reason: StopReason
    value: msgspec.Raw | None = None
    error: str | None = None
    code: str | None = None


class Settle(msgspec.Struct, frozen=True):
    """The run is over: release every timer and callback and resolve the result."""

    outcome: Outcome


Instruction = Send | StartAgent | DisposeAgent | AbortAgents | Emit | KillWorker | ArmDeadline | Refuse | Admit | Settle
