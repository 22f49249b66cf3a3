"""A worker without a process: the other end of a run's socket, played by a test.

What it guarantees: it speaks the wire of real workers (the same framing and messages, over a real socketpair), nothing
happens but what its script does, and a kill is answered with a hang-up and an exit report as a real worker's is. With
it a host can be driven into any corner without starting a process, in microseconds.

    async def dies_at_its_first_call(worker: FakeWorker) -> None:
        await worker.begin()
        worker.send(AgentCalled(1, "look"))
        worker.exit(signal.SIGSEGV)

    async with FakeWorkerEngine(dies_at_its_first_call) as engine: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from orchestrator.config import EngineConfig
from orchestrator.engine import WorkflowEngine
from orchestrator.pool import WorkerPool
from orchestrator.signals import AbortSignal
from orchestrator.zygote_client import Worker
from protocol.errors import ErrorCode, WorkflowError
from protocol.framing import FrameDecoder, pack_length
from protocol.messages import (
    ExitReport,
    Go,
    HostMessage,
    Load,
    Loaded,
    Ready,
    WallReport,
    WorkerMessage,
    decode_host_message,
    encode,
)

__all__ = ["FakePool", "FakeWorker", "FakeWorkerEngine", "FakeWorkerScript"]

_Answer = TypeVar("_Answer")
_MIB = 1 << 20


class FakeWorker:
    """The worker's side of one run.

    Failure knobs are what a script does or leaves out: `send_raw` for garbage and half frames, not calling `receive`
    for a worker that does not read, `hang_up` without `report`, `exit` with any status, `obeys_kill` for a process that
    a kill does not end at once.

    Attributes:
        received: every message read so far.
        killed: set once the host has killed it.
        obeys_kill: whether a kill hangs up and reports SIGKILL at once. Set it to False to do that later, or never.
    """

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.worker = Worker(number, ours)
        self.received: list[HostMessage] = []
        self.killed = asyncio.Event()
        self.obeys_kill = True
        self.on_report: Callable[[Worker], None] = lambda _worker: None
        self._loop = loop
        self._socket = theirs
        self._frames = FrameDecoder((1 << 31) - 1)
        self._hung_up = False
        self._waiting = 0

    @property
    def alive(self) -> bool:
        """Whether its exit has not been reported yet."""
        return not self.worker.exited

    async def begin(self, walls: Sequence[WallReport] = ()) -> Load:
        """The ordinary first half: ready, the load, loaded, go."""
        self.send(Ready(tuple(walls)))
        load = await self.receive()
        assert isinstance(load, Load), f"expected a load, got {load}"
        self.send(Loaded())
        go = await self.receive()
        assert isinstance(go, Go), f"expected a go, got {go}"
        return load

    async def receive(self) -> HostMessage:
        """The next message of the host. Raises EOFError when the host has hung up."""
        while (frame := self._frames.next_frame()) is None:
            data = await self._wait_for(lambda: self._loop.sock_recv(self._socket, 1 << 20))
            if not data:
                raise EOFError("the host has hung up")
            self._frames.feed(data)
        message = decode_host_message(frame)
        self.received.append(message)
        return message

    def send(self, message: WorkerMessage) -> None:
        """Sends one message; for small ones, which the kernel takes at once."""
        self.send_frame(encode(message))

    def send_frame(self, payload: bytes) -> None:
        """Sends bytes as one whole frame, whatever they are."""
        self.send_raw(pack_length(len(payload)) + payload)

    def send_raw(self, data: bytes) -> None:
        """Sends bytes as they are. Silent when the host is gone, as a dying worker's writes are.

        Raises:
            BufferError: the host does not read and the kernel takes no more; `send_all` waits instead.
        """
        try:
            while data and not self._hung_up:
                data = data[self._socket.send(data) :]
        except (BrokenPipeError, ConnectionResetError):
            pass
        except BlockingIOError:
            raise BufferError("the host does not read: wait with send_all()") from None

    async def send_all(self, data: bytes) -> None:
        """`send_raw` for more than the kernel takes at once: waits until the host reads. Raises OSError when it is
        gone."""
        await self._wait_for(lambda: self._loop.sock_sendall(self._socket, data))

    async def receive_bytes(self, count: int) -> bytes:
        """At most ``count`` bytes as they come: for a worker that stops in the middle of a message."""
        return await self._wait_for(lambda: self._loop.sock_recv(self._socket, count))

    async def _wait_for(self, operation: Callable[[], Awaitable[_Answer]]) -> _Answer:
        if self._hung_up:
            raise EOFError("this worker has hung up")
        self._waiting += 1
        try:
            return await operation()
        finally:
            self._waiting -= 1
            if self._hung_up and not self._waiting:
                self._socket.close()

    def hang_up(self) -> None:
        """Closes the socket and nothing else."""
        if self._hung_up:
            return
        self._hung_up = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._waiting:  # the loop must not watch a descriptor that is closed under it
            self._socket.close()

    def report(self, exit_code: int, *, peak_memory: int = 50 * _MIB, cpu_seconds: float = 0.25) -> None:
        """Tells the host, as a zygote would, that the process is gone."""
        self._gone(ExitReport(exit_code, peak_memory, cpu_seconds))

    def lose_zygote(self) -> None:
        """The process is gone and so is whoever could tell how."""
        self._gone(None)

    def exit(self, exit_code: int, *, peak_memory: int = 50 * _MIB, cpu_seconds: float = 0.25) -> None:
        """Hangs up and reports: the death of a real worker. Negative codes are signals."""
        self.hang_up()
        self.report(exit_code, peak_memory=peak_memory, cpu_seconds=cpu_seconds)

    def killed_by_host(self) -> None:
        """Called by the pool."""
        self.killed.set()
        if self.obeys_kill:
            self.exit(-9)

    def _gone(self, report: ExitReport | None) -> None:
        if self.worker.exited:
            return
        self.worker.exited = True
        self.worker.report = report
        self.worker.gone.set_result(None)
        if self.worker.on_exit is not None:
            self.worker.on_exit(report)
        self.on_report(self.worker)


FakeWorkerScript = Callable[[FakeWorker], Awaitable[object]]
"""What one fake worker does with its life. An EOFError or OSError it raises (the host is gone) just ends it."""


class FakePool(WorkerPool):
    """A pool of fake workers: each lease runs ``script`` in a task.

    Attributes:
        workers: every worker leased so far, oldest first.
        failures: what scripts raised; `close` raises the first, so that a failed assertion in a script is seen.
    """

    def __init__(self, config: EngineConfig, script: FakeWorkerScript) -> None:
        super().__init__(config)
        self.script = script
        self.workers: list[FakeWorker] = []
        self.failures: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> int:
        return sum(fake.alive for fake in self.workers)

    async def warm_up(self) -> None:
        return

    async def lease(self, signal: AbortSignal | None = None) -> Worker:
        if self._closed:
            raise WorkflowError(ErrorCode.WORKER_DIED, "the workflow engine is closed")
        fake = FakeWorker(len(self.workers) + 1, asyncio.get_running_loop())
        self.workers.append(fake)
        task = asyncio.get_running_loop().create_task(self._play(fake), name=f"fake worker {fake.worker.number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return fake.worker

    def kill(self, worker: Worker) -> None:
        if 0 < worker.number <= len(self.workers):
            self.workers[worker.number - 1].killed_by_host()

    async def close(self) -> None:
        self._closed = True
        for fake in self.workers:
            fake.exit(-9)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self.failures:
            raise self.failures[0]

    async def _play(self, fake: FakeWorker) -> None:
        try:
            await self.script(fake)
        except (EOFError, OSError):
            pass  # the host has hung up or killed it
        except (Exception, AssertionError) as error:
            self.failures.append(error)
            fake.exit(1)


class FakeWorkerEngine(WorkflowEngine):
    """A `WorkflowEngine` whose workers are fakes that all follow ``script``; ``pool.script`` may be changed."""

    def __init__(self, script: FakeWorkerScript, config: EngineConfig | None = None) -> None:
        super().__init__(config if config is not None else EngineConfig(memory_limit=None, spare_workers=0))
        self.pool = FakePool(self.config, script)
        self._pool = self.pool
