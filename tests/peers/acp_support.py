"""What the tests of the acp: agent share: its provider on the scripted agent, one call, and a look for processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import AbortController, AgentRequest, AgentResult
from protocol.events import RunId, WorkflowMeta, WorkflowRunInfo
from tests.conftest import run_async
from tests.peers.processes import processes

pytest.importorskip("acp", reason="the ACP SDK is not installed: pip install 'workflow-orchestrator[acp]'")

from orchestrator.providers.acp import AcpProvider, AcpSettings

SCRIPTED = Path(__file__).with_name("scripted_acp_agent.py")
NAME = Path(sys.executable).name
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def scripted(*modes: str, **settings: Any) -> AcpProvider:
    return AcpProvider(AcpSettings(argv=(sys.executable, str(SCRIPTED), *modes), **settings))


def request_of(prompt: str, **fields: Any) -> AgentRequest:
    info = WorkflowRunInfo(id=RunId("run"), meta=WorkflowMeta(name="n", description="d"))
    fields.setdefault("signal", AbortController().signal)
    return AgentRequest(prompt=prompt, seq=1, label="one", run=info, **fields)


async def answer_of(provider: AcpProvider, prompt: str, **fields: Any) -> AgentResult:
    run = await provider.start(request_of(prompt, **fields))
    try:
        return await run.result
    finally:
        await run.dispose()


async def about(provider: AcpProvider, names: str = "", **fields: Any) -> dict[str, Any]:
    """What the scripted agent knows of itself and of the call's session."""
    return json.loads((await answer_of(provider, f"about {names}", **fields)).text)


@contextlib.asynccontextmanager
async def closing(provider: AcpProvider) -> AsyncGenerator[AcpProvider]:
    try:
        yield provider
    finally:
        await provider.aclose()


def with_provider(provider: Callable[[], AcpProvider], test: Callable[[AcpProvider], Awaitable[Any]]) -> Any:
    """Runs a test's coroutine with a provider that is closed after it; then no process may be left."""

    async def main() -> Any:
        async with closing(provider()) as opened:
            result = await test(opened)
        assert processes() == set()
        return result

    return run_async(main())


def ask(prompt: str, *modes: str, settings: dict[str, Any] | None = None, **fields: Any) -> AgentResult:
    """One call to a scripted agent of its own."""
    return with_provider(
        lambda: scripted(*modes, **(settings or {})), lambda provider: answer_of(provider, prompt, **fields)
    )


async def said_something(run: Any) -> None:
    """Waits until the agent's first words are there: it works on the prompt then."""
    alive = asyncio.Event()
    run._session.on_update = alive.set
    async with asyncio.timeout(20):
        await alive.wait()
