"""One process of an Agent Client Protocol agent, and the protocol's connection to it.

Guarantees: it is initialised once, within ``start_timeout``; a request to it ends when the process does, with a reason
that says how that was; after `AgentProcess.end` or `AgentProcess.kill` nothing it started is left. Capabilities to read
files, write files or run commands on the host's behalf are not offered, and requests for them are refused.

Needs the extra ``acp``; import it only where that is known to be installed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import PurePath
from typing import Any, cast

import acp
from acp.connection import Connection
from acp.meta import AGENT_METHODS, CLIENT_METHODS
from acp.schema import ClientCapabilities, FileSystemCapabilities, Implementation, InitializeRequest, InitializeResponse
from pydantic import ValidationError

from orchestrator.providers.acp_settings import AcpSettings
from orchestrator.providers.child_endings import how_it_ended, last_lines
from orchestrator.providers.json_lines_child import JsonLinesChild, JsonRpcTransport

__all__ = ["AgentError", "AgentProcess", "AgentProcessError", "error_text", "one_line"]

EXIT_GRACE = 1.0
"""How long a process may live on after its output ended before that counts as its failure."""
AUTH_REQUIRED = -32000
SHOWN = 300

SessionListener = Callable[[str, dict[str, Any]], Any]
"""Takes the method and params of what an agent sends for a session; its answer is that of a request."""


class AgentError(Exception):
    """The agent refused something, or broke. The message begins with the agent's name."""


class AgentProcessError(AgentError):
    """The agent's process is gone, or of no use."""


