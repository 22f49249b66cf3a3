"""``workflow check``: whether a script parses and its meta is valid, without running it."""

from __future__ import annotations

import asyncio
import sys

from orchestrator.agents import AgentRequest
from orchestrator.cli.report import json_bytes
from orchestrator.cli.run import USAGE_CODES, refusal_text
from orchestrator.config import EngineConfig
from orchestrator.engine import WorkflowEngine, WorkflowStartRequest
from orchestrator.signals import AbortController
from protocol.errors import WorkflowError
from protocol.events import WorkflowMeta, WorkflowStarted

__all__ = ["check_command"]


def check_command(file: str, request: WorkflowStartRequest) -> int:
    """Prints the meta, or the error with its place. Returns the exit code."""
    try:
        meta = asyncio.run(_check(request))
    except WorkflowError as error:
        print(f"workflow: {refusal_text(file, error)}", file=sys.stderr)
        return 2 if error.code in USAGE_CODES else 1
    sys.stdout.buffer.write(json_bytes(meta))
    return 0


async def _check(request: WorkflowStartRequest) -> WorkflowMeta:
    """Starts the run, since only the engine parses, and aborts it the moment the script was accepted."""
    controller = AbortController()
    request.signal = controller.signal

    async def nobody(_: AgentRequest) -> str:
        raise RuntimeError("a script that is only checked starts no agent")

    def stop(event: object) -> None:
        if isinstance(event, WorkflowStarted):
            controller.abort("only checked")

    async with WorkflowEngine(EngineConfig(spare_workers=0)) as engine:
        engine.agents.register("default", nobody)
        engine.events.subscribe(stop)
        async with await engine.start(request) as run:
            await run.result
            return run.meta
