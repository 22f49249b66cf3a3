"""Whether a tree of processes is gone, asked of the kernel.

Every process of the tree holds the write end of a FIFO, so the read end reports end-of-file exactly when the last one
is dead.
"""

from __future__ import annotations

import asyncio
import os
import select
from pathlib import Path

__all__ = ["Lifeline"]


class Lifeline:
    """A FIFO whose writers are the processes under test: ``exec 3>"$LIFELINE"`` joins, and children inherit."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    async def heard(self) -> bytes:
        """Waits until the processes have written something."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._fd, readable.set)
        try:
            while True:
                await readable.wait()
                try:
                    data = os.read(self._fd, 100)
                except BlockingIOError:
                    data = b""
                if data:
                    return data
                readable.clear()
                await asyncio.sleep(0)
        finally:
            loop.remove_reader(self._fd)

    async def silent(self) -> None:
        """Waits until the last process is dead."""
        poll = select.poll()
        poll.register(self._fd, select.POLLHUP)
        await asyncio.to_thread(poll.poll)

    def hear(self, timeout: float = 30.0) -> bytes:
        """`heard` for a test without a loop."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        assert poll.poll(timeout * 1000), "the processes under test wrote nothing"
        return os.read(self._fd, 100)

    def held(self) -> bool:
        """Whether any process of the tree is alive."""
        try:
            return os.read(self._fd, 100) != b""
        except BlockingIOError:
            return True

    def close(self) -> None:
        os.close(self._fd)
