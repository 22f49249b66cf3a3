"""The typed events of a session, and the rules that keep a history legal.

Two families. ``tool-workflow/*`` are the four records of a workflow run: log-only, written by the recorder.
``tool/*`` are the card of a tool call and its result: what a replay shows. Progress is live only and has no record.

A missing ending at the tail is legal everywhere: that is what an interruption looks like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from orchestrator.sessions.log import SessionEvent
from protocol.events import AgentOutcome, StopReason

__all__ = [
    "AGENT_END",
    "AGENT_START",
    "DEFAULT_RULES",
    "RUN_END",
    "RUN_START",
    "TOOL_CALL",
    "TOOL_RESULT",
    "AgentEndRecord",
    "AgentStartRecord",
    "RunEndRecord",
    "RunStartRecord",
    "SessionRecord",
    "ToolCallRecord",
    "ToolCallRule",
    "ToolResultRecord",
    "WorkflowRecordRule",
    "decode_record",
    "encode_record",
]

RUN_START = "tool-workflow/run-start"
AGENT_START = "tool-workflow/agent-start"
AGENT_END = "tool-workflow/agent-end"
RUN_END = "tool-workflow/run-end"
TOOL_CALL = "tool/call"
TOOL_RESULT = "tool/result"

_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Seq = Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class RunStartRecord(_Record, frozen=True):
    """A workflow run that a top-level tool call started."""

    run_id: _Name
    name: _Name


class AgentStartRecord(_Record, frozen=True):
    """A member of a run, after its child was published."""

    run_id: _Name
    seq: _Seq
    label: str
    child_id: _Name
    phase: str | msgspec.UnsetType = msgspec.UNSET


class AgentEndRecord(_Record, frozen=True):
    """The end of one member."""

    run_id: _Name
    seq: _Seq
    outcome: AgentOutcome


class RunEndRecord(_Record, frozen=True):
    """The end of a run, after everything it started is at rest."""

    run_id: _Name
    stop_reason: StopReason


class ToolCallRecord(_Record, frozen=True):
    """A tool call and the card that shows it. ``card`` is the presenter's, as JSON."""

    call_id: _Name
    tool: _Name
    card: dict[str, Any]


class ToolResultRecord(_Record, frozen=True):
    """The result of a tool call: the content that the model was shown."""

    call_id: _Name
    status: Literal["completed", "failed"]
    content: list[dict[str, Any]]


SessionRecord = RunStartRecord | AgentStartRecord | AgentEndRecord | RunEndRecord | ToolCallRecord | ToolResultRecord

_KINDS: dict[str, type[_Record]] = {
    RUN_START: RunStartRecord,
    AGENT_START: AgentStartRecord,
    AGENT_END: AgentEndRecord,
    RUN_END: RunEndRecord,
    TOOL_CALL: ToolCallRecord,
    TOOL_RESULT: ToolResultRecord,
}
_TYPES: dict[type[_Record], str] = {kind: name for name, kind in _KINDS.items()}


def encode_record(record: SessionRecord) -> tuple[str, dict[str, Any]]:
    """The type and the data to append."""
    return _TYPES[type(record)], msgspec.to_builtins(record)


def decode_record(event: SessionEvent) -> SessionRecord | None:
    """The typed record of an event, ``None`` for an event of another family.

    Raises:
        ValueError: the payload is malformed.
    """
    kind = _KINDS.get(event.type)
    return None if kind is None else _payload(kind, event.type, event.data)  # type: ignore[return-value]


_R = TypeVar("_R", bound=_Record)


def _payload(kind: type[_R], name: str, data: Mapping[str, Any]) -> _R:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name} is malformed: {error}") from None


class _Run:
    __slots__ = ("ended", "members")

    def __init__(self) -> None:
        self.ended = False
        self.members: dict[int, bool] = {}
        """seq → whether the member has ended."""


class WorkflowRecordRule:
    """A run starts once; its members start and end once, inside it; it ends once, with no member open, and is last."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def check(self, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002
        if not type.startswith("tool-workflow/"):
            return
        match self._record(type, data):
            case RunStartRecord(run_id=run_id):
                if run_id in self._runs:
                    raise ValueError(f"{type} repeats run {run_id}")
            case AgentStartRecord(run_id=run_id, seq=seq):
                if seq in self._open(type, run_id).members:
                    raise ValueError(f"{type} repeats member {seq} of run {run_id}")
            case AgentEndRecord(run_id=run_id, seq=seq):
                ended = self._open(type, run_id).members.get(seq)
                if ended is None:
                    raise ValueError(f"{type} of member {seq} of run {run_id}, which never started")
                if ended:
                    raise ValueError(f"{type} ends member {seq} of run {run_id} twice")
            case RunEndRecord(run_id=run_id):
                left = [seq for seq, ended in self._open(type, run_id).members.items() if not ended]
                if left:
                    raise ValueError(f"{type} of run {run_id} while members {left} are open")

    def accept(self, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002
        if not type.startswith("tool-workflow/"):
            return
        match self._record(type, data):
            case RunStartRecord(run_id=run_id):
                self._runs[run_id] = _Run()
            case AgentStartRecord(run_id=run_id, seq=seq):
                self._runs[run_id].members[seq] = False
            case AgentEndRecord(run_id=run_id, seq=seq):
                self._runs[run_id].members[seq] = True
            case RunEndRecord(run_id=run_id):
                run = self._runs[run_id]
                run.ended = True
                run.members.clear()

    def _open(self, kind: str, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            raise ValueError(f"{kind} of run {run_id}, which never started")
        if run.ended:
            raise ValueError(f"{kind} of run {run_id} after its end")
        return run

    @staticmethod
    def _record(
        kind: str, data: Mapping[str, Any]
    ) -> RunStartRecord | AgentStartRecord | AgentEndRecord | RunEndRecord:
        match kind:
            case "tool-workflow/run-start":
                return _payload(RunStartRecord, kind, data)
            case "tool-workflow/agent-start":
                return _payload(AgentStartRecord, kind, data)
            case "tool-workflow/agent-end":
                return _payload(AgentEndRecord, kind, data)
            case "tool-workflow/run-end":
                return _payload(RunEndRecord, kind, data)
            case _:
                raise ValueError(f"{kind} is not a kind of workflow record")


class ToolCallRule:
    """A call id is used once in a session; a result belongs to a call and comes once."""

    def __init__(self) -> None:
        self._open: dict[str, bool] = {}
        """call id → whether its result came."""

    def check(self, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002
        if type == TOOL_CALL:
            call_id = _payload(ToolCallRecord, type, data).call_id
            if call_id in self._open:
                raise ValueError(f"{type} repeats call {call_id}")
        elif type == TOOL_RESULT:
            call_id = _payload(ToolResultRecord, type, data).call_id
            settled = self._open.get(call_id)
            if settled is None:
                raise ValueError(f"{type} of call {call_id}, which never started")
            if settled:
                raise ValueError(f"{type} settles call {call_id} twice")

    def accept(self, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002
        if type in (TOOL_CALL, TOOL_RESULT):
            self._open[data["callId"]] = type == TOOL_RESULT


DEFAULT_RULES = (WorkflowRecordRule, ToolCallRule)
"""The rules of everything this package writes. A host adds its own."""
