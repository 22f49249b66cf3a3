"""The second net under the memory limit: the host looks at what its workers have resident.

The kernel's limits in the worker are the first one (and the only one that acts between two looks). This one also holds
where those are missing, as on macOS, or where memory is taken in a way they do not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import psutil

from orchestrator.zygote_client import Worker

__all__ = ["MemoryWatch"]

_INTERVAL = 0.25  # seconds between two looks
_PER_LOOK = 64  # workers looked at in one loop iteration: about 2 ms
_MARGIN = 64 * 1024 * 1024
"""Bytes over the limit before a worker is ended: the engine's own resident pages, shared with the zygote, count too."""


class MemoryWatch:
    """Runs only while there is a worker to watch.

    Args:
        limit: bytes a worker may allocate.
        workers: the leased workers, at each look.
        kill: ends one.
    """

    def __init__(self, limit: int, workers: Callable[[], Iterable[Worker]], kill: Callable[[Worker], None]) -> None:
        self._ceiling = limit + _MARGIN
        self._workers = workers
        self._kill = kill
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Called when a worker was leased."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="watch workers' memory")

    def rest(self) -> None:
        """Called when no worker is leased any more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            for index, worker in enumerate(tuple(self._workers())):
                if index % _PER_LOOK == _PER_LOOK - 1:
                    await asyncio.sleep(0)
                if not worker.exited and worker.pid is not None and resident(worker.pid) > self._ceiling:
                    self._kill(worker)


def resident(pid: int) -> int:
    """Resident bytes of a process, 0 when it is gone."""
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error:
        return 0
