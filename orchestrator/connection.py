"""The host's end of one worker's socket: bounded reads, writes that never block, back-pressure both ways.

Works on any asyncio loop with ``add_reader``. A loop iteration reads at most one buffer and handles at most a batch of
messages, so a worker that floods delays other runs by little more than one batch.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol

from protocol.framing import FrameDecoder, FrameError, pack_length

__all__ = ["ConnectionOwner", "WorkerConnection"]

_READ = 64 * 1024
_READ_LARGE = 1024 * 1024  # once a frame is larger than a read, fewer and larger reads are kinder
_BATCH = 64  # messages handled in one loop iteration
_BLOCKED_AT = 4 * 1024 * 1024  # bytes the worker has not read before no further agent is started for it


class ConnectionOwner(Protocol):
    """What a connection tells its run."""

    def frame_received(self, frame: bytes) -> None: ...
    def batch_received(self) -> None: ...
    def frames_broken(self, reason: str) -> None: ...
    def hung_up(self) -> None: ...
    def write_blocked(self, blocked: bool) -> None: ...


class WorkerConnection:
    """Owns the socket: closing the connection closes it."""

    def __init__(self, connection: socket.socket, owner: ConnectionOwner, max_frame: int) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._owner = owner
        self._frames = FrameDecoder(max_frame)
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._writing = False
        self._cork: asyncio.Handle | None = None
        self._blocked = False
        self._reading = False
        self._closed = False
        self._ended = False
        self._held = False
        self._pump_handle: asyncio.Handle | None = None

    def resume(self) -> None:
        """Starts or goes on reading."""
        self._held = False
        if self._closed:
            return
        if self._frames.buffered or self._ended:
            if self._pump_handle is None:
                self._pump_handle = self._loop.call_soon(self._pump)
        elif not self._reading:
            self._reading = True
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def pause(self) -> None:
        """Stops reading: the worker blocks on its next write once the kernel's buffer is full."""
        self._held = True
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())
        if self._pump_handle is not None:
            self._pump_handle.cancel()
            self._pump_handle = None

    def send(self, payload: bytes, *, more: bool = False) -> None:
        """Frames and writes ``payload``; what the kernel does not take at once waits here.

        With ``more`` likely to follow in this loop iteration, this one is written at once and they go out together at
        the next: a write wakes the worker, and costs as much as everything else done for a message.
        """
        if self._closed:
            return
        if self._cork is None and not self._unsent:
            if more:
                self._cork = self._loop.call_soon(self._uncork)
            data = pack_length(len(payload)) + payload
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return  # the worker is gone: the hang-up says so
            if sent == len(data):
                return
            self._unsent += memoryview(data)[sent:]
            if not more:
                self._watch_writable()
        else:
            self._unsent += pack_length(len(payload))
            self._unsent += payload
        self._tell_blocked(len(self._unsent) > _BLOCKED_AT)

    def close(self) -> None:
        """Idempotent. Nothing is told to the owner any more."""
        if self._closed:
            return
        self.pause()
        self._closed = True
        self._unsent.clear()
        if self._cork is not None:
            self._cork.cancel()
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()

    def _uncork(self) -> None:
        self._cork = None
        if self._unsent and not self._writing:
            self._writable()

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self._unsent.clear()
            sent = 0
        del self._unsent[:sent]
        self._watch_writable()
        self._tell_blocked(len(self._unsent) > _BLOCKED_AT)

    def _watch_writable(self) -> None:
        if self._writing != bool(self._unsent):
            self._writing = not self._writing
            if self._writing:
                self._loop.add_writer(self._socket.fileno(), self._writable)
            else:
                self._loop.remove_writer(self._socket.fileno())

    def _tell_blocked(self, blocked: bool) -> None:
        if blocked != self._blocked:
            self._blocked = blocked
            self._owner.write_blocked(blocked)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_READ_LARGE if self._frames.buffered > _READ else _READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._frames.feed(data)
        else:
            self._ended = True
            self._reading = False
            self._loop.remove_reader(self._socket.fileno())
        self._pump()

    def _pump(self) -> None:
        self._pump_handle = None
        handled = 0
        while handled < _BATCH and not self._closed and not self._held:
            try:
                frame = self._frames.next_frame()
            except FrameError as error:
                self.pause()
                self._owner.frames_broken(str(error))
                return
            if frame is None:
                break
            handled += 1
            self._owner.frame_received(frame)
        if handled:
            self._owner.batch_received()
        if self._closed or self._held:
            return
        if handled == _BATCH:
            # More may be buffered: let the loop serve others first, and read nothing new until this is handled.
            if self._reading:
                self._reading = False
                self._loop.remove_reader(self._socket.fileno())
            self._pump_handle = self._loop.call_soon(self._pump)
        elif self._ended:
            self._owner.hung_up()
        elif not self._reading:
            self._reading = True
            self._loop.add_reader(self._socket.fileno(), self._readable)
