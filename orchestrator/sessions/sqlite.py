"""Sessions in one SQLite file, standard library only.

Guarantees: an append that returned survives a ``kill -9`` of the process (write-ahead log, one transaction an event;
``durable=True`` also survives a power cut); a history is checked whole when it is opened; two writers of one session
cannot interleave: the second one's append is refused.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.sessions.log import History, RuleFactory, SessionClosed, SessionError, SessionEvent

__all__ = ["SqliteSessionLog", "SqliteSessionStore"]

_FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE
);
CREATE TABLE IF NOT EXISTS events (
    session INTEGER NOT NULL REFERENCES sessions, position INTEGER NOT NULL, type TEXT NOT NULL, data TEXT NOT NULL,
    PRIMARY KEY (session, position)
) WITHOUT ROWID;
"""


class SqliteSessionStore:
    """Opens, or makes, a file of sessions. A context manager that closes it.

    Args:
        path: the file. ``":memory:"`` is refused: use `MemorySessionStore`.
        rules: the folds that keep each history legal.
        durable: wait for the disk on every append (milliseconds each) instead of leaving that to the system.
        busy_timeout: seconds an append may wait for another process that writes the same file.

    Raises:
        SessionError: the file cannot be opened, is no database, or is of a newer format.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        rules: Iterable[RuleFactory] = (),
        *,
        durable: bool = False,
        busy_timeout: float = 1.0,
    ) -> None:
        if os.fspath(path) in ("", ":memory:"):
            raise SessionError("SqliteSessionStore needs a file; MemorySessionStore keeps sessions in memory")
        if not 0 <= busy_timeout <= 60:
            raise ValueError(f"busy_timeout must be between 0 and 60 seconds, not {busy_timeout!r}")
        self._rules = tuple(rules)
        self._lock = threading.Lock()
        self._logs: dict[str, SqliteSessionLog] = {}
        # check_same_thread: the lock does it, so that a host may open sessions in one thread and append in another.
        try:
            self._connection = sqlite3.connect(
                path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise SessionError(f"the session file cannot be opened: {error}") from None
        self._open = True
        try:
            self._connection.execute("PRAGMA journal_mode=WAL").fetchone()
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            found = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if found > _FORMAT:
                raise SessionError(
                    f"the session file has format {found}, this version reads up to {_FORMAT}: update the package"
                )
            self._connection.executescript(f"BEGIN IMMEDIATE;{_SCHEMA}PRAGMA user_version={_FORMAT};COMMIT;")
        except sqlite3.Error as error:
            self._connection.close()
            raise SessionError(f"the session file cannot be used: {error}") from None
        except SessionError:
            self._connection.close()
            raise

    def open(self, session_id: str) -> SqliteSessionLog:
        """The session of that id, made when there is none.

        Raises:
            IllegalHistory: what is stored breaks a rule, or is damaged.
            SessionError: it cannot be read.
        """
        log = self._logs.get(session_id)
        if log is not None and not log.closed:
            return log
        history = History(session_id, self._rules)
        try:
            with self._lock:
                self._require_open()
                self._connection.execute("INSERT OR IGNORE INTO sessions (id) VALUES (?)", (session_id,))
                number = int(
                    self._connection.execute("SELECT number FROM sessions WHERE id = ?", (session_id,)).fetchone()[0]
                )
                rows: list[tuple[int, str, str]] = self._connection.execute(
                    "SELECT position, type, data FROM events WHERE session = ? ORDER BY position", (number,)
                ).fetchall()
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise SessionError(f"session {session_id!r} cannot be read: {error}") from None
        for expected, (position, kind, text) in enumerate(rows, start=1):
            if position != expected:
                raise SessionError(f"session {session_id!r}: event {expected} is missing from the file")
            history.load(kind, text)
        log = self._logs[session_id] = SqliteSessionLog(self, number, history)
        return log

    def ids(self) -> tuple[str, ...]:
        """The sessions in the file, in the order they were made."""
        with self._lock:
            self._require_open()
            return tuple(row[0] for row in self._connection.execute("SELECT id FROM sessions ORDER BY number"))

    def close(self) -> None:
        """Closes the file; its logs take no more events. Idempotent."""
        for log in self._logs.values():
            log.close()
        with self._lock:
            if self._open:
                self._open = False
                self._connection.close()

    def __enter__(self) -> SqliteSessionStore:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def write(self, number: int, event: SessionEvent, text: str, session_id: str) -> None:
        """Stores one event: one statement, so one transaction."""
        try:
            with self._lock:
                self._require_open()
                self._connection.execute(
                    "INSERT INTO events (session, position, type, data) VALUES (?, ?, ?, ?)",
                    (number, event.position, event.type, text),
                )
        except sqlite3.IntegrityError:
            raise SessionError(
                f"session {session_id!r} has another writer, which appended event {event.position} first: open it again"
            ) from None
        except (sqlite3.Error, UnicodeEncodeError) as error:
            raise SessionError(f"session {session_id!r} cannot be written: {error}") from None

    def _require_open(self) -> None:
        if not self._open:
            raise SessionClosed("the session file is closed")


class SqliteSessionLog:
    """One session of a `SqliteSessionStore`."""

    def __init__(self, store: SqliteSessionStore, number: int, history: History) -> None:
        self._store = store
        self._number = number
        self._history = history

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
        event, text = self._history.prepare(type, data)
        self._store.write(self._number, event, text, self.id)
        self._history.commit(event)
        return event

    def close(self) -> None:
        self._history.closed = True

    def __repr__(self) -> str:
        return f"<SqliteSessionLog {self.id!r}: {len(self.events)} events{', closed' if self.closed else ''}>"
