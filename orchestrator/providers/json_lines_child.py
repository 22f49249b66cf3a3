"""A child process that exchanges JSON-RPC messages with the host, one JSON object per line.

Guarantees, beyond those of `orchestrator.providers.child_process`:

* Memory is bounded whatever the child prints: reading pauses while what was read waits to be handled, a line over the
  limit ends the child, and a child that asks without reading the answers is not read any further.
* Notifications are handed over in their order, without a task of their own, and the event loop stays free meanwhile.
* Lines that are no JSON object, and messages that are not JSON-RPC, are skipped; the last one is kept for a reason.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from orchestrator.providers.child_process import CHUNK, ChildProcess

__all__ = ["JsonLinesChild", "JsonRpcTransport"]

READ_AHEAD = 1 << 20
"""Bytes read but not handled at which reading pauses."""
LINE_COST = 100
"""Bytes a waiting line costs beside its own: many tiny lines must pause the reading too."""
UNREAD_ANSWERS = 64
"""Answers the child has not read at which no more of its messages are handled."""
SLICE = 100
"""Messages handled before the event loop gets a turn."""
NOISE_KEPT = 300


class JsonLinesChild(ChildProcess):
    """Starts ``argv`` and keeps its standard input open.

    Args:
        argv: the program and its arguments.
        env: its whole environment.
        cwd: its working directory; the host's own without one.
        grace: seconds between SIGTERM and SIGKILL.
        max_line: bytes of a line after which it is killed.

    Raises:
        OSError: it could not be started.
    """

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, grace: float, max_line: int
    ) -> None:
        self._max_line = max_line
        self._lines: deque[bytes] = deque()
        self._held = 0
        self._rest = bytearray()
        self._paused = False
        self._finished = False
        self._readable = asyncio.Event()
        self._outgoing = bytearray()
        self._drained = asyncio.Event()
        self._drained.set()
        self.overlong = False
        super().__init__(argv, stdin=b"", env=env, output_limit=0, grace=grace, cwd=cwd)

    @property
    def stderr_so_far(self) -> bytes:
        """The end of what it complained about."""
        return bytes(self._stderr)

    async def next_line(self) -> bytes | None:
        """The next line that is not blank; ``None`` at the end of its output."""
        while not self._lines:
            if self._finished:
                return None
            self._readable.clear()
            await self._readable.wait()
        line = self._lines.popleft()
        self._held -= len(line) + LINE_COST
        if self._paused and self._held <= READ_AHEAD // 2:
            self._paused = False
            if self._out_fd in self._open_fds:
                self._loop.add_reader(self._out_fd, self._read_stdout)
        return line

    def write(self, data: bytes) -> None:
        """Sends ``data`` as soon as the child reads.

        Raises:
            ConnectionError: it has closed its input.
        """
        if self._in_fd not in self._open_fds:
            raise ConnectionError("the child reads no more")
        self._outgoing += data
        self._drained.clear()
        self._loop.add_writer(self._in_fd, self._write_stdin)

    async def drained(self) -> None:
        """Waits until the child has taken everything, or takes nothing any more."""
        await self._drained.wait()

    def stop(self) -> None:
        """SIGTERM and the end of its input now, SIGKILL after the grace."""
        super().stop()
        self._close_input()

    # --- pipes ---

    def _write_stdin(self) -> None:
        if self._outgoing:
            try:
                written = os.write(self._in_fd, memoryview(self._outgoing)[:CHUNK].tobytes())
            except BlockingIOError:
                return
            except OSError:  # it closed its input; whoever waits for an answer learns it from the end of its output
                self._close_input()
                return
            del self._outgoing[:written]
        if not self._outgoing:
            self._loop.remove_writer(self._in_fd)
            self._drained.set()

    def _close_input(self) -> None:
        self._outgoing.clear()
        self._close_fd(self._in_fd)
        self._drained.set()

    def _read_stdout(self) -> None:
        data = self._read(self._out_fd)
        if data is None:
            if self._out_fd not in self._open_fds:
                self._finish()
            return
        first, *further = data.split(b"\n")
        self._rest += first
        for piece in further:
            self._take(bytes(self._rest))
            self._rest = bytearray(piece)
        if len(self._rest) > self._max_line:
            self.overlong = True
            self._rest.clear()
            self.kill()
        elif self._held > READ_AHEAD:
            self._paused = True
            self._loop.remove_reader(self._out_fd)
        self._readable.set()

    def _take(self, line: bytes) -> None:
        if line.strip():
            self._lines.append(line)
            self._held += len(line) + LINE_COST

    def _finish(self) -> None:
        if not self._finished:
            self._finished = True
            self._take(bytes(self._rest))
            self._rest.clear()
            self._readable.set()

    def _end(self) -> None:
        super()._end()
        self._outgoing.clear()
        self._drained.set()
        self._finish()


class JsonRpcTransport:
    """The messages of a `JsonLinesChild`, as the ACP SDK's connection takes them.

    Args:
        child: the process.
        on_notification: takes each notification's method and params, at once and in order. It must not raise.
        on_end: called at the end of the child's output.
    """

    def __init__(
        self,
        child: JsonLinesChild,
        on_notification: Callable[[str, dict[str, Any]], None],
        on_end: Callable[[], None],
    ) -> None:
        self._child = child
        self._on_notification = on_notification
        self._on_end = on_end
        self._unread_answers = 0
        self._answer_read = asyncio.Event()
        self.noise = b""
        """The last line that was no message."""

    async def send(self, message: dict[str, Any]) -> None:
        """Sends a message. Raises `ConnectionError` when the child reads no more, but for answers it asked for."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if "method" in message:
            self._child.write(line)
            return
        try:
            self._child.write(line)
        except ConnectionError:
            return
        self._unread_answers += 1
        try:
            await self._child.drained()
        finally:
            self._unread_answers -= 1
            self._answer_read.set()

    async def receive(self) -> dict[str, Any] | None:
        """The next request or response; ``None`` at the end."""
        handled = 0
        while True:
            while self._unread_answers > UNREAD_ANSWERS:
                self._answer_read.clear()
                await self._answer_read.wait()
            handled += 1
            if handled % SLICE == 0:
                await asyncio.sleep(0)
            line = await self._child.next_line()
            if line is None:
                self._on_end()
                return None
            message = _message(line)
            if message is None:
                self.noise = line[:NOISE_KEPT]
            elif "method" in message and "id" not in message:
                params: object = message.get("params")
                if isinstance(params, dict):
                    self._on_notification(message["method"], cast("dict[str, Any]", params))
            else:
                await asyncio.sleep(0)  # the task that answers a request gets its turn before the next one is read
                return message

    async def close(self) -> None:
        """Nothing: the process is ended by its owner."""


def _message(line: bytes) -> dict[str, Any] | None:
    """The JSON-RPC message in a line, as far as the SDK relies on its shape."""
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    message = cast("dict[str, Any]", value)
    number = message.get("id")
    if "method" in message:
        return message if isinstance(message["method"], str) and not isinstance(number, (dict, list)) else None
    if type(number) is not int or not ("result" in message or "error" in message):
        return None
    if "result" not in message:
        error: Any = message["error"]
        error = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
        code, text = error.get("code"), error.get("message")
        message["error"] = {
            "code": code if type(code) is int else -32603,
            "message": text if isinstance(text, str) else "no reason given",
            "data": error.get("data"),
        }
    return message
