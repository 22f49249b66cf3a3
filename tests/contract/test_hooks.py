"""The hooks: agent(), parallel(), pipeline(), phase(), log(), and how they share the slots."""

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
    FunctionProvider,
    LogWritten,
    PhaseStarted,
)
from tests.contract.conftest import RunScript
from tests.support import run_script


class Recorder:
    """An agent that keeps its requests and answers with the prompt."""

    def __init__(self) -> None:
        self.requests: list[AgentRequest] = []

    async def __call__(self, request: AgentRequest) -> str:
        self.requests.append(request)
        return request.prompt


class Gauge:
    """An agent that measures how many of it work at once, each for a few turns of the loop."""

    def __init__(self, turns: int = 20) -> None:
        self.turns = turns
        self.live = self.peak = 0
        self.order: list[str] = []

    async def __call__(self, request: AgentRequest) -> str:
        self.order.append(request.prompt)
        self.live += 1
        self.peak = max(self.peak, self.live)
        try:
            for _ in range(self.turns):
                await asyncio.sleep(0)
        finally:
            self.live -= 1
        return request.prompt


# --- agent ---


def test_every_option_reaches_the_agent(script: RunScript) -> None:
    agent = Recorder()
    schema = "{ type: 'object', properties: { n: { type: 'number' } }, description: 'd' }"
    options = f"label: 'L', phase: 'P', schema: {schema}, provider: 'p', model: 'm'"
    script(f"await agent('the prompt', {{ {options} }})", agent=agent, parent="the parent")
    [request] = agent.requests
    assert (request.prompt, request.label, request.phase, request.provider, request.model) == (
        "the prompt",
        "L",
        "P",
        "p",
        "m",
    )
    assert request.schema == {"type": "object", "properties": {"n": {"type": "number"}}, "description": "d"}
    assert (request.seq, request.parent, request.run.meta.name, request.options) == (1, "the parent", "test", {})


@pytest.mark.parametrize(
    ("option", "js"), [("agentType", "'a'"), ("effort", "'high'"), ("isolation", "'worktree'"), ("stallMs", "500")]
)
def test_a_pass_through_option_reaches_a_provider_that_declares_it(option: str, js: str) -> None:
    agent = Recorder()
    provider = FunctionProvider(agent, supported_options=(option,))
    assert run_script(f"return await agent('x', {{ {option}: {js} }})", agent=provider).result.value == "x"
    assert dict(agent.requests[0].options) == {option: 500 if option == "stallMs" else js.strip("'")}


@pytest.mark.parametrize(
    ("option", "js"), [("agentType", "'a'"), ("effort", "'high'"), ("isolation", "'worktree'"), ("stallMs", "500")]
)
def test_a_pass_through_option_is_refused_otherwise_naming_all_three(
    option: str, js: str, failure: Callable[..., Any]
) -> None:
    code, error = failure(f"return await agent('x', {{ {option}: {js} }})")
    assert code == ErrorCode.UNSUPPORTED_OPTION
    expected = f'agent() option "{option}" is not supported by the agent provider "default" (supported: '
    assert expected + "label, phase, schema, provider, model)" in error


