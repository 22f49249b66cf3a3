"""The tests' side of the escape server: starts it for a user, starts workers in it, reads what they found."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["EVERY_WALL", "NOBODY", "Server", "ServerError", "Worker"]

NOBODY = 65534
_ROOT = Path(__file__).resolve().parents[2]
_SERVER = Path(__file__).with_name("escape_server.py")
_SECONDS = 40  # bounds every wait; nothing here takes more than two

EVERY_WALL = (
    "descriptors",
    "rlimits",
    "parent-death",
    "not-dumpable",
    "no-new-privileges",
    "landlock",
    "seccomp",
    "environment",
)


class ServerError(RuntimeError):
    """The escape server could not be started."""


class Report(NamedTuple):
    name: str
    up: bool
    detail: str


class Worker:
    """One test worker.

    Attributes:
        pid: Its process id.
        walls: What it reported of its walls.
    """

    def __init__(self, server: Server, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self._server = server
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._ended: dict[str, int] | None = None
        first = self._lines.readline()
        self.walls = [Report(*entry) for entry in json.loads(first)] if first else []

    def next(self) -> Any:
        """The next thing it found; None when it has ended."""
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None

    def rest(self) -> list[Any]:
        """Everything it still finds."""
        found: list[Any] = []
        while (item := self.next()) is not None:
            found.append(item)
        return found

    def release(self) -> None:
        """Let a waiting job go on."""
        self._connection.sendall(b"x")

    def status(self) -> dict[str, int]:
        """Waits until it has ended. ``status`` is negative for a signal; 7 is a job that ran to its end."""
        if self._ended is None:
            self._ended = self._server.request({"do": "wait", "pid": self.pid})
        return self._ended

    def disown(self) -> None:
        """Says that its server is gone, so nobody can be asked how it ended."""
        self._ended = {}

    def close(self) -> None:
        """Ends it if it has not ended."""
        if self._ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the id is still its own
            self.status()
        self._lines.close()
        self._connection.close()


class Server:
    """An escape server running as one user.

    Attributes:
        leaked: Descriptors it has open, of a directory and of a file, which a worker must not inherit.
        users: Its real, effective and saved user ids, without repetition.
        capabilities: Its effective capabilities, as a bit set.

    Args:
        user: Its user id, which only root can choose; None for the user of the tests.
        environment: What it is exec'd with; the zygote's is empty.
        forget: It clears its environment, too late, before it starts workers.

    Raises:
        ServerError: it did not start, with what it wrote.
    """

    def __init__(
        self, user: int | None = None, environment: dict[str, str] | None = None, forget: bool = False
    ) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(_SECONDS)
        with theirs:
            arguments = (str(_ROOT), str(theirs.fileno()), str(-1 if user is None else user), str(int(forget)))
            self.process = subprocess.Popen(
                [sys.executable, "-I", str(_SERVER), *arguments],
                env=environment or {},
                cwd="/",
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        self._control = ours
        self._lines = ours.makefile("rb")
        first = self._lines.readline()
        if not first:
            said = self.process.communicate(timeout=_SECONDS)[1].decode(errors="replace")
            self.close()
            raise ServerError(said.strip().rpartition("\n")[2])
        hello = json.loads(first)
        self.leaked: list[int] = hello["leaked"]
        self.users: list[int] = hello["users"]
        self.capabilities: int = hello["capabilities"]

    def request(self, message: dict[str, Any], descriptor: int | None = None) -> Any:
        """One request, one answer."""
        socket.send_fds(self._control, [json.dumps(message).encode()], [] if descriptor is None else [descriptor])
        return json.loads(self._lines.readline())

    @contextlib.contextmanager
    def worker(
        self,
        job: str,
        *,
        walls: tuple[str, ...] = EVERY_WALL,
        memory: int | None = 512 << 20,
        cpu: int | None = 30,
        outer: dict[str, int] | None = None,
        mode: str | None = None,
        parent: int | None = None,
        **arguments: Any,
    ) -> Iterator[Worker]:
        """A worker that runs a job of `escape_jobs`.

        Args:
            job: Its name.
            walls: Walls to put up, when ``mode`` is None.
            memory: Bytes beyond what the server uses.
            cpu: Seconds.
            outer: Calls a sandbox around the worker refuses, with the error number it gives.
            mode: Go through `worker.sandbox.confine` in this mode, as the zygote does.
            parent: The process id the worker is told its parent has; None for the true one.
            arguments: The job's own.
        """
        ours, theirs = socket.socketpair()
        ours.settimeout(_SECONDS)
        request = {"do": "start", "job": job, "walls": walls, "memory": memory, "cpu": cpu, "outer": outer}
        request |= {"mode": mode, "parent": parent}
        with theirs:
            pid = self.request(request | {"arguments": arguments}, theirs.fileno())["pid"]
        worker = Worker(self, pid, ours)
        try:
            yield worker
        finally:
            worker.close()

    def close(self) -> None:
        """End it; its workers die with it."""
        self._control.close()
        self._lines.close()
        self.process.kill()
        self.process.wait(_SECONDS)
        if self.process.stderr is not None:
            self.process.stderr.close()
