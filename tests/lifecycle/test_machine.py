"""Hypothesis tells the machine stories nobody thought of; the same rules hold in each.

The worker is hostile: any message, any order, any seq. Providers, processes and clocks are not: an agent starts, ends
and comes to rest once, and a deadline passes only after it was armed. What the machine is told follows from what it
said, as in `orchestrator.run`.
"""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator import lifecycle as lc
from protocol.events import WorkflowEnded
from protocol.messages import LogCalled, PhaseCalled, ResultReturned, ScriptFailed
from tests.lifecycle.story import EXITED_3, INFO, KILLED, Story

_MESSAGES: list[lc.Event] = [
    *(lc.ScriptLoaded(INFO), lc.ScriptRefused("SCRIPT_PARSE", "no"), lc.BadMessage("x")),
    *(LogCalled("x"), PhaseCalled("y"), LogCalled("z"), PhaseCalled("z")),
    *(ResultReturned(msgspec.Raw(b"1"), ("w",)), ScriptFailed("NONSENSE", "x")),
]


class _Agent:
    """One agent as its provider lives it."""

    def __init__(self) -> None:
        self.started = False
        self.has_outcome = False
        self.told_to_dispose = False


class RunOfARun(RuleBasedStateMachine):
    @initialize(slots=st.integers(1, 3), cap=st.integers(4, 8), known=st.booleans(), calls=st.integers(-1, 4))
    def begin(self, slots: int, cap: int, known: bool, calls: int) -> None:
        limits = lc.RunLimits(agent_slots=slots, max_total_agents=cap, run_timeout=1.0)
        self.story = Story(limits=limits, known=known)
        self.agents: dict[int, _Agent] = {}
        self.at_rest: set[int] = set()
        self.armed: list[lc.DeadlineKind] = ["load"]
        self.admitted: list[int] = []
        self.reported = self.hung_up = False
        self.blocked = False
        self.next_seq = 1
        if calls >= 0:  # most stories begin in the middle, where the races are
            self.tell(lc.ScriptLoaded(INFO))
            for seq in range(1, calls + 1):
                self._call(seq, False)

    def tell(self, event: lc.Event) -> None:
        closed = self.story.machine.state in (lc.RunState.CLOSING, lc.RunState.SETTLED)
        for instruction in self.story.tell(event):
            match instruction:
                case lc.StartAgent(seq=seq):
                    assert not self.blocked, "started for a worker that does not read"
                    self.agents[seq] = _Agent()
                case lc.DisposeAgent(seq=seq):
                    assert self.agents[seq].started, "disposed before it started"
                    self.agents[seq].told_to_dispose = True
                case lc.ArmDeadline(kind=kind):
                    self.armed.append(kind)
                case lc.Emit(event=emitted) if closed:
                    assert isinstance(emitted, WorkflowEnded), f"narrated after the end: {emitted}"
                case _:
                    pass

    # ---------------------------------------------------------------- a hostile worker

    @rule(event=st.sampled_from(_MESSAGES), seq=st.none() | st.integers(-1, 9))
    def worker_sends_anything(self, event: lc.Event, seq: int | None) -> None:
        """One rule for all of it: most of these end the run, and a story that ends at once has no races."""
        if seq is None:
            self.tell(event)
        else:
            self._call(seq, False)

    @rule(refused=st.sampled_from([False, False, False, True]))
    def worker_calls_in_order(self, refused: bool) -> None:
        self._call(self.next_seq, refused)

    def _call(self, seq: int, refused: bool) -> None:
        running = self.story.machine.state is lc.RunState.RUNNING
        self.tell(lc.CallRefused(seq, "AGENT_CAP", "no") if refused else lc.CallAdmitted(seq, "l", None))
        if running and self.story.machine.state is lc.RunState.RUNNING:
            assert seq == self.next_seq
            self.next_seq += 1
            if not refused:
                self.admitted.append(seq)

    @rule()
    def worker_hangs_up(self) -> None:
        if not self.hung_up:
            self.hung_up = True
            self.tell(lc.HungUp("doing"))

    @rule(report=st.sampled_from([KILLED, EXITED_3, None]))
    def worker_exits(self, report: object) -> None:
        if not self.reported:
            self.reported = True
            self.tell(lc.Exited(report))  # type: ignore[arg-type]

    @rule()
    def fork_fails(self) -> None:
        if not self.reported:
            self.reported = True
            self.tell(lc.WorkerFailed("no process left"))

    @rule(blocked=st.booleans())
    def worker_stops_or_starts_reading(self, blocked: bool) -> None:
        if blocked != self.blocked:
            self.blocked = blocked
            self.tell(lc.WriteBlocked(blocked))

    # ---------------------------------------------------------------- host and providers

    @rule(reason=st.sampled_from(["a", "b"]))
    def holder_cancels(self, reason: str) -> None:
        self.tell(lc.CancelRequested(reason))

    @precondition(lambda self: self.armed)
    @rule(data=st.data())
    def a_deadline_passes(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(self.armed))
        self.armed.remove(kind)
        self.tell(lc.DeadlinePassed(kind))

    @precondition(lambda self: any(not a.started and s not in self.at_rest for s, a in self.agents.items()))
    @rule(data=st.data(), refused=st.booleans())
    def provider_starts_or_refuses(self, data: st.DataObject, refused: bool) -> None:
        seq = self._pick(data, lambda agent: not agent.started)
        if refused:
            self.tell(lc.StartRefused(seq, "no"))
            self.at_rest.add(seq)
            self.tell(lc.ChildAtRest(seq))
        else:
            self.agents[seq].started = True
            self.tell(lc.ChildStarted(seq, f"child-{seq}"))

    @precondition(lambda self: any(a.started and not a.has_outcome for a in self.agents.values()))
    @rule(data=st.data(), how=st.sampled_from(["completed", "failed", "broke"]))
    def agent_settles(self, data: st.DataObject, how: str) -> None:
        seq = self._pick(data, lambda agent: agent.started and not agent.has_outcome)
        self.agents[seq].has_outcome = True
        if how == "broke":
            self.tell(lc.ChildBroke(seq, "it broke"))
        else:
            self.tell(lc.ChildSettled(seq, msgspec.Raw(b"1"), failed=how == "failed", error="e", output_tokens=1))

    @precondition(lambda self: any(a.told_to_dispose and s not in self.at_rest for s, a in self.agents.items()))
    @rule(data=st.data())
    def agent_comes_to_rest(self, data: st.DataObject) -> None:
        seq = self._pick(data, lambda agent: agent.told_to_dispose)
        self.at_rest.add(seq)
        self.agents[seq].has_outcome = True
        self.tell(lc.ChildAtRest(seq))

    def _pick(self, data: st.DataObject, wanted: object) -> int:
        fitting = [seq for seq, agent in self.agents.items() if seq not in self.at_rest and wanted(agent)]  # type: ignore[operator]
        return data.draw(st.sampled_from(fitting))

    # ---------------------------------------------------------------- what always holds

    @invariant()
    def agents_start_in_the_order_of_their_calls(self) -> None:
        assert self.story.starts == self.admitted[: len(self.story.starts)]

    @invariant()
    def no_more_agents_are_at_work_than_there_are_slots(self) -> None:
        busy = [a for s, a in self.agents.items() if s not in self.at_rest and not a.has_outcome]
        assert len(busy) <= self.story.limits.agent_slots

    @invariant()
    def a_free_slot_is_used(self) -> None:
        machine = self.story.machine
        if machine.state is lc.RunState.RUNNING and not self.blocked:
            busy = [s for s, a in self.agents.items() if s not in self.at_rest and not a.has_outcome]
            waiting = len(self.admitted) - len(self.story.starts)
            assert waiting == 0 or len(busy) == self.story.limits.agent_slots

    @invariant()
    def every_call_with_an_outcome_was_answered_once_while_the_run_was_open(self) -> None:
        replies = [m.seq for m in (i.message for i in self.story.of(lc.Send)) if not isinstance(m, lc.Go)]
        assert len(replies) == len(set(replies))

    @invariant()
    def there_is_one_admission_or_one_refusal_and_at_most_one_end(self) -> None:
        story = self.story
        assert len(story.of(lc.Admit)) + len(story.of(lc.Refuse)) <= 1
        assert bool(story.of(lc.Admit)) == ("start" in story.types)
        assert story.types.count("end") == len(story.of(lc.Settle))
        if story.machine.state is lc.RunState.SETTLED:
            assert story.of(lc.KillWorker)
            assert story.of(lc.Settle) or story.of(lc.Refuse)

    def teardown(self) -> None:
        """However far the story got: a cancel, then everybody coming to rest, ends it with everything accounted for."""
        if not hasattr(self, "story"):
            return
        story = self.story
        self.tell(lc.CancelRequested("teardown"))
        for seq, agent in list(self.agents.items()):
            if not agent.started and seq not in self.at_rest:
                agent.started = True
                self.tell(lc.ChildStarted(seq, f"child-{seq}"))
            if seq not in self.at_rest:
                assert agent.told_to_dispose, f"agent {seq} was never disposed"
                self.tell(lc.ChildAtRest(seq))
        if not self.reported:
            self.tell(lc.Exited(None))
        elif "exit-report" in self.armed:
            self.tell(lc.DeadlinePassed("exit-report"))
        assert story.machine.state is lc.RunState.SETTLED
        started = [seq for seq, agent in self.agents.items() if agent.started]
        assert sorted(story.disposed) == sorted(started)
        assert set(story.announced) <= set(started)
        assert set(story.outcomes) == set(story.announced)
        assert sum(story.machine.counts.values()) == story.machine.agents_started == len(story.announced)
        story.checker.check_complete()
        for late in (LogCalled("late"), lc.CancelRequested("late"), lc.HungUp("late"), lc.DeadlinePassed("run")):
            assert story.tell(late) == []


RunOfARun.TestCase.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
TestAnyStory = RunOfARun.TestCase
