"""A run's life told as a list of events, with the checks that hold for every story."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from orchestrator import lifecycle as lc
from protocol.events import AgentEnded, AgentStarted, RunId, WorkflowEnded, WorkflowEvent, WorkflowMeta, WorkflowRunInfo
from protocol.invariants import EventOrderChecker
from protocol.messages import ExitReport, LogCalled, PhaseCalled, ResultReturned, ScriptFailed

_Kind = TypeVar("_Kind")

INFO = WorkflowRunInfo(RunId("wf_1"), WorkflowMeta("story", "a story"))
KILLED = ExitReport(-9, 50 << 20, 0.25)
EXITED_3 = ExitReport(3, 50 << 20, 0.25)

LOADED = lc.ScriptLoaded(INFO)
RESULT = ResultReturned(msgspec.Raw(b"1"))
FAILED = ScriptFailed("SCRIPT_ERROR", "it threw")
LOG = LogCalled("hello")
PHASE = PhaseCalled("one")
CANCEL = lc.CancelRequested("enough")
HUNG_UP = lc.HungUp("log('x')")
EXITED = lc.Exited(KILLED)
BAD = lc.BadMessage("nonsense")
GRACE_OVER = lc.DeadlinePassed("grace")


def call(seq: int, label: str = "work", phase: str | None = None) -> lc.CallAdmitted:
    return lc.CallAdmitted(seq, label, phase)


def started(seq: int) -> lc.ChildStarted:
    return lc.ChildStarted(seq, f"child-{seq}")


def settled(seq: int, *, failed: bool = False, tokens: int = 0) -> lc.ChildSettled:
    value = msgspec.Raw(b"null" if failed else b'"ok"')
    return lc.ChildSettled(seq, value, failed=failed, error="no luck" if failed else None, output_tokens=tokens)


def rest(seq: int) -> lc.ChildAtRest:
    return lc.ChildAtRest(seq)


class Story:
    """Feeds events to one lifecycle and records what it says.

    Every instruction is checked as it comes: order of events, nothing sent or narrated after the outcome, one
    disposal per started child, one end.
    """

    def __init__(self, *events: lc.Event, limits: lc.RunLimits | None = None, known: bool = True) -> None:
        self.limits = limits or lc.RunLimits(agent_slots=2, run_timeout=9.0)
        self.machine = lc.Lifecycle(self.limits, INFO if known else None)
        self.all: list[lc.Instruction] = []
        self.checker = EventOrderChecker()
        self._closed = False
        for event in events:
            self.tell(event)

    def tell(self, event: lc.Event) -> list[lc.Instruction]:
        said = self.machine.handle(event)
        for instruction in said:
            self._check(instruction)
            self.all.append(instruction)
        return said

    def _check(self, instruction: lc.Instruction) -> None:
        match instruction:
            case lc.Emit(event=event):
                self.checker(event)
                ending = isinstance(event, AgentEnded | WorkflowEnded)
                assert ending or not self._closed, f"narrated after the outcome: {event}"
            case lc.KillWorker():
                self._closed = True
            case lc.Send() | lc.StartAgent() | lc.Admit():
                assert not self._closed, f"after the outcome: {instruction}"
            case lc.DisposeAgent(seq=seq):
                assert seq not in self.disposed, f"agent {seq} disposed twice"
            case lc.Settle():
                assert self.settle is None, "settled twice"
                assert self.machine.open_agents == 0
            case _:
                pass

    def of(self, kind: type[_Kind]) -> list[_Kind]:
        return [instruction for instruction in self.all if isinstance(instruction, kind)]

    @property
    def events(self) -> list[WorkflowEvent]:
        return [instruction.event for instruction in self.of(lc.Emit)]

    @property
    def types(self) -> list[str]:
        return [event.type.removeprefix("workflow/") for event in self.events]

    @property
    def outcomes(self) -> dict[int, str]:
        return {event.seq: event.outcome for event in self.events if isinstance(event, AgentEnded)}

    @property
    def announced(self) -> list[int]:
        return [event.seq for event in self.events if isinstance(event, AgentStarted)]

    @property
    def starts(self) -> list[int]:
        return [instruction.seq for instruction in self.of(lc.StartAgent)]

    @property
    def disposed(self) -> list[int]:
        return [instruction.seq for instruction in self.of(lc.DisposeAgent)]

    @property
    def settle(self) -> lc.Settle | None:
        found = self.of(lc.Settle)
        return found[0] if found else None

    @property
    def outcome(self) -> lc.Outcome:
        assert self.settle is not None, f"not settled: {self.machine.state}"
        return self.settle.outcome

    @property
    def refusal(self) -> lc.Refuse:
        (refused,) = self.of(lc.Refuse)
        return refused
