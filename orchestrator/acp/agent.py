"""An Agent Client Protocol agent whose prompt is a workflow to run.

Guarantees: one prompt at a time in a session, any number of sessions at once; a prompt that starts a run shows its
card, its progress and its final state, then a message with the result; a cancelled one ends with a failed card and
answers ``cancelled``; when the client goes away every run is ended and disposed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

import acp
from acp.schema import (
    AgentCapabilities,
    CloseSessionResponse,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
)

from orchestrator.acp.bridge import AGENT_MESSAGE, USER_MESSAGE, AcpBridge, UpdateSink
from orchestrator.acp.prompt import PromptBlock, PromptRefused, prompt_text, read_prompt
from orchestrator.sessions import SessionError, SessionLog, SessionStore
from orchestrator.sessions.text import error_text
from orchestrator.signals import AbortController
from orchestrator.tool import ToolCallIdentity, ToolRegistry, ToolResult, outcome_notes, record_tool_calls

__all__ = ["WorkflowAcpAgent"]

_log = logging.getLogger(__name__)


class AcpSession:
    """A session of a client, and the agent on whose behalf its runs work."""

    def __init__(self, session: SessionLog, cwd: str) -> None:
        self.session = session
        self.cwd = cwd
        self.controller: AbortController | None = None
        """Ends the prompt at work."""
        self.noticed = False

    @property
    def id(self) -> str:
        return self.session.id

    def note(self, kind: str, text: str) -> None:
        """Writes a message into the log; a log that cannot be written costs the replay, not the prompt."""
        try:
            self.session.append(kind, {"text": text})
        except SessionError as error:
            _log.warning("a message is not recorded: %s", error_text(error))

    def __repr__(self) -> str:
        return f"<AcpSession {self.id}>"


class WorkflowAcpAgent:
    """The agent. Pass it to an ACP agent connection.

    It does not derive from the SDK's ``Agent``: methods it lacks are then refused as unknown, not answered with null.

    Args:
        registry: holds the workflow tool.
        store: where sessions are kept.
        tool_name: the tool's name in the registry.
        notice: said before the first result of each session; for what the user must know.
        resumable: whether ``store`` outlives the process, so that clients may load sessions.
        coalesce_seconds: see `AcpBridge`.
    """

    def __init__(
        self,
        registry: ToolRegistry,
        store: SessionStore,
        *,
        tool_name: str = "workflow",
        notice: str | None = None,
        resumable: bool = False,
        coalesce_seconds: float = 0.1,
    ) -> None:
        self._registry = registry
        self._store = store
        self._tool_name = tool_name
        self._notice = notice
        self._resumable = resumable
        self._coalesce = coalesce_seconds
        self._sessions: dict[str, AcpSession] = {}
        self._bridge: AcpBridge | None = None
        self._stop_recording: Callable[[], None] = record_tool_calls(registry.events, self._log_of)

    def on_connect(self, conn: UpdateSink) -> None:
        """Called by the connection, once."""
        self._bridge = AcpBridge(self._registry.events, conn, resolve=self._resolve, coalesce_seconds=self._coalesce)

    async def initialize(self, protocol_version: int, **_kwargs: Any) -> InitializeResponse:
        return InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION) or acp.PROTOCOL_VERSION,
            agent_capabilities=AgentCapabilities(
                load_session=self._resumable, prompt_capabilities=PromptCapabilities(embedded_context=True)
            ),
            agent_info=Implementation(name="workflow", title="Workflow scripts", version=_version()),
            auth_methods=[],
        )

    async def new_session(self, cwd: str, **_kwargs: Any) -> NewSessionResponse:
        session_id = f"session_{uuid.uuid4().hex}"
        self._sessions[session_id] = AcpSession(self._store.open(session_id), cwd)
        return NewSessionResponse(session_id=session_id)

    async def load_session(self, cwd: str, session_id: str, **_kwargs: Any) -> LoadSessionResponse:
        if not self._resumable or session_id not in self._store.ids():
            raise acp.RequestError.resource_not_found(session_id)
        if session_id in self._sessions:
            raise acp.RequestError.invalid_request({"details": f"session {session_id} is open already"})
        try:
            session = AcpSession(self._store.open(session_id), cwd)
        except SessionError as error:
            raise acp.RequestError.internal_error({"details": error_text(error)}) from None
        self._sessions[session_id] = session
        bridge = self._connected()
        bridge.replay(session_id, session.session.events)
        await bridge.flush(session_id)
        return LoadSessionResponse()

    async def close_session(self, session_id: str, **_kwargs: Any) -> CloseSessionResponse:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            await self._registry.close_session(session_id)
            if self._bridge is not None:
                await self._bridge.close_session(session_id)
            session.session.close()
        return CloseSessionResponse()

    async def prompt(self, session_id: str, prompt: list[PromptBlock], **_kwargs: Any) -> PromptResponse:
        session = self._session(session_id)
        if session.controller is not None:
            details = f"session {session_id} is at work: wait for its prompt, or cancel it"
            raise acp.RequestError.invalid_request({"details": details})
        # Before the first await: a cancel that follows at once must find it.
        controller = session.controller = AbortController()
        bridge = self._connected()
        try:
            session.note(USER_MESSAGE, prompt_text(prompt))
            try:
                arguments = await read_prompt(prompt, session.cwd)
            except PromptRefused as refused:
                self._say(bridge, session, str(refused))
                await bridge.flush(session_id)
                return PromptResponse(stop_reason="cancelled" if controller.signal.aborted else "end_turn")
            if controller.signal.aborted:
                return PromptResponse(stop_reason="cancelled")
            result = await self._registry.call(
                self._tool_name,
                arguments,
                session_id=session_id,
                call_id=f"call_{uuid.uuid4().hex[:16]}",
                agent=session,
                signal=controller.signal,
            )
            if not controller.signal.aborted:
                notice, session.noticed = None if session.noticed else self._notice, True
                self._say(bridge, session, _message(result, notice))
            await bridge.flush(session_id)
            return PromptResponse(stop_reason="cancelled" if controller.signal.aborted else "end_turn")
        finally:
            session.controller = None

    async def cancel(self, session_id: str, **_kwargs: Any) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.controller is not None:
            session.controller.abort("the user cancelled")

    async def aclose(self) -> None:
        """Ends every run and frees everything. The registry stays usable for others."""
        for session_id in tuple(self._sessions):
            await self.close_session(session_id)
        if self._bridge is not None:
            await self._bridge.aclose()
        self._stop_recording()

    def _say(self, bridge: AcpBridge, session: AcpSession, text: str) -> None:
        session.note(AGENT_MESSAGE, text)
        bridge.say(session.id, text)

    def _session(self, session_id: str) -> AcpSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise acp.RequestError.resource_not_found(session_id)
        return session

    def _connected(self) -> AcpBridge:
        if self._bridge is None:
            raise acp.RequestError.internal_error({"details": "the agent has no connection"})
        return self._bridge

    def _resolve(self, identity: ToolCallIdentity) -> tuple[str, str] | None:
        return (identity.session_id, identity.call_id) if identity.session_id in self._sessions else None

    def _log_of(self, session_id: str) -> SessionLog | None:
        session = self._sessions.get(session_id)
        return None if session is None else session.session


def _message(result: ToolResult, notice: str | None) -> str:
    """The result for the user: what the model would be shown, and which agents failed."""
    return "\n\n".join([*([notice] if notice else []), result.text, *outcome_notes(result.details)])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("workflow-orchestrator")
    except PackageNotFoundError:
        return "0.0.0"