class AgentProcess:
    """Starts the program and begins to initialise it.

    Args:
        settings: what to start and how.

    Raises:
        OSError: it could not be started.
        ValueError: its arguments cannot be passed to a program.
    """

    def __init__(self, settings: AcpSettings) -> None:
        self.settings = settings
        self.name = PurePath(settings.argv[0]).name
        self.closes_sessions = False
        self.usable = True
        """Whether a new session may be opened in it."""
        self._ended_because: str | None = None
        self._listeners: dict[str, SessionListener] = {}
        self._auth_methods = ""
        self._child = JsonLinesChild(
            settings.argv,
            env=_environment(settings),
            cwd=settings.cwd,
            grace=settings.kill_grace,
            max_line=settings.max_output
            + (16 << 20),  # whatever else a message holds, such as the files of a tool call
        )
        self._transport = JsonRpcTransport(self._child, self._on_notification, self._on_output_end)
        self._connection = Connection(self._on_request, self._transport)
        self._closing: asyncio.Task[None] | None = None
        self._opening = asyncio.get_running_loop().create_task(self._initialize(), name=f"acp-{self._child.pid}")
        self._opening.add_done_callback(_retrieve)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._child.pid

    @property
    def ready(self) -> bool:
        """Whether it has been initialised."""
        return self._opening.done() and not self._opening.cancelled() and self._opening.exception() is None

    async def opened(self) -> None:
        """Waits until it is initialised.

        Raises:
            AgentProcessError: it cannot be used.
        """
        try:
            await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._opening.cancelled() or (task is not None and task.cancelling()):
                raise
            raise AgentProcessError(f"{self.name} {self._ended_because or 'was ended'}") from None

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and waits for its answer, however long that takes.

        Raises:
            AgentProcessError: the process is gone.
            acp.RequestError: the agent refused it.
        """
        try:
            answer: object = await self._connection.send_request(method, params)
        except ConnectionError:
            raise AgentProcessError(await self._post_mortem()) from None
        return cast("dict[str, Any]", answer) if isinstance(answer, dict) else {}

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification; a process that is gone needs none."""
        try:
            await self._connection.send_notification(method, params)
        except ConnectionError:
            self.usable = False

    def listen(self, session_id: str, listener: SessionListener) -> None:
        """From now on ``listener`` takes what the agent sends for this session."""
        self._listeners[session_id] = listener

    def forget(self, session_id: str) -> None:
        """Ends `listen`."""
        self._listeners.pop(session_id, None)

    async def end(self, because: str | None = None) -> None:
        """Ends the process and waits until nothing of it is left. A caller that is cancelled meanwhile kills it.

        Args:
            because: the reason for calls at work in it, as the end of a sentence that begins with the agent's name.
        """
        self.usable = False
        if self._ended_because is None:
            self._ended_because = because
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name=f"acp-{self.pid} close")
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            self._child.kill()
            raise

    def kill(self) -> None:
        """SIGKILL now."""
        self.usable = False
        self._child.kill()

    async def _close(self) -> None:
        if asyncio.current_task() is not self._opening:
            self._opening.cancel()
        await self._child.close()
        await self._connection.close()

    # --- the beginning ---

    async def _initialize(self) -> None:
        settings = self.settings
        timeout = asyncio.timeout(settings.start_timeout)
        try:
            async with timeout:
                await self._negotiate()
                if settings.auth_method is not None:
                    await self.request(AGENT_METHODS["authenticate"], {"methodId": settings.auth_method})
        except TimeoutError:
            raise await self._unusable(
                f"did not get ready within {settings.start_timeout:g} s (start_timeout){self._what_it_printed()}"
            ) from None
        except acp.RequestError as error:
            raise await self._unusable(f"cannot be used: {error_text(error)}") from None
        except AgentProcessError as error:
            self.usable = False
            raise AgentProcessError(f"{error}{self._noise()}") from None

    async def _negotiate(self) -> None:
        request = InitializeRequest(
            protocol_version=acp.PROTOCOL_VERSION,
            client_capabilities=ClientCapabilities(
                fs=FileSystemCapabilities(read_text_file=False, write_text_file=False), terminal=False
            ),
            client_info=Implementation(name="workflow", title="Workflow scripts", version=_version()),
        )
        params = request.model_dump(mode="json", by_alias=True, exclude_none=True)
        answer = await self.request(AGENT_METHODS["initialize"], params)
        try:
            found = InitializeResponse.model_validate(answer)
        except ValidationError:
            raise await self._unusable("does not answer `initialize` as the Agent Client Protocol asks") from None
        if found.protocol_version != acp.PROTOCOL_VERSION:
            raise await self._unusable(
                f"speaks version {found.protocol_version} of the Agent Client Protocol, not {acp.PROTOCOL_VERSION}: "
                "install another release of it"
            )
        if found.agent_info is not None:  # better than the name of an interpreter or a package runner
            self.name = one_line(found.agent_info.title or found.agent_info.name, 60) or self.name
        capabilities = found.agent_capabilities
        sessions = None if capabilities is None else capabilities.session_capabilities
        self.closes_sessions = sessions is not None and sessions.close is not None
        names = [one_line(method.id, 40) for method in (found.auth_methods or [])[:10]]
        self._auth_methods = f" (auth_method may be {', '.join(names)})" if names else ""

    async def _unusable(self, why: str) -> AgentProcessError:
        self.usable = False
        await self._child.close()  # and not `end`, which would cancel the task this runs in
        return AgentProcessError(f"{self.name} {why}")

    def refusal(self, error: acp.RequestError) -> str:
        """Why the agent refused to open a session, for the user."""
        if error.code == AUTH_REQUIRED:
            detail = error_text(error).rstrip(".")
            said = "" if detail.lower().startswith("authentication required") else f": {detail}"
            return (
                f"{self.name} requires authentication{said}; log in with the program itself, give it its key in env, "
                f"or set auth_method{self._auth_methods}"
            )
        return f"{self.name} opened no session: {error_text(error)}"

    # --- the end ---

    def _on_output_end(self) -> None:
        self.usable = False

    async def _post_mortem(self) -> str:
        """Why the connection is gone. Ends the process if it only closed its output."""
        self.usable = False
        ending = asyncio.ensure_future(self._child.wait())
        done, _ = await asyncio.wait({ending}, timeout=EXIT_GRACE)
        asked = self._ended_because
        if not done:
            self._child.stop()
            await asyncio.wait({ending})
        end = await ending
        if self._child.overlong:
            return f"{self.name} sent a message that is too long to be read, and was ended"
        if asked is not None:
            return f"{self.name} {asked}"
        if not done:
            return f"{self.name} closed its output and was ended{last_lines(end.stderr_tail)}"
        return f"{self.name} {how_it_ended(end.returncode)}{last_lines(end.stderr_tail)}"

    def _what_it_printed(self) -> str:
        return last_lines(self._child.stderr_so_far) or self._noise()

    def _noise(self) -> str:
        """What it printed instead of messages: usually a program that was not told to speak the protocol."""
        if not self._transport.noise:
            return ""
        return f"; it printed no Agent Client Protocol message but{last_lines(self._transport.noise)}"

    # --- what the agent sends ---

    def _on_notification(self, method: str, params: dict[str, Any]) -> None:
        self._deliver(method, params)

    async def _on_request(self, method: str, params: Any, _is_notification: bool) -> Any:
        if method != CLIENT_METHODS["session_request_permission"] or not isinstance(params, dict):
            raise acp.RequestError.method_not_found(method)
        answer = self._deliver(method, cast("dict[str, Any]", params))
        return {"outcome": {"outcome": "cancelled"}} if answer is None else answer

    def _deliver(self, method: str, params: dict[str, Any]) -> Any:
        session_id: object = params.get("sessionId")
        listener = self._listeners.get(session_id) if isinstance(session_id, str) else None
        return None if listener is None else listener(method, params)


def error_text(error: acp.RequestError) -> str:
    """An agent's error in one bounded line: its message, and what its data say beyond that."""
    text = one_line(str(error), SHOWN)
    data: object = error.data
    if isinstance(data, dict):
        members = cast("dict[str, Any]", data)
        data = next((members[name] for name in ("details", "message", "reason", "error") if name in members), None)
    return f"{text}: {one_line(data, SHOWN)}" if isinstance(data, str) and data and data not in text else text


def one_line(text: str, limit: int) -> str:
    """Text for a message: one line, printable, bounded."""
    text = "".join(character if character.isprintable() else " " for character in text[: 4 * limit])
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _environment(settings: AcpSettings) -> dict[str, str]:
    """The host's environment and the settings' own; nothing of a workflow this one may run inside."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WORKFLOW_AGENT_")}
    return {**kept, **settings.env}


def _retrieve(task: asyncio.Task[None]) -> None:
    """Whoever waits for a process sees why it failed; when nobody does, nobody must be told."""
    if not task.cancelled():
        task.exception()


def _version() -> str:
    try:
        return version("workflow-orchestrator")
    except PackageNotFoundError:
        return "0.0.0"
