"""The task of a tool call, cancelled after any number of steps of the loop: nothing of the call is left."""

from __future__ import annotations

import asyncio

import pytest

from orchestrator import EngineConfig, WorkflowEngine, WorkflowEvent
from orchestrator.faults import CrashPoint, FaultEngine, Stage, Way
from tests.conftest import run_async
from tests.support import META, scripted_agent
from tests.tool.fakes import CallingAgent, Mounted

CONFIG = EngineConfig(max_concurrent_agents=2, spare_workers=1, dispose_grace=0.2)
SCRIPT = "phase('p'); log('l'); const a = await agent('x'); return [a, await agent('y')]"


def kinds(agent: CallingAgent) -> tuple[str, ...]:
    return tuple(kind.removeprefix("tool-workflow/") for kind, _ in agent.records)


async def call_and_cancel(tool: Mounted, steps: int, *, twice: bool) -> tuple[str, ...]:
    caller = CallingAgent()
    arguments = {"script": SCRIPT, "meta": META}
    call = asyncio.create_task(tool.call(arguments, agent=caller, call_id=f"call-{steps}-{twice}"))
    for _ in range(steps):
        await asyncio.sleep(0)
    call.cancel()
    if twice:
        await asyncio.sleep(0)
        call.cancel()
    await asyncio.wait({call})
    assert call.cancelled() or not call.result().is_error
    assert tool.registry.active == ()
    assert tool.tool.progress.held == 0
    return kinds(caller)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_a_tool_call_can_be_cancelled_at_every_step_and_leaves_whole_records_or_none(twice: bool) -> None:
    async def main() -> None:
        events: list[WorkflowEvent] = []
        lengths: set[int] = set()
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(events.append)
            tool = Mounted(engine)
            for steps in [*range(30), *range(30, 300, 15)]:
                records = await call_and_cancel(tool, steps, twice=twice)
                if records and not twice:
                    assert records[0] == "run-start"
                    assert records[-1] == "run-end"
                assert records.count("agent-end") <= records.count("agent-start") <= 2
                lengths.add(len(records))
            assert 0 in lengths, "no call was cancelled before its run began"
            ended = [event.type for event in events].count("workflow/end")
            while [event.type for event in events].count("workflow/start") != ended:
                await asyncio.sleep(0.001)
                ended = [event.type for event in events].count("workflow/end")
            whole = await tool.call({"script": SCRIPT, "meta": META}, agent=CallingAgent(), call_id="whole")
            assert not whole.is_error

    run_async(main())


@pytest.mark.parametrize("stage", [Stage.LOADING, Stage.NARRATING, Stage.AGENT_RUNNING, Stage.RESULT_IN_FLIGHT])
def test_a_tool_call_whose_worker_dies_while_its_task_is_cancelled_leaves_nothing(stage: Stage) -> None:
    scripts = {
        Stage.NARRATING: "for (;;) { log('x'); await null }",
        Stage.AGENT_RUNNING: "await parallel([1, 2, 3].map(() => () => agent('hang')))",
    }

    async def main() -> None:
        async with FaultEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            tool = Mounted(engine)
            point = CrashPoint(stage, Way.SIGKILL, after=lambda: call.cancel())
            two = 0

            def announce(event: WorkflowEvent) -> None:
                nonlocal two
                two += event.type == "workflow/agent-start"
                if stage is Stage.AGENT_RUNNING and two == 2:
                    point.trip_at_once()

            engine.events.subscribe(announce)
            engine.arm(point)
            arguments = {"script": scripts.get(stage, "return 'x'.repeat(1000)"), "meta": META}
            call = asyncio.create_task(tool.call(arguments, agent=CallingAgent()))
            await asyncio.wait({call})
            assert point.reached.is_set()
            assert call.cancelled()
            assert tool.registry.active == ()
            assert tool.tool.progress.held == 0

    run_async(main())