BAD_CALLS = {
    "no prompt": ("agent()", "INVALID_ARGUMENT", "agent() requires a non-empty prompt string"),
    "an empty prompt": ("agent('')", "INVALID_ARGUMENT", "agent() requires a non-empty prompt string"),
    "a number as prompt": ("agent(1)", "INVALID_ARGUMENT", "agent() requires a non-empty prompt string"),
    "an object as prompt": ("agent({ prompt: 'x' })", "INVALID_ARGUMENT", "agent() requires a non-empty prompt string"),
    "a boxed prompt": ("agent(new String('x'))", "INVALID_ARGUMENT", "agent() requires a non-empty prompt string"),
    "null options": ("agent('x', null)", "INVALID_ARGUMENT", "agent() options must be an object"),
    "a list as options": ("agent('x', [])", "INVALID_ARGUMENT", "agent() options must be an object"),
    "text as options": ("agent('x', 'label')", "INVALID_ARGUMENT", "agent() options must be an object"),
    "an unknown option": (
        "agent('x', { lable: 'l' })",
        "UNSUPPORTED_OPTION",
        'agent() option "lable" is not recognized',
    ),
    "a symbol option": ("agent('x', { [Symbol('s')]: 1 })", "INVALID_ARGUMENT", "symbol-keyed properties"),
    "a number as label": ("agent('x', { label: 1 })", "INVALID_ARGUMENT", 'agent() option "label" must be a string'),
    "null as phase": ("agent('x', { phase: null })", "INVALID_ARGUMENT", 'agent() option "phase" must be a string'),
    "a number as model": ("agent('x', { model: 4 })", "INVALID_ARGUMENT", 'agent() option "model" must be a string'),
    "a list as provider": (
        "agent('x', { provider: [] })",
        "INVALID_ARGUMENT",
        'agent() option "provider" must be a string',
    ),
    "text as stallMs": (
        "agent('x', { stallMs: '5' })",
        "INVALID_ARGUMENT",
        'agent() option "stallMs" must be a positive',
    ),
    "a negative stallMs": (
        "agent('x', { stallMs: -5 })",
        "INVALID_ARGUMENT",
        'agent() option "stallMs" must be a positive',
    ),
    "an endless stallMs": (
        "agent('x', { stallMs: 1 / 0 })",
        "INVALID_ARGUMENT",
        'agent() option "stallMs" must be a positive',
    ),
    "a getter that throws": (
        "agent('x', { get label() { throw 5 } })",
        "INVALID_ARGUMENT",
        "agent() options.label: reading",
    ),
    "text as schema": (
        "agent('x', { schema: 'object' })",
        "UNSUPPORTED_SCHEMA",
        'option "schema" must be a JSON Schema object',
    ),
    "a list as schema": (
        "agent('x', { schema: [] })",
        "UNSUPPORTED_SCHEMA",
        'option "schema" must be a JSON Schema object',
    ),
    "a schema that is no object": ("agent('x', { schema: { type: 'array' } })", "UNSUPPORTED_SCHEMA", "object-rooted"),
    "parallel of nothing": (
        "parallel()",
        "INVALID_ARGUMENT",
        "parallel() requires an array of zero-argument functions",
    ),
    "parallel of text": (
        "parallel('x')",
        "INVALID_ARGUMENT",
        "parallel() requires an array of zero-argument functions",
    ),
    "parallel of a value": ("parallel([() => 1, 2])", "INVALID_ARGUMENT", "parallel() item 1 is not a function"),
    "parallel of a hole": ("parallel([, () => 1])", "INVALID_ARGUMENT", "parallel() item 0 is not a function"),
    "parallel of promises": ("parallel([agent('x')])", "INVALID_ARGUMENT", "it is a promise; write () => agent(…)"),
    "pipeline of text": ("pipeline('abc', (x) => x)", "INVALID_ARGUMENT", "pipeline() requires an items array"),
    "pipeline without a stage": (
        "pipeline([1])",
        "INVALID_ARGUMENT",
        "pipeline() requires at least one stage function",
    ),
    "pipeline with a list of stages": (
        "pipeline([1], [(x) => x])",
        "INVALID_ARGUMENT",
        "pipeline() stage 0 is not a function",
    ),
    "an empty phase": ("phase('')", "INVALID_ARGUMENT", "phase() requires a non-empty title string"),
    "a number as phase": ("phase(1)", "INVALID_ARGUMENT", "phase() requires a non-empty title string"),
    "a number as log": ("log(1)", "INVALID_ARGUMENT", "log() requires a message string"),
    "nothing as log": ("log()", "INVALID_ARGUMENT", "log() requires a message string"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_wrong_call_fails_the_run(name: str, failure: Callable[..., Any]) -> None:
    call, code, text = BAD_CALLS[name]
    assert failure(f"await {call}")[0] == code
    assert text in failure(f"await {call}")[1]


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_wrong_call_can_be_caught_and_the_run_goes_on(name: str, value: Callable[..., Any]) -> None:
    call, code, text = BAD_CALLS[name]
    caught = value(f"try {{ await {call} }} catch (e) {{ return [e.code, e.message, await agent('after')] }}")
    assert caught[0] == code
    assert text in caught[1]
    assert caught[2] == "ok:after"


def test_agent_gives_the_text_or_the_structured_value_or_null(value: Callable[..., Any]) -> None:
    schema = "{ schema: { type: 'object', properties: { n: { type: 'integer' } } } }"
    text = f"return [await agent('a'), await agent('b'), await agent('c', {schema}), await agent('fail')]"

    async def agent(request: AgentRequest) -> AgentResult:
        if request.prompt == "fail":
            raise AgentFailed("no luck")
        return AgentResult(text="the text", structured={"n": 1})

    assert value(text, agent=agent) == ["the text", "the text", {"n": 1}, None]


def test_a_structured_answer_that_breaks_its_schema_is_a_failure_with_the_reason(script: RunScript) -> None:
    schema = "{ type: 'object', properties: { n: { type: 'integer' } }, required: ['n'] }"
    ran = script(f"return await agent('structured-wrong', {{ schema: {schema} }})")
    assert ran.result.value is None
    assert (ran.result.stop_reason, ran.result.agents_failed) == ("completed", 1)
    assert "does not match the schema" in ran.result.failures[0].reason
    assert "n" in ran.result.failures[0].reason


LABELS = {
    "short": ("'short'", "short"),
    "48 characters": ("'y'.repeat(48)", "y" * 48),
    "49 characters": ("'y'.repeat(49)", "y" * 47 + "…"),
    "a first line": ("'one\\ntwo'", "one"),
    "an empty first line": ("'\\ntwo'", ""),
    "a first line of 49": ("'y'.repeat(49) + '\\nmore'", "y" * 47 + "…"),
    "other letters": ("'é'.repeat(49)", "é" * 47 + "…"),
    "spaces": ("'  x '", "  x "),
}


@pytest.mark.parametrize("name", LABELS)
def test_the_label_is_the_prompts_first_line_cut_to_48(name: str, script: RunScript) -> None:
    prompt, label = LABELS[name]
    events = script(f"await agent({prompt})").events
    assert [event.label for event in events if isinstance(event, AgentStarted | AgentEnded)] == [label, label]


def test_a_label_of_the_scripts_own_is_not_cut_to_48(script: RunScript) -> None:
    events = script("await agent('p', { label: 'z'.repeat(200) })").events
    assert [event.label for event in events if isinstance(event, AgentStarted)] == ["z" * 200]


def test_agents_with_one_label_keep_their_own_states(script: RunScript) -> None:
    text = "return await parallel(['a', 'fail', 'b', 'fail'].map((p) => () => agent(p, { label: 'same' })))"
    ran = script(text)
    assert ran.result.value == ["ok:a", None, "ok:b", None]
    ends = {event.seq: (event.label, event.outcome) for event in ran.events if isinstance(event, AgentEnded)}
    assert ends == {1: ("same", "completed"), 2: ("same", "failed"), 3: ("same", "completed"), 4: ("same", "failed")}
    assert [(failure.seq, failure.label) for failure in ran.result.failures] == [(2, "same"), (4, "same")]


def test_dead_agents_are_visible_in_a_completed_run(script: RunScript) -> None:
    result = script("phase('P'); return await parallel(['fail', 'a', 'fail'].map((p) => () => agent(p)))").result
    assert (result.stop_reason, result.value) == ("completed", [None, "ok:a", None])
    assert (result.agents_started, result.agents_completed, result.agents_failed, result.agents_cancelled) == (
        3,
        1,
        2,
        0,
    )
    assert {(failure.seq, failure.phase, failure.reason) for failure in result.failures} == {
        (1, "P", "no luck"),
        (3, "P", "no luck"),
    }


# --- phase and log ---


def test_a_phase_holds_for_later_agents_and_an_option_beats_it(script: RunScript) -> None:
    agent = Recorder()
    text = """await agent('a'); phase('One'); await agent('b'); await agent('c', { phase: 'Own' });
    phase('Two'); await agent('d')"""
    ran = script(text, agent=agent)
    assert [request.phase for request in agent.requests] == [None, "One", "Own", "Two"]
    assert [event.title for event in ran.events if isinstance(event, PhaseStarted)] == ["One", "Two"]


def test_narration_comes_in_order_between_the_agents(script: RunScript) -> None:
    ran = script("log('a'); phase('P'); log(''); const r = await agent('x'); log(r); return 1")
    assert ran.types == ["start", "log", "phase", "log", "agent-start", "agent-end", "log", "end"]
    assert [event.message for event in ran.events if isinstance(event, LogWritten)] == ["a", "", "ok:x"]


def test_very_long_narration_is_cut_and_marked(script: RunScript) -> None:
    text = "log('a'.repeat(1e6)); phase('p'.repeat(1e6)); await agent('x', { label: 'l'.repeat(1e6) })"
    events = script(text).events
    texts = [getattr(event, name) for event in events for name in ("message", "title", "label") if hasattr(event, name)]
    assert len(texts) == 4
    assert all(len(text) == 64 * 1024 and text.endswith("…") for text in texts)


def test_hooks_return_nothing_else(value: Callable[..., Any]) -> None:
    assert value("return [typeof log('a'), typeof phase('P'), agent('x') instanceof Promise]") == [
        "undefined",
        "undefined",
        True,
    ]


# --- parallel and pipeline ---


def test_parallel_keeps_the_order_of_its_thunks_and_nulls_what_throws(value: Callable[..., Any]) -> None:
    text = """return await parallel([
      () => { throw new Error('sync') }, async () => { throw new Error('async') }, () => 2, async () => agent('fail'),
      () => Promise.reject(1), () => agent('late').then((r) => [r]), () => null,
      () => ({ then(r) { r('thenable') } })])"""
    assert value(text) == [None, None, 2, None, None, ["ok:late"], None, "thenable"]


def test_parallel_calls_its_thunks_with_nothing_and_in_order(value: Callable[..., Any]) -> None:
    text = """const seen = [];
    await parallel([1, 2, 3].map((n) => function () { seen.push([n, arguments.length]) }));
    return seen"""
    assert value(text) == [[1, 0], [2, 0], [3, 0]]


def test_pipeline_gives_a_stage_the_previous_value_the_item_and_the_index(value: Callable[..., Any]) -> None:
    text = "const s = (p, item, i) => [p, item, i]; return await pipeline([10, 20], s, s)"
    assert value(text) == [[[10, 10, 0], 10, 0], [[20, 20, 1], 20, 1]]


def test_a_stage_that_throws_nulls_its_item_and_skips_the_rest_of_it(value: Callable[..., Any]) -> None:
    text = """const seen = [];
    const out = await pipeline([1, 2, 3], (x) => { if (x === 2) throw new Error('two'); return x * 10 },
      async (x) => { seen.push(x); return x + 1 });
    return { out, seen }"""
    assert value(text) == {"out": [11, None, 31], "seen": [10, 30]}


def test_a_failed_agent_is_a_null_the_next_stage_sees(value: Callable[..., Any]) -> None:
    assert value("return await pipeline(['a', 'fail'], (p) => agent(p), (p) => ({ got: p }))") == [
        {"got": "ok:a"},
        {"got": None},
    ]


def test_pipeline_has_no_barrier_between_stages(script: RunScript) -> None:
    """The slow item's first stage ends only once the quick item is through its second."""
    quick_is_through = asyncio.Event()

    async def agent(request: AgentRequest) -> str:
        if request.prompt == "quick-2":
            quick_is_through.set()
        if request.prompt == "slow-1":
            await quick_is_through.wait()
        return request.prompt

    text = "return await pipeline(['slow', 'quick'], (n) => agent(n + '-1'), (_, n) => agent(n + '-2'))"
    assert script(text, agent=agent).result.value == ["slow-2", "quick-2"]


def test_empty_lists_are_fine(value: Callable[..., Any]) -> None:
    assert value("return [await parallel([]), await pipeline([], (x) => x)]") == [[], []]


def test_the_hooks_copy_their_lists_first(value: Callable[..., Any]) -> None:
    text = """const thunks = [() => { thunks.length = 0; return 1 }, () => 2];
    const items = [1, 2]; const piped = pipeline(items, async (x) => { items[1] = 9; await null; return x });
    return [await parallel(thunks), await piped]"""
    assert value(text) == [[1, 2], [1, 2]]


# --- slots ---


def test_waiting_calls_start_in_the_order_of_the_calls() -> None:
    gauge = Gauge()
    config = EngineConfig(max_concurrent_agents=1, spare_workers=0)
    run_script("await Promise.all(Array.from({ length: 12 }, (_, i) => agent('' + i)))", agent=gauge, config=config)
    assert gauge.order == [str(i) for i in range(12)]
    assert gauge.peak == 1


@pytest.mark.parametrize("cap", [1, 2, 5])
def test_the_cap_is_reached_and_never_exceeded(cap: int) -> None:
    gauge = Gauge()
    config = EngineConfig(max_concurrent_agents=cap, spare_workers=0)
    ran = run_script(
        "return (await parallel(Array.from({ length: 20 }, (_, i) => () => agent('' + i)))).length",
        agent=gauge,
        config=config,
    )
    assert (ran.result.value, gauge.peak) == (20, cap)


def test_fan_out_nested_three_deep_finishes_under_a_cap_of_two() -> None:
    gauge = Gauge()
    config = EngineConfig(max_concurrent_agents=2, spare_workers=0)
    text = """return await parallel([1, 2, 3, 4].map((i) => () => pipeline([1, 2, 3],
      async (x) => (await parallel([() => agent(`a${i}${x}`), () => agent('same')])).filter(Boolean).length,
      async (n) => n + (await agent('again')).length)))"""
    ran = run_script(text, agent=gauge, config=config)
    assert ran.result.value == [[7, 7, 7]] * 4
    assert (gauge.peak, ran.result.agents_started) == (2, 36)


def test_agents_work_at_the_same_time() -> None:
    """Each of four agents waits until all four are there."""
    there: list[str] = []
    all_there = asyncio.Event()

    async def agent(request: AgentRequest) -> str:
        there.append(request.prompt)
        if len(there) == 4:
            all_there.set()
        await all_there.wait()
        return request.prompt

    config = EngineConfig(max_concurrent_agents=4, spare_workers=0)
    assert run_script(
        "return await parallel('abcd'.split('').map((p) => () => agent(p)))", agent=agent, config=config
    ).result.value == list("abcd")


# --- caps ---


@pytest.mark.parametrize("call", ["parallel([1, 2, 3].map((n) => () => n))", "pipeline([1, 2, 3], (n) => n)"])
def test_the_item_cap_refuses_the_call_and_allows_its_own_number(call: str) -> None:
    config = EngineConfig(max_items_per_call=2, spare_workers=0)
    result = run_script(f"return await {call}", config=config).result
    assert result.code == ErrorCode.ITEM_CAP
    assert "received 3 items — over the per-call cap (2)" in str(result.error)
    assert run_script(f"return await {call.replace(', 3', '')}", config=config).result.value == [1, 2]


def test_the_agent_cap_refuses_the_next_call_and_may_be_caught() -> None:
    config = EngineConfig(max_total_agents=3, spare_workers=0)
    text = """const out = [];
    for (let i = 0; i < 5; i++) { try { out.push(await agent('x' + i)) } catch (e) { out.push(e.code) } }
    return out"""
    ran = run_script(text, config=config)
    assert ran.result.value == ["ok:x0", "ok:x1", "ok:x2", "AGENT_CAP", "AGENT_CAP"]
    assert ran.result.agents_started == 3


def test_a_refused_call_costs_nothing_of_the_agent_cap() -> None:
    config = EngineConfig(max_total_agents=2, spare_workers=0)
    text = (
        "for (let i = 0; i < 5; i++) { try { await agent('') } catch {} } return [await agent('a'), await agent('b')]"
    )
    assert run_script(text, config=config).result.value == ["ok:a", "ok:b"]


def test_a_request_may_lower_the_agent_cap(failure: Callable[..., Any]) -> None:
    code, error = failure("await agent('a'); await agent('b')", max_total_agents=1)
    assert code == ErrorCode.AGENT_CAP
    assert "this run reached its total agent cap (1)" in error


# --- throws inside a fan-out ---


def test_a_slip_inside_a_thunk_is_a_null_and_one_warning_with_its_place_and_a_count(script: RunScript) -> None:
    text = """return await parallel([1, 2, 3].map((n) => async () => {
      if (n > 1) throw new TypeError('no luck');
      return n;
    }))"""
    result = script(text).result
    assert result.value == [1, None, None]
    assert len(result.warnings) == 1
    assert result.warnings[0].startswith(
        "parallel() item 1 (and 1 more) threw, so its place is null: TypeError: no luck (line 2, column 24)"
    )


def test_a_throwing_stage_is_told_with_the_item_and_different_slips_are_told_apart(script: RunScript) -> None:
    result = script("return await pipeline([1, null], (x) => x.a.b, (x) => x)").result
    assert result.value == [None, None]
    first, second = result.warnings
    assert first.startswith("pipeline() item 0 threw, so its place is null: TypeError:")
    assert second.startswith("pipeline() item 1 threw, so its place is null: TypeError:")


def test_what_is_thrown_in_a_fan_out_may_be_anything_and_the_warnings_are_bounded(script: RunScript) -> None:
    text = """const odd = [null, undefined, 'text', Symbol('s'), { toString() { throw 1 } }, new Proxy({}, {}), ''];
    await parallel(odd.map((thrown) => () => { throw thrown }));
    await parallel(Array.from({ length: 100 }, (_, i) => () => { throw new Error(`kind ${i}`) }));
    return 'through'"""
    result = script(text).result
    assert result.value == "through"
    assert len(result.warnings) == 20
    assert all("threw, so its place is null: " in warning for warning in result.warnings)


def test_agents_that_fail_are_no_warnings(script: RunScript) -> None:
    assert script("return await parallel([() => agent('fail'), () => agent('x')])").result.warnings == ()
