"""The acp: agent drives a second real agent: this project's own ``workflow acp``, whose prompts are scripts."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator import EngineConfig, WorkflowEngine, WorkflowStartRequest
from tests.conftest import run_async
from tests.peers.acp_support import answer_of, closing, request_of, said_something
from tests.peers.processes import processes

from orchestrator.providers.acp import AcpProvider, AcpSettings  # isort: skip

ROOT = Path(__file__).resolve().parents[2]


def workflow_agent() -> AcpProvider:
    argv = (sys.executable, "-m", "orchestrator", "acp", "--agent", "python:tests.tool.acp_agents:noisy")
    return AcpProvider(AcpSettings(argv=argv, cwd=str(ROOT), env={"PYTHONPATH": str(ROOT)}))


def test_a_workflow_whose_agents_are_workflows_gets_their_results_as_text() -> None:
    script = """
    const inner = (name) => "```js\\nreturn await agent('greet ' + args.name)\\n```\\n```json\\n" +
        JSON.stringify({ name }) + "\\n```"
    return await parallel(['Ada', 'Bo'].map((name) => () => agent(inner(name))))
    """

    async def main() -> None:
        async with closing(workflow_agent()) as provider, WorkflowEngine(EngineConfig(spare_workers=0)) as engine:
            engine.agents.register("default", provider)
            meta = {"name": "outer", "description": "a workflow of workflows"}
            async with await engine.start(WorkflowStartRequest(script=script, meta=meta)) as run:
                result = await run.result
        assert result.value == [
            f'workflow "prompt" completed (1 agent).\nReturn value:\n"ok:greet {name}"' for name in ("Ada", "Bo")
        ]
        assert processes() == set()

    run_async(main())


def test_a_cancelled_inner_workflow_leaves_no_worker_and_no_agent() -> None:
    async def main() -> None:
        async with closing(workflow_agent()) as provider:
            run = await provider.start(request_of("```js\nphase('Wait'); await agent('hang')\n```"))
            await said_something(run)
            await run.dispose()
            assert (await run.result).stop_reason == "cancelled"
            again = await answer_of(provider, "```js\nreturn 1 + 1\n```")
            assert again.text == 'workflow "prompt" completed (0 agents).\nReturn value:\n2'
        assert processes() == set()

    run_async(main())
