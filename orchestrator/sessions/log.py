"""An append-only session log: what a session remembers, in the order it happened.

Guarantees, for every implementation of `SessionLog`: an event is either appended whole or not at all; positions count
from 1 without gaps; the stored data is plain JSON that shares nothing with the caller's object; an event that would
make the history illegal is refused and changes nothing. Logs are for one event loop at a time; they never block on it
longer than their storage needs for one small write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

__all__ = [
    "HistoryRule",
    "IllegalHistory",
    "MemorySessionLog",
    "MemorySessionStore",
    "RuleFactory",
    "SessionClosed",
    "SessionError",
    "SessionEvent",
    "SessionLog",
    "SessionStore",
]


class SessionError(Exception):
    """A session could not be read or written. The message says which session and what to do."""


class IllegalHistory(SessionError):
    """An event would break, or a stored history breaks, a rule of the log."""


class SessionClosed(SessionError):
    """The log was closed and takes no more events."""


class SessionEvent(msgspec.Struct, frozen=True):
    """One entry. ``position`` counts from 1; ``data`` is a JSON object."""

    position: int
    type: str
    data: Mapping[str, Any]


@runtime_checkable
class SessionLog(Protocol):
    """What the recorder and the replay need of a session."""

    @property
    def id(self) -> str:
        """Names the session."""
        ...

    @property
    def events(self) -> tuple[SessionEvent, ...]:
        """Everything appended so far, in order."""
        ...

    def append(self, type: str, data: Mapping[str, Any]) -> SessionEvent:  # noqa: A002 - the field's public name
        """Appends one event.

        Raises:
            IllegalHistory: the event breaks a rule; nothing was written.
            SessionError: it could not be stored; nothing was written.
        """
        ...

    def close(self) -> None:
        """Refuses later appends. Idempotent; what was appended stays readable."""
        ...


class SessionStore(Protocol):
    """Holds sessions by id."""

    def open(self, session_id: str) -> SessionLog:
        """The session of that id, made when there is none. Raises `IllegalHistory` when what is stored is broken."""
        ...

    def ids(self) -> tuple[str, ...]:
        """The sessions that exist, in the order they were made."""
        ...


class HistoryRule(Protocol):
    """One fold over a log. Sees every event; raises `ValueError` on an illegal one and is then unchanged."""

    def check(self, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002
        """Raises `ValueError`, naming the rule, when the event may not come next. Changes nothing."""
        ...

    def accept(self, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002
        """Takes an event that `check` passed."""
        ...


RuleFactory = Callable[[], HistoryRule]


class History:
    """The events of one log and the rules over them: the part every implementation shares."""

    def __init__(self, session_id: str, rules: Iterable[RuleFactory]) -> None:
        if not session_id:
            raise SessionError("a session id must be a non-empty string")
        self.session_id = session_id
        self.closed = False
        self._events: list[SessionEvent] = []
        self._rules = [make() for make in rules]

    @property
    def events(self) -> tuple[SessionEvent, ...]:
        return tuple(self._events)

    def prepare(self, kind: str, data: object) -> tuple[SessionEvent, str]:
        """The checked event that would come next, and its data as JSON text. Changes nothing."""
        if self.closed:
            raise SessionClosed(f"session {self.session_id!r} is closed: open it again to append")
        position = len(self._events) + 1
        if not kind:
            raise IllegalHistory(f"session {self.session_id!r}: an event needs a type")
        text = self._encode(kind, data)
        event = SessionEvent(position, kind, _decode_object(text))
        for rule in self._rules:
            try:
                rule.check(event.type, event.data)
            except ValueError as error:
                raise IllegalHistory(f"session {self.session_id!r}, event {position}: {error}") from None
        return event, text

    def commit(self, event: SessionEvent) -> None:
        """Takes an event that `prepare` made, once it is stored."""
        for rule in self._rules:
            rule.accept(event.type, event.data)
        self._events.append(event)

    def load(self, kind: str, text: str) -> None:
        """Takes one stored event, checking it as if it were appended now."""
        try:
            data = _decode_object(text)
        except ValueError as error:
            position = len(self._events) + 1
            raise IllegalHistory(f"session {self.session_id!r}, event {position}: data is damaged ({error})") from None
        event, _text = self.prepare(kind, data)
        self.commit(event)

    def _encode(self, kind: str, data: object) -> str:
        if not isinstance(data, Mapping):
            raise IllegalHistory(f"session {self.session_id!r}: the data of {kind} must be a JSON object")
        try:
            # The standard library and not msgspec: it keeps a lone surrogate as an escape instead of refusing it.
            return json.dumps(dict(cast("Mapping[Any, Any]", data)), allow_nan=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            raise IllegalHistory(f"session {self.session_id!r}: the data of {kind} is not JSON: {error}") from None


def _decode_object(text: str) -> dict[str, Any]:
    value: object = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return cast("dict[str, Any]", value)


class MemorySessionLog:
    """A session that lives as long as the process.

    Args:
        session_id: names it.
        rules: the folds that keep its history legal; see `orchestrator.sessions.DEFAULT_RULES`.
    """

    def __init__(self, session_id: str, rules: Iterable[RuleFactory] = ()) -> None:
        self._history = History(session_id, rules)

    @property
    def id(self) -> str:
        return self._history.session_id

    @property
    def events(self) -> tuple[SessionEvent, ...]:
        return self._history.events

    @property
    def closed(self) -> bool:
        """Whether it takes no more events."""
        return self._history.closed

    def append(self, type: str, data: Mapping[str, Any]) -> SessionEvent:  # noqa: A002
        event, _text = self._history.prepare(type, data)
        self._history.commit(event)
        return event

    def close(self) -> None:
        self._history.closed = True

    def __repr__(self) -> str:
        return f"<MemorySessionLog {self.id!r}: {len(self.events)} events{', closed' if self.closed else ''}>"


class MemorySessionStore:
    """Sessions that live as long as the process."""

    def __init__(self, rules: Iterable[RuleFactory] = ()) -> None:
        self._rules = tuple(rules)
        self._sessions: dict[str, MemorySessionLog] = {}

    def open(self, session_id: str) -> MemorySessionLog:
        log = self._sessions.get(session_id)
        if log is None or log.closed:
            reopened = MemorySessionLog(session_id, self._rules)
            for event in () if log is None else log.events:
                reopened.append(event.type, event.data)
            log = self._sessions[session_id] = reopened
        return log

    def ids(self) -> tuple[str, ...]:
        return tuple(self._sessions)
