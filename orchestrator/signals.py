"""Abort signals: the one channel of cancellation between a host, a run and its agents.

Guarantees: the first reason wins; every listener is called exactly once, in the order it was added; a listener that
raises is logged and starves nobody; a listener added after the abort is called at once. `AbortController.abort` may
be called from any thread: listeners run in the calling thread, so code that belongs to an event loop must hop there
itself (the engine's own listeners do).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

__all__ = ["ABORTED", "AbortController", "AbortSignal"]

_log = logging.getLogger(__name__)

ABORTED = "aborted"
"""The reason of an abort for which nobody gave one."""

AbortListener = Callable[[str], object]


class AbortSignal:
    """The read side. Made by `AbortController`; pass it on, never the controller."""

    __slots__ = ("_listeners", "_lock", "_reason")

    def __init__(self) -> None:
        self._reason: str | None = None
        self._listeners: dict[object, AbortListener] = {}
        self._lock = threading.Lock()

    @property
    def aborted(self) -> bool:
        """Whether the abort has happened."""
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """The first reason given, or ``None`` while not aborted."""
        return self._reason

    def add_listener(self, listener: AbortListener) -> Callable[[], None]:
        """Calls ``listener(reason)`` on abort, at once if that has happened. Returns its remover (idempotent)."""
        key = object()
        with self._lock:
            reason = self._reason
            if reason is None:
                self._listeners[key] = listener
        if reason is not None:
            _call(listener, reason)
        return lambda: self._remove(key)

    async def wait(self) -> str:
        """Waits for the abort and returns its reason."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str] = loop.create_future()

        def settle(reason: str) -> None:
            if not done.done():
                done.set_result(reason)

        remove = self.add_listener(lambda reason: loop.call_soon_threadsafe(settle, reason))
        try:
            return await done
        finally:
            remove()

    @property
    def listener_count(self) -> int:
        """How many callbacks are registered: for leak checks."""
        return len(self._listeners)

    def _remove(self, key: object) -> None:
        with self._lock:
            self._listeners.pop(key, None)

    def _abort(self, reason: str) -> None:
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            listeners = list(self._listeners.values())
            self._listeners.clear()
        for listener in listeners:
            _call(listener, reason)

    def __repr__(self) -> str:
        return f"<AbortSignal {'aborted: ' + repr(self._reason) if self.aborted else 'active'}>"


class AbortController:
    """The write side of one `AbortSignal`."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal = AbortSignal()

    def abort(self, reason: str = ABORTED) -> None:
        """Aborts the signal; later calls change nothing. The reason is in the error of whatever it ends."""
        self.signal._abort(reason)  # pyright: ignore[reportPrivateUsage]


def _call(listener: AbortListener, reason: str) -> None:
    try:
        listener(reason)
    except Exception:
        _log.exception("an abort listener raised")
