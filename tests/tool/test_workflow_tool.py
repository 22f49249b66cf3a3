"""The workflow tool against a scripted engine: its texts, its life, its arguments."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from orchestrator import AbortController, ErrorCode, WorkflowError
from orchestrator.tool import DESCRIPTION, TextContent, ToolRegistry, WorkflowTool, render_success
from tests.conftest import run_async
from tests.tool.fakes import ARGUMENTS, META, CallingAgent, FakeEngine, Mounted, until


def settle_at_once(**fields: Any) -> FakeEngine:
    return FakeEngine(lambda _engine, _request, run: run.settle(**fields))


def call_with(engine: FakeEngine, arguments: Any = None, **settings: Any) -> Any:
    return run_async(Mounted(engine, **settings).call(arguments))


# ------------------------------------------------------------------------------------------------- exact texts


@pytest.mark.parametrize(
    ("agents", "value", "text"),
    [
        (0, None, 'workflow "demo" completed (0 agents).\nReturn value:\nnull'),
        (
            1,
            {"a": [1, 2.5]},
            'workflow "demo" completed (1 agent).\nReturn value:\n{\n  "a": [\n    1,\n    2.5\n  ]\n}',
        ),
        (2, "é\n", 'workflow "demo" completed (2 agents).\nReturn value:\n"é\\n"'),
        (3, [[], {}], 'workflow "demo" completed (3 agents).\nReturn value:\n[\n  [],\n  {}\n]'),
    ],
)
def test_a_success_reads_exactly_so(agents: int, value: Any, text: str) -> None:
    result = call_with(settle_at_once(value=value, agents_started=agents))
    assert result.content == (TextContent(text),)
    assert not result.is_error
    assert result.value == {"runId": "run-1", "agentsStarted": agents, "result": value}


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (7, '"abcde"'),
        (6, '"abcde\n… [truncated: 1 more characters]'),
        (1, '"\n… [truncated: 6 more characters]'),
    ],
)
def test_a_long_value_is_cut_for_the_model_and_stays_whole_in_the_canonical_value(limit: int, shown: str) -> None:
    result = call_with(settle_at_once(value="abcde"), max_result_chars=limit)
    assert result.text == f'workflow "demo" completed (0 agents).\nReturn value:\n{shown}'
    assert result.value["result"] == "abcde"


def test_the_default_cut_is_at_50000_characters() -> None:
    assert call_with(settle_at_once(value="x" * 49_998)).text.endswith('x"')
    text = call_with(settle_at_once(value="x" * 50_100)).text
    assert text.endswith("x\n… [truncated: 102 more characters]")
    assert len(text.split("\n", 2)[2]) == 50_000 + len("\n… [truncated: 102 more characters]")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"stop_reason": "cancelled"}, "Error: workflow run was cancelled"),
        ({"stop_reason": "cancelled", "error": "because"}, "Error: workflow run was cancelled (because)"),
        ({"stop_reason": "error", "error": "it broke"}, "Error: workflow run failed: it broke"),
        ({"stop_reason": "error"}, "Error: workflow run failed: unknown error"),
        ({"stop_reason": "exploded"}, "Error: workflow run ended abnormally (exploded)"),
    ],
)
def test_any_stop_reason_but_completed_is_an_error_that_names_it_and_shows_no_value(
    fields: dict[str, Any], text: str
) -> None:
    engine = settle_at_once(value={"partial": True}, **fields)
    result = call_with(engine)
    assert result.text == text
    assert result.is_error
    assert result.value is None
    assert engine.run.at_rest


def test_a_call_without_a_calling_agent_is_an_error_and_starts_nothing() -> None:
    engine = settle_at_once()
    result = run_async(Mounted(engine).call(agent=None))
    assert result.text == "Error: workflow tool requires a calling agent (exec.agent was undefined)"
    assert result.is_error
    assert engine.requests == []


def test_what_start_raises_is_an_error_the_model_can_correct_from() -> None:
    def refuse(*_: Any) -> None:
        raise WorkflowError(ErrorCode.META_INVALID, "invalid meta: meta.name must be a non-empty string")

    mounted = Mounted(FakeEngine(refuse))
    result = run_async(mounted.call())
    assert result.text == "Error: invalid meta: meta.name must be a non-empty string"
    assert mounted.types == ["tools/call", "tools/result"]
    assert mounted.tool.progress.held == 0


def test_a_result_nested_as_deep_as_a_result_may_be_is_shown() -> None:
    value: Any = 1
    for _ in range(800):
        value = [value]
    assert render_success("deep", 0, value, 10**9).count("[") == 800


# ------------------------------------------------------------------------------------------------- the definition


def test_the_prompt_section_is_the_policy_word_for_word_with_the_tools_name() -> None:
    section = WorkflowTool(FakeEngine(), tool_name="orchestrate").definition.prompt
    assert section is not None
    assert section.name == "tool:orchestrate"
    assert section.text == (
        "Use the orchestrate tool ONLY when the user explicitly asks for a workflow or for large multi-agent "
        "orchestration: you write a JavaScript script (the tool description documents the exact format) that fans work "
        "out across many subagents with phases and structured results. For one or two delegations, prefer plain "
        "subagent calls."
    )


def test_the_definition_carries_the_three_parameters_and_the_whole_contract() -> None:
    definition = WorkflowTool(FakeEngine()).definition
    assert definition.name == "workflow"
    assert list(definition.parameters["properties"]) == ["script", "meta", "args"]
    words = (
        "agent(", "parallel(", "pipeline(", "phase(", "log(", "args", "budget", "setTimeout", "return", "await", "null",
        "schema", "label", "provider", "model", "agentType", "effort", "isolation", "stallMs", "whenToUse", "phases",
        "TypeScript", "export const meta", "JSON",
    )  # fmt: skip
    assert [word for word in words if word not in DESCRIPTION] == []


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "9"])
def test_a_senseless_cut_is_refused_at_construction(limit: Any) -> None:
    with pytest.raises(ValueError, match="max_result_chars must be a whole number"):
        WorkflowTool(FakeEngine(), max_result_chars=limit)


# ------------------------------------------------------------------------------------------------- the card


@pytest.mark.parametrize(
    ("arguments", "title", "raw"),
    [
        (ARGUMENTS, "workflow: demo", "return 1"),
        ({"script": "return 2", "meta": {"name": "a\nb"}}, "workflow: a b", "return 2"),
        ({"script": "return 1"}, "workflow: (unnamed)", "return 1"),
        ({"script": "return 1", "meta": {"name": 7}}, "workflow: (unnamed)", "return 1"),
        ({"script": "return 1", "meta": "demo"}, "workflow: (unnamed)", "return 1"),
        ({"meta": META}, "workflow: demo", {"meta": META}),
        ({"script": 5, "meta": META}, "workflow: demo", {"script": 5, "meta": META}),
        ("not even an object", "workflow: (unnamed)", "not even an object"),
        (None, "workflow: (unnamed)", None),
    ],
)
def test_the_card_is_generic_and_made_from_any_arguments(arguments: Any, title: str, raw: Any) -> None:
    presenter = WorkflowTool(FakeEngine()).definition.presenter
    assert presenter is not None
    card = presenter.present_call(arguments)
    assert (card.card, card.title, card.raw_input) == ("generic", title, raw)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("{name: 'demo', description: 'd'}", "demo"),
        ('{description: "d", "name": "two words"}', "two words"),
        ("{'name': `plain`, description: 'd'}", "plain"),
        ("{description: 'no name'}", "(unnamed)"),
        ("{phases: [{name: 'inner'}], description: 'd'}", "(unnamed)"),
        ("{name: 'a\\nb', description: 'd'}", "(unnamed)"),
        ("{name: '', description: 'd'}", "(unnamed)"),
        ("{name: 5}", "(unnamed)"),
        ("{name: 'cut", "(unnamed)"),
    ],
)
def test_a_script_that_names_itself_names_its_card(header: str, name: str) -> None:
    presenter = WorkflowTool(FakeEngine()).definition.presenter
    assert presenter is not None
    script = f"export const meta = {header}\nreturn 1"
    assert presenter.present_call({"script": script}).title == f"workflow: {name}"
    assert presenter.present_call({"script": script, "meta": META}).title == "workflow: demo"


def test_the_result_keeps_the_generic_card() -> None:
    mounted = Mounted(settle_at_once(value=1))
    run_async(mounted.call())
    assert mounted.events[-1].card.card == "generic"  # type: ignore[attr-defined]
    assert mounted.events[-1].card.title is None  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------- arguments


def test_the_request_carries_script_meta_args_the_agent_and_the_holders_policy() -> None:
    engine = settle_at_once()
    agent = CallingAgent()
    mounted = Mounted(engine, subagent_provider="cheap", max_total_agents=7)
    run_async(mounted.call({**ARGUMENTS, "args": {"n": 1}}, agent=agent))
    (request,) = engine.requests
    assert (request.script, request.meta, request.args) == ("return 1", META, {"n": 1})
    assert (request.parent, request.subagent_provider, request.max_total_agents) == (agent, "cheap", 7)
    assert request.signal is not None


def test_args_left_out_or_null_are_undefined_in_the_script() -> None:
    for arguments in (ARGUMENTS, {**ARGUMENTS, "args": None}):
        engine = settle_at_once()
        call_with(engine, arguments)
        assert repr(engine.requests[0].args) == "UNSET"


def test_args_may_be_a_string_that_holds_an_object() -> None:
    engine = settle_at_once()
    call_with(engine, {**ARGUMENTS, "args": ' {"files": ["a.py"]}\n'})
    assert engine.requests[0].args == {"files": ["a.py"]}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("a.py", 'such as {"files": ["a.py"]}; the string that was sent does not hold one: send the object itself'),
        ("", "does not hold one: send the object itself"),
        ('{"files": [', "does not hold one: send the object itself"),
        ("[" * 100_000, "does not hold one: send the object itself"),
        ('["a.py"]', 'not a string that holds an array: put it into a field, such as {"items": …}'),
        ('"{}"', "not a string that holds a string"),
        ("null", "not a string that holds null"),
        (["a.py"], "not an array: put it into a field"),
        (5, "not a number"),
        (True, "not a boolean"),
    ],
)
def test_other_args_are_refused_with_what_to_send_and_nothing_starts(args: Any, message: str) -> None:
    engine = settle_at_once()
    result = call_with(engine, {**ARGUMENTS, "args": args})
    assert result.is_error
    assert result.text.startswith("Error: workflow args must be a JSON object")
    assert message in result.text
    assert engine.requests == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"meta": META}, "workflow script must be a string: the JavaScript body"),
        ({"script": ["return 1"], "meta": META}, "workflow script must be a string, not an array"),
        (
            {**ARGUMENTS, "resumeFrom": "x", "b": 1},
            "the workflow tool has no parameter 'resumeFrom', 'b'; it takes script, meta and args",
        ),
        ("return 1", "the arguments of workflow must be a JSON object, not str"),
        (None, "the arguments of workflow must be a JSON object, not NoneType"),
    ],
)
def test_malformed_arguments_are_an_error_and_still_have_a_card(arguments: Any, message: str) -> None:
    mounted = Mounted(settle_at_once())
    result = run_async(
        mounted.registry.call("workflow", arguments, session_id="s1", call_id="c1", agent=CallingAgent())
    )
    assert result.text.startswith(f"Error: {message}")
    assert mounted.types == ["tools/call", "tools/result"]


# ------------------------------------------------------------------------------------------------- life of a call


def test_the_run_is_disposed_before_the_call_returns() -> None:
    engine = settle_at_once(value=1)
    assert not call_with(engine).is_error
    assert (engine.run.disposals, engine.run.at_rest, engine.events.listeners) == (1, True, [])


def test_a_signal_aborted_before_the_call_starts_nothing() -> None:
    engine = settle_at_once()
    controller = AbortController()
    controller.abort("the user left")
    result = run_async(Mounted(engine).call(signal=controller.signal))
    assert result.text == "Error: workflow run was cancelled (workflow run cancelled: the user left)"
    assert engine.requests == []


def test_a_signal_aborted_during_start_cancels_the_run_that_start_returns() -> None:
    controller = AbortController()
    engine = FakeEngine(lambda *_: controller.abort("too late"))
    result = run_async(Mounted(engine).call(signal=controller.signal))
    assert engine.run.cancels == ["too late"]
    assert result.text == "Error: workflow run was cancelled (workflow run cancelled: too late)"


@pytest.mark.parametrize("from_thread", [False, True])
def test_an_abort_while_the_run_works_cancels_it_and_leaves_no_callback(from_thread: bool) -> None:
    async def main() -> None:
        engine = FakeEngine()
        controller = AbortController()
        call = asyncio.create_task(Mounted(engine).call(signal=controller.signal))
        await until(lambda: bool(engine.runs))
        if from_thread:
            thread = threading.Thread(target=controller.abort, args=("stop",))
            thread.start()
            await asyncio.to_thread(thread.join)
        else:
            controller.abort("stop")
        result = await call
        assert result.text == "Error: workflow run was cancelled (workflow run cancelled: stop)"
        assert engine.run.cancels == ["stop"]
        assert controller.signal.listener_count == 0

    run_async(main())


def test_cancelling_the_calling_task_disposes_the_run_before_the_cancellation_goes_on() -> None:
    async def main() -> None:
        engine = FakeEngine()
        mounted = Mounted(engine)
        agent = CallingAgent()
        call = asyncio.create_task(mounted.call(agent=agent))
        await until(lambda: bool(agent.records))
        released = asyncio.Event()
        engine.run.on_dispose = released.wait  # type: ignore[assignment]
        call.cancel()
        await until(lambda: engine.run.disposals == 1)
        call.cancel()  # impatience does not cut the disposal short
        await asyncio.sleep(0)
        assert not call.done()
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert engine.run.at_rest
        assert mounted.types[-1] == "tools/result"
        assert mounted.events[-1].result.text == "Error: the call of workflow was cancelled"  # type: ignore[attr-defined]
        assert [kind for kind, _ in agent.records] == ["tool-workflow/run-start", "tool-workflow/run-end"]
        assert agent.records[-1][1]["stopReason"] == "cancelled"
        assert mounted.tool.progress.held == 0

    run_async(main())


def test_cancelling_the_calling_task_during_start_frees_the_capture() -> None:
    async def main() -> None:
        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        engine = FakeEngine(never)
        mounted = Mounted(engine)
        call = asyncio.create_task(mounted.call())
        await until(lambda: bool(engine.runs))
        assert mounted.tool.progress.held == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (mounted.tool.progress.held, engine.events.listeners, mounted.registry.active) == (0, [], ())

    run_async(main())


@pytest.mark.parametrize("outcome", ["completed", "error"])
def test_a_dispose_that_raises_changes_no_result_and_leaves_no_run_end(
    outcome: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Unshowable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def broken() -> None:
        raise Unshowable

    def start(_engine: Any, _request: Any, run: Any) -> None:
        run.on_dispose = broken
        run.settle(stop_reason=outcome, error=None if outcome == "completed" else "bad", value=1)

    agent = CallingAgent()
    result = run_async(Mounted(FakeEngine(start)).call(agent=agent))
    expected = (
        'workflow "demo" completed (0 agents).\nReturn value:\n1'
        if outcome == "completed"
        else "Error: workflow run failed: bad"
    )
    assert result.text == expected
    assert [kind for kind, _ in agent.records] == ["tool-workflow/run-start"]
    assert "run run-1 did not come to rest: [an error that cannot be shown]" in caplog.text


def test_a_host_with_a_registry_of_its_own_calls_execute_with_its_own_object() -> None:
    class Host:
        signal = AbortController().signal
        agent = "me"
        parent = None
        views: list[Any]

        def report_progress(self, view: Any) -> bool:
            self.views.append(view)
            return True

    host = Host()
    host.views = []
    output = run_async(WorkflowTool(settle_at_once(value=[1])).execute(ARGUMENTS, host))
    assert output.value == {"runId": "run-1", "agentsStarted": 0, "result": [1]}
    assert len(host.views) == 1
    assert host.signal.listener_count == 0


def test_the_tool_is_mounted_in_a_few_lines() -> None:
    async def main() -> str:
        registry = ToolRegistry()
        registry.register(WorkflowTool(settle_at_once(value=1)).definition)
        assert [schema["name"] for schema in registry.schemas()] == ["workflow"]
        assert [section.name for section in registry.prompt_sections()] == ["tool:workflow"]
        result = await registry.call("workflow", ARGUMENTS, session_id="s", call_id="c", agent=object())
        return result.text

    assert run_async(main()) == 'workflow "demo" completed (0 agents).\nReturn value:\n1'
