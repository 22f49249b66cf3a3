"""How a worker waits for its host: awake for a moment where the host is prompt, asleep where agents take their time."""

from __future__ import annotations

import collections
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from worker import session
from worker.session import Outbox, Session, Timers


class Clock:
    """Goes on by ``step`` seconds at each look."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now


class Ear:
    """The worker's socket; counts how often it was asked without waiting."""

    def __init__(self, real: socket.socket) -> None:
        self.real = real
        self.looks = 0

    def recv_into(self, buffer: bytearray, size: int, flags: int) -> int:
        self.looks += flags == socket.MSG_DONTWAIT
        return self.real.recv_into(buffer, size, flags)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    host, worker = socket.socketpair()
    with host, worker:
        yield host, worker


def listening(worker: socket.socket, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> tuple[Session, Ear]:
    monkeypatch.setattr(session, "time", clock)
    monkeypatch.setattr(session, "_CAN_SPIN", True)
    queue = SimpleNamespace(jobs=collections.deque())
    runtime: Any = SimpleNamespace(
        outbox=Outbox(), timers=Timers(), buffer=bytearray(64), engine=SimpleNamespace(queue=queue)
    )
    ear = Ear(worker)
    made = Session(runtime, ear)  # type: ignore[arg-type]
    made._running = True
    return made, ear


def test_a_worker_looks_out_awake_only_after_a_prompt_answer(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, worker = pair
    clock = Clock(1e-6)
    waiting, ear = listening(worker, clock, monkeypatch)
    host.send(b"x")
    assert waiting._wait()
    assert ear.looks == 0  # nothing was known of the host yet
    host.send(b"x")
    assert waiting._wait()
    assert ear.looks == 1
    clock.step = 1.0  # every answer takes a second now
    host.send(b"x")
    assert waiting._wait()
    asked = ear.looks
    host.send(b"x")
    assert waiting._wait()
    assert ear.looks == asked


def test_looking_out_awake_ends_after_a_moment_and_sees_the_hang_up(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    host, worker = pair
    worker.settimeout(0.0)  # where a worker would fall asleep, this one raises
    waiting, ear = listening(worker, Clock(1e-6), monkeypatch)
    waiting._prompt_host = True
    with pytest.raises(BlockingIOError):
        waiting._wait()
    assert 1 < ear.looks <= session._SPIN_SECONDS / 1e-6
    host.close()
    assert not waiting._wait()
