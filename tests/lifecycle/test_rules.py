"""The machine's rules, one by one: events in, instructions out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orchestrator import lifecycle as lc
from protocol.errors import ErrorCode
from protocol.events import AgentEnded, LogWritten, PhaseStarted, WorkflowEnded
from protocol.messages import AgentRejected, AgentSettled, Go
from tests.lifecycle.story import (
    BAD,
    CANCEL,
    EXITED,
    FAILED,
    GRACE_OVER,
    HUNG_UP,
    INFO,
    LOADED,
    LOG,
    PHASE,
    RESULT,
    Story,
    call,
    rest,
    settled,
    started,
)

# ------------------------------------------------------------------------------------------------- loading


def test_a_loaded_script_is_admitted_announced_and_told_to_go_in_that_order() -> None:
    story = Story(LOADED)
    assert [type(instruction) for instruction in story.all] == [lc.Admit, lc.Emit, lc.Send, lc.ArmDeadline]
    assert story.of(lc.Send)[0].message == Go()


def test_a_run_timeout_is_armed_when_the_script_goes_and_not_before() -> None:
    story = Story(limits=lc.RunLimits(run_timeout=3.0))
    assert story.tell(LOADED)[-1] == lc.ArmDeadline("run", 3.0)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (lc.ScriptRefused(ErrorCode.SCRIPT_PARSE, "no"), ErrorCode.SCRIPT_PARSE),
        (lc.ScriptRefused(ErrorCode.META_INVALID, "no"), ErrorCode.META_INVALID),
        (lc.WorkerFailed("no"), ErrorCode.WORKER_DIED),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_script_that_cannot_run_is_refused_without_any_event(event: lc.Event, code: ErrorCode, known: bool) -> None:
    story = Story(event, known=known)
    assert story.refusal == lc.Refuse(code, "no")
    assert story.of(lc.KillWorker)
    assert story.events == []
    assert story.machine.state is lc.RunState.SETTLED


EARLY_ENDS: list[tuple[list[lc.Event], str, ErrorCode]] = [
    ([CANCEL], "cancelled", ErrorCode.CANCELLED),
    ([BAD], "error", ErrorCode.PROTOCOL),
    ([LOG], "error", ErrorCode.PROTOCOL),
    ([RESULT], "error", ErrorCode.PROTOCOL),
    ([FAILED], "error", ErrorCode.PROTOCOL),
    ([call(1)], "error", ErrorCode.PROTOCOL),
    ([HUNG_UP, EXITED], "error", ErrorCode.WORKER_DIED),
    ([EXITED, HUNG_UP], "error", ErrorCode.WORKER_DIED),
    ([lc.Exited(None), HUNG_UP], "error", ErrorCode.WORKER_DIED),
    ([HUNG_UP, lc.DeadlinePassed("exit-report")], "error", ErrorCode.WORKER_DIED),
    ([HUNG_UP, lc.WorkerFailed("out of processes")], "error", ErrorCode.WORKER_DIED),
    ([lc.DeadlinePassed("load")], "error", ErrorCode.WORKER_DIED),
    ([lc.WriteBlocked(True), lc.WriteBlocked(False), CANCEL], "cancelled", ErrorCode.CANCELLED),
]


@pytest.mark.parametrize(("events", "reason", "code"), EARLY_ENDS)
def test_an_end_before_the_script_is_loaded_is_a_run_that_starts_and_ends(
    events: list[lc.Event], reason: str, code: ErrorCode
) -> None:
    story = Story(*events)
    assert story.types == ["start", "end"]
    assert (story.outcome.stop_reason, story.outcome.code) == (reason, code)
    assert story.of(lc.Send) == []
    assert len(story.of(lc.Admit)) == 1


@pytest.mark.parametrize(("events", "reason", "code"), EARLY_ENDS)
def test_an_end_before_a_headers_meta_is_known_is_a_refusal(
    events: list[lc.Event], reason: str, code: ErrorCode
) -> None:
    story = Story(*events, known=False)
    assert story.refusal.code == code
    assert story.events == []
    assert story.of(lc.Admit) == []


def test_large_args_that_fill_the_socket_do_not_stop_the_load() -> None:
    story = Story(lc.WriteBlocked(True), LOADED, call(1))
    assert story.starts == []
    story.tell(lc.WriteBlocked(False))
    assert story.starts == [1]


# ------------------------------------------------------------------------------------------------- running


def test_narration_becomes_events() -> None:
    story = Story(LOADED, PHASE, LOG)
    assert story.events[1:] == [PhaseStarted(INFO, "one"), LogWritten(INFO, "hello")]


def test_an_agent_is_started_announced_ended_answered_and_disposed_in_that_order() -> None:
    story = Story(LOADED)
    assert story.tell(call(1, "look", "one")) == [lc.StartAgent(1)]
    (begun,) = story.tell(started(1))
    assert isinstance(begun, lc.Emit)
    ended = story.tell(settled(1, tokens=7))
    assert [type(instruction) for instruction in ended] == [lc.Emit, lc.DisposeAgent, lc.Send]
    assert ended[0] == lc.Emit(AgentEnded(INFO, 1, "look", "child-1", "completed", "one", None, 0, 7))
    assert ended[2] == lc.Send(AgentSettled(1, msgspec.Raw(b'"ok"'), 7))
    story.tell(rest(1))
    story.tell(RESULT)
    assert story.outcome.stop_reason == "completed"
    assert story.machine.counts == {"completed": 1, "failed": 0, "cancelled": 0}


def test_a_failed_agent_is_counted_named_and_answered_with_null() -> None:
    story = Story(LOADED, call(1, "look", "one"), started(1), settled(1, failed=True))
    assert story.outcomes == {1: "failed"}
    assert [(f.seq, f.label, f.phase, f.reason) for f in story.machine.failures] == [(1, "look", "one", "no luck")]
    assert story.of(lc.Send)[-1].message == AgentSettled(1, msgspec.Raw(b"null"), 0)


def test_a_broken_agent_ends_as_failed_and_rejects_its_call() -> None:
    story = Story(LOADED, call(1), started(1), lc.ChildBroke(1, "it broke"))
    assert story.outcomes == {1: "failed"}
    reply = story.of(lc.Send)[-1].message
    assert isinstance(reply, AgentRejected)
    assert (reply.code, reply.message) == (ErrorCode.AGENT_RESULT, "child agent run failed: it broke")


def test_a_provider_that_refuses_emits_nothing_and_rejects_its_call() -> None:
    story = Story(LOADED, call(1), lc.StartRefused(1, "no key"))
    assert story.types == ["start"]
    assert story.disposed == []
    reply = story.of(lc.Send)[-1].message
    assert isinstance(reply, AgentRejected)
    assert (reply.code, reply.message) == (ErrorCode.AGENT_START, "agent() could not start a child: no key")


def test_a_refused_call_is_answered_and_takes_its_seq() -> None:
    refused = lc.CallRefused(1, ErrorCode.UNSUPPORTED_SCHEMA, "bad schema")
    story = Story(LOADED, refused, call(2))
    assert story.of(lc.Send)[-1].message == AgentRejected(1, ErrorCode.UNSUPPORTED_SCHEMA, "bad schema")
    assert story.starts == [2]


def test_calls_beyond_the_cap_wait_and_start_in_the_order_they_came() -> None:
    story = Story(LOADED, *(call(seq) for seq in range(1, 7)))
    assert story.starts == [1, 2]
    story.tell(started(2))
    story.tell(settled(2))
    assert story.starts == [1, 2, 3]
    story.tell(lc.StartRefused(1, "no"))
    assert story.starts == [1, 2, 3, 4]
    story.tell(started(3))
    story.tell(lc.ChildBroke(3, "it broke"))
    assert story.starts == [1, 2, 3, 4, 5]


def test_a_slot_is_free_once_the_agent_has_its_outcome_even_while_it_is_being_disposed() -> None:
    story = Story(LOADED, call(1), call(2), call(3), started(1), settled(1))
    assert story.starts == [1, 2, 3]


def test_no_agent_starts_for_a_worker_that_does_not_read_its_answers() -> None:
    story = Story(LOADED, lc.WriteBlocked(True), call(1), call(2), call(3))
    assert story.starts == []
    story.tell(lc.WriteBlocked(False))
    assert story.starts == [1, 2]


@pytest.mark.parametrize("seq", [2, 0, 7])
@pytest.mark.parametrize("refused", [True, False])
def test_a_call_out_of_order_breaks_the_protocol(seq: int, refused: bool) -> None:
    bad: Any = lc.CallRefused(seq, ErrorCode.UNSUPPORTED_OPTION, "x") if refused else call(seq)
    story = Story(LOADED, bad)
    assert story.outcome.code == ErrorCode.PROTOCOL
    assert f"agent call {seq} came after 0" in str(story.outcome.error)
    assert story.starts == []


def test_a_used_seq_breaks_the_protocol_and_leaves_the_first_call_paired() -> None:
    story = Story(LOADED, call(1), started(1), call(1))
    assert story.outcomes == {1: "cancelled"}
    story.tell(rest(1))
    assert story.outcome.code == ErrorCode.PROTOCOL


def test_a_call_over_the_total_cap_breaks_the_protocol() -> None:
    story = Story(LOADED, call(1), call(2), limits=lc.RunLimits(max_total_agents=1))
    assert story.starts == [1]
    story.tell(lc.StartRefused(1, "aborted"))
    story.tell(rest(1))
    assert "over the cap of 1" in str(story.outcome.error)


@pytest.mark.parametrize("again", [LOADED, lc.ScriptRefused(ErrorCode.SCRIPT_PARSE, "no"), BAD])
def test_what_must_not_come_twice_breaks_the_protocol(again: lc.Event) -> None:
    story = Story(LOADED, again)
    assert story.outcome.code == ErrorCode.PROTOCOL
    assert story.types == ["start", "end"]


# ------------------------------------------------------------------------------------------------- ends

ENDS: list[tuple[list[lc.Event], str, str | None]] = [
    ([RESULT], "completed", None),
    ([FAILED], "error", ErrorCode.SCRIPT_ERROR),
    ([CANCEL], "cancelled", ErrorCode.CANCELLED),
    ([BAD], "error", ErrorCode.PROTOCOL),
    ([lc.DeadlinePassed("run")], "error", ErrorCode.SCRIPT_TIMEOUT),
    ([lc.WorkerFailed("it is gone")], "error", ErrorCode.WORKER_DIED),
    ([HUNG_UP, EXITED], "error", ErrorCode.WORKER_DIED),
    ([EXITED, HUNG_UP], "error", ErrorCode.WORKER_DIED),
    ([lc.Exited(None), HUNG_UP], "error", ErrorCode.WORKER_DIED),
    ([HUNG_UP, lc.Exited(None)], "error", ErrorCode.WORKER_DIED),
    ([HUNG_UP, lc.DeadlinePassed("exit-report")], "error", ErrorCode.WORKER_DIED),
]
"""Every way a running script ends."""


@pytest.mark.parametrize(("end", "reason", "code"), ENDS)
def test_every_end_brings_everything_to_rest(end: list[lc.Event], reason: str, code: str | None) -> None:
    """One agent in each state: disposed already, running, starting, waiting."""
    before = [LOADED, call(1), started(1), settled(1), call(2), started(2), call(3), call(4)]
    story = Story(*before)
    assert story.starts == [1, 2, 3]
    for event in end:
        story.tell(event)
    assert story.outcomes == {1: "completed", 2: "cancelled"}
    assert story.disposed == [1, 2]
    assert len(story.of(lc.AbortAgents)) == 1
    assert story.of(lc.ArmDeadline)[-1 if len(end) == 1 or end[1] == HUNG_UP else -2].kind == "grace"
    story.tell(started(3))  # after the end: disposed, never announced
    assert (story.announced, story.disposed) == ([1, 2], [1, 2, 3])
    for seq in (1, 2, 3):
        assert story.settle is None
        story.tell(rest(seq))
    assert (story.outcome.stop_reason, story.outcome.code) == (reason, code)
    assert (story.outcome.error is None) == (reason == "completed")
    assert isinstance(story.events[-1], WorkflowEnded)
    assert story.events[-1].agents_started == 2
    assert 4 not in story.starts
    story.checker.check_complete()


@pytest.mark.parametrize(("end", "reason", "code"), ENDS)
def test_an_end_without_agents_settles_at_once_and_arms_no_grace(
    end: list[lc.Event], reason: str, code: str | None
) -> None:
    story = Story(LOADED, *end)
    assert (story.outcome.stop_reason, story.outcome.code) == (reason, code)
    assert [deadline.kind for deadline in story.of(lc.ArmDeadline) if deadline.kind == "grace"] == []
    assert isinstance(story.all[-1], lc.Settle)
    assert isinstance(story.all[-2], lc.Emit)


LATER: list[lc.Event] = [
    *(LOADED, LOG, PHASE, RESULT, FAILED, CANCEL, BAD, HUNG_UP, EXITED, lc.Exited(None), call(2), call(1)),
    *(lc.CallRefused(2, "AGENT_CAP", "x"), lc.ScriptRefused("SCRIPT_PARSE", "x"), lc.WorkerFailed("x")),
    *(lc.DeadlinePassed("run"), lc.DeadlinePassed("load"), lc.DeadlinePassed("exit-report"), GRACE_OVER),
    *(lc.WriteBlocked(True), lc.WriteBlocked(False), settled(1), lc.ChildBroke(1, "x"), rest(1)),
]
"""Everything that can still arrive once a run has its outcome."""


@pytest.mark.parametrize(("end", "reason", "code"), ENDS)
def test_the_first_outcome_is_final(end: list[lc.Event], reason: str, code: str | None) -> None:
    for late in LATER:
        story = Story(LOADED, *end)
        said = len(story.all)
        assert story.tell(late) == [], late
        assert (story.outcome.stop_reason, story.outcome.code, len(story.all)) == (reason, code, said)


@pytest.mark.parametrize(("end", "reason", "code"), [row for row in ENDS if len(row[0]) == 1])
def test_the_first_outcome_is_final_also_while_an_agent_is_closing(
    end: list[lc.Event], reason: str, code: str | None
) -> None:
    for late in LATER:
        story = Story(LOADED, call(1), started(1), *end, late)
        if story.settle is None:
            story.tell(rest(1))
        assert (story.outcome.stop_reason, story.outcome.code) == (reason, code), late
        assert story.outcomes == {1: "cancelled"}
        assert story.disposed == [1]


def test_a_script_that_reports_an_unknown_code_ends_with_script_error() -> None:
    story = Story(LOADED, lc.ScriptFailed("MADE_UP", "text"))
    assert story.outcome.code == ErrorCode.SCRIPT_ERROR


def test_warnings_of_the_script_are_kept_on_both_endings() -> None:
    for end in (lc.ResultReturned(msgspec.Raw(b"1"), ("w",)), lc.ScriptFailed("SCRIPT_ERROR", "x", ("w",))):
        assert Story(LOADED, end).machine.warnings == ["w"]


# ------------------------------------------------------------------------------------------------- grace


def test_an_agent_that_ignores_its_abort_costs_the_grace_and_is_named_in_a_warning() -> None:
    story = Story(LOADED, call(1), started(1), CANCEL)
    assert story.settle is None
    story.tell(GRACE_OVER)
    assert story.outcome.stop_reason == "cancelled"
    assert "1 agent was still running" in story.machine.warnings[0]
    assert "dispose_grace" in story.machine.warnings[0]


def test_two_agents_that_ignore_their_abort_are_counted_in_the_warning() -> None:
    story = Story(LOADED, call(1), started(1), call(2), CANCEL, GRACE_OVER)
    assert "2 agents were still running" in story.machine.warnings[0]


@pytest.mark.parametrize("end", [CANCEL, RESULT, HUNG_UP])
def test_a_start_that_fulfils_after_the_grace_is_disposed_and_never_announced(end: lc.Event) -> None:
    story = Story(LOADED, call(1), end, GRACE_OVER)
    story.tell(started(1))
    assert (story.announced, story.disposed) == ([], [1])
    if end is HUNG_UP:  # only the exit report was still missing
        story.tell(EXITED)
    assert story.settle is not None
    assert story.tell(rest(1)) == []


def test_a_death_with_an_agent_that_ignores_its_abort_settles_with_the_death() -> None:
    story = Story(LOADED, call(1), started(1), HUNG_UP, GRACE_OVER)
    assert story.settle is None
    story.tell(EXITED)
    assert story.outcome.code == ErrorCode.WORKER_DIED
    assert "SIGKILL" in str(story.outcome.error)


def test_a_zygote_that_died_first_is_not_waited_for() -> None:
    story = Story(LOADED, lc.Exited(None), HUNG_UP)
    assert [deadline.kind for deadline in story.of(lc.ArmDeadline)] == ["run"]
    assert "together with its parent process" in str(story.outcome.error)
