"""``workflow mcp``: the server on stdin and stdout, from the first frame to the last process.

Guarantees: stdout carries protocol frames and nothing else; it returns when the client closes its end or on SIGTERM or
SIGINT, and then no run, worker or agent is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Generator
from importlib.metadata import PackageNotFoundError, version

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from orchestrator.agents import AgentRegistry
from orchestrator.config import EngineConfig
from orchestrator.engine import WorkflowEngine
from orchestrator.mcp.check import CheckTool
from orchestrator.mcp.server import WorkflowMcpServer
from orchestrator.providers import RehearseProvider
from orchestrator.stdio import PipeTransport, protocol_pipes
from orchestrator.tool import ToolRegistry, WorkflowTool

__all__ = ["REHEARSAL_NOTICE", "serve_mcp"]

_log = logging.getLogger(__name__)

REHEARSAL_NOTICE = (
    "Rehearsal: no agent is configured, so every answer of a subagent is a made-up stand-in. Start `workflow mcp` with "
    "`--agent` to have agents do the work."
)
TERMINAL_HINT = (
    "workflow mcp speaks the Model Context Protocol on stdin and stdout: add it to the settings of a host that does too"
)

Incoming = SessionMessage | Exception


async def serve_mcp(
    register_agents: Callable[[AgentRegistry], None], config: EngineConfig | None = None
) -> signal.Signals | None:
    """Serves one client on stdin and stdout until it goes away or the process is asked to end.

    Args:
        register_agents: registers the agent providers. Called once stdout is the protocol's, as what a provider's
            module prints must not reach the client. What it raises is raised here.
        config: engine settings.

    Returns:
        The signal that asked the process to end, ``None`` when the client went away.

    Raises:
        WorkflowError: the engine cannot start.
        OSError: stdin or stdout is a plain file.
    """
    if sys.stdin.isatty():
        print(TERMINAL_HINT, file=sys.stderr)
    with _termination() as asked:
        async with protocol_pipes("Model Context Protocol") as transport:
            engine = WorkflowEngine(config)
            register_agents(engine.agents)
            async with engine:
                rehearsing = isinstance(engine.agents.providers.get(engine.config.provider), RehearseProvider)
                registry = ToolRegistry()
                workflow, check = WorkflowTool(engine), CheckTool(engine)
                for definition in (workflow.definition, check.definition):
                    registry.register(definition)
                server = WorkflowMcpServer(
                    registry, version=_version(), notice=REHEARSAL_NOTICE if rehearsing else None
                )
                try:
                    await _converse(server.protocol, transport, asked)
                finally:
                    server.close()
                    await registry.aclose()
                    workflow.close()
                    check.close()
        return asked.signal


class _Asked:
    """Whether, and by which signal, the process was asked to end."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.event = asyncio.Event()

    def note(self, number: signal.Signals) -> None:
        self.signal = self.signal or number
        self.event.set()


@contextlib.contextmanager
def _termination() -> Generator[_Asked]:
    """Notes signals instead of dying of them, until everything is put away: a second one does not cut that short."""
    loop = asyncio.get_running_loop()
    asked = _Asked()
    handled: list[signal.Signals] = []
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread, or no signals
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.note, number)
            handled.append(number)
    try:
        yield asked
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


async def _converse(protocol: Server[dict[str, object]], transport: PipeTransport, asked: _Asked) -> None:
    """Runs the protocol over the pipes until the client's end closes, or a signal takes its place."""
    incoming, to_server = anyio.create_memory_object_stream[Incoming]()
    from_server, outgoing = anyio.create_memory_object_stream[SessionMessage]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_receive, transport, incoming, asked)
        tasks.start_soon(_send, transport, outgoing)
        await protocol.run(to_server, from_server, protocol.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _receive(transport: PipeTransport, incoming: MemoryObjectSendStream[Incoming], asked: _Asked) -> None:
    async def watch() -> None:
        await asked.event.wait()
        scope.cancel()

    async with incoming, anyio.create_task_group() as tasks:
        scope = tasks.cancel_scope
        tasks.start_soon(watch)
        with contextlib.suppress(anyio.BrokenResourceError):  # the protocol has ended
            while (frame := await transport.receive()) is not None:
                try:
                    message = types.jsonrpc_message_adapter.validate_python(frame, by_name=False)
                except ValidationError:
                    _log.error("a frame of the client is no JSON-RPC message")
                    continue
                await incoming.send(SessionMessage(message))
        scope.cancel()


async def _send(transport: PipeTransport, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with outgoing:  # closed once the client is gone: what is left to say is dropped there
        async for item in outgoing:
            try:
                await transport.send(item.message.model_dump(by_alias=True, exclude_unset=True))
            except (ConnectionError, RuntimeError) as error:
                _log.debug("the client reads no more: %s", error)
                return


def _version() -> str:
    try:
        return version("workflow-orchestrator")
    except PackageNotFoundError:
        return "0.0.0"
