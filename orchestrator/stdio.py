"""The process's stdin and stdout as the protocol's alone.

Guarantees: while open, nothing else reaches the client: what any code prints, in this process or in one it starts,
goes to stderr, and nobody else reads the protocol's input. A write to a client that is gone raises at once; closing is
bounded even when the client reads no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import selectors
import sys
from collections.abc import AsyncGenerator
from typing import Any

__all__ = ["PipeTransport", "protocol_pipes"]

_log = logging.getLogger(__name__)

MAX_FRAME = 64 << 20
"""Bytes of one frame from the client: a script and its args, as large as the engine's default takes them."""


class PipeTransport:
    """Newline-delimited JSON over a pair of pipes. It is a transport of the Agent Client Protocol SDK as it stands."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: dict[str, Any]) -> None:
        """Writes one frame. Raises `ConnectionError` when the client is gone."""
        if self._writer.is_closing():
            raise ConnectionError("the client is gone")
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        await self._writer.drain()

    async def receive(self) -> dict[str, Any] | None:
        """The next frame, ``None`` at the end of the input. What is no JSON object is logged and skipped."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError:  # a line over the limit: the reader has dropped what it held of it
                _log.error("a frame of the client is over the limit of %d bytes", MAX_FRAME)
                continue
            if not line:
                return None
            try:
                message: object = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                return message  # pyright: ignore[reportUnknownVariableType]
            if line.strip():
                _log.error("a line of the client is no JSON object: %r", line[:80])

    async def close(self) -> None:
        """Closes the writing side; frames that a client has not read in time are lost."""
        self._writer.close()


@contextlib.asynccontextmanager
async def protocol_pipes(protocol: str) -> AsyncGenerator[PipeTransport]:
    """Takes over stdin and stdout for the protocol, and gives them back.

    Args:
        protocol: its name, for messages.

    Raises:
        OSError: they are not pipes, sockets or a terminal.
    """
    sys.stdout.flush()
    with contextlib.ExitStack() as undo:
        taken_in, taken_out = _take(0), _take(1)
        undo.callback(_give_back, taken_in, 0)
        undo.callback(_give_back, taken_out, 1)
        undo.callback(sys.stdout.flush)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # stderr is closed
            os.dup2(nothing, 1)
        os.close(nothing)
        for taken in (taken_in, taken_out):
            _require_waitable(taken, protocol)
        transport = await _connect(taken_in, taken_out)
        try:
            yield transport
        finally:
            await transport.close()


def _require_waitable(descriptor: int, protocol: str) -> None:
    """Refuses what an event loop cannot wait for: plain files, and /dev/null."""
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(descriptor, selectors.EVENT_READ)
        except OSError:
            raise OSError(f"the {protocol} needs pipes as stdin and stdout, not files") from None


def _take(descriptor: int) -> int:
    return os.dup(descriptor)  # not inherited by child processes


def _give_back(taken: int, descriptor: int) -> None:
    os.set_blocking(taken, True)
    os.dup2(taken, descriptor)
    os.close(taken)


async def _connect(taken_in: int, taken_out: int) -> PipeTransport:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_FRAME)
    # Copies again: a transport closes its file, and these descriptors are given back.
    source = os.fdopen(os.dup(taken_in), "rb", buffering=0)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), source)
    except BaseException:
        source.close()
        raise
    sink = os.fdopen(os.dup(taken_out), "wb", buffering=0)
    try:
        # A stream protocol on the writing side too: it is the public class that knows how to drain.
        pipe, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), sink
        )
    except BaseException:
        sink.close()
        raise
    return PipeTransport(reader, asyncio.StreamWriter(pipe, protocol, None, loop))
