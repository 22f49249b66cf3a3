"""Frames no worker would send, and some it would: made from valid messages by mutation, or from nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from protocol.framing import pack_length
from protocol.messages import (
    AgentCalled,
    Loaded,
    LogCalled,
    PhaseCalled,
    Ready,
    Rejected,
    ResultReturned,
    ScriptFailed,
    WallReport,
    encode,
)

__all__ = ["Frames"]

_VALID = [
    encode(message)
    for message in (
        Ready((WallReport("seccomp", True), WallReport("landlock", False, "no"))),
        Loaded(msgspec.Raw(b'{"name":"n","description":"d"}')),
        LogCalled("a line with \u00e9 and \U0001f600"),
        PhaseCalled("phase one"),
        AgentCalled(1, "look", label="l", phase="p", provider="x", model="m"),
        AgentCalled(1, "look", schema=msgspec.Raw(b'{"type":"object","properties":{"a":{"type":"integer"}}}')),
        AgentCalled(1, "look", options={"effort": "high", "stallMs": 5}),
        ResultReturned(msgspec.Raw(b'{"a":[1,2.5,null,true,"x"]}'), ("warned",)),
        ScriptFailed("SCRIPT_ERROR", "it threw"),
        Rejected("SCRIPT_PARSE", "line 1"),
    )
]
_NARRATING = [encode(LogCalled("x")), encode(PhaseCalled("y"))]
_TOKENS = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"1e999", b"-0", b"9" * 400, b"\\ud800"),
    *(b"\x00", b"\xff\xfe", b'"type":"log"', b'"seq":-1', b'"seq":2', b"\\u0000", b"NaN", b"[" * 3000, b'{"a":' * 1200),
]
_FIELDS = (
    "type",
    "seq",
    "prompt",
    "message",
    "title",
    "value",
    "code",
    "warnings",
    "options",
    "schema",
    "walls",
    "meta",
)


class Frames:
    """An endless source; the same seed gives the same frames."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._seq = 0

    def some(self, count: int) -> Iterator[bytes]:
        """Frames for one run: some legal ones first, so that the bad ones meet a run that is under way."""
        self._seq = 0
        legal = self.random.choice([0, 1, 3, 8])
        for number in range(count):
            yield self._legal() if number < legal else self._any()

    def stream(self) -> Iterator[bytes]:
        """One run's bytes in chunks of any size, now and then with a length that lies."""
        data = bytearray()
        for frame in self.some(self.random.randrange(1, 12)):
            length = len(frame) if self.random.random() < 0.9 else self.random.choice([0, 1, 1 << 20, (1 << 32) - 1])
            data += pack_length(length) + frame
        if self.random.random() < 0.3:
            del data[self.random.randrange(len(data)) :]
        while data:
            size = self.random.choice([1, 3, 100, 10_000, 1_000_000])
            yield bytes(data[:size])
            del data[:size]

    def _legal(self) -> bytes:
        if self.random.random() < 0.5:
            return self.random.choice(_NARRATING)
        self._seq += 1
        return encode(AgentCalled(self._seq, "work", label=self.random.choice([None, "a", "b"])))

    def _any(self) -> bytes:
        kind = self.random.random()
        if kind < 0.15:
            return self._legal()
        if kind < 0.25:
            return self.random.randbytes(self.random.choice([1, 5, 60, 2000]))
        if kind < 0.45:
            return self._invented()
        return self._mutated(self.random.choice(_VALID))

    def _invented(self) -> bytes:
        """A known type with fields of any kind."""
        kinds = ("ready", "loaded", "rejected", "phase", "log", "agent", "result", "failed", "go", "load", "none")
        made: dict[str, Any] = {"type": self.random.choice(kinds)}
        for field in self.random.sample(_FIELDS, self.random.randrange(5)):
            made[field] = self._value(0)
        if made["type"] == "agent" and self.random.random() < 0.7:
            made["seq"] = self._seq + self.random.choice([0, 1, 1, 1, 2])
            made.setdefault("prompt", "x")
        return msgspec.json.encode(made)

    def _value(self, depth: int) -> Any:
        choices: list[Any] = [None, True, 0, -1, 2**63, 1.5, 1e308, "", "x", "\u2028", "y" * 70_000]
        kind = self.random.random()
        if depth < 4 and kind < 0.2:
            return [self._value(depth + 1) for _ in range(self.random.randrange(4))]
        if depth < 4 and kind < 0.4:
            return {self.random.choice(_FIELDS): self._value(depth + 1) for _ in range(self.random.randrange(4))}
        return self.random.choice(choices)

    def _mutated(self, frame: bytes) -> bytes:
        data = bytearray(frame)
        for _ in range(self.random.randrange(1, 5)):
            at = self.random.randrange(len(data) + 1)
            match self.random.randrange(5):
                case 0 if at < len(data):
                    data[at] ^= 1 << self.random.randrange(8)
                case 1:
                    data[at:at] = self.random.choice(_TOKENS)
                case 2:
                    del data[at : at + self.random.randrange(1, 12)]
                case 3:
                    other = self.random.choice(_VALID)
                    data[at:] = other[self.random.randrange(len(other)) :]
                case _:
                    data[at:at] = data[max(0, at - 10) : at]
        return bytes(data) or b"x"
