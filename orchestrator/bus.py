"""Event delivery: observe-only, contained, and with bounded memory.

Guarantees: listeners are called in the order they subscribed, in the event loop, as the run goes; one that raises, or
whose awaitable fails, is logged and neither starves the others nor changes execution; awaitables of one listener are
awaited one after the other, in the order of the events. A listener that falls behind slows the reading of the workers
that flood it down (`congested_by`); one that makes no progress at all loses narration, and only narration, until it
catches up.
"""

from __future__ import annotations

import asyncio
import collections
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from protocol.events import LogWritten, PhaseStarted, RunId, WorkflowEnded, WorkflowEvent

__all__ = ["Backlog", "EventBus", "EventStream", "Listener"]

_log = logging.getLogger(__name__)

Listener = Callable[[Any], object]

CONGESTED_AT = 1000
"""Events a listener may be behind before the workers that caused it are read more slowly."""
_SHARE = 64
"""Of those, events of one run before that run counts as a cause: a quiet run does not wait for a flood of another's."""


class Backlog:
    """What one listener still has to do."""

    def __init__(self) -> None:
        self.stuck = False

    def __len__(self) -> int:
        raise NotImplementedError

    def congested_by(self, run: RunId) -> bool:
        """Whether the listener is too far behind, and ``run`` one of those that should slow down for it."""
        return not self.stuck and len(self) >= CONGESTED_AT

    def refuses(self, event: WorkflowEvent) -> bool:
        if self.stuck and len(self) < CONGESTED_AT // 2:
            self.stuck = False
        return self.stuck and isinstance(event, LogWritten | PhaseStarted)


class _Subscription(Backlog):
    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self._listener = listener
        self._waiting: collections.deque[tuple[RunId, Awaitable[object]]] = collections.deque()
        self._by_run: collections.Counter[RunId] = collections.Counter()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def congested_by(self, run: RunId) -> bool:
        return super().congested_by(run) and self._by_run[run] >= _SHARE

    def deliver(self, event: WorkflowEvent) -> None:
        if self.refuses(event):
            return
        try:
            answer = self._listener(event)
        except (Exception, asyncio.CancelledError):
            _log.exception("a workflow event listener raised")
            return
        if answer is not None and isinstance(answer, Awaitable):  # asking an ABC costs more than a listener
            self._waiting.append((event.run.id, answer))  # pyright: ignore[reportUnknownArgumentType]
            self._by_run[event.run.id] += 1
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._work(), name="workflow event listener")

    async def _work(self) -> None:
        try:
            while self._waiting:
                run, awaitable = self._waiting[0]
                try:
                    await awaitable
                except Exception:
                    _log.exception("a workflow event listener failed")
                except asyncio.CancelledError:
                    me = asyncio.current_task()
                    if me is None or me.cancelling():
                        raise
                    _log.warning("a workflow event listener's awaitable was cancelled")
                finally:
                    if self._waiting and self._waiting[0][1] is awaitable:
                        self._waiting.popleft()
                        self._by_run[run] -= 1
                        if not self._by_run[run]:
                            del self._by_run[run]
        finally:
            self._task = None

    async def finish(self, timeout: float) -> None:
        """Lets the awaitables run dry, within a bound; then cancels."""
        task = self._task
        if task is not None and task is not asyncio.current_task():
            done, _ = await asyncio.wait({task}, timeout=timeout)
            if not done:
                _log.warning("a workflow event listener was still busy %g s after the engine closed", timeout)
                task.cancel()
                await asyncio.wait({task}, timeout=timeout)
        while self._waiting:
            close = getattr(self._waiting.popleft()[1], "close", None)
            if close is not None:
                close()


class EventStream(Backlog):
    """One run's events as an async iterator; ends after ``workflow/end``. Made by ``WorkflowRun.events()``."""

    def __init__(self, history: collections.deque[WorkflowEvent], on_close: Callable[[EventStream], None]) -> None:
        super().__init__()
        self._events = collections.deque(history)
        self._ended = any(isinstance(event, WorkflowEnded) for event in history)
        self._on_close = on_close
        self._wake: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._events)

    def deliver(self, event: WorkflowEvent) -> None:
        if self.refuses(event):
            return
        self._events.append(event)
        if isinstance(event, WorkflowEnded):
            self._ended = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def __aiter__(self) -> AsyncIterator[WorkflowEvent]:
        return self

    async def __anext__(self) -> WorkflowEvent:
        while not self._events:
            if self._ended:
                self.close()
                raise StopAsyncIteration
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        return self._events.popleft()

    def close(self) -> None:
        """Stops receiving."""
        self._ended = True
        self._on_close(self)


class EventBus:
    """The listeners of one engine."""

    def __init__(self) -> None:
        self._subscriptions: dict[object, _Subscription] = {}

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls ``listener(event)`` for every event of every run; it may be async. Returns its remover."""
        key = object()
        self._subscriptions[key] = _Subscription(listener)
        return lambda: self._remove(key)

    def _remove(self, key: object) -> None:
        self._subscriptions.pop(key, None)

    def emit(self, event: WorkflowEvent) -> None:
        """Delivers one event. Never raises."""
        for subscription in tuple(self._subscriptions.values()):
            subscription.deliver(event)

    def backlogs(self, run: RunId) -> list[Backlog]:
        """The listeners that ``run`` has left too far behind."""
        return [subscription for subscription in self._subscriptions.values() if subscription.congested_by(run)]

    async def finish(self, timeout: float) -> None:
        """Waits for async listeners to catch up, at most ``timeout`` seconds each."""
        for subscription in tuple(self._subscriptions.values()):
            await subscription.finish(timeout)
