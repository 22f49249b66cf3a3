"""The life of one run as a state machine: no I/O, no tasks, no clock.

Events in (what happened), instructions out (what to do). `orchestrator.run` is the only driver: it carries the
instructions out, and the outcome of each is the next event. Every race is therefore a list of events in a test.

Rules, in the order they win:

1. The first outcome is final. A cancel overrides a result only until the result has arrived.
2. Whatever the outcome: the worker is killed, agents are aborted, every announced agent that is still open ends as
   ``cancelled``, every started agent is disposed once; waiting calls never start.
3. The run settles when every agent is at rest, or when the grace is over; ``workflow/end`` is then its last event.
4. An agent whose start fulfils after the run closed is disposed and never announced.
5. After the outcome nothing is narrated and nothing is sent.
"""

from __future__ import annotations

import collections
from enum import Enum, auto
from typing import assert_never

import msgspec

from orchestrator.deaths import explain_death
from orchestrator.lifecycle_events import (
    AbortAgents,
    Admit,
    ArmDeadline,
    BadMessage,
    CallAdmitted,
    CallRefused,
    CancelRequested,
    ChildAtRest,
    ChildBroke,
    ChildSettled,
    ChildStarted,
    DeadlinePassed,
    DisposeAgent,
    Emit,
    Event,
    Exited,
    HungUp,
    Instruction,
    KillWorker,
    Outcome,
    Refuse,
    ScriptLoaded,
    ScriptRefused,
    Send,
    Settle,
    StartAgent,
    StartRefused,
    WorkerFailed,
    WriteBlocked,
)
from orchestrator.results import AgentFailure, PhaseSummary
from protocol.errors import ErrorCode
from protocol.events import (
    AgentEnded,
    AgentOutcome,
    AgentStarted,
    LogWritten,
    PhaseStarted,
    WorkflowEnded,
    WorkflowRunInfo,
    WorkflowStarted,
)
from protocol.messages import (
    AgentRejected,
    AgentSettled,
    ExitReport,
    Go,
    LogCalled,
    PhaseCalled,
    ResultReturned,
    ScriptFailed,
)

__all__ = ["CallState", "Lifecycle", "RunLimits", "RunState"]


class RunState(Enum):
    LOADING = auto()
    RUNNING = auto()
    CLOSING = auto()
    SETTLED = auto()


class CallState(Enum):
    WAITING = auto()
    STARTING = auto()
    RUNNING = auto()
    ENDED = auto()
    """Has its outcome; not yet at rest."""


class _Call:
    __slots__ = ("child_id", "label", "phase", "seq", "state")

    def __init__(self, admitted: CallAdmitted) -> None:
        self.seq = admitted.seq
        self.label = admitted.label
        self.phase = admitted.phase
        self.state = CallState.WAITING
        self.child_id = ""


class _PhaseTally(msgspec.Struct):
    title: str | None
    counts: dict[AgentOutcome, int]
    started: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def summary(self) -> PhaseSummary:
        return PhaseSummary(
            title=self.title,
            started=self.started,
            completed=self.counts["completed"],
            failed=self.counts["failed"],
            cancelled=self.counts["cancelled"],
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
        )


class RunLimits(msgspec.Struct, frozen=True):
    """What the machine needs of the configuration. Seconds and bytes."""

    agent_slots: int = 16
    max_total_agents: int = 1000
    run_timeout: float | None = None
    dispose_grace: float = 5.0
    sync_timeout: float = 5.0
    cpu_limit: int | None = None
    memory_limit: int | None = None
    base_memory: int = 0
    """Resident bytes of a worker before its script."""
    load_timeout: float = 30.0
    """From the start to the compiled script; on a quiet machine it takes milliseconds."""
    exit_report_timeout: float = 2.0


