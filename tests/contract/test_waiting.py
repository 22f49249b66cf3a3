"""What a script can wait for: agents, timers, nothing at all; and what nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import (
    AgentEnded,
    AgentFailed,
    AgentRequest,
    AgentResult,
    AgentStarted,
    EngineConfig,
    ErrorCode,
    LogWritten,
    Usage,
)
from tests.contract.conftest import RunScript
from tests.support import run_script

STALLED = {
    "a promise nobody resolves": "await new Promise(() => {})",
    "the same after an agent": "await agent('x'); await new Promise(() => {})",
    "a thenable that never calls back": "await { then() {} }",
    "a returned thenable that never calls back": "return { then(resolve) {} }",
    "a race of nothing": "await Promise.race([])",
    "a promise in parallel": "return await parallel([() => new Promise(() => {}), () => agent('x')])",
    "a promise in a stage": "return await pipeline([1, 2], () => new Promise(() => {}))",
    "a timer that was cleared": "const t = setTimeout(() => {}, 1e8); clearTimeout(t); await new Promise(() => {})",
    "a timer that fired and woke nobody": "setTimeout(() => {}, 1); await new Promise(() => {})",
    "a rejection nobody handles": "Promise.reject(new Error('x')); await new Promise(() => {})",
    "an agent whose answer wakes nobody": "agent('x'); await new Promise(() => {})",
    "a generator that never yields": "for await (const x of { [Symbol.asyncIterator]() { return { next() { "
    "return new Promise(() => {}) } } } }) log(x)",
}


@pytest.mark.parametrize("name", STALLED)
def test_a_script_that_nothing_can_wake_is_reported_and_does_not_hang(name: str, failure: Callable[..., Any]) -> None:
    code, error = failure(STALLED[name])
    assert code == ErrorCode.SCRIPT_STALLED
    assert "waits on a promise that nothing will resolve" in error


AWAKE = {
    "an agent": ("return await Promise.race([new Promise(() => {}), agent('x')])", "ok:x"),
    "a timer": (
        "return await Promise.race([new Promise(() => {}), new Promise((r) => setTimeout(r, 5, 'late'))])",
        "late",
    ),
    "a chain of timers": (
        "let n = 0; await new Promise((r) => { const again = () => ++n === 5 ? r() : setTimeout(again, 1); again() }); "
        "return n",
        5,
    ),
    "an agent started by a timer": (
        "return await new Promise((r) => setTimeout(async () => r(await agent('x')), 1))",
        "ok:x",
    ),
    "a timer started by an agent": (
        "return await agent('x').then((v) => new Promise((r) => setTimeout(r, 1, v)))",
        "ok:x",
    ),
    "many jobs": ("for (let i = 0; i < 20000; i++) await null; return 1", 1),
}


@pytest.mark.parametrize("name", AWAKE)
def test_a_script_that_something_will_wake_is_not_stalled(name: str, value: Callable[..., Any]) -> None:
    text, expected = AWAKE[name]
    assert value(text) == expected


# --- timers ---


def test_timers_fire_in_the_order_of_their_delays(value: Callable[..., Any]) -> None:
    text = """const seen = [];
    setTimeout(() => seen.push(3), 40); setTimeout(() => seen.push(1), 1); setTimeout(() => seen.push(2), 20);
    await new Promise((r) => setTimeout(r, 60)); return seen"""
    assert value(text) == [1, 2, 3]


def test_timers_of_one_delay_fire_in_the_order_they_were_set(value: Callable[..., Any]) -> None:
    text = """const seen = []; for (let i = 0; i < 50; i++) setTimeout((n) => seen.push(n), 5, i);
    await new Promise((r) => setTimeout(r, 30)); return seen"""
    assert value(text) == list(range(50))


def test_a_timer_passes_its_arguments_and_has_a_number(value: Callable[..., Any]) -> None:
    assert value(
        "return await new Promise((r) => setTimeout((a, b) => r([a, b, typeof setTimeout(() => {}, 0)]), 1, 'a', 2))"
    ) == [
        "a",
        2,
        "number",
    ]


@pytest.mark.parametrize("delay", ["0", "-5", "NaN", "'abc'", "undefined", "null", "{}", "1.5", "'2'"])
def test_any_delay_is_a_delay(delay: str, value: Callable[..., Any]) -> None:
    assert value(f"return await new Promise((r) => setTimeout(r, {delay}, 'fired'))") == "fired"


def test_a_cleared_timer_does_not_fire_and_clearing_nonsense_does_nothing(script: RunScript) -> None:
    text = """const t = setTimeout(() => log('fired'), 1);
    for (const id of [t, t, undefined, 'x', 999, {}, null, NaN]) clearTimeout(id);
    await new Promise((r) => setTimeout(r, 15)); return 1"""
    assert script(text).types == ["start", "end"]


def test_a_timer_cleared_by_an_earlier_one_of_the_same_moment_does_not_fire(script: RunScript) -> None:
    text = """let b; setTimeout(() => clearTimeout(b), 3); b = setTimeout(() => log('fired'), 3);
    await new Promise((r) => setTimeout(r, 15)); return 1"""
    assert script(text).types == ["start", "end"]


def test_no_timer_outlives_the_run(script: RunScript) -> None:
    assert script("setTimeout(() => log('late'), 1e8); return 'returned'").result.value == "returned"


def test_a_timer_that_throws_is_a_warning_and_others_still_fire(script: RunScript) -> None:
    result = script(
        "setTimeout(() => { throw new Error('t') }, 1); return await new Promise((r) => setTimeout(r, 5, 'on'))"
    ).result
    assert result.value == "on"
    assert [warning.split("\n")[0] for warning in result.warnings] == [
        "a setTimeout callback threw: Error: t (line 1, column 26)"
    ]


def test_jobs_run_before_the_next_timer(value: Callable[..., Any]) -> None:
    text = """const seen = [];
    setTimeout(() => { seen.push('one'); Promise.resolve().then(() => seen.push('job')) }, 1);
    setTimeout(() => seen.push('two'), 1); await new Promise((r) => setTimeout(r, 10)); return seen"""
    assert value(text) == ["one", "job", "two"]


# --- what nobody waits for ---


@pytest.mark.parametrize(
    "dropped",
    [
        "Promise.reject(new Error('x'))",
        "Promise.reject(null)",
        "agent('')",
        "agent('boom')",
        "agent('fail')",
        "parallel([1])",
        "(async () => { throw 1 })()",
        "new Promise((_, no) => no('x'))",
    ],
)
@pytest.mark.parametrize("then", ["return 'fine'", "await agent('x'); return 'fine'"])
def test_a_rejection_nobody_handles_costs_nothing_but_itself(
    dropped: str, then: str, value: Callable[..., Any]
) -> None:
    assert value(f"{dropped}; {then}") == "fine"


def test_an_agent_nobody_waits_for_is_aborted_when_the_script_returns() -> None:
    aborted: list[str] = []

    async def agent(request: AgentRequest) -> str:
        if request.prompt == "quick":
            return "quick"
        try:
            await asyncio.Event().wait()
        finally:
            aborted.append(str(request.signal.reason))
        return "never"

    ran = run_script("agent('slow'); await agent('quick'); return 1", agent=agent)
    assert ran.result.value == 1
    assert {event.seq: event.outcome for event in ran.events if isinstance(event, AgentEnded)} == {
        1: "cancelled",
        2: "completed",
    }
    assert aborted == ["workflow settled"]
    assert ran.result.agents_cancelled == 1


def test_nothing_starts_once_the_script_has_returned(script: RunScript) -> None:
    ran = script("agent('a'); agent('b'); return 1")
    assert not [event for event in ran.events if isinstance(event, AgentStarted)]


def test_code_after_the_return_narrates_nothing(script: RunScript) -> None:
    text = (
        "Promise.resolve().then(async () => { for (let i = 0; i < 5; i++) { await null; log('late ' + i) } }); return 1"
    )
    events = script(text).events
    assert len([event for event in events if isinstance(event, LogWritten)]) < 5
    assert events[-1].type == "workflow/end"


# --- budget ---


def _paid(tokens: int) -> Any:
    async def agent(request: AgentRequest) -> AgentResult:
        if request.prompt == "fail":
            return AgentResult(stop_reason="error", error="no", usage=Usage(output_tokens=tokens))
        return AgentResult(text="done", usage=Usage(input_tokens=1000, output_tokens=tokens))

    return agent


def test_without_a_ceiling_the_budget_counts_and_never_ends(value: Callable[..., Any]) -> None:
    text = "const before = budget.spent(); await agent('a'); await agent('b'); "
    text += "return [budget.total, before, budget.spent(), budget.remaining() === Infinity]"
    assert value(text, agent=_paid(30)) == [None, 0, 60, True]


def test_the_budget_reads_the_same_at_the_start_of_a_script(value: Callable[..., Any]) -> None:
    assert value(
        "return [budget.total, budget.spent(), budget.remaining() > 1e9, Object.isFrozen(budget), typeof budget]"
    ) == [
        None,
        0,
        True,
        True,
        "object",
    ]


def test_with_a_ceiling_the_call_beyond_it_throws() -> None:
    config = EngineConfig(token_budget=100, spare_workers=0)
    text = """const seen = [[budget.total, budget.spent(), budget.remaining()]];
    for (let i = 0; i < 5; i++) {
      try { await agent('a'); seen.push([budget.spent(), budget.remaining()]) } catch (e) { seen.push(e.code); break }
    }
    return seen"""
    ran = run_script(text, agent=_paid(40), config=config)
    assert ran.result.value == [[100, 0, 100], [40, 60], [80, 20], [120, 0], "BUDGET_EXCEEDED"]
    assert (ran.result.agents_started, ran.result.output_tokens) == (3, 120)


def test_a_budget_nobody_catches_ends_the_run_with_the_numbers() -> None:
    config = EngineConfig(token_budget=10, spare_workers=0)
    result = run_script("await agent('a'); await agent('b')", agent=_paid(25), config=config).result
    assert result.code == ErrorCode.BUDGET_EXCEEDED
    assert "this run has spent 25 of its 10 output tokens; no further agent starts (line 1, column 25)" in str(
        result.error
    )


def test_the_outcome_tells_counts_and_tokens_phase_by_phase() -> None:
    text = """phase('Find'); await agent('a'); await agent('fail');
    phase('Judge'); await agent('b'); await agent('c', {phase: 'Find'});
    await agent('d', {phase: 'Last'})"""
    result = run_script("await agent('before'); " + text, agent=_paid(7)).result
    assert [(p.title, p.started, p.completed, p.failed, p.input_tokens, p.output_tokens) for p in result.phases] == [
        (None, 1, 1, 0, 1000, 7),
        ("Find", 3, 2, 1, 2000, 21),
        ("Judge", 1, 1, 0, 1000, 7),
        ("Last", 1, 1, 0, 1000, 7),
    ]
    assert (result.input_tokens, result.output_tokens) == (5000, 42)


def test_the_end_of_an_agent_tells_what_it_cost() -> None:
    events = run_script("await agent('a'); await agent('fail')", agent=_paid(7)).events
    ended = [event for event in events if isinstance(event, AgentEnded)]
    assert [(event.input_tokens, event.output_tokens) for event in ended] == [(1000, 7), (0, 7)]


def test_failed_agents_cost_too(value: Callable[..., Any]) -> None:
    assert value("await agent('fail'); return budget.spent()", agent=_paid(7)) == 7


def test_an_agent_that_reports_no_usage_costs_nothing(value: Callable[..., Any]) -> None:
    assert value("await agent('x'); return budget.spent()") == 0


@pytest.mark.parametrize("tokens", [-1, 1.5, "many", None, float("nan")])
def test_a_usage_that_is_no_count_breaks_the_agent(tokens: Any, failure: Callable[..., Any]) -> None:
    code, error = failure("await agent('x')", agent=_paid(tokens))
    assert code == ErrorCode.AGENT_RESULT
    assert "output tokens, not a whole number" in error


def test_the_budget_cannot_be_changed_by_the_script(value: Callable[..., Any]) -> None:
    text = """try { budget.spent = () => 0 } catch {} try { budget.total = 5 } catch {}
    await agent('a'); return [budget.total, budget.spent()]"""
    assert value(text, agent=_paid(3)) == [None, 3]


# --- agents that fail ---


def test_a_failure_names_its_reason_in_result_and_event(script: RunScript) -> None:
    async def agent(request: AgentRequest) -> str:
        raise AgentFailed("quota exceeded")

    ran = script("return await agent('x', { label: 'L' })", agent=agent)
    assert ran.result.value is None
    [failed] = ran.result.failures
    assert (failed.seq, failed.label, failed.reason) == (1, "L", "quota exceeded")
    assert [event.error for event in ran.events if isinstance(event, AgentEnded)] == ["quota exceeded"]


def test_a_failure_without_a_reason_still_says_something(script: RunScript) -> None:
    async def agent(request: AgentRequest) -> AgentResult:
        if request.prompt == "a":
            raise AgentFailed
        return AgentResult(stop_reason="max_tokens")

    result = script("await agent('a'); await agent('b')", agent=agent).result
    assert [failed.reason for failed in result.failures] == ["no reason given", "it stopped: max_tokens"]
