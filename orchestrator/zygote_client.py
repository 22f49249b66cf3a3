"""The host's side of one zygote: its process, its control socket, the workers it forks.

Guarantees: the zygote is exec'd with an empty environment and one descriptor, and finds this project's packages
whatever the user's directory holds; a worker's exit is reported exactly once, with ``None`` when the zygote died too;
`close` is bounded and leaves no process.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.machinery
import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from orchestrator.config import EngineConfig
from protocol.errors import ErrorCode, WorkflowError
from protocol.framing import FrameDecoder, FrameError, encode_frame
from protocol.messages import (
    ControlMessage,
    ExitReport,
    Fork,
    Forked,
    ForkFailed,
    KillWorker,
    WorkerExited,
    ZygoteReady,
    decode_zygote_message,
    encode,
)

__all__ = ["Worker", "ZygoteClient"]

START_TIMEOUT = 30.0
"""Seconds a zygote may take to load the engine and test itself; it takes about 0.15 on a quiet machine."""
_EXIT_TIMEOUT = 5.0
_MAX_CONTROL_FRAME = 64 * 1024

# Isolated, without site: the zygote runs nothing of the user's. Its packages come from the folders the host found.
# asyncio and shutil do without the four modules withheld here; each worker then maps eight libraries less.
_BOOT = """
import json, sys
fd, folders, wanted, hide = json.loads(sys.argv[1])
sys.path += folders
sys.modules.update(dict.fromkeys(("ssl", "bz2", "lzma", "zlib")))
from worker.zygote import main
main(fd, wanted, hide)
"""
_NEEDED = ("pythonmonkey", "msgspec", "multiprocess", "dill")


def _package_folders() -> list[str]:
    folders = [str(Path(__file__).resolve().parents[1])]
    for name in _NEEDED:
        folder = _package_folder(name)
        if folder is None:
            raise WorkflowError(ErrorCode.WORKER_DIED, f"the package {name} is not installed")
        if folder not in folders:
            folders.append(folder)
    return folders


def _package_folder(name: str) -> str | None:
    """Where the installed package lies: a module of that name in the user's directory is not it."""
    for entry in sys.path:
        spec = importlib.machinery.PathFinder.find_spec(name, [entry or "."])
        if spec is not None and spec.has_location and spec.submodule_search_locations:
            return str(Path(next(iter(spec.submodule_search_locations))).resolve().parent)
    return None


