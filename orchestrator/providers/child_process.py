"""One child process with its pipes on the running event loop, and an end that leaves nothing behind.

Guarantees:

* The child leads its own session. `ChildProcess.stop` sends SIGTERM to its whole process group, and to what it started
  outside of it, and SIGKILL after ``grace`` seconds; `ChildProcess.kill` sends SIGKILL at once.
* When the leader exits, whatever it left running in its session is killed too: an agent has no background life.
* The leader stays unreaped until its group was signalled for the last time, so its number cannot name another group.
* Input of any size is written while output is read: neither side can block the other. A child that closes its input
  early is fine. Output beyond ``output_limit`` ends the child.
* It works in any loop on any thread, and nothing of it outlives the loop: a cancelled watcher kills and reaps first.

asyncio's own subprocesses are not used: on Python 3.11 they start a thread per child, and they reap the leader before
anyone can signal the rest of its group safely.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

__all__ = ["ChildExit", "ChildProcess"]

_log = logging.getLogger(__name__)

CHUNK = 64 * 1024
STDERR_KEPT = 8 * 1024
"""Enough for the last lines of a complaint; the rest of a chatty child's stderr is read and dropped."""
DRAIN_GRACE = 1.0
"""How long output may still arrive after the leader's exit, for pipelines whose last writer is not the leader."""
DEATH_GRACE = 2.0
"""How long SIGKILL may take. Only a process stuck in the kernel needs longer, and nothing helps there."""


class ChildExit(msgspec.Struct, frozen=True):
    """How a child ended: ``returncode`` is negative for a signal, as in `subprocess`."""

    returncode: int
    stdout: bytes
    stderr_tail: bytes
    overflowed: bool
    stopped: bool


