"""Starting, killing and reaping worker processes, with `multiprocess`, from inside the zygote.

Two start methods behind one face: ``fork`` copies the warm process, ``spawn`` starts a fresh one that loads the engine
itself. Reaping uses ``wait4``: it gives the resource usage that explains a death, and costs nothing per live worker.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from protocol.messages import ExitReport

# multiprocess brings logging, threading and random, each of which repairs itself in Python after a fork: half a
# millisecond and 170 copied pages per worker, for a process that has one thread and uses none of the three.
_register_at_fork = os.register_at_fork


def _register_nothing(**_handlers: object) -> None:
    """Stands in for ``os.register_at_fork`` while multiprocess is imported."""


os.register_at_fork = _register_nothing
try:
    import multiprocess
    from multiprocess import popen_fork, popen_spawn_posix, resource_tracker, spawn
finally:
    os.register_at_fork = _register_at_fork

__all__ = ["MAXRSS_UNIT", "WorkerProcesses"]

MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class _Reaped:
    """`multiprocess` polls every child at each start; ours are reaped by `WorkerProcesses.reap` alone."""

    returncode: int | None

    def poll(self, flag: int = os.WNOHANG) -> int | None:  # the name and shape are multiprocess's
        return self.returncode


class _ForkPopen(_Reaped, popen_fork.Popen):
    def _launch(self, process_obj: Any) -> None:
        """A fork without the two pipes of the original: the worker keeps no descriptor but its socket."""
        self.pid = os.fork()
        self.sentinel = -1
        if self.pid == 0:
            code = 1
            try:
                # Not _bootstrap(): it tidies up after the parent and flushes streams, and a worker has neither.
                process_obj.run()
                code = 0
            finally:
                os._exit(code)


class _SpawnPopen(_Reaped, popen_spawn_posix.Popen):
    pass


def _prepare_spawning() -> None:
    """Fits multiprocess's spawn method to a process without ``site``, in this process only.

    The child inherits the flags ``-I -S`` and must be told where its packages are before it can import the first. The
    resource tracker, a process of its own, is left out: workers share nothing that needs tracking.
    """
    packages = [entry for entry in sys.path if entry]
    command_line: Callable[..., list[str]] = spawn.get_command_line  # type: ignore[assignment]

    def with_packages(**arguments: Any) -> list[str]:
        line: list[str] = command_line(**arguments)
        line[line.index("-c") + 1] = f"import sys; sys.path[:] = {packages!r}; {line[line.index('-c') + 1]}"
        return line

    os.environ.clear()  # Python sets LC_CTYPE itself; a spawned worker must start with nothing at all
    nowhere = os.open(os.devnull, os.O_RDWR)
    spawn.get_command_line = with_packages
    resource_tracker.getfd = lambda: nowhere


class WorkerProcesses:
    """The live workers of one zygote, by the number the host gave each.

    Args:
        method: ``fork`` or ``spawn``.
        target: what a worker runs; called with its socket and its options.
    """

    def __init__(self, method: str, target: Callable[..., None]) -> None:
        self._target = target
        # multiprocess makes its public functions at import time, out of sight of a type checker.
        self._context: Any = multiprocess.get_context(method)  # type: ignore[attr-defined]
        if method == "spawn":
            _prepare_spawning()
        self._popen: Callable[[Any], Any] = _ForkPopen if method == "fork" else _SpawnPopen
        self._workers: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}

    def start(self, number: int, connection: socket.socket, **options: Any) -> int:
        """Starts a worker on ``connection``; returns its process id. Raises OSError when the system refuses."""
        process: Any = self._context.Process(target=self._target, args=(connection,), kwargs=options, daemon=False)
        process._Popen = self._popen
        process.start()
        self._workers[number] = process
        self._numbers[process.pid] = number
        return process.pid

    def kill(self, number: int) -> None:
        """SIGKILL. A worker that was not reaped yet keeps its process id, so this cannot hit anything else."""
        process = self._workers.get(number)
        if process is not None:
            os.kill(process.pid, signal.SIGKILL)

    def kill_all(self) -> None:
        for number in list(self._workers):
            self.kill(number)

    def reap(self) -> list[tuple[int, ExitReport]]:
        """Every worker that ended since the last call."""
        ended: list[tuple[int, ExitReport]] = []
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            number = self._numbers.pop(pid, None)
            if number is None:
                continue  # a helper of the spawn method
            code = os.waitstatus_to_exitcode(status)
            process = self._workers.pop(number)
            process._popen.returncode = code
            process.close()
            report = ExitReport(code, usage.ru_maxrss * MAXRSS_UNIT, usage.ru_utime + usage.ru_stime)
            ended.append((number, report))

    def __len__(self) -> int:
        return len(self._workers)
