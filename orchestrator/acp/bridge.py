"""Shows tool calls to an Agent Client Protocol client. Generic: it knows nothing of any tool.

Guarantees, for each session on its own: ``tool_call`` of a call comes first and once; each progress report becomes an
in-progress ``tool_call_update``, whose content replaces the one before; the update of the result comes last, and
nothing after it. A client that reads slowly costs one waiting snapshot a call, never the tool's time; a client that is
gone costs nothing. Sessions never wait for each other.
"""

from __future__ import annotations

import asyncio
import collections
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast, get_args

import acp
from acp.schema import (
    AgentMessageChunk,
    ContentToolCallContent,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolKind,
    UserMessageChunk,
)

from orchestrator.sessions.log import SessionEvent
from orchestrator.sessions.records import TOOL_CALL, TOOL_RESULT
from orchestrator.sessions.text import replace_lone_surrogates
from orchestrator.tool.events import (
    ContentBlock,
    ProgressView,
    TextContent,
    ToolCallIdentity,
    ToolCallStarted,
    ToolCard,
    ToolEvent,
    ToolProgressed,
    ToolSettled,
)
from orchestrator.tool.listeners import ToolEvents
from orchestrator.tool.transcript import replay_calls

__all__ = ["AGENT_MESSAGE", "USER_MESSAGE", "AcpBridge", "UpdateSink", "replay_updates"]

_log = logging.getLogger(__name__)

Update = ToolCallStart | ToolCallProgress | AgentMessageChunk | UserMessageChunk

USER_MESSAGE = "session/user-message"
AGENT_MESSAGE = "session/agent-message"
"""Session events with the field ``text``: what was said around the tool calls."""

MAX_BACKLOG = 64
"""Unsent updates of one session beyond which a report replaces the one before, also when none are coalesced."""
MAX_INPUT_DEPTH = 100
"""Levels of a raw input that are shown as JSON; a deeper one is shown as text, which no client fails to read."""


class UpdateSink(Protocol):
    """What the bridge needs of a connection to a client."""

    async def session_update(self, session_id: str, update: Any) -> None:
        """Sends one update."""
        ...


Resolve = Callable[[ToolCallIdentity], tuple[str, str] | None]


class _Call:
    """One call that the client knows of and whose result it has not seen."""

    __slots__ = ("next_at", "queued", "timer", "view")

    def __init__(self) -> None:
        self.view: ProgressView | None = None
        self.queued = False
        self.next_at = 0.0
        self.timer: asyncio.TimerHandle | None = None


class _Outbox:
    """The updates of one session, in order."""

    def __init__(self, session_id: str, client: UpdateSink, coalesce: float) -> None:
        self._session_id = session_id
        self._client = client
        self._coalesce = coalesce
        self._loop = asyncio.get_running_loop()
        self._queue: collections.deque[Update | str] = collections.deque()
        """Updates, and ids of calls whose latest view is to be sent."""
        self._calls: dict[str, _Call] = {}
        self._seen: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._gone = False

    def started(self, call_id: str, card: ToolCard) -> None:
        if call_id in self._seen:
            _log.warning("call %s was announced twice in session %s: shown once", call_id, self._session_id)
            return
        self._seen.add(call_id)
        self._calls[call_id] = _Call()
        self.put(_start_update(call_id, card))

    def progressed(self, call_id: str, view: ProgressView) -> None:
        call = self._calls.get(call_id)
        if call is None:
            return
        if self._coalesce == 0 and len(self._queue) < MAX_BACKLOG and call.view is None:
            self.put(_progress_update(call_id, view))
            return
        call.view = view
        if call.queued or call.timer is not None:
            return
        wait = call.next_at - self._loop.time()
        if wait <= 0:
            self._queue_view(call_id, call)
        else:
            call.timer = self._loop.call_later(wait, self._queue_view, call_id, call)

    def settled(self, call_id: str, event: ToolSettled) -> None:
        call = self._calls.pop(call_id, None)
        if call is None:
            return
        if call.timer is not None:
            call.timer.cancel()
        if call.view is not None and not call.queued:
            self.put(_progress_update(call_id, call.view))
        elif call.queued:
            # The place in the queue stays, so that the last snapshot still comes before the result.
            position = self._queue.index(call_id)
            assert call.view is not None
            self._queue[position] = _progress_update(call_id, call.view)
        content = event.result.content if event.card.content is None else event.card.content
        self.put(
            acp.update_tool_call(
                call_id,
                title=event.card.title,
                status="failed" if event.result.is_error else "completed",
                content=_content(content),
            )
        )

    def put(self, item: Update | str) -> None:
        if self._gone:
            return
        self._queue.append(item)
        if self._task is None:
            self._task = self._loop.create_task(self._send(), name="acp session updates")

    async def flush(self) -> None:
        while self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        self._forget()
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _queue_view(self, call_id: str, call: _Call) -> None:
        call.timer = None
        call.queued = True
        self.put(call_id)

    async def _send(self) -> None:
        try:
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, str):
                    call = self._calls.get(item)
                    if call is None or call.view is None:
                        continue
                    update: Update = _progress_update(item, call.view)
                    call.view, call.queued = None, False
                    call.next_at = self._loop.time() + self._coalesce
                else:
                    update = item
                await self._client.session_update(session_id=self._session_id, update=update)
        except (ConnectionError, OSError):
            _log.info("the client of session %s is gone", self._session_id)
            self._forget()
        except Exception:
            _log.exception("session %s can no longer be shown to its client", self._session_id)
            self._forget()
        finally:
            self._task = None

    def _forget(self) -> None:
        self._gone = True
        self._queue.clear()
        for call in self._calls.values():
            if call.timer is not None:
                call.timer.cancel()
        self._calls.clear()


