"""The zygote: exec'd once per pool with an empty environment, it loads the engine once and forks a worker per run.

Guarantees: it holds no memory of the host; it never runs a script itself; it checks that a forked engine survives
garbage collection and JIT compilation before it offers to fork, and otherwise spawns workers; when the host is gone
(end of file on the control socket, or the end of its process) it kills every worker and exits.
"""

from __future__ import annotations

import gc
import os
import platform
import selectors
import signal
import socket
import time

from protocol.framing import FrameDecoder, encode_frame
from protocol.messages import (
    Fork,
    Forked,
    ForkFailed,
    KillWorker,
    WorkerExited,
    ZygoteMessage,
    ZygoteReady,
    decode_control_message,
    encode,
)
from worker import sandbox
from worker.processes import MAXRSS_UNIT, WorkerProcesses
from worker.session import Runtime, Session
from worker.spidermonkey import ENGINE_VERSION, keep_work_off_helper_threads, load_engine

__all__ = ["main"]

_MAX_CONTROL_FRAME = 64 * 1024
_REHEARSALS = 12  # CPython specialises code it has run eight times
_SPAWNED_IDLE = 48 << 20  # resident bytes of a spawned worker that has done nothing: 45 MiB on x86_64, plus a margin
_PROBE_SECONDS = 10.0  # a healthy probe takes about 30 ms; a hang is for ever

# Enough garbage for several nursery and one full collection, and a loop hot enough for the optimising compiler.
_PROBE = """
(() => {
  let keep = [];
  for (let i = 0; i < 60000; i++) {
    keep.push({ i, text: 'k' + i, list: [i, i + 1] });
    if (keep.length > 4000) keep = keep.slice(2000);
  }
  const buffers = [];
  for (let i = 0; i < 24; i++) { const b = new Uint8Array(1 << 20); b.fill(i); buffers.push(b); }
  let hash = 0;
  for (let i = 0; i < 300000; i++) hash = (hash * 31 + (i ^ (hash >>> 3))) | 0;
  return keep.length > 0 && buffers[23][5] === 23 && hash !== 0;
})()
"""

_runtime: Runtime | None = None  # of the zygote; a forked worker inherits it, a spawned one has none


def run_worker(
    connection: socket.socket, *, parent: int, mode: str, memory_limit: int | None, cpu_limit: int | None
) -> None:
    """The life of a worker process. Leaves with ``os._exit``: nothing of the zygote's may be torn down here."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    runtime = _runtime if _runtime is not None else Runtime(load_engine())
    runtime.engine.queue.install()
    walls = sandbox.confine(
        keep_fd=connection.fileno(), parent_pid=parent, mode=mode, memory_limit=memory_limit, cpu_limit=cpu_limit
    )
    Session(runtime, connection).serve(walls)
    os._exit(0)


def _probe(runtime: Runtime) -> str | None:
    """Runs a GC- and JIT-heavy script in a forked child. Returns what went wrong, ``None`` when all is well."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if runtime.engine.evaluate(_PROBE) is True else 3)
        finally:
            os._exit(4)
    deadline = time.monotonic() + _PROBE_SECONDS
    pause = 0.001
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code == 0 else f"a forked engine failed its self-test (status {code})"
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "a forked engine hung in its self-test"
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def _measure_worker(runtime: Runtime) -> int:
    """Peak resident bytes of a worker that has done nothing but our rehearsal: what no script can be charged with."""
    pid = os.fork()
    if pid == 0:
        try:
            runtime.rehearse()
        finally:
            os._exit(0)
    return os.wait4(pid, 0)[2].ru_maxrss * MAXRSS_UNIT


def _choose_method(wanted: str, hide_symbols: bool) -> tuple[str, str]:
    """Decides between ``fork`` and ``spawn`` and says why."""
    global _runtime
    if wanted == "spawn":
        return "spawn", "asked for by the configuration"
    engine = load_engine()
    reason = (
        "the calls that keep the engine's work off helper threads were hidden"
        if hide_symbols
        else keep_work_off_helper_threads()
    )
    if reason is None:
        _runtime = Runtime(engine)
        for _ in range(_REHEARSALS):
            _runtime.rehearse()
        # The first use of Intl reads the time zone from the system; afterwards no worker needs a file.
        engine.evaluate("void new Intl.DateTimeFormat('en').format(new Date(0)); void new Date(0).toString()")
        reason = _probe(_runtime)
        if reason is None:
            return "fork", "the forked engine passed its self-test"
        _runtime = None
    return "spawn", reason


class _Zygote:
    def __init__(self, control: socket.socket, workers: WorkerProcesses, host: int | None) -> None:
        self._control = control
        self._workers = workers
        self._host = host
        self._frames = FrameDecoder(_MAX_CONTROL_FRAME)
        self._descriptors: list[int] = []
        self._pid = os.getpid()

    def send(self, message: ZygoteMessage) -> None:
        self._control.sendall(encode_frame(encode(message), _MAX_CONTROL_FRAME))

    def serve(self) -> None:
        """Until the host hangs up."""
        wake_read, wake_write = socket.socketpair()
        wake_read.setblocking(False)
        wake_write.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            if self._host is not None:
                selector.register(self._host, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is wake_read:
                        wake_read.recv(4096)
                    elif key.fileobj == self._host or not self._receive():
                        return
                for number, report in self._workers.reap():
                    self.send(WorkerExited(number, report))

    def _receive(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, 65536, 253)
        self._descriptors += descriptors
        if not data:
            return False
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            match decode_control_message(frame):
                case Fork() as fork:
                    self._fork(fork)
                case KillWorker(worker=number):
                    self._workers.kill(number)
        return True

    def _fork(self, fork: Fork) -> None:
        with socket.socket(fileno=self._descriptors.pop(0)) as connection:
            try:
                pid = self._workers.start(
                    fork.worker,
                    connection,
                    parent=self._pid,
                    mode=fork.sandbox,
                    memory_limit=fork.memory_limit,
                    cpu_limit=fork.cpu_limit,
                )
            except OSError as error:
                self.send(ForkFailed(fork.worker, error.strerror or "the system refused"))
            else:
                self.send(Forked(fork.worker, pid))


def _watch_host() -> int | None:
    """A descriptor that becomes readable when the host's process ends, where the system has such a thing.

    Why: a host that forks (a process pool does) shares its end of the control socket with its child, and the end of
    file comes only when both are gone.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(os.getppid())
    except OSError:  # forbidden, or the host has just ended: then so has the socket
        return None


def main(control_fd: int, wanted: str, hide_symbols: bool) -> None:
    """Entry of the process. ``wanted``: ``auto`` or ``spawn``; ``hide_symbols``: a test's way to lose the engine's
    exports."""
    host = _watch_host()
    control = socket.socket(fileno=control_fd)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN if number != signal.SIGTERM else signal.SIG_DFL)
    method, reason = _choose_method(wanted, hide_symbols)
    sandbox.prepare()  # after the engine is loaded: the filter knows where its compiled code lies
    workers = WorkerProcesses(method, run_worker)
    zygote = _Zygote(control, workers, host)
    gc.collect()
    gc.freeze()
    zygote.send(
        ZygoteReady(
            pid=os.getpid(),
            mode="zygote" if method == "fork" else "spawn",
            reason=reason,
            python=platform.python_version(),
            engine=ENGINE_VERSION,
            base_memory=_SPAWNED_IDLE if _runtime is None else _measure_worker(_runtime),
        )
    )
    try:
        zygote.serve()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        workers.kill_all()
        os._exit(0)
