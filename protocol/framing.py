"""Sans-IO framing: a 4-byte little-endian length, then that many bytes.

Guarantees: a frame over ``max_frame`` is refused from its length alone, so an announced length never allocates
anything; a decoder that raised stays broken; bytes are copied once per frame.
"""

from __future__ import annotations

import struct

__all__ = ["LENGTH_BYTES", "FrameDecoder", "FrameError", "encode_frame", "pack_length"]

LENGTH_BYTES = 4
_LENGTH = struct.Struct("<I")
pack_length = _LENGTH.pack

_COMPACT_AT = 1 << 16  # consumed bytes are dropped in blocks: dropping after each frame copies the tail every time


class FrameError(ValueError):
    """The peer announced a frame that is empty or over the limit, or stopped in the middle of one."""


def encode_frame(payload: bytes, max_frame: int) -> bytes:
    """Frames ``payload``. Raises `FrameError` when it is over ``max_frame`` bytes."""
    if len(payload) > max_frame:
        raise FrameError(f"a message of {len(payload)} bytes is over the limit of {max_frame} bytes")
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder:
    """Turns arbitrary chunks into whole frames.

    Args:
        max_frame: the largest payload accepted, in bytes.
    """

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._buffer = bytearray()
        self._offset = 0

    @property
    def buffered(self) -> int:
        """Bytes received but not yet returned as frames."""
        return len(self._buffer) - self._offset

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Adds received bytes."""
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next whole frame, or ``None`` until more bytes arrive.

        Raises:
            FrameError: the announced length is zero or over the limit.
        """
        available = len(self._buffer) - self._offset
        if available < LENGTH_BYTES:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer, self._offset)
        if not 0 < length <= self._max_frame:
            raise FrameError(f"a frame of {length} bytes was announced; the limit is {self._max_frame} bytes")
        if available - LENGTH_BYTES < length:
            return None
        start = self._offset + LENGTH_BYTES
        end = start + length
        with memoryview(self._buffer) as view:
            frame = bytes(view[start:end])
        if end == len(self._buffer):
            self._buffer.clear()
            self._offset = 0
        elif end >= _COMPACT_AT:
            del self._buffer[:end]
            self._offset = 0
        else:
            self._offset = end
        return frame

    def check_end(self) -> None:
        """Raises `FrameError` when the stream ended in the middle of a frame."""
        if self.buffered:
            raise FrameError(f"the stream ended {self.buffered} bytes into a frame")
