"""``workflow acp``: the agent on stdin and stdout, from the first frame to the last process.

Guarantees: stdout carries protocol frames and nothing else; it returns when the client closes its end or on SIGTERM,
and then no run, worker or agent is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, cast

import acp
from acp.agent.connection import AgentSideConnection

from orchestrator.acp.agent import WorkflowAcpAgent
from orchestrator.agents import AgentRegistry
from orchestrator.config import EngineConfig
from orchestrator.engine import WorkflowEngine
from orchestrator.providers import RehearseProvider, provider_from_spec
from orchestrator.sessions import DEFAULT_RULES, MemorySessionStore, SessionStore, SqliteSessionStore
from orchestrator.stdio import PipeTransport, protocol_pipes
from orchestrator.tool import ToolRegistry, WorkflowTool

__all__ = ["REHEARSAL_NOTICE", "serve_acp"]

_log = logging.getLogger(__name__)

REHEARSAL_NOTICE = (
    "**Rehearsal**: no agent is configured, so every answer below is a made-up stand-in. Start `workflow acp` with "
    "`--agent` to have agents do the work."
)
TERMINAL_HINT = (
    "workflow acp speaks the Agent Client Protocol on stdin and stdout: start it from an editor that does too"
)


async def serve_acp(
    *,
    agent_spec: str = "rehearse",
    register_agents: Callable[[AgentRegistry], None] | None = None,
    config: EngineConfig | None = None,
    session_file: str | os.PathLike[str] | None = None,
) -> None:
    """Serves one client on stdin and stdout until it goes away.

    Args:
        agent_spec: who does the work of ``agent()`` calls; see `orchestrator.providers.provider_from_spec`.
        register_agents: registers the agents instead, when one is not enough. Called once stdout is the protocol's;
            what it raises is raised here.
        config: engine settings.
        session_file: a SQLite file that keeps sessions, so that clients can load them again; in memory without one.

    Raises:
        ProviderSpecError: ``agent_spec`` names no provider.
        SessionError: the session file cannot be used.
        OSError: stdin or stdout is a plain file.
    """
    if sys.stdin.isatty():
        print(TERMINAL_HINT, file=sys.stderr)
    with contextlib.ExitStack() as files:
        store = (
            MemorySessionStore(DEFAULT_RULES)
            if session_file is None
            else files.enter_context(SqliteSessionStore(session_file, DEFAULT_RULES))
        )
        async with protocol_pipes("Agent Client Protocol") as transport:
            engine = WorkflowEngine(config)
            if register_agents is not None:
                register_agents(engine.agents)
            else:
                engine.agents.register(engine.config.provider, provider_from_spec(agent_spec))
            async with engine:
                await _serve(engine, transport, store, resumable=session_file is not None)


async def _serve(engine: WorkflowEngine, transport: PipeTransport, store: SessionStore, *, resumable: bool) -> None:
    rehearsing = isinstance(engine.agents.providers.get(engine.config.provider), RehearseProvider)
    registry = ToolRegistry()
    tool = WorkflowTool(engine)
    registry.register(tool.definition)
    agent = WorkflowAcpAgent(registry, store, notice=REHEARSAL_NOTICE if rehearsing else None, resumable=resumable)
    connection = AgentSideConnection(cast("acp.Agent", agent), transport, listening=False, use_unstable_protocol=True)
    try:
        await _until_terminated(connection.listen())
    finally:
        await agent.aclose()
        await connection.close()
        await registry.aclose()
        tool.close()


async def _until_terminated(listening: Coroutine[Any, Any, None]) -> None:
    """Runs until the client hangs up or the process is asked to end; runs are then disposed, not orphaned."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(listening)
    handled = False
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no signals
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        handled = True
    try:
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the connection broke: %s", error)
    finally:
        if handled:
            loop.remove_signal_handler(signal.SIGTERM)
        task.cancel()
