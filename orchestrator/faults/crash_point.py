"""Makes a real worker die at a chosen stage by a chosen way.

    engine = FaultEngine(config)
    engine.arm(CrashPoint(Stage.NARRATING, Way.SIGSEGV))
    run = await engine.start(request)      # its worker will die there

What it guarantees: one armed point acts on the next worker leased and on no other; once the stage is reached nothing
more passes between host and worker, so the host sees exactly what that stage means; until then the run is an ordinary
one. Stages that no message shows (agent starting, agent running, disposing) are reached where the host says so: `trip`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Self

from orchestrator.config import EngineConfig
from orchestrator.engine import WorkflowEngine
from orchestrator.faults.relay import Relay
from orchestrator.faults.saboteur import FaultZygote, order
from orchestrator.faults.stages import Stage, Way
from orchestrator.pool import WorkerPool
from orchestrator.signals import AbortSignal
from orchestrator.zygote_client import Worker, ZygoteClient
from protocol.errors import ErrorCode, WorkflowError
from protocol.framing import pack_length

__all__ = ["CrashPoint", "FaultEngine", "FaultPool"]

_TYPE = b'{"type":"'
_BEFORE = {
    Stage.WORKER_STARTING: b"ready",
    Stage.LOADING: b"loaded",
    Stage.BEFORE_GO: b"go",
    Stage.FIRST_SLICE: b"log",
    Stage.AGENT_SETTLING: b"agent-settled",
}
"""The message a stage ends with: withheld."""
_AFTER = {Stage.READY: (b"ready", 1), Stage.NARRATING: (b"log", 3), Stage.AFTER_RESULT: (b"result", 1)}
"""The message, and which one of its kind, a stage begins with: passed on."""
_LATE = {Stage.RESULT_IN_FLIGHT: "result", Stage.AFTER_RESULT: "after"}
"""Stages in which a worker has stopped taking messages: it must have its order before."""


class CrashPoint:
    """One death to come.

    Args:
        stage: how far the run gets. ``ZYGOTE_STARTING`` acts on the next zygote, the others on the next worker.
        way: how its worker dies.
        before: called right before the injury.
        after: called right after it; the host cannot have noticed yet.

    Attributes:
        reached: set once the worker has been injured.
    """

    def __init__(
        self,
        stage: Stage,
        way: Way,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> None:
        self.stage = stage
        self.way = way
        self.reached = asyncio.Event()
        self._do_before = before
        self._do_after = after
        self._tripped = False
        self._worker: Worker | None = None
        self._relay: Relay | None = None
        self._pid_known: asyncio.Future[int] | None = None
        self._seen: dict[bytes, int] = {}

    def attach(self, worker: Worker, pid_known: asyncio.Future[int]) -> Relay:
        """Called by the pool: puts a relay between the host and ``worker``."""
        self._worker = worker
        self._pid_known = pid_known
        self._relay = Relay(worker.connection, self)
        worker.connection = self._relay.host_side
        return self._relay

    async def trip(self) -> None:
        """The stage is reached. Later calls change nothing."""
        if self._tripped or self._relay is None:
            return
        self._tripped = True
        self._relay.freeze()
        assert self._pid_known is not None
        await asyncio.shield(self._pid_known)
        self._strike()

    def trip_at_once(self) -> None:
        """`trip` for code that cannot wait, once the run is under way."""
        if self._tripped or self._relay is None:
            return
        self._tripped = True
        self._relay.freeze()
        self._strike()

    def _strike(self) -> None:
        self._do_before()
        self._injure()
        self._do_after()
        self.reached.set()

    def _injure(self) -> None:
        assert self._relay is not None
        match self.way:
            case Way.EXIT_0 | Way.EXIT_3 | Way.MEMORY | Way.SIGSEGV:
                if self.stage not in _LATE:
                    self._relay.tell_worker(order("now", self.way))
            case Way.SIGKILL | Way.SIGTERM:
                assert self.way.signal is not None
                self._signal(self.way.signal)
            case Way.STOPS_READING:
                self._signal(signal.SIGSTOP)
            case Way.HALF_PREFIX | Way.HALF_FRAME:
                if self.stage is not Stage.RESULT_IN_FLIGHT:  # there, half a frame has arrived already
                    half = pack_length(100) + b'{"type":"log","mess'
                    self._relay.tell_host(half[:2] if self.way is Way.HALF_PREFIX else half)
                self._relay.cut()
            case Way.SOCKET_CLOSED:
                self._relay.cut()

    def _signal(self, number: int) -> None:
        worker = self._worker
        if worker is not None and worker.pid is not None and not worker.exited:
            with contextlib.suppress(ProcessLookupError):  # its zygote has reaped it, the report is on its way
                os.kill(worker.pid, number)

    # ---------------------------------------------------------------- what passes the relay

    async def before(self, frame: bytes, *, from_worker: bool) -> None:
        if _is(frame, b"go") and not from_worker and self.stage in _LATE and self._relay is not None:
            self._relay.tell_worker(order(_LATE[self.stage], self.way))
        wanted = _BEFORE.get(self.stage)
        if wanted is not None and _is(frame, wanted):
            await self.trip()
        elif self.stage in _AFTER and _is(frame, _AFTER[self.stage][0]):
            # Known before the message is passed on: waiting for it afterwards would let the host read the message.
            assert self._pid_known is not None
            await asyncio.shield(self._pid_known)

    async def after(self, frame: bytes, *, from_worker: bool) -> None:
        wanted, count = _AFTER.get(self.stage, (b"", 0))
        if count and _is(frame, wanted):
            self._seen[wanted] = self._seen.get(wanted, 0) + 1
            if self._seen[wanted] == count:
                await self.trip()

    async def begun(self, data: bytes) -> None:
        if self.stage is Stage.RESULT_IN_FLIGHT and not self._tripped and _is(data[4:], b"result"):
            assert self._relay is not None
            self._relay.tell_host(data)
            await self.trip()


def _is(frame: bytes, kind: bytes) -> bool:
    return frame.startswith(_TYPE + kind + b'"')


class FaultPool(WorkerPool):
    """A pool of real workers, one of which, now and then, is about to die."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._next: CrashPoint | None = None
        self._relays: set[Relay] = set()

    def arm(self, point: CrashPoint) -> None:
        """The next worker leased, or the next zygote started, dies as ``point`` says."""
        self._next = point

    def check_mode(self) -> None:
        """Raises `WorkflowError` when the workers are not forked: others obey no orders."""
        if self.ready is not None and self.ready.mode != "zygote":
            text = f"fault injection needs forked workers; here they are spawned: {self.ready.reason}"
            raise WorkflowError(ErrorCode.INVALID_ARGUMENT, text)

    async def lease(self, signal: AbortSignal | None = None) -> Worker:
        worker = await super().lease(signal)
        point = self._next
        if point is not None:
            try:
                self.check_mode()
            except WorkflowError:
                self._give_back(worker)
                raise
        if point is not None and point.stage is not Stage.ZYGOTE_STARTING and not worker.exited:
            self._next = None
            relay = point.attach(worker, self._pid_of(worker))
            self._relays.add(relay)
            self._relays = {relay for relay in self._relays if not relay.done.is_set()}
        return worker

    async def released(self) -> None:
        """Waits until every relay has let go of its sockets."""
        for relay in self._relays:
            await relay.done.wait()

    async def drop_zygote(self) -> None:
        """Ends the zygote and its workers; the next lease starts another one."""
        if self._zygote is not None:
            await self._zygote.close()

    async def zygote_settled(self) -> None:
        """Waits until no zygote is starting."""
        if self._starting is not None:
            await asyncio.wait({self._starting})

    async def close(self) -> None:
        for relay in self._relays:
            await relay.close()
        await super().close()

    def _make_zygote(self) -> ZygoteClient:
        zygote = FaultZygote(self._config, self._worker_gone)
        point = self._next
        if point is not None and point.stage is Stage.ZYGOTE_STARTING:
            self._next = None
            zygote.fail_by(point.way)
        return zygote

    def _pid_of(self, worker: Worker) -> asyncio.Future[int]:
        assert isinstance(self._zygote, FaultZygote)
        return self._zygote.pid_of(worker)


class FaultEngine(WorkflowEngine):
    """A `WorkflowEngine` on real workers that can be told which of them dies, when and how. Forked workers only."""

    def __init__(self, config: EngineConfig | None = None) -> None:
        super().__init__(config)
        self.pool = FaultPool(self.config)
        self._pool = self.pool

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            self.pool.check_mode()
        except WorkflowError:
            await self.aclose()
            raise
        return self

    def arm(self, point: CrashPoint) -> None:
        """See `FaultPool.arm`."""
        self.pool.arm(point)
