"""Tool calls in a session log, and their replay.

A call is stored as its card, a result as the content the model was shown. Progress is live only: a replay shows a
pending card, or a final one, and nothing in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from orchestrator.sessions.log import SessionEvent, SessionLog
from orchestrator.sessions.records import ToolCallRecord, ToolResultRecord, decode_record, encode_record
from orchestrator.sessions.text import error_text
from orchestrator.tool.events import ContentBlock, ToolCallStarted, ToolCard, ToolEvent, ToolSettled
from orchestrator.tool.listeners import ToolEvents

__all__ = ["ReplayedCall", "record_tool_calls", "replay_calls"]

_log = logging.getLogger(__name__)

FindSession = Callable[[str], SessionLog | None]


class ReplayedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call as a session remembers it. ``pending`` is a call that was interrupted."""

    call_id: str
    tool: str
    card: ToolCard
    status: Literal["pending", "completed", "failed"] = "pending"
    content: tuple[ContentBlock, ...] = ()


def record_tool_calls(events: ToolEvents, find_session: FindSession) -> Callable[[], None]:
    """Writes the top-level calls of every session that ``find_session`` knows into its log. Returns its remover.

    An append that fails is logged and changes nothing else; a call whose card was not written gets no result.
    """
    written: set[tuple[str, str]] = set()

    def listen(event: ToolEvent) -> None:
        if event.parent is not None:
            return
        key = (event.identity.session_id, event.identity.call_id)
        if isinstance(event, ToolCallStarted):
            record = ToolCallRecord(call_id=key[1], tool=event.identity.tool, card=msgspec.to_builtins(event.card))
            if _append(find_session(key[0]), record):
                written.add(key)
        elif isinstance(event, ToolSettled) and key in written:
            written.discard(key)
            content = event.result.content if event.card.content is None else event.card.content
            _append(
                find_session(key[0]),
                ToolResultRecord(
                    call_id=key[1],
                    status="failed" if event.result.is_error else "completed",
                    content=msgspec.to_builtins(content),
                ),
            )

    return events.subscribe(listen)


def replay_calls(history: Iterable[SessionEvent]) -> tuple[ReplayedCall, ...]:
    """The tool calls of a history, in the order they were made.

    Raises:
        ValueError: a payload is malformed (a log that was opened with its rules has none).
    """
    calls: dict[str, ReplayedCall] = {}
    for event in history:
        record = decode_record(event)
        if isinstance(record, ToolCallRecord):
            card = msgspec.convert(record.card, ToolCard)
            calls[record.call_id] = ReplayedCall(call_id=record.call_id, tool=record.tool, card=card)
        elif isinstance(record, ToolResultRecord) and record.call_id in calls:
            calls[record.call_id] = msgspec.structs.replace(
                calls[record.call_id],
                status=record.status,
                content=msgspec.convert(record.content, tuple[ContentBlock, ...]),
            )
    return tuple(calls.values())


def _append(session: SessionLog | None, record: ToolCallRecord | ToolResultRecord) -> bool:
    if session is None:
        return False
    try:
        session.append(*encode_record(record))
    except Exception as error:
        _log.warning("call %s is not recorded in session %r: %s", record.call_id, session.id, error_text(error))
        return False
    return True
