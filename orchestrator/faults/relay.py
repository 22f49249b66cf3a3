"""A relay between a host and a real worker that can cut, withhold and halve what passes.

Guarantees: until it is frozen every message passes unchanged and in order, and back-pressure passes with it; the end of
one side ends the other; frozen, it takes what comes and passes nothing on, so neither side blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Protocol

from protocol.framing import FrameDecoder, pack_length

__all__ = ["Relay", "Tap"]

_READ = 256 * 1024

_SHOWN = 64 * 1024  # a message's beginning is shown up to this size


class Tap(Protocol):
    """Sees everything that passes, and may freeze or cut the relay there and then."""

    async def before(self, frame: bytes, *, from_worker: bool) -> None:
        """A whole message, not passed on yet."""
        ...

    async def after(self, frame: bytes, *, from_worker: bool) -> None:
        """The same, once it has been written to the other side."""
        ...

    async def begun(self, data: bytes) -> None:
        """The beginning of a message of the worker, with its length, of which the rest has not come yet."""
        ...


class Relay:
    """Takes a worker's socket and gives the host another one in its place.

    Attributes:
        host_side: the host's end, to be used as the worker's connection.
        done: set when both sides are closed.
    """

    def __init__(self, worker_socket: socket.socket, tap: Tap) -> None:
        self.host_side, self._host = socket.socketpair()
        self._worker = worker_socket
        self._tap = tap
        self._frozen = False
        self.done = asyncio.Event()
        for end in (self._host, self._worker):
            end.setblocking(False)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="relay")

    def freeze(self) -> None:
        """From here on nothing passes."""
        self._frozen = True

    def tell_worker(self, data: bytes) -> None:
        """Writes to the worker, past the host; for a few bytes."""
        with contextlib.suppress(OSError):
            self._worker.send(data)

    def tell_host(self, data: bytes) -> None:
        """Writes to the host, past the worker; for a few bytes."""
        with contextlib.suppress(OSError):
            self._host.send(data)

    def cut(self) -> None:
        """Ends the connection on both sides, after what was written."""
        self._frozen = True
        for end in (self._host, self._worker):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Cuts and waits until everything is released."""
        self.cut()
        await self.done.wait()

    async def _run(self) -> None:
        try:
            await asyncio.gather(
                self._pass_on(self._worker, self._host, worker_speaks=True),
                self._pass_on(self._host, self._worker, worker_speaks=False),
            )
        finally:
            self._host.close()
            self._worker.close()
            self.done.set()

    async def _pass_on(self, source: socket.socket, sink: socket.socket, *, worker_speaks: bool) -> None:
        loop = asyncio.get_running_loop()
        frames = FrameDecoder((1 << 31) - 1)
        begun = b""
        try:
            while data := await loop.sock_recv(source, _READ):
                frames.feed(data)
                begun += data
                while (frame := frames.next_frame()) is not None:
                    await self._tap.before(frame, from_worker=worker_speaks)
                    if not self._frozen:
                        await loop.sock_sendall(sink, pack_length(len(frame)) + frame)
                        await self._tap.after(frame, from_worker=worker_speaks)
                begun = begun[len(begun) - frames.buffered :] if frames.buffered <= _SHOWN else b""
                if worker_speaks and begun:
                    await self._tap.begun(begun)
        except OSError:
            pass  # one side is gone: so is the other
        finally:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