class Worker:
    """One worker process, spare or leased. ``on_exit`` is called once it is gone."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.connection = connection
        self.pid: int | None = None
        self.report: ExitReport | None = None
        self.exited = False
        self.failure: str | None = None
        self.on_exit: Callable[[ExitReport | None], None] | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    def stillborn(cls) -> Worker:
        """A worker that is gone before it began: its socket is at its end."""
        ours, theirs = socket.socketpair()
        theirs.close()
        worker = cls(0, ours)
        worker.exited = True
        worker.gone.set_result(None)
        return worker

    def __repr__(self) -> str:
        return f"<Worker {self.number} pid {self.pid}{' exited' if self.exited else ''}>"


class ZygoteClient:
    """Start it with `start`; it is dead for good once ``dead`` is set.

    Args:
        config: limits and sandbox mode of every worker.
        worker_gone: called after each worker's exit, for the pool's book-keeping.
    """

    boot = _BOOT
    """For `orchestrator.faults`: what the zygote's interpreter runs."""
    start_timeout = START_TIMEOUT
    exit_timeout = _EXIT_TIMEOUT
    hide_symbols = False
    """For tests: pretend the engine's library lacks the exports that make forking safe."""

    def __init__(self, config: EngineConfig, worker_gone: Callable[[Worker], None]) -> None:
        self._config = config
        self._worker_gone = worker_gone
        self._loop = asyncio.get_running_loop()
        self._frames = FrameDecoder(_MAX_CONTROL_FRAME)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready: asyncio.Future[ZygoteReady] = self._loop.create_future()
        self._unsent: list[tuple[bytes, socket.socket | None]] = []
        self._workers: dict[int, Worker] = {}
        self._numbers = 0
        self._reaping: asyncio.Task[None] | None = None
        self.dead = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The live ones."""
        return tuple(self._workers.values())

    async def start(self) -> ZygoteReady:
        """Execs the zygote and waits until it is ready. Raises `WorkflowError` (``WORKER_DIED``) when it is not."""
        folders = _package_folders()
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = json.dumps([theirs.fileno(), folders, self._config.worker_mode, self.hide_symbols])
            try:
                # asyncio's own subprocesses need a child watcher, which not every thread's loop has.
                self._process = subprocess.Popen(  # noqa: ASYNC220
                    [sys.executable, "-I", "-S", "-X", "utf8", "-c", self.boot, arguments],
                    env={},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise WorkflowError(
                    ErrorCode.WORKER_DIED, f"the worker server could not be started: {error.strerror}"
                ) from None
        ours.setblocking(False)
        self._control = ours
        self._loop.add_reader(ours.fileno(), self._readable)
        try:
            async with asyncio.timeout(self.start_timeout):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise WorkflowError(
                ErrorCode.WORKER_DIED, f"the worker server was not ready after {self.start_timeout:g} s"
            ) from None
        except BaseException:
            await self.close()
            raise

    def check(self) -> bool:
        """Whether the process lives, asked of the kernel: its end of file may not have been read yet."""
        if not self.dead and self._process is not None and self._process.poll() is not None:
            self._lost()
        return not self.dead

    def fork(self) -> Worker:
        """Asks for a worker; its socket can be used at once. Raises OSError when descriptors are out."""
        ours, theirs = socket.socketpair()
        self._numbers += 1
        worker = Worker(self._numbers, ours)
        self._workers[worker.number] = worker
        config = self._config
        message = Fork(worker.number, config.memory_limit, config.cpu_limit, config.sandbox)
        self._send(message, theirs)
        return worker

    def kill(self, worker: Worker) -> None:
        """SIGKILL, by the worker's parent. Returns at once; ``worker.gone`` tells when it is done."""
        if not worker.exited and not self.dead:
            self._send(KillWorker(worker.number), None)

    async def close(self) -> None:
        """Hangs up, which ends the zygote and every worker, and reaps it within a bound."""
        self._lost()
        if self._reaping is not None:
            await asyncio.shield(self._reaping)

    async def abandon(self) -> None:
        """`close`, called in another loop once the zygote's own is closed: nobody is told, no process stays."""
        self.dead = True
        self._hang_up()
        for worker in self.workers:
            worker.exited = True
        self._workers.clear()
        if self._process is not None:
            await self._reap(self._process)

    async def _reap(self, process: subprocess.Popen[bytes]) -> None:
        delay = 0.001
        waited = 0.0
        while process.poll() is None:
            if waited > self.exit_timeout:
                process.kill()
                waited = -_EXIT_TIMEOUT
            await asyncio.sleep(delay)
            waited += delay
            delay = min(delay * 1.5, 0.05)

    def _send(self, message: ControlMessage, descriptor: socket.socket | None) -> None:
        if self._control is None:
            if descriptor is not None:
                descriptor.close()
            return
        self._unsent.append((encode_frame(encode(message), _MAX_CONTROL_FRAME), descriptor))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        """A control message is far smaller than the socket's buffer: the kernel takes it whole or not at all."""
        control = self._control
        while self._unsent and control is not None:
            data, descriptor = self._unsent[0]
            try:
                sent = socket.send_fds(control, [data], [] if descriptor is None else [descriptor.fileno()])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(control.fileno(), self._flush)
                return
            except OSError:
                self._lost()
                return
            if descriptor is not None:
                descriptor.close()
            if sent < len(data):
                self._unsent[0] = (data[sent:], None)
            else:
                self._unsent.pop(0)
        if control is not None:
            self._loop.remove_writer(control.fileno())

    def _readable(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        self._frames.feed(data)
        try:
            while (frame := self._frames.next_frame()) is not None:
                self._take(frame)
        except (FrameError, msgspec.MsgspecError):
            self._lost()

    def _take(self, frame: bytes) -> None:
        match decode_zygote_message(frame):
            case ZygoteReady() as ready:
                if not self._ready.done():
                    self._ready.set_result(ready)
            case Forked(worker=number, pid=pid):
                if worker := self._workers.get(number):
                    worker.pid = pid
            case ForkFailed(worker=number, reason=reason):
                if worker := self._workers.get(number):
                    worker.failure = reason
                    self._exited(worker, None)
            case WorkerExited(worker=number, report=report):
                if worker := self._workers.get(number):
                    self._exited(worker, report)

    def _exited(self, worker: Worker, report: ExitReport | None) -> None:
        del self._workers[worker.number]
        worker.exited = True
        worker.report = report
        if not worker.gone.done():
            worker.gone.set_result(None)
        if worker.on_exit is not None:
            worker.on_exit(report)
        self._worker_gone(worker)

    def _lost(self) -> None:
        """The zygote is gone or is to go: nothing is left of its workers."""
        if self.dead:
            return
        self.dead = True
        if self._process is not None:
            self._reaping = self._loop.create_task(self._reap(self._process), name="reap zygote")
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._loop.remove_writer(self._control.fileno())
        self._hang_up()
        if not self._ready.done():
            self._ready.set_exception(WorkflowError(ErrorCode.WORKER_DIED, "the worker server died while starting"))
            self._ready.exception()  # read here, so that nobody waiting is no warning
        for worker in self.workers:
            self._exited(worker, None)

    def _hang_up(self) -> None:
        control, self._control = self._control, None
        if control is not None:
            with contextlib.suppress(OSError):  # not only closed: a process the host has forked holds it too
                control.shutdown(socket.SHUT_RDWR)
            control.close()
        for _, descriptor in self._unsent:
            if descriptor is not None:
                descriptor.close()
        self._unsent.clear()
