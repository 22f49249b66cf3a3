"""Agents for tests that serve ACP in a process of its own. They print, as the code of users does."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from orchestrator import AgentFailed, AgentRequest


async def noisy(request: AgentRequest) -> str:
    """Answers by prompt: ``hang`` waits for the abort, ``fail`` fails; every way of printing is used before."""
    print(f"printed by the agent of {request.prompt}", flush=True)
    os.write(1, b"written to descriptor 1\n")
    sys.__stdout__.write("written to the original stdout\n")  # type: ignore[union-attr]
    await asyncio.to_thread(subprocess.run, ["sh", "-c", "cat; echo printed by a child"], check=True)
    match request.prompt:
        case "hang":
            await asyncio.Event().wait()
        case "fail":
            raise AgentFailed("no luck")
        case _:
            pass
    return f"ok:{request.prompt}"
