"""Two things at once: each race is the same events in both orders."""

from __future__ import annotations

import itertools

import pytest

from orchestrator import lifecycle as lc
from protocol.errors import ErrorCode
from tests.lifecycle.story import (
    BAD,
    CANCEL,
    EXITED,
    EXITED_3,
    FAILED,
    GRACE_OVER,
    HUNG_UP,
    LOADED,
    LOG,
    RESULT,
    Story,
    call,
    rest,
    settled,
    started,
)


def test_a_cancel_before_the_result_was_read_wins() -> None:
    assert Story(LOADED, CANCEL, RESULT).outcome.stop_reason == "cancelled"


def test_a_result_that_was_read_stands_against_a_cancel() -> None:
    assert Story(LOADED, RESULT, CANCEL).outcome.stop_reason == "completed"


def test_a_worker_death_after_a_cancel_reports_cancelled_not_error() -> None:
    assert Story(LOADED, CANCEL, HUNG_UP, EXITED).outcome.code == ErrorCode.CANCELLED


def test_a_cancel_after_the_hang_up_was_seen_reports_the_death() -> None:
    assert Story(LOADED, HUNG_UP, CANCEL, EXITED).outcome.code == ErrorCode.WORKER_DIED


def test_a_cancel_between_the_exit_report_and_the_hang_up_reports_cancelled() -> None:
    assert Story(LOADED, EXITED, CANCEL, HUNG_UP).outcome.code == ErrorCode.CANCELLED


def test_a_result_that_was_on_its_way_when_the_worker_exited_stands() -> None:
    assert Story(LOADED, EXITED, RESULT, HUNG_UP).outcome.stop_reason == "completed"


def test_the_first_cancel_gives_the_reason() -> None:
    story = Story(LOADED, call(1), started(1), CANCEL, lc.CancelRequested("later"), rest(1))
    assert story.outcome.error == "workflow run cancelled: enough"


@pytest.mark.parametrize("where", range(3))
def test_a_cancel_exactly_at_go(where: int) -> None:
    """Before, instead of and right after the script is told to go."""
    events: list[lc.Event] = [lc.WriteBlocked(False), LOADED]
    events.insert(where, CANCEL)
    story = Story(*events)
    assert story.types == ["start", "end"]
    assert story.outcome.stop_reason == "cancelled"
    assert len(story.of(lc.Send)) == (1 if where == 2 else 0)


def test_a_cancel_between_a_waiting_call_and_its_slot_never_starts_it() -> None:
    story = Story(LOADED, call(1), call(2), call(3), started(1), CANCEL, settled(1), rest(1))
    assert story.starts == [1, 2]
    story.tell(lc.StartRefused(2, "aborted"))
    assert story.settle is None
    story.tell(rest(2))
    assert story.settle is not None


def test_a_cancel_while_a_provider_starts_waits_for_it_and_disposes_what_it_started() -> None:
    story = Story(LOADED, call(1), CANCEL)
    assert story.settle is None
    story.tell(started(1))
    assert (story.types, story.disposed) == (["start"], [1])
    story.tell(rest(1))
    assert story.types == ["start", "end"]


def test_a_cancel_while_a_provider_refuses_to_start_leaves_nothing_to_dispose() -> None:
    story = Story(LOADED, call(1), CANCEL, lc.StartRefused(1, "no"), rest(1))
    assert (story.types, story.disposed) == (["start", "end"], [])


def test_an_agent_that_settles_in_the_moment_of_the_cancel_ends_once() -> None:
    first = Story(LOADED, call(1), started(1), settled(1), CANCEL, rest(1))
    second = Story(LOADED, call(1), started(1), CANCEL, settled(1), rest(1))
    assert (first.outcomes, second.outcomes) == ({1: "completed"}, {1: "cancelled"})
    assert first.disposed == second.disposed == [1]


def test_a_result_aborts_the_agents_nobody_waits_for() -> None:
    story = Story(LOADED, call(1), started(1), call(2), RESULT)
    assert story.outcomes == {1: "cancelled"}
    story.tell(rest(1))
    story.tell(lc.StartRefused(2, "aborted"))
    story.tell(rest(2))
    assert story.outcome.stop_reason == "completed"
    assert story.machine.counts["cancelled"] == 1


def test_a_cancel_while_a_completed_run_closes_its_agents_changes_nothing() -> None:
    story = Story(LOADED, call(1), started(1), RESULT, CANCEL, rest(1))
    assert story.outcome.stop_reason == "completed"


def test_a_cancel_before_anything_is_read_beats_a_script_that_does_not_parse() -> None:
    story = Story(CANCEL, lc.ScriptRefused("SCRIPT_PARSE", "no"))
    assert story.outcome.stop_reason == "cancelled"
    assert story.of(lc.Refuse) == []


ENDINGS: dict[str, list[lc.Event]] = {
    "result": [RESULT],
    "failure": [FAILED],
    "cancel": [CANCEL],
    "death": [HUNG_UP, lc.Exited(EXITED_3)],
    "garbage": [BAD],
    "timeout": [lc.DeadlinePassed("run")],
}
EXPECTED = {
    "result": None,
    "failure": ErrorCode.SCRIPT_ERROR,
    "cancel": ErrorCode.CANCELLED,
    "death": ErrorCode.WORKER_DIED,
    "garbage": ErrorCode.PROTOCOL,
    "timeout": ErrorCode.SCRIPT_TIMEOUT,
}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(ENDINGS, 2)))
@pytest.mark.parametrize("agent", ["waiting for a slot", "starting", "running", "settling"])
def test_of_two_endings_the_first_is_reported(first: str, second: str, agent: str) -> None:
    """Every pair of endings, in both orders, with an agent in every state of its life."""
    before: dict[str, list[lc.Event]] = {
        "waiting for a slot": [call(1), started(1), call(2)],
        "starting": [call(1)],
        "running": [call(1), started(1)],
        "settling": [call(1), started(1), settled(1)],
    }
    limits = lc.RunLimits(agent_slots=1, run_timeout=9.0)
    story = Story(LOADED, *before[agent], *ENDINGS[first], LOG, *ENDINGS[second], limits=limits)
    assert story.settle is None
    if agent == "starting":
        story.tell(started(1))
    story.tell(rest(1))
    assert story.outcome.code == EXPECTED[first]
    assert story.disposed == [1]
    assert story.types.count("end") == 1
    assert story.types.count("agent-start") == story.types.count("agent-end")


@pytest.mark.parametrize("order", list(itertools.permutations(["hang-up", "exit", "grace", "rest"])))
def test_the_parts_of_a_death_may_come_in_any_order(order: tuple[str, ...]) -> None:
    """The hang-up and the exit come from two sockets, the grace and the agent's rest from the loop."""
    parts: dict[str, lc.Event] = {"hang-up": HUNG_UP, "exit": EXITED, "grace": GRACE_OVER, "rest": rest(1)}
    story = Story(LOADED, call(1), started(1))
    if order.index("rest") < order.index("hang-up"):
        story.tell(settled(1))  # an agent is at rest only after its outcome, or after the close
    for part in order:
        if part == "grace" and order.index("grace") < order.index("hang-up"):
            continue  # armed by the hang-up
        story.tell(parts[part])
    assert story.outcome.code == ErrorCode.WORKER_DIED
    assert "SIGKILL" in str(story.outcome.error)
    assert "log('x')" in str(story.outcome.error)
    assert story.disposed == [1]
