"""The observe-only events of a run: frozen snapshots that carry the run's identity, never the live run.

Order of life (checked by `protocol.invariants`): ``workflow/start``, then any of phase, log, agent-start and
agent-end, then ``workflow/end`` exactly once and last. Every agent-start has exactly one agent-end with the same seq,
label, phase and child id.
"""

from __future__ import annotations

from typing import ClassVar, Literal, NewType

import msgspec

__all__ = [
    "AgentEnded",
    "AgentOutcome",
    "AgentStarted",
    "LogWritten",
    "PhaseDeclaration",
    "PhaseStarted",
    "RunId",
    "StopReason",
    "WorkflowEnded",
    "WorkflowEvent",
    "WorkflowMeta",
    "WorkflowRunInfo",
    "WorkflowStarted",
]

RunId = NewType("RunId", str)
StopReason = Literal["completed", "cancelled", "error"]
AgentOutcome = Literal["completed", "failed", "cancelled"]


class PhaseDeclaration(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of ``meta.phases``: matched by the exact title that ``phase()`` is called with."""

    title: str
    detail: str | None = None
    provider: str | None = None
    model: str | None = None


class WorkflowMeta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The normalised identity of a workflow. In JSON the field is ``whenToUse``, as script authors write it."""

    name: str
    description: str
    when_to_use: str | None = None
    phases: tuple[PhaseDeclaration, ...] = ()


class WorkflowRunInfo(msgspec.Struct, frozen=True):
    """Who a run is: what every event begins with."""

    id: RunId
    meta: WorkflowMeta


class WorkflowEvent(msgspec.Struct, frozen=True, tag_field="type"):
    """Base of every event. ``type`` is the public name, e.g. ``workflow/agent-start``."""

    type: ClassVar[str] = "workflow/event"

    run: WorkflowRunInfo


class WorkflowStarted(WorkflowEvent, frozen=True, tag="workflow/start"):
    """The script was accepted and is about to run."""

    type: ClassVar[str] = "workflow/start"


class PhaseStarted(WorkflowEvent, frozen=True, tag="workflow/phase"):
    """The script called ``phase(title)``."""

    type: ClassVar[str] = "workflow/phase"

    title: str


class LogWritten(WorkflowEvent, frozen=True, tag="workflow/log"):
    """The script called ``log(message)``."""

    type: ClassVar[str] = "workflow/log"

    message: str


class AgentStarted(WorkflowEvent, frozen=True, tag="workflow/agent-start"):
    """A provider started a child. ``seq`` is unique in the run; labels repeat."""

    type: ClassVar[str] = "workflow/agent-start"

    seq: int
    label: str
    child_id: str
    phase: str | None = None


class AgentEnded(WorkflowEvent, frozen=True, tag="workflow/agent-end"):
    """The end of the child that `AgentStarted` announced. ``error`` is the reason of a failure.

    Tokens are what its provider reported; 0 where it does not know, and for an agent that was cancelled.
    """

    type: ClassVar[str] = "workflow/agent-end"

    seq: int
    label: str
    child_id: str
    outcome: AgentOutcome
    phase: str | None = None
    error: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0


class WorkflowEnded(WorkflowEvent, frozen=True, tag="workflow/end"):
    """The last event of a run. Carries no value."""

    type: ClassVar[str] = "workflow/end"

    stop_reason: StopReason
    agents_started: int
    error: str | None = None
    code: str | None = None
