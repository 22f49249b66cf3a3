"""The tool over the real engine: real workers, real deaths."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

from orchestrator import AbortController, AgentRequest, AgentResult, EngineConfig, WorkflowEngine, WorkflowResult
from orchestrator.providers import RehearseProvider
from orchestrator.tool import DESCRIPTION
from tests.conftest import run_async
from tests.support import META, scripted_agent
from tests.tool.fakes import CallingAgent, Mounted, until

CONFIG = EngineConfig(max_concurrent_agents=4, spare_workers=0)


def mounted(
    test: Callable[[Mounted, WorkflowEngine], Awaitable[None]], agent: Any = scripted_agent, **settings: Any
) -> None:
    async def main() -> None:
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", agent)
            tool = Mounted(engine, **settings)
            await test(tool, engine)
            assert tool.tool.progress.held == 0
            assert tool.registry.active == ()

    run_async(main())


def arguments(script: str, **fields: Any) -> dict[str, Any]:
    return {"script": script, "meta": META, **fields}


def kinds(agent: CallingAgent) -> list[str]:
    return [kind.removeprefix("tool-workflow/") for kind, _ in agent.records]


def test_a_workflow_runs_from_the_call_to_its_result_with_records_and_progress() -> None:
    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        agent = CallingAgent()
        script = "phase('P'); log('hello'); const r = await agent(args.p); const s = await agent('fail'); return {r, s}"
        result = await tool.call(arguments(script, args='{"p": "x"}'), agent=agent)
        assert result.text == (
            'workflow "test" completed (2 agents).\nReturn value:\n{\n  "r": "ok:x",\n  "s": null\n}'
        )
        assert isinstance(result.details, WorkflowResult)
        assert result.details.failures[0].reason == "no luck"
        assert kinds(agent) == ["run-start", "agent-start", "agent-end", "agent-start", "agent-end", "run-end"]
        assert [data["outcome"] for kind, data in agent.records if kind.endswith("agent-end")] == [
            "completed",
            "failed",
        ]
        assert tool.views[0] == "Running\nAgents: 0 at work, 0 completed, 0 failed, 0 cancelled"
        assert tool.views[-1] == "Running: P\nAgents: 0 at work, 1 completed, 1 failed, 0 cancelled\nLog: hello"
        assert tool.types[0] == "tools/call"
        assert tool.types[-1] == "tools/result"

    mounted(test)


def test_the_children_of_a_run_are_attributed_to_the_calling_agent() -> None:
    parents: list[Any] = []

    async def agent(request: AgentRequest) -> str:
        parents.append(request.parent)
        return "ok"

    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        caller = CallingAgent()
        await tool.call(arguments("await agent('x')"), agent=caller)
        assert parents == [caller]

    mounted(test, agent)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            arguments("const a = 1\nconst b = ;"),
            "Error: workflow script does not parse: expected expression, got ';' (line 2, column 11)\n"
            "const b = ;\n          ^",
        ),
        (
            {"script": "return 1", "meta": {"name": "", "nope": 1}},
            "Error: invalid meta: meta.nope is not a recognized field (name/description/whenToUse/phases); "
            "meta.name must be a non-empty string; meta.description must be a non-empty string",
        ),
        (
            arguments("const a = 1\nthrow new TypeError('oh')"),
            "Error: workflow run failed: TypeError: oh (line 2, column 7)\nthrow new TypeError('oh')\n      ^",
        ),
    ],
)
def test_a_script_at_fault_is_answered_with_its_place(call: dict[str, Any], text: str) -> None:
    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        result = await tool.call(call, agent=CallingAgent())
        assert result.is_error
        assert result.text.startswith(text)

    mounted(test)


def test_a_script_with_a_header_of_its_own_needs_no_meta_and_names_its_card() -> None:
    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        script = "export const meta = {name: 'from-header', description: 'd'}\nreturn 1"
        result = await tool.call({"script": script}, agent=CallingAgent())
        assert result.text == 'workflow "from-header" completed (0 agents).\nReturn value:\n1'
        assert tool.events[0].card.title == "workflow: from-header"  # type: ignore[attr-defined]
        both = await tool.call({"script": script, "meta": META}, agent=CallingAgent(), call_id="c2")
        assert both.text.startswith("Error: workflow meta rides the `meta` request field, not the script: remove")

    mounted(test)


@pytest.mark.parametrize("how", ["signal", "task", "session", "engine"])
def test_ending_a_call_at_work_ends_its_agents_and_leaves_whole_records(how: str) -> None:
    async def test(tool: Mounted, engine: WorkflowEngine) -> None:
        agent = CallingAgent()
        controller = AbortController()
        script = "await parallel([1, 2, 3].map(() => () => agent('hang')))"
        call = asyncio.create_task(tool.call(arguments(script), agent=agent, signal=controller.signal))
        await until(lambda: kinds(agent).count("agent-start") == 3)
        match how:
            case "signal":
                controller.abort("enough")
            case "task":
                call.cancel()
            case "session":
                await tool.registry.close_session("s1")
            case _:
                for driver in tuple(engine._runs):  # pyright: ignore[reportPrivateUsage]
                    driver.cancel("the engine ends it")
        await asyncio.wait({call})
        assert kinds(agent) == ["run-start", *["agent-start"] * 3, *["agent-end"] * 3, "run-end"]
        assert {data["outcome"] for kind, data in agent.records if kind.endswith("agent-end")} == {"cancelled"}
        assert agent.records[-1][1]["stopReason"] == "cancelled"
        if how == "task":
            assert call.cancelled()
        else:
            aborted = "workflow signal aborted"
            reasons = {
                "engine": "the engine ends it",
                "signal": f"{aborted}: enough",
                "session": f"{aborted}: session closed",
            }
            reason = reasons[how]
            assert call.result().text == f"Error: workflow run was cancelled (workflow run cancelled: {reason})"
        assert tool.types[-1] == "tools/result"

    mounted(test)


def test_the_death_of_a_worker_is_an_error_result_with_whole_records() -> None:
    async def test(tool: Mounted, engine: WorkflowEngine) -> None:
        agent = CallingAgent()
        call = asyncio.create_task(tool.call(arguments("await agent('hang')"), agent=agent))
        await until(lambda: kinds(agent).count("agent-start") == 1)
        (pid,) = engine.describe().worker_pids
        psutil.Process(pid).kill()
        result = await call
        assert result.text.startswith("Error: workflow run failed: ")
        assert result.details.code == "WORKER_DIED"
        assert kinds(agent) == ["run-start", "agent-start", "agent-end", "run-end"]
        assert (agent.records[2][1]["outcome"], agent.records[3][1]["stopReason"]) == ("cancelled", "error")
        again = await tool.call(arguments("return 1"), agent=agent, call_id="c2")
        assert not again.is_error

    mounted(test)


def test_concurrent_calls_of_two_sessions_never_cross() -> None:
    async def agent(request: AgentRequest) -> AgentResult:
        await asyncio.sleep(0)
        return AgentResult(text=request.prompt)

    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        script = """
        for (let i = 0; i < 5; i++) {
          phase(`${args.who} phase ${i}`); log(`${args.who} log ${i}`)
          await parallel([1, 2, 3].map(n => () => agent(`${args.who} agent ${n}`)))
        }
        return args.who"""
        agents = {who: CallingAgent(who) for who in ("red", "blue")}
        results = await asyncio.gather(
            *(
                tool.call(arguments(script, args={"who": who}), agent=agents[who], session_id=who, call_id="same")
                for who in agents
            )
        )
        assert [result.value["result"] for result in results] == ["red", "blue"]
        for event in tool.events:
            other = {"red": "blue", "blue": "red"}[event.identity.session_id]
            assert f"{other} " not in repr(event)
        for who, caller in agents.items():
            labels = [data["label"] for kind, data in caller.records if kind.endswith("agent-start")]
            assert labels == [f"{who} agent {n}" for n in (1, 2, 3)] * 5

    mounted(test, agent)


def test_a_flood_of_log_lines_is_reported_and_ends_with_the_last_one() -> None:
    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        result = await tool.call(arguments("for (let i = 0; i < 3000; i++) log('line ' + i); await agent('x')"))
        assert not result.is_error
        assert tool.views[-1].endswith("1 completed, 0 failed, 0 cancelled\nLog: line 2999")

    mounted(test)


def test_the_example_in_the_tools_description_runs() -> None:
    script = DESCRIPTION.partition("Example:\n")[2]

    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        result = await tool.call(arguments(script))
        assert not result.is_error, result.text
        assert set(result.value["result"]) == {"reviewed", "of"}

    mounted(test, RehearseProvider())


def test_the_holders_policy_reaches_the_engine() -> None:
    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        result = await tool.call(arguments("await agent('x')"))
        assert result.text == 'Error: no subagent provider registered for "absent"'

    mounted(test, subagent_provider="absent")


def test_the_holders_cap_on_agents_reaches_the_engine() -> None:
    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        result = await tool.call(arguments("await agent('x'); await agent('y')"))
        assert result.details.code == "AGENT_CAP"

    mounted(test, max_total_agents=1)


@pytest.mark.parametrize("limit", [20, 50_000])
def test_a_large_value_is_cut_in_the_text_and_whole_in_the_canonical_value(limit: int) -> None:
    async def test(tool: Mounted, _engine: WorkflowEngine) -> None:
        result = await tool.call(arguments("return 'x'.repeat(100000)"))
        assert len(result.value["result"]) == 100_000
        assert result.text.endswith(f"\n… [truncated: {100_002 - limit} more characters]")

    mounted(test, max_result_chars=limit)
