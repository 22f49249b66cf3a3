"""A real host in the test process: the SDK's client, with ``workflow mcp`` as the server it starts."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TextIO

import psutil
from mcp import ClientSession, StdioServerParameters, stdio_client
from mcp.types import CallToolResult

ROOT = Path(__file__).resolve().parents[2]
SERVER = ["-m", "orchestrator", "mcp"]
META = {"name": "demo", "description": "a demo"}


def server_parameters(*options: str, cwd: Path | None = None) -> StdioServerParameters:
    """How a host starts the server, from a directory of its own where there is one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return StdioServerParameters(command=sys.executable, args=[*SERVER, *options], env=environment, cwd=cwd or ROOT)


@contextlib.asynccontextmanager
async def connected(
    *options: str, cwd: Path | None = None, errlog: TextIO = sys.stderr
) -> AsyncIterator[ClientSession]:
    """A session that is initialised."""
    async with (
        stdio_client(server_parameters(*options, cwd=cwd), errlog) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


def server_process() -> psutil.Process:
    """The server that this process has started."""
    (found,) = [child for child in psutil.Process().children() if "orchestrator" in child.cmdline()]
    return found


def text_of(result: CallToolResult) -> str:
    """The first block, which is the tool's own text."""
    block = result.content[0]
    assert block.type == "text"
    return block.text


def call(script: str, **more: Any) -> dict[str, Any]:
    """The arguments of a call."""
    return {"script": script, "meta": META, **more}