class ChildProcess:
    """Starts ``argv`` and pumps its pipes until it ends.

    Args:
        argv: the program and its arguments.
        stdin: everything it gets on its standard input.
        env: its whole environment.
        output_limit: bytes of standard output after which it is killed.
        grace: seconds between SIGTERM and SIGKILL.
        cwd: its working directory; the host's own without one.

    Raises:
        OSError: it could not be started (`FileNotFoundError` when there is no such program).
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, str],
        output_limit: int,
        grace: float,
        cwd: str | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._output_limit = output_limit
        self._grace = grace
        self._stdout = bytearray()
        self._stderr = bytearray()
        self._input = memoryview(stdin)
        self._overflowed = False
        self._stopped = False
        self._swept = False
        self._kill_timer: asyncio.TimerHandle | None = None
        self._strays: dict[int, int] = {}  # pid → pidfd of what the leader started
        self._sessions: set[int] = set()  # its own and those of strays: what a stray leaves behind is found by them
        self._leader_done = asyncio.Event()
        self._outputs_open = 2
        self._outputs_done = asyncio.Event()
        self._popen = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            cwd=cwd,
            bufsize=0,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._sessions.add(self.pid)
        pipes = [pipe for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr) if pipe is not None]
        self._in_fd, self._out_fd, self._err_fd = (pipe.fileno() for pipe in pipes)
        self._open_fds = {self._in_fd, self._out_fd, self._err_fd}
        for fd in self._open_fds:
            os.set_blocking(fd, False)
        self._leader_fd = self._watch_leader()
        self._loop.add_reader(self._out_fd, self._read_stdout)
        self._loop.add_reader(self._err_fd, self._read_stderr)
        self._loop.add_writer(self._in_fd, self._write_stdin)
        self.last_output = self._loop.time()  # when it last printed on either output; its start before that
        self._task = self._loop.create_task(self._live(), name=f"child-{self.pid}")

    async def wait(self) -> ChildExit:
        """Its end. A caller that is cancelled leaves the child running: `close` ends it."""
        return await asyncio.shield(self._task)

    def stop(self) -> None:
        """SIGTERM now, SIGKILL after the grace. Later calls change nothing."""
        if self._stopped or self._popen.returncode is not None:
            return
        self._stopped = True
        self._signal_all(signal.SIGTERM)
        self._kill_timer = self._loop.call_later(self._grace, self.kill)

    def kill(self) -> None:
        """SIGKILL now."""
        self._stopped = True
        if self._popen.returncode is None:
            self._signal_all(signal.SIGKILL)

    async def close(self) -> None:
        """Ends whatever still runs and waits for it; a caller that is cancelled meanwhile kills it at once."""
        self.stop()
        try:
            await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self.kill()
            raise

    # --- the one task ---

    async def _live(self) -> ChildExit:
        try:
            await self._leader_done.wait()
            if not self._stopped:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_GRACE):
                        await self._outputs_done.wait()
            # The leader is still a zombie here: its group's number is ours until the reap below.
            self._signal_all(signal.SIGKILL)
            self._swept = True
            await self._strays_gone()
        finally:
            self._end()
        return ChildExit(
            returncode=self._popen.returncode,
            stdout=bytes(self._stdout),
            stderr_tail=bytes(self._stderr),
            overflowed=self._overflowed,
            stopped=self._stopped,
        )

    def _end(self) -> None:
        """Kills, reaps and closes without awaiting: also the last resort when the loop cancels its tasks."""
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        if self._strays or not self._swept:  # a stray may have forked between being found and being killed
            self._signal_all(signal.SIGKILL)
        for fd in tuple(self._open_fds):
            self._close_fd(fd)
        try:
            self._popen.wait(timeout=DEATH_GRACE)
        except subprocess.TimeoutExpired:
            _log.error("an agent's process %d survives SIGKILL: it is stuck in the kernel", self.pid)
            self._popen.returncode = -signal.SIGKILL
        if self._leader_fd is not None:
            self._loop.remove_reader(self._leader_fd)
            os.close(self._leader_fd)
            self._leader_fd = None
        _wait_for_deaths(self._strays.values())
        for fd in self._strays.values():
            os.close(fd)
        self._strays.clear()

    # --- the leader's exit, without reaping it ---

    def _watch_leader(self) -> int | None:
        try:
            fd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or a kernel or filter without pidfd_open
            threading.Thread(target=self._watch_in_thread, name=f"child-{self.pid}", daemon=True).start()
            return None
        self._loop.add_reader(fd, self._leader_done.set)
        return fd

    def _watch_in_thread(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._leader_done.set)

    # --- signals ---

    def _signal_all(self, number: signal.Signals) -> None:
        if self._popen.returncode is not None:
            return
        for pid in self._started_by_leader():
            if pid not in self._strays:
                with contextlib.suppress(OSError, AttributeError):
                    self._strays[pid] = os.pidfd_open(pid)
                    self._sessions.add(os.getsid(pid))
        # macOS answers EPERM for a group of zombies.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)
        for pid, fd in self._strays.items():
            with contextlib.suppress(OSError):
                if os.getpgid(pid) != self.pid:  # the group has its signal; some programs count a second one
                    signal.pidfd_send_signal(fd, number)

    def _started_by_leader(self) -> Iterable[int]:
        """What the leader started: other groups of its session (``timeout``, job control), other sessions."""
        found = set(_descendants(self.pid)) | set(_session_members(self._sessions))
        found.discard(self.pid)
        return found

    async def _strays_gone(self) -> None:
        """Waits until all that was killed is dead, so that "disposed" means "gone"."""
        gone: list[asyncio.Event] = []
        for fd in self._strays.values():
            event = asyncio.Event()
            self._loop.add_reader(fd, event.set)
            gone.append(event)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DEATH_GRACE):
                    for event in gone:
                        await event.wait()
        finally:
            for fd in self._strays.values():
                self._loop.remove_reader(fd)

    # --- pipes ---

    def _write_stdin(self) -> None:
        try:
            if self._input:
                self._input = self._input[os.write(self._in_fd, self._input[:CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:  # it closed its input: what it does not want to read is its own business
            self._input = self._input[:0]
        if not self._input:
            self._close_fd(self._in_fd)

    def _read_stdout(self) -> None:
        data = self._read(self._out_fd)
        if data is None:
            return
        room = self._output_limit - len(self._stdout)
        self._stdout += data[:room]
        if len(data) > room and not self._overflowed:
            self._overflowed = True
            self.kill()

    def _read_stderr(self) -> None:
        data = self._read(self._err_fd)
        if data is not None:
            self._stderr = (self._stderr + data)[-STDERR_KEPT:]

    def _read(self, fd: int) -> bytes | None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if data:
            self.last_output = self._loop.time()
            return data
        self._close_fd(fd)
        self._outputs_open -= 1
        if not self._outputs_open:
            self._outputs_done.set()
        return None

    def _close_fd(self, fd: int) -> None:
        if fd not in self._open_fds:
            return
        self._open_fds.discard(fd)
        self._loop.remove_reader(fd)
        self._loop.remove_writer(fd)
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None and not pipe.closed and pipe.fileno() == fd:
                pipe.close()


def _wait_for_deaths(pidfds: Iterable[int]) -> None:
    """Waits without the loop for processes that were killed; at once where that was awaited before."""
    waiting = select.poll()
    left = set(pidfds)
    for fd in left:
        waiting.register(fd, select.POLLIN)
    deadline = time.monotonic() + DEATH_GRACE
    while left and (rest := deadline - time.monotonic()) > 0:
        for fd, _ in waiting.poll(rest * 1000):
            waiting.unregister(fd)
            left.discard(fd)


def _descendants(pid: int) -> list[int]:
    """Everything that descends from ``pid``, where the kernel lists children; empty elsewhere."""
    found: list[int] = []
    pending = [pid]
    while pending:
        parent = pending.pop()
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children", encoding="ascii") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                pending += children
        except OSError:
            continue
    return found


def _session_members(sessions: Set[int]) -> list[int]:
    """The living processes of these sessions, where there is a ``/proc``."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    found: list[int] = []
    for name in names:
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(name)) in sessions and not _is_zombie(name):
                    found.append(int(name))
    return found


def _is_zombie(pid: str) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
