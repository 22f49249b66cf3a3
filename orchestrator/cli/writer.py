"""Lines to a descriptor that may be slow, blocked or closed, without ever blocking the event loop.

One daemon thread per writer does the writing, so a reader that stalls can delay neither a cancel nor the run, nor the
end of the process beyond `FINISH_TIMEOUT`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable

__all__ = ["LineWriter"]

ENOUGH = 2000
"""Lines waiting from which a writer counts as behind."""
FINISH_TIMEOUT = 2.0


class LineWriter:
    """Writes lines in order to ``fd``. After the first `problem` (its reader is gone, the disk is full) it drops them.

    Args:
        fd: an open descriptor; stays open.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._work: queue.SimpleQueue[bytes | Callable[[], object]] = queue.SimpleQueue()
        self.problem: OSError | None = None
        threading.Thread(target=self._write, name="workflow output", daemon=True).start()

    @property
    def behind(self) -> bool:
        """Whether too many lines wait for a slow reader."""
        return self._work.qsize() >= ENOUGH

    def put(self, data: bytes) -> None:
        """Queues one or more whole lines."""
        if self.problem is None:
            self._work.put(data)

    async def caught_up(self) -> None:
        """Waits until everything queued so far is written or dropped."""
        loop = asyncio.get_running_loop()
        reached = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(reached.set)

        self._work.put(tell)
        await reached.wait()

    def finish(self) -> bool:
        """Waits, within a bound, until everything is written or dropped. Returns whether it was."""
        reached = threading.Event()
        self._work.put(reached.set)
        return reached.wait(FINISH_TIMEOUT)

    def _write(self) -> None:
        while True:
            item = self._work.get()
            if not isinstance(item, bytes):
                item()
                continue
            rest = memoryview(item)
            while rest and self.problem is None:
                try:
                    rest = rest[os.write(self._fd, rest) :]
                except OSError as error:
                    self.problem = error
