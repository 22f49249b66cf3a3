"""Workers for runs: one zygote, a few warm spares, a cap on live processes.

A worker's life: starting or spare → leased → dead. A lease is for ever: a worker serves one run. Freed capacity counts
only when the process is gone. A dead zygote takes its workers with it; the next lease starts a new one.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import logging
import resource

from orchestrator.config import EngineConfig
from orchestrator.memory_watch import MemoryWatch
from orchestrator.signals import AbortSignal
from orchestrator.zygote_client import Worker, ZygoteClient
from protocol.errors import ErrorCode, WorkflowError
from protocol.messages import WallReport, ZygoteReady

__all__ = ["WorkerPool"]

_log = logging.getLogger(__name__)

_REFILL_DELAY = 0.003  # while there are spares: a fork would compete with the run that has just begun
_ZYGOTES_TRIED = 3  # a zygote may die between its start and the first fork
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
        self._promised = 0  # places of leases that have not taken their worker yet
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

    async def lease(self, signal: AbortSignal | None = None) -> Worker:
        """A worker for one run, in the order of asking. Waits while ``max_workers`` are alive.

        Args:
            signal: ends the wait. What is leased then is no process: a run on it ends as soon as it starts.

        Raises:
            WorkflowError: the zygote cannot be started, the system is out of descriptors, or the pool was closed.
        """
        zygote = self._zygote
        if zygote is not None and not zygote.dead and self._starting is None and not self._closed and self._has_room():
            worker = self._take(zygote)
            if worker is not None:
                return worker
        if signal is None:
            return await self._lease_in_turn()
        return await self._lease_until(signal)

    async def _lease_until(self, signal: AbortSignal) -> Worker:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._lease_in_turn(), name="lease a worker")

        def give_up(_reason: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now: aborts come from any thread
                loop.call_soon_threadsafe(task.cancel)

        remove = signal.add_listener(give_up)
        try:
            return await task
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if task.done() and not task.cancelled() and task.exception() is None:
                self._give_back(task.result())
            if signal.aborted and not self._closed and me is not None and me.cancelling() == 0:
                return Worker.stillborn()
            raise
        finally:
            remove()

    async def _lease_in_turn(self) -> Worker:
        if self._has_room():
            self._promised += 1
        else:
            await self._wait_for_capacity()
        try:
            for _ in range(_ZYGOTES_TRIED):
                worker = self._take(await self._live_zygote())
                if worker is not None:
                    return worker
        finally:
            self._promised -= 1
            self._wake()  # whatever this one did not take is there for the next
        text = f"no worker could be started: {_ZYGOTES_TRIED} worker servers in a row died right after their start"
        raise WorkflowError(ErrorCode.WORKER_DIED, text)

    def _take(self, zygote: ZygoteClient) -> Worker | None:
        """A spare or a new worker; None when the zygote turns out to be dead."""
        if not zygote.check():
            return None
        try:
            worker = self._spares.popleft() if self._spares else zygote.fork()
        except OSError as error:
            hint = "; raise the limit (ulimit -n) or lower max_workers" if error.errno == errno.EMFILE else ""
            raise WorkflowError(ErrorCode.WORKER_DIED, f"no worker could be started: {error.strerror}{hint}") from None
        if worker.exited:
            worker.connection.close()
            return None
        self._leased.add(worker)
        if self._watch is not None:
            self._watch.wake()
        if self._refill_handle is None:
            loop = asyncio.get_running_loop()
            self._refill_handle = loop.call_later(_REFILL_DELAY if self._spares else 0.0, self._refill)
        return worker

    def _give_back(self, worker: Worker) -> None:
        """A leased worker that nobody will use."""
        worker.connection.close()
        self.kill(worker)

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
            if not waiter.done():
                waiter.set_exception(_closed())
        self._queue.clear()
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

    async def abandon(self) -> None:
        """`close` once the pool's loop is closed: the tasks and futures in it went with it, processes did not."""
        self._closed = True
        for worker in (*self._leased, *self._spares):
            worker.connection.close()
        self._leased.clear()
        self._spares.clear()
        if self._zygote is not None:
            await self._zygote.abandon()

    def _has_room(self) -> bool:
        return not self._queue and len(self._leased) + self._promised < self.max_workers

    async def _wait_for_capacity(self) -> None:
        """Returns once a place is promised to the caller, who gives the promise back."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        try:
            await waiter
        except BaseException:
            if waiter in self._queue:
                self._queue.remove(waiter)
            elif not waiter.cancelled() and waiter.exception() is None:
                self._promised -= 1  # the place given to a waiter that was cancelled goes to the next
                self._wake()
            raise

    def _wake(self) -> None:
        while self._queue and len(self._leased) + self._promised < self.max_workers:
            waiter = self._queue.popleft()
            if not waiter.done():
                self._promised += 1
                waiter.set_result(None)

    async def _live_zygote(self) -> ZygoteClient:
        if self._closed:
            raise _closed()
        if self._zygote is not None and not self._zygote.dead and self._starting is None:
            return self._zygote
        if self._starting is None:
            if self._zygote is not None:
                self._reap_in_background(self._zygote)
            self._zygote = self._make_zygote()
            self._starting = asyncio.get_running_loop().create_task(self._zygote.start(), name="start zygote")
            self._starting.add_done_callback(self._started)
        zygote = self._zygote
        assert zygote is not None
        try:
            await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._closed and me is not None and me.cancelling() == 0:
                raise _closed() from None  # the start was cancelled, not whoever waited for it
            raise
        return zygote

    def _make_zygote(self) -> ZygoteClient:
        return ZygoteClient(self._config, self._worker_gone)

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
        self._wake()


def _closed() -> WorkflowError:
    return WorkflowError(ErrorCode.WORKER_DIED, "the workflow engine is closed")
