"""The listeners of a tool registry: observe-only and contained.

Guarantees: listeners are called in the order they subscribed, in the caller's event loop; one that raises, or whose
awaitable fails, is logged and neither starves the others nor changes the tool; the awaitables of one listener run one
after the other, in the order of the events.
"""

from __future__ import annotations

import asyncio
import collections
import inspect
import logging
from collections.abc import Awaitable, Callable

from orchestrator.tool.events import ToolEvent

__all__ = ["ToolEventListener", "ToolEvents"]

_log = logging.getLogger(__name__)

ToolEventListener = Callable[[ToolEvent], object]


class _Subscription:
    def __init__(self, listener: ToolEventListener, session_id: str | None) -> None:
        self._listener = listener
        self._session_id = session_id
        self._waiting: collections.deque[Awaitable[object]] = collections.deque()
        self.worker: asyncio.Task[None] | None = None

    def deliver(self, event: ToolEvent) -> None:
        if self._session_id is not None and event.identity.session_id != self._session_id:
            return
        try:
            answer = self._listener(event)
        except Exception:
            _log.exception("a listener of %s raised", event.type)
            return
        if inspect.isawaitable(answer):
            self._waiting.append(answer)
            if self.worker is None:
                self.worker = asyncio.get_running_loop().create_task(self._work(), name="tool event listener")

    async def _work(self) -> None:
        try:
            while self._waiting:
                awaitable = self._waiting.popleft()
                try:
                    await awaitable
                except Exception:
                    _log.exception("a tool event listener failed")
        finally:
            self.worker = None

    async def stop(self, grace: float) -> None:
        worker = self.worker
        if worker is not None and worker is not asyncio.current_task():
            _done, late = await asyncio.wait({worker}, timeout=grace)
            if late:
                _log.warning("a tool event listener was still busy %g s after the registry closed", grace)
                worker.cancel()
                await asyncio.wait({worker}, timeout=grace)
        while self._waiting:
            left = self._waiting.popleft()
            if inspect.iscoroutine(left):
                left.close()


class ToolEvents:
    """Where observers of tool calls subscribe."""

    def __init__(self) -> None:
        self._subscriptions: dict[object, _Subscription] = {}

    def subscribe(self, listener: ToolEventListener, *, session_id: str | None = None) -> Callable[[], None]:
        """Calls ``listener(event)`` for every event, or for those of one session. Returns its remover (idempotent).

        The listener may be async. It must not block: it runs inside the tool call it observes.
        """
        key = object()
        self._subscriptions[key] = _Subscription(listener, session_id)

        def remove() -> None:
            self._subscriptions.pop(key, None)

        return remove

    @property
    def listener_count(self) -> int:
        """How many listeners are subscribed: for leak checks."""
        return len(self._subscriptions)

    def emit(self, event: ToolEvent) -> None:
        """Delivers one event. Never raises."""
        for subscription in tuple(self._subscriptions.values()):
            subscription.deliver(event)

    async def aclose(self, grace: float) -> None:
        """Lets async listeners catch up, at most ``grace`` seconds each, and forgets all listeners."""
        subscriptions = tuple(self._subscriptions.values())
        self._subscriptions.clear()
        for subscription in subscriptions:
            await subscription.stop(grace)
