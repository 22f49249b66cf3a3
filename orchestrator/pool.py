"""Workers for runs: one zygote, a few warm spares, a cap on live processes.

A worker's life: starting or spare → leased → dead. A lease is for ever: a worker serves one run. Freed capacity counts
only when the process is gone. A dead zygote takes its workers with it; the next lease starts a new one.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import logging
import resource

from orchestrator.config import EngineConfig
from orchestrator.memory_watch import MemoryWatch
from orchestrator.zygote_client import Worker, ZygoteClient
from protocol.errors import ErrorCode, WorkflowError
from protocol.messages import WallReport, ZygoteReady

__all__ = ["WorkerPool"]

_log = logging.getLogger(__name__)

_DESCRIPTORS_KEPT = 128  # of the host's descriptor limit, for everything that is not a worker's socket

_REFILL_AFTER = 0.004
"""Seconds until a lease that left another spare is made good: a fork at once would compete with the run that starts."""


class WorkerPool:
    """Leases workers. Bound to the event loop it is first used in.

    Args:
        config: sizes, limits and sandbox mode.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._zygote: ZygoteClient | None = None
        self._starting: asyncio.Task[ZygoteReady] | None = None
        self._spares: collections.deque[Worker] = collections.deque()
        self._queue: collections.deque[asyncio.Future[None]] = collections.deque()
        self._refill_handle: asyncio.Handle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._leased: set[Worker] = set()
        limit = config.memory_limit
        self._watch = None if limit is None else MemoryWatch(limit, lambda: self._leased, self.kill)
        self.ready: ZygoteReady | None = None
        self.walls: tuple[WallReport, ...] = ()
        """As the last worker that reported them."""

    @property
    def max_workers(self) -> int:
        """The cap in force."""
        if self._config.max_workers:
            return self._config.max_workers
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return 100_000 if soft == resource.RLIM_INFINITY else max(4, soft - _DESCRIPTORS_KEPT)

    @property
    def alive(self) -> int:
        """Live workers, spares included."""
        return 0 if self._zygote is None else len(self._zygote.workers)

    @property
    def spares(self) -> int:
        return len(self._spares)

    @property
    def zygote_pid(self) -> int | None:
        return None if self._zygote is None or self._zygote.dead else self._zygote.pid

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the live workers that are known already."""
        workers = () if self._zygote is None else self._zygote.workers
        return tuple(worker.pid for worker in workers if worker.pid is not None)

    async def warm_up(self) -> None:
        """Starts the zygote and the spares."""
        await self._live_zygote()
        self._refill()

    async def lease(self) -> Worker:
        """A worker for one run, in the order of asking. Waits while ``max_workers`` are alive.

        Raises:
            WorkflowError: the zygote cannot be started, or the system is out of descriptors.
        """
        if self._queue or (not self._spares and self.alive >= self.max_workers):
            await self._wait_for_capacity()
        zygote = await self._live_zygote()
        try:
            worker = self._spares.popleft() if self._spares else zygote.fork()
        except OSError as error:
            hint = "; raise the limit (ulimit -n) or lower max_workers" if error.errno == errno.EMFILE else ""
            raise WorkflowError(ErrorCode.WORKER_DIED, f"no worker could be started: {error.strerror}{hint}") from None
        self._leased.add(worker)
        if self._watch is not None:
            self._watch.wake()
        if self._refill_handle is None:
            delay = _REFILL_AFTER if self._spares else 0.0
            self._refill_handle = asyncio.get_running_loop().call_later(delay, self._refill)
        return worker

    def kill(self, worker: Worker) -> None:
        """Ends a leased worker; ``worker.gone`` tells when it is gone."""
        if self._zygote is not None:
            self._zygote.kill(worker)

    async def close(self) -> None:
        """Ends every process of the pool, within a bound."""
        self._closed = True
        if self._watch is not None:
            self._watch.rest()
        if self._refill_handle is not None:
            self._refill_handle.cancel()
            self._refill_handle = None
        for waiter in self._queue:
            waiter.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if self._zygote is not None:
            await self._zygote.close()
        for spare in self._spares:
            spare.connection.close()
        self._spares.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    async def _wait_for_capacity(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self._wake_one()  # the place given to a waiter that was cancelled goes to the next
            raise
        finally:
            if waiter in self._queue:
                self._queue.remove(waiter)

    def _wake_one(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _live_zygote(self) -> ZygoteClient:
        if self._closed:
            raise WorkflowError(ErrorCode.WORKER_DIED, "the engine is closed")
        if self._zygote is not None and not self._zygote.dead and self._starting is None:
            return self._zygote
        if self._starting is None:
            if self._zygote is not None:
                self._reap_in_background(self._zygote)
            self._zygote = ZygoteClient(self._config, self._worker_gone)
            self._starting = asyncio.get_running_loop().create_task(self._zygote.start(), name="start zygote")
            self._starting.add_done_callback(self._started)
        zygote = self._zygote
        assert zygote is not None
        await asyncio.shield(self._starting)
        return zygote

    def _started(self, task: asyncio.Task[ZygoteReady]) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is None:
            self.ready = task.result()

    def _reap_in_background(self, zygote: ZygoteClient) -> None:
        task = asyncio.get_running_loop().create_task(zygote.close(), name="reap zygote")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _refill(self) -> None:
        self._refill_handle = None
        zygote = self._zygote
        if self._closed or zygote is None or zygote.dead or self._starting is not None:
            return
        try:
            while len(self._spares) < self._config.spare_workers and self.alive < self.max_workers and not self._queue:
                self._spares.append(zygote.fork())
        except OSError as error:
            _log.warning("no spare worker could be started: %s", error.strerror)

    def _worker_gone(self, worker: Worker) -> None:
        if worker in self._spares:
            self._spares.remove(worker)
            worker.connection.close()
        self._leased.discard(worker)
        if self._watch is not None and not self._leased:
            self._watch.rest()
        self._wake_one()
