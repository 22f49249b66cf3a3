"""The progress of one call as protocol notifications.

Guarantees: the number grows with each notification, as the protocol demands, and its whole part is how much work is
over; the latest view wins, so that a client that reads slowly costs one waiting view and never the tool's time;
nothing is sent once `finish` or `abandon` has returned.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable

from orchestrator.tool import ProgressView, TextContent

__all__ = ["ProgressFeed", "SendProgress"]

_log = logging.getLogger(__name__)

SendProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""``await send(progress, total, message)``."""

INTERVAL = 0.1
"""Seconds between two notifications of a call, at least: a person reads no faster, and a host redraws for each."""
HEARTBEAT = 10.0
"""Seconds after which a view is sent again. Hosts that start their time limit anew at each notification wait 60 s or
more by default, and one agent may work for longer than that without any event."""


class ProgressFeed:
    """Sends the views of one call. Made in the call's event loop; end it with `finish` or `abandon`.

    Args:
        send: sends one notification.
        interval: the least time between two, in seconds.
        heartbeat: the time after which the latest view is sent again, in seconds.
    """

    def __init__(self, send: SendProgress, *, interval: float = INTERVAL, heartbeat: float = HEARTBEAT) -> None:
        self._send = send
        self._interval = interval
        self._heartbeat = heartbeat
        self._view: ProgressView | None = None
        self._fresh = asyncio.Event()
        self._over = asyncio.Event()
        self._finished = 0
        self._sent_since = 0
        """Notifications since the count of finished work last changed."""
        self._sent_any = False
        self._task = asyncio.create_task(self._run(), name="mcp progress")

    def put(self, view: ProgressView) -> None:
        """Takes the latest view."""
        self._view = view
        self._fresh.set()

    async def finish(self) -> None:
        """Sends a view that waits, and ends."""
        self._over.set()
        self._fresh.set()
        await asyncio.wait({self._task})

    async def abandon(self) -> None:
        """Ends without sending more."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        latest: ProgressView | None = None
        while True:
            await _within(self._heartbeat, self._fresh)
            self._fresh.clear()
            view, self._view = self._view, None
            if view is None and self._over.is_set():
                return
            latest = view or latest
            if latest is not None and not await self._deliver(latest):
                return
            if self._view is None and self._over.is_set():
                return
            await _within(self._interval, self._over)

    async def _deliver(self, view: ProgressView) -> bool:
        """Sends one notification. ``False`` when no more can be sent."""
        finished = max(self._finished, view.finished or 0)
        self._sent_since = 0 if finished > self._finished or not self._sent_any else self._sent_since + 1
        self._finished, self._sent_any = finished, True
        # A log line changes the message and not the count: a fraction that grows towards the next whole number.
        number = finished + self._sent_since / (self._sent_since + 1)
        if not math.isfinite(number):
            return False
        try:
            await self._send(number, None, _message(view))
        except Exception:
            _log.warning("a progress notification could not be sent; this call sends no more", exc_info=True)
            return False
        return True


def _message(view: ProgressView) -> str:
    return "\n".join(block.text for block in view.content if isinstance(block, TextContent))


async def _within(seconds: float, event: asyncio.Event) -> None:
    """Waits for the event, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
