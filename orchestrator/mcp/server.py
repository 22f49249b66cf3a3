"""A Model Context Protocol server over a tool registry: its tools, their calls, their progress, their cancellation.

Guarantees: each request is one call of the registry, and its answer is that call's result, whatever else is at work;
progress is sent to a client that asked for it, only for its own call and never after the answer; when a client cancels
a request, or goes away, the handler ends only once the call is at rest.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from orchestrator.mcp.progress import HEARTBEAT, INTERVAL, ProgressFeed
from orchestrator.sessions.text import replace_lone_surrogates
from orchestrator.signals import AbortController
from orchestrator.tool import (
    ImageContent,
    TextContent,
    ToolDefinition,
    ToolEvent,
    ToolProgressed,
    ToolRegistry,
    ToolResult,
    outcome_notes,
)

__all__ = ["OUTPUT_SCHEMAS", "McpCaller", "WorkflowMcpServer"]

SESSION = "mcp"
"""The registry's session of all calls: a process serves one client."""

OUTPUT_SCHEMAS: dict[str, dict[str, Any]] = {
    "workflow": {
        "type": "object",
        "required": ["runId", "agentsStarted", "result"],
        "properties": {
            "runId": {"type": "string"},
            "agentsStarted": {"type": "integer", "minimum": 0},
            "result": {"description": "What the script returned, complete also where the text is cut."},
        },
    },
    "workflow_check": {
        "type": "object",
        "required": ["meta"],
        "properties": {"meta": {"type": "object", "description": "The meta as the engine reads it."}},
    },
}
"""What the structured content of a success looks like, by tool."""

ANNOTATIONS: dict[str, types.ToolAnnotations] = {
    "workflow": types.ToolAnnotations(title="Run a workflow script", read_only_hint=False, open_world_hint=True),
    "workflow_check": types.ToolAnnotations(
        title="Check a workflow script", read_only_hint=True, idempotent_hint=True, open_world_hint=False
    ),
}


class McpCaller:
    """The agent on whose behalf the runs work: whoever is at the other end."""

    def __repr__(self) -> str:
        return "<McpCaller>"


class WorkflowMcpServer:
    """The server. `protocol` is the SDK's server object, to be run over any of its transports.

    Args:
        registry: holds the tools.
        version: what the client is told.
        notice: said after each successful result of `notice_for`; for what the user must know.
        notice_for: the tool whose results carry the notice.
        progress_interval: see `ProgressFeed`.
        progress_heartbeat: see `ProgressFeed`.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        *,
        version: str = "",
        notice: str | None = None,
        notice_for: str = "workflow",
        progress_interval: float = INTERVAL,
        progress_heartbeat: float = HEARTBEAT,
    ) -> None:
        self._registry = registry
        self._notice = notice
        self._notice_for = notice_for
        self._interval = progress_interval
        self._heartbeat = progress_heartbeat
        self._caller = McpCaller()
        self._numbers = itertools.count(1)
        self._feeds: dict[str, ProgressFeed] = {}
        self._unsubscribe = registry.events.subscribe(self._on_event, session_id=SESSION)
        guidance = [section.text for section in registry.prompt_sections()]
        self.protocol: Server[dict[str, Any]] = Server(
            "workflow",
            version=version,
            title="Workflow scripts",
            instructions="\n\n".join([*guidance, *([notice] if notice else [])]) or None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    def close(self) -> None:
        """Forgets the registry, which stays usable for others. Idempotent."""
        self._unsubscribe()

    async def _list_tools(
        self, _context: ServerRequestContext[dict[str, Any]], _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(definition) for definition in self._registry.definitions])

    async def _call_tool(
        self, context: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        names = [definition.name for definition in self._registry.definitions]
        if params.name not in names:
            text = f"there is no tool {params.name!r}; the tools are: {', '.join(names)}"
            raise MCPError(code=types.INVALID_PARAMS, message=text)
        result = await self._run(context, params.name, params.arguments or {})
        notice = self._notice if params.name == self._notice_for and not result.is_error else None
        return _wire_result(result, notice)

    async def _run(
        self, context: ServerRequestContext[dict[str, Any]], name: str, arguments: Mapping[str, Any]
    ) -> ToolResult:
        """One call of the registry, from its start until it is at rest."""
        call_id = f"call_{next(self._numbers)}"  # request ids are the client's, and it may use one again
        controller = AbortController()
        wants_progress = context.meta is not None and context.meta.get("progress_token") is not None
        feed = None
        if wants_progress:
            feed = ProgressFeed(context.session.report_progress, interval=self._interval, heartbeat=self._heartbeat)
            self._feeds[call_id] = feed
        # A task of its own, since the SDK cancels a handler again and again until it ends: the call is to be aborted
        # once, by its signal, and to take the time its agents need to end.
        call = asyncio.create_task(
            self._registry.call(
                name,
                arguments,
                session_id=SESSION,
                call_id=call_id,
                agent=self._caller,
                signal=controller.signal,
            ),
            name=f"mcp {call_id}",
        )
        try:
            result = await asyncio.shield(call)
            if feed is not None:
                await feed.finish()
            return result
        except asyncio.CancelledError:
            controller.abort("the client cancelled the request")
            with anyio.CancelScope(shield=True):
                await asyncio.wait({call})
            raise
        finally:
            self._feeds.pop(call_id, None)
            if feed is not None:
                with anyio.CancelScope(shield=True):
                    await feed.abandon()

    def _on_event(self, event: ToolEvent) -> None:
        if isinstance(event, ToolProgressed):
            feed = self._feeds.get(event.identity.call_id)
            if feed is not None:
                feed.put(event.view)


def _tool(definition: ToolDefinition) -> types.Tool:
    return types.Tool(
        name=definition.name,
        description=definition.description,
        input_schema=dict(definition.parameters),
        output_schema=OUTPUT_SCHEMAS.get(definition.name),
        annotations=ANNOTATIONS.get(definition.name),
    )


def _wire_result(result: ToolResult, notice: str | None) -> types.CallToolResult:
    """A result as the protocol has it: the tool's own blocks first, what a person should know of the run after them."""
    content: list[types.ContentBlock] = []
    for block in result.content:
        match block:
            case TextContent():
                content.append(types.TextContent(text=replace_lone_surrogates(block.text)))
            case ImageContent():
                content.append(types.ImageContent(data=block.data, mime_type=block.mime_type))
    if result.is_error:
        return types.CallToolResult(content=content, is_error=True)
    notes = [*outcome_notes(result.details), *([notice] if notice else [])]
    content += [types.TextContent(text=replace_lone_surrogates(note)) for note in notes]
    return types.CallToolResult(content=content, structured_content=result.value)
