"""``workflow mcp``: what is wrong with its start is one line; how it ended is the exit code."""

from __future__ import annotations

import asyncio
import os

from orchestrator.cli.configuration import Agents
from orchestrator.cli.inputs import UsageProblem
from orchestrator.config import EngineConfig

__all__ = ["mcp_command"]


def mcp_command(agents: Agents, config: EngineConfig) -> int:
    """Serves until the host goes away. Returns the exit code.

    Args:
        agents: who does the work.
        config: engine settings.
    """
    try:
        from orchestrator.mcp import serve_mcp
    except ModuleNotFoundError as error:
        if not error.name or not error.name.startswith("mcp"):
            raise
        raise UsageProblem(str(error)) from None
    from protocol.errors import WorkflowError

    try:
        ended_by = asyncio.run(serve_mcp(agents.register, config))
    except (WorkflowError, OSError) as error:
        raise UsageProblem(str(error)) from None
    finally:
        # What an agent's module prints as the interpreter exits is not for the client either.
        os.dup2(2, 1)
    return 0 if ended_by is None else 128 + ended_by
