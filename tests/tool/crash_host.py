"""A host that is meant to be killed: ``python -m tests.tool.crash_host DB FIFO``. Tells the FIFO what it has done."""

from __future__ import annotations

import asyncio
import os
import sys

from orchestrator import AgentRequest, EngineConfig, WorkflowEngine
from orchestrator.sessions import DEFAULT_RULES, SqliteSessionStore
from orchestrator.tool import ToolRegistry, WorkflowTool, record_tool_calls

SCRIPT = """
phase('Dig'); log('two agents')
await agent('first')
await parallel([() => agent('hang'), () => agent('hang')])
"""


async def main(database: str, fifo: str) -> None:
    life = os.open(fifo, os.O_WRONLY)
    working = 0

    async def agent(request: AgentRequest) -> str:
        nonlocal working
        if request.prompt == "hang":
            working += 1
            if working == 2:
                asyncio.get_running_loop().call_later(0, os.write, life, b"working")
            await asyncio.Event().wait()
        return "done"

    class Caller:
        session = SqliteSessionStore(database, DEFAULT_RULES).open("s1")

    async with WorkflowEngine(EngineConfig(max_concurrent_agents=2, spare_workers=0)) as engine:
        engine.agents.register("default", agent)
        registry = ToolRegistry()
        registry.register(WorkflowTool(engine).definition)
        record_tool_calls(registry.events, {"s1": Caller.session}.get)
        arguments = {"script": SCRIPT, "meta": {"name": "dig", "description": "d"}}
        await registry.call("workflow", arguments, session_id="s1", call_id="c1", agent=Caller)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