class Lifecycle:
    """One run. Feed `handle` every event; carry out what it returns, in order.

    Args:
        limits: the numbers it needs.
        info: the run's identity where the request carries it; a header's arrives with `ScriptLoaded`.
    """

    def __init__(self, limits: RunLimits, info: WorkflowRunInfo | None = None) -> None:
        self.limits = limits
        self.info = info
        self.state = RunState.LOADING
        self.outcome: Outcome | None = None
        self.failures: list[AgentFailure] = []
        self.warnings: list[str] = []
        self.output_tokens = 0  # kept beside the tallies: every answer tells the script
        self._phases: dict[str | None, _PhaseTally] = {}
        self._calls: dict[int, _Call] = {}
        self._waiting: collections.deque[_Call] = collections.deque()
        self._last_seq = 0
        self._busy = 0
        self._write_blocked = False
        self._doing: str | None = None  # set once the worker hung up and its exit report is awaited
        self._exited: Exited | None = None  # what was reported before the hang-up

    @property
    def phases(self) -> tuple[PhaseSummary, ...]:
        """What the agents came to so far, phase by phase."""
        return tuple(tally.summary() for tally in self._phases.values())

    @property
    def counts(self) -> dict[AgentOutcome, int]:
        """Children by how they ended."""
        outcomes: tuple[AgentOutcome, ...] = ("completed", "failed", "cancelled")
        return {outcome: sum(tally.counts[outcome] for tally in self._phases.values()) for outcome in outcomes}

    @property
    def agents_started(self) -> int:
        """Children that a provider started."""
        return sum(tally.started for tally in self._phases.values())

    @property
    def open_agents(self) -> int:
        """Agents started or starting that are not at rest."""
        return len(self._calls) - len(self._waiting)

    def handle(self, event: Event) -> list[Instruction]:
        """Takes one event and returns what to do about it. Never raises for anything a worker or provider can do."""
        match self.state:
            case RunState.LOADING:
                return self._loading(event)
            case RunState.RUNNING:
                return self._running(event)
            case RunState.CLOSING:
                return self._closing(event)
            case RunState.SETTLED:
                return self._settled(event)
            case _:
                assert_never(self.state)

    # ---------------------------------------------------------------- loading

    def _loading(self, event: Event) -> list[Instruction]:
        match event:
            case ScriptLoaded(info=info):
                self.info = info
                self.state = RunState.RUNNING
                out: list[Instruction] = [Admit(info), Emit(WorkflowStarted(info)), Send(Go())]
                if self.limits.run_timeout is not None:
                    out.append(ArmDeadline("run", self.limits.run_timeout))
                return out
            case ScriptRefused(code=code, message=message):
                return self._refuse(code, message)
            case WorkerFailed(message=message):
                return self._refuse(ErrorCode.WORKER_DIED, message)
            case CancelRequested(reason=reason):
                return self._close_early(_cancelled(reason), reason)
            case BadMessage(reason=reason):
                return self._close_early(_protocol(reason), reason)
            case HungUp(doing=doing):
                return self._begin_dying(doing)
            case Exited():
                self._exited = event
                return []
            case DeadlinePassed(kind="load"):
                text = f"the workflow worker had not read the script after {self.limits.load_timeout:g} s"
                return self._close_early(Outcome("error", error=text, code=ErrorCode.WORKER_DIED), "worker stuck")
            case WriteBlocked(blocked=blocked):
                self._write_blocked = blocked  # large args: the load itself fills the socket
                return []
            case _:
                return self._close_early(_protocol("a message before the script was loaded"), "the worker broke")

    def _close_early(self, outcome: Outcome, reason: str) -> list[Instruction]:
        """An end before the script was loaded. With a known identity it is a run like any other."""
        if self.info is None:
            return self._refuse(outcome.code or ErrorCode.WORKER_DIED, outcome.error or reason)
        self.state = RunState.RUNNING
        return [Admit(self.info), Emit(WorkflowStarted(self.info)), *self._close(outcome, reason)]

    def _refuse(self, code: str, message: str) -> list[Instruction]:
        self.state = RunState.SETTLED
        return [Refuse(code, message), KillWorker()]

    # ---------------------------------------------------------------- running

    def _running(self, event: Event) -> list[Instruction]:
        assert self.info is not None
        match event:  # the classes are tried in turn: what happens most often comes first
            case LogCalled(message=message):
                return [Emit(LogWritten(self.info, message))]
            case PhaseCalled(title=title):
                return [Emit(PhaseStarted(self.info, title))]
            case CallAdmitted():
                return self._admit(event)
            case ChildStarted(seq=seq, child_id=child_id):
                call = self._calls[seq]
                call.state = CallState.RUNNING
                call.child_id = child_id
                self._tally(call).started += 1
                return [Emit(AgentStarted(self.info, seq, call.label, child_id, call.phase))]
            case ChildSettled():
                self.output_tokens += event.output_tokens
                outcome: AgentOutcome = "failed" if event.failed else "completed"
                call = self._calls[event.seq]
                ended = self._end(call, outcome, event.error, event.input_tokens, event.output_tokens)
                reply = AgentSettled(event.seq, event.value, self.output_tokens)
                return [*ended, Send(reply), *self._free_slot()]
            case ChildAtRest(seq=seq):
                self._calls.pop(seq, None)
                return []
            case CallRefused(seq=seq, code=code, message=message):
                problem = self._check_seq(seq)
                if problem is not None:
                    return self._close(_protocol(problem), problem)
                return [Send(AgentRejected(seq, code, message))]
            case ResultReturned(value=value, warnings=warnings):
                self.warnings += warnings
                return self._close(Outcome("completed", value), "workflow settled")
            case ScriptFailed(code=code, message=message, warnings=warnings):
                self.warnings += warnings
                known = code if code in ErrorCode.__members__ else ErrorCode.SCRIPT_ERROR
                return self._close(Outcome("error", error=message, code=known), "workflow settled")
            case StartRefused(seq=seq, message=message):
                del self._calls[seq]
                reply = AgentRejected(seq, ErrorCode.AGENT_START, f"agent() could not start a child: {message}")
                return [Send(reply), *self._free_slot()]
            case ChildBroke(seq=seq, message=message):
                ended = self._end(self._calls[seq], "failed", message)
                reply = AgentRejected(seq, ErrorCode.AGENT_RESULT, f"child agent run failed: {message}")
                return [*ended, Send(reply), *self._free_slot()]
            case CancelRequested(reason=reason):
                return self._close(_cancelled(reason), reason)
            case BadMessage(reason=reason):
                return self._close(_protocol(reason), "the worker broke the protocol")
            case WorkerFailed(message=message):
                return self._close(Outcome("error", error=message, code=ErrorCode.WORKER_DIED), "workflow worker gone")
            case HungUp(doing=doing):
                return self._begin_dying(doing)
            case Exited():
                self._exited = event  # its last messages may still be on their way: the hang-up decides
                return []
            case DeadlinePassed(kind="run"):
                text = f"the run took longer than its limit of {self.limits.run_timeout:g} s (run_timeout)"
                return self._close(Outcome("error", error=text, code=ErrorCode.SCRIPT_TIMEOUT), "run timeout")
            case DeadlinePassed():
                return []
            case WriteBlocked(blocked=blocked):
                self._write_blocked = blocked
                return [] if blocked else self._start_waiting()
            case ScriptLoaded() | ScriptRefused():
                return self._close(_protocol("the script was loaded twice"), "the worker broke the protocol")
            case _:
                assert_never(event)

    def _check_seq(self, seq: int) -> str | None:
        if seq != self._last_seq + 1:
            return f"agent call {seq} came after {self._last_seq}"
        if seq > self.limits.max_total_agents:
            return f"agent call {seq} is over the cap of {self.limits.max_total_agents}"
        self._last_seq = seq
        return None

    def _admit(self, admitted: CallAdmitted) -> list[Instruction]:
        problem = self._check_seq(admitted.seq)
        if problem is not None:
            return self._close(_protocol(problem), "the worker broke the protocol")
        call = _Call(admitted)
        self._calls[call.seq] = call
        self._waiting.append(call)
        return self._start_waiting()

    def _start_waiting(self) -> list[Instruction]:
        out: list[Instruction] = []
        while self._waiting and self._busy < self.limits.agent_slots and not self._write_blocked:
            call = self._waiting.popleft()
            call.state = CallState.STARTING
            self._busy += 1
            out.append(StartAgent(call.seq))
        return out

    def _free_slot(self) -> list[Instruction]:
        self._busy -= 1
        return self._start_waiting()

    def _tally(self, call: _Call) -> _PhaseTally:
        tally = self._phases.get(call.phase)
        if tally is None:
            tally = _PhaseTally(call.phase, {"completed": 0, "failed": 0, "cancelled": 0})
            self._phases[call.phase] = tally
        return tally

    def _end(
        self, call: _Call, outcome: AgentOutcome, error: str | None, input_tokens: int = 0, output_tokens: int = 0
    ) -> list[Instruction]:
        assert self.info is not None
        call.state = CallState.ENDED
        tally = self._tally(call)
        tally.counts[outcome] += 1
        tally.input_tokens += input_tokens
        tally.output_tokens += output_tokens
        if outcome == "failed":
            self.failures.append(AgentFailure(call.seq, call.label, call.phase, error or "no reason given"))
        ended = AgentEnded(
            self.info, call.seq, call.label, call.child_id, outcome, call.phase, error, input_tokens, output_tokens
        )
        return [Emit(ended), DisposeAgent(call.seq)]

    # ---------------------------------------------------------------- closing

    def _begin_dying(self, doing: str) -> list[Instruction]:
        """The worker hung up without a result. How it died is known once the zygote reports it."""
        self._doing = doing
        if self._exited is not None:
            outcome = self._death(self._exited.report)
            return self._close_early(outcome, doing) if self.state is RunState.LOADING else self._close(outcome, doing)
        admitted: list[Instruction] = []
        if self.state is RunState.LOADING and self.info is not None:
            admitted = [Admit(self.info), Emit(WorkflowStarted(self.info))]
        deadline = ArmDeadline("exit-report", self.limits.exit_report_timeout)
        return [*admitted, *self._close(None, "workflow worker gone"), deadline]

    def _death(self, report: ExitReport | None) -> Outcome:
        limits = self.limits
        code, text = explain_death(
            report,
            doing=self._doing or "",
            sync_timeout=limits.sync_timeout,
            cpu_limit=limits.cpu_limit,
            memory_limit=limits.memory_limit,
            base_memory=limits.base_memory,
        )
        return Outcome("error", error=text, code=code)

    def _close(self, outcome: Outcome | None, reason: str) -> list[Instruction]:
        """Claims the outcome (``None``: an exit report will tell) and brings everything to rest."""
        self.state = RunState.CLOSING
        self.outcome = outcome
        for call in self._waiting:
            del self._calls[call.seq]
        self._waiting.clear()
        out: list[Instruction] = []
        for call in self._calls.values():
            if call.state is CallState.RUNNING:
                out += self._end(call, "cancelled", None)
        out += [KillWorker(), AbortAgents(reason)]
        if self._calls:
            out.append(ArmDeadline("grace", self.limits.dispose_grace))
        return out + self._settle_if_at_rest()

    def _closing(self, event: Event) -> list[Instruction]:
        match event:
            case ChildStarted(seq=seq):
                if seq in self._calls:  # not when the grace is over and only the exit report is still awaited
                    self._calls[seq].state = CallState.ENDED
                return [DisposeAgent(seq)]
            case ChildAtRest(seq=seq):
                self._calls.pop(seq, None)
            case Exited(report=report) if self.outcome is None:
                self.outcome = self._death(report)
            case WorkerFailed(message=message) if self.outcome is None:
                self.outcome = Outcome("error", error=message, code=ErrorCode.WORKER_DIED)
            case DeadlinePassed(kind="exit-report") if self.outcome is None:
                self.outcome = self._death(None)
            case DeadlinePassed(kind="grace") if self._calls:
                count = len(self._calls)
                who = "1 agent was" if count == 1 else f"{count} agents were"
                self.warnings.append(
                    f"{who} still running {self.limits.dispose_grace:g} s after the abort (dispose_grace); "
                    "its provider ignores the signal"
                )
                self._calls.clear()
            case _:
                return []
        return self._settle_if_at_rest()

    def _settle_if_at_rest(self) -> list[Instruction]:
        if self._calls or self.outcome is None:
            return []
        self.state = RunState.SETTLED
        if self.info is None:  # the worker died while reading a header: nobody ever had a run
            return [Refuse(self.outcome.code or ErrorCode.WORKER_DIED, self.outcome.error or "")]
        outcome = self.outcome
        end = WorkflowEnded(self.info, outcome.stop_reason, self.agents_started, outcome.error, outcome.code)
        return [Emit(end), Settle(outcome)]

    def _settled(self, event: Event) -> list[Instruction]:
        """Only late children still matter: they are disposed."""
        return [DisposeAgent(event.seq)] if isinstance(event, ChildStarted) else []


def _cancelled(reason: str) -> Outcome:
    return Outcome("cancelled", error=f"workflow run cancelled: {reason}", code=ErrorCode.CANCELLED)


def _protocol(reason: str) -> Outcome:
    text = f"the worker broke the protocol: {reason}; its run was ended"
    return Outcome("error", error=text, code=ErrorCode.PROTOCOL)