class AcpBridge:
    """Forwards the events of a tool registry to one client.

    Args:
        events: the registry's.
        client: the connection to the client.
        resolve: finds the client's session and tool-call id of a call; ``None`` for a call of somebody else's. By
            default they are the call's own.
        coalesce_seconds: at most one progress update a call in this time, the latest; 0 sends every report.

    Raises:
        ValueError: a senseless setting.
    """

    def __init__(
        self,
        events: ToolEvents,
        client: UpdateSink,
        *,
        resolve: Resolve | None = None,
        coalesce_seconds: float = 0.1,
    ) -> None:
        if type(coalesce_seconds) not in (int, float) or not 0 <= coalesce_seconds <= 60:
            raise ValueError(f"coalesce_seconds must be a number from 0 to 60, not {coalesce_seconds!r}")
        self._client = client
        self._resolve = resolve if resolve is not None else _same
        self._coalesce = coalesce_seconds
        self._outboxes: dict[str, _Outbox] = {}
        self._unsubscribe = events.subscribe(self._take)

    def say(self, session_id: str, text: str) -> None:
        """Sends a message of the agent, after everything that was to be sent before."""
        self._outbox(session_id).put(acp.update_agent_message_text(replace_lone_surrogates(text)))

    def replay(self, session_id: str, history: Iterable[SessionEvent]) -> None:
        """Sends what a session's log shows: messages, cards and final results; no progress."""
        outbox = self._outbox(session_id)
        for update in replay_updates(history):
            outbox.put(update)

    async def flush(self, session_id: str) -> None:
        """Waits until everything of that session was sent, or the client is gone."""
        outbox = self._outboxes.get(session_id)
        if outbox is not None:
            await outbox.flush()

    async def close_session(self, session_id: str) -> None:
        """Sends nothing more for that session and frees what is held for it. Idempotent."""
        outbox = self._outboxes.pop(session_id, None)
        if outbox is not None:
            await outbox.close()

    async def aclose(self) -> None:
        """Stops listening and sending. Idempotent."""
        self._unsubscribe()
        for session_id in tuple(self._outboxes):
            await self.close_session(session_id)

    def _outbox(self, session_id: str) -> _Outbox:
        outbox = self._outboxes.get(session_id)
        if outbox is None:
            outbox = self._outboxes[session_id] = _Outbox(session_id, self._client, self._coalesce)
        return outbox

    def _take(self, event: ToolEvent) -> None:
        target = self._resolve(event.identity)
        if target is None:
            return
        session_id, call_id = target
        if isinstance(event, ToolCallStarted):
            self._outbox(session_id).started(call_id, event.card)
            return
        outbox = self._outboxes.get(session_id)
        if outbox is None:
            return
        match event:
            case ToolProgressed(view=view):
                outbox.progressed(call_id, view)
            case ToolSettled():
                outbox.settled(call_id, event)
            case _:
                pass


def replay_updates(history: Iterable[SessionEvent]) -> list[Update]:
    """What a client is sent to show a stored session: each call's pending card, its result where there is one."""
    events = tuple(history)
    calls = {call.call_id: call for call in replay_calls(events)}
    updates: list[Update] = []
    for event in events:
        match event.type:
            case "session/user-message":
                updates.append(acp.update_user_message_text(str(event.data.get("text", ""))))
            case "session/agent-message":
                updates.append(acp.update_agent_message_text(str(event.data.get("text", ""))))
            case kind if kind == TOOL_CALL:
                call = calls[event.data["callId"]]
                updates.append(_start_update(call.call_id, call.card))
            case kind if kind == TOOL_RESULT:
                call = calls[event.data["callId"]]
                status = "failed" if call.status == "failed" else "completed"
                updates.append(acp.update_tool_call(call.call_id, status=status, content=_content(call.content)))
            case _:
                pass
    return updates


def _same(identity: ToolCallIdentity) -> tuple[str, str]:
    return identity.session_id, identity.call_id


def _start_update(call_id: str, card: ToolCard) -> ToolCallStart:
    kind = cast("ToolKind", card.kind if card.kind in get_args(ToolKind) else "other")
    locations = [ToolCallLocation(path=place.path, line=place.line) for place in card.locations]
    return acp.start_tool_call(
        call_id,
        replace_lone_surrogates(card.title),
        kind=kind,
        status="pending",
        locations=locations or None,
        raw_input=_json_input(card.raw_input),
    )


def _progress_update(call_id: str, view: ProgressView) -> ToolCallProgress:
    return acp.update_tool_call(call_id, title=view.title, status="in_progress", content=_content(view.content))


def _content(blocks: Sequence[ContentBlock]) -> list[ContentToolCallContent]:
    return [
        acp.tool_content(
            acp.text_block(replace_lone_surrogates(block.text))
            if isinstance(block, TextContent)
            else acp.image_block(block.data, block.mime_type)
        )
        for block in blocks
    ]


def _json_input(value: Any) -> Any:
    """A raw input that every client can read: JSON, not too deep, without lone surrogates."""
    if value is None:
        return None
    if isinstance(value, str):
        return replace_lone_surrogates(value)
    try:
        text = replace_lone_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False))
        return json.loads(text) if _depth(text) <= MAX_INPUT_DEPTH else text
    except (TypeError, ValueError, RecursionError):
        return f"[{type(value).__name__}: not JSON]"


def _depth(text: str) -> int:
    """An upper bound of the nesting of JSON text: brackets inside strings count too."""
    deepest = level = 0
    for char in text:
        if char in "[{":
            level += 1
            deepest = max(deepest, level)
        elif char in "]}":
            level -= 1
    return deepest
