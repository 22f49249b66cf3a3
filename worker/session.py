"""One run in one worker: the socket loop, the job queue, the slice limit.

Guarantees: the process serves one script and exits; it never waits for anything but its socket and its timers; a
script that neither yields nor ends is killed by the kernel (the timer's signal has its default action: the GIL is held
while JavaScript runs, so nothing in Python could act); a script that nothing can wake is reported at once.
"""

from __future__ import annotations

import collections
import heapq
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import msgspec

from protocol.framing import FrameDecoder, encode_frame, pack_length
from protocol.messages import AgentSettled, Go, Limits, Load, Ready, WallReport, decode_host_message, encode
from worker.spidermonkey import Engine

__all__ = ["Outbox", "Runtime", "Session", "Timers"]

_FLUSH_AT = 8 * 1024  # bytes buffered before a write in the middle of a slice: the host works on them meanwhile
_PROMPT_NARRATION = 8  # narrations of a slice written at once: a script that then spins still shows its last words
# Falling asleep and being woken costs more than anything else of a message (30 of 95 µs, in a virtual machine). For a
# host that answered promptly last time a worker looks out awake for a moment; slow agents cost no spinning.
_SPIN_SECONDS = 60e-6
_PROMPT_SECONDS = 300e-6
_CAN_SPIN = len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) > 1
_PEEK_EVERY = 256  # jobs between two looks at the socket
_RECEIVE = 256 * 1024
_MAX_HOST_FRAME = (1 << 31) - 1  # the host is trusted; its messages are bounded where they are made

_NARRATION = ('{"type":"log"', '{"type":"phase"')
_LAST_WORDS = ('{"type":"result"', '{"type":"failed"', '{"type":"rejected"')

_REHEARSED_SCRIPT = """
phase('a');
log('b');
const one = await agent('c', { label: 'd', schema: { type: 'object' } });
const many = await parallel([() => agent('e'), () => agent('f')]);
const rows = await pipeline([1, 2], (x) => agent('g' + x), (x) => x);
return { one, many, rows, rest: [args.x, 1, 2.5, true, null, 'é'] };
"""
_REHEARSED_LIMITS = Limits(
    max_total_agents=10, max_items_per_call=10, max_depth=10, max_frame=1 << 20, slice_seconds=0.0
)
_REHEARSED = (
    Load(_REHEARSED_SCRIPT, _REHEARSED_LIMITS, args=msgspec.Raw(b'{"x":[]}')),
    Go(),
    AgentSettled(1, msgspec.Raw(b'{"n":1}')),
    *(AgentSettled(seq, msgspec.Raw(b'"text"')) for seq in range(2, 6)),
)
_REHEARSAL = b"".join(encode_frame(encode(message), 1 << 16) for message in _REHEARSED)


class Outbox:
    """Collects the messages JavaScript makes and writes them in batches. ``send`` is JavaScript's only way out."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None  # none in a rehearsal: its messages go nowhere
        self.finished = False
        self._parts: list[bytes] = []
        self._size = 0
        self._prompt_left = _PROMPT_NARRATION

    def send(self, text: str) -> None:
        """Takes one message as JSON text (a JavaScript string: a str subclass that must be copied)."""
        text = str(text)
        data = text.encode()
        self._parts += (pack_length(len(data)), data)
        self._size += len(data)
        if text.startswith(_LAST_WORDS):
            self.finished = True
        if self._size >= _FLUSH_AT:
            self.flush()
        elif self._prompt_left and text.startswith(_NARRATION):
            self._prompt_left -= 1
            self.flush()

    def start_slice(self) -> None:
        """Called when the script is about to run again."""
        self._prompt_left = _PROMPT_NARRATION

    def flush(self) -> None:
        """Writes everything. Blocks while the host does not read: that is the back-pressure on a flooding script."""
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
            if self.socket is not None:
                self.socket.sendall(data)

    def reset(self) -> None:
        """As new, but for the socket."""
        self.finished = False
        self._parts.clear()
        self._size = 0
        self.start_slice()


class Timers:
    """The script's timers, kept here because only the socket loop can wait."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._armed: set[int] = set()

    def arm(self, timer: float, delay_ms: float) -> None:
        """JavaScript numbers arrive as floats."""
        self._armed.add(int(timer))
        heapq.heappush(self._heap, (time.monotonic() + delay_ms / 1000, int(timer)))

    def disarm(self, timer: float) -> None:
        self._armed.discard(int(timer))

    def __len__(self) -> int:
        return len(self._armed)

    def clear(self) -> None:
        self._heap.clear()
        self._armed.clear()

    def delay(self) -> float | None:
        """Seconds until the next timer, ``None`` when there is none."""
        while self._heap and self._heap[0][1] not in self._armed:
            heapq.heappop(self._heap)
        return max(0.0, self._heap[0][0] - time.monotonic()) if self._heap else None

    def pop_due(self) -> int | None:
        """The next timer that is due."""
        if self.delay() != 0.0:
            return None
        _, timer = heapq.heappop(self._heap)
        self._armed.discard(timer)
        return timer


class Runtime:
    """The engine with runtime.js in it: made once in the zygote, used once in the worker."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outbox = Outbox()
        self.timers = Timers()
        self.buffer = bytearray(_RECEIVE)  # made before the fork: a worker copies only the pages it fills
        functions = engine.make_runtime(self.outbox.send, self.timers.arm, self.timers.disarm)
        self.load: Callable[[str, str | None, str | None, str], Any] = functions["load"]
        self.go: Callable[[], Any] = functions["go"]
        self.settle: Callable[[str], Any] = functions["settle"]
        self.fire: Callable[[float], Any] = functions["fire"]
        self.idle: Callable[[float], Any] = functions["idle"]
        self._forget: Callable[[], Any] = functions["forget"]

    def rehearse(self) -> bool:
        """Runs a small script of ours to its end, unheard, and forgets it. Returns whether it came to its end.

        Why: code that ran once is compiled, specialised and resolved. Done in the zygote, every worker is forked with
        that behind it; done again in a spare worker while it waits, the pages a run writes to are its own already
        (each first write costs a page fault, and those faults are most of what starting a run costs).
        """
        connection, self.outbox.socket = self.outbox.socket, None
        try:
            return Session(self, None).rehearse()
        finally:
            self._forget()
            self.outbox.reset()
            self.outbox.socket = connection
            self.engine.queue.jobs.clear()
            self.timers.clear()


class Session:
    """Serves one run on one socket, then returns."""

    def __init__(self, runtime: Runtime, connection: socket.socket | None) -> None:
        self._runtime = runtime
        self._outbox = runtime.outbox
        self._outbox.socket = connection
        if connection is not None:
            self._connection = connection
        self._jobs: collections.deque[Callable[[], object]] = runtime.engine.queue.jobs
        self._frames = FrameDecoder(_MAX_HOST_FRAME)
        self._buffer = runtime.buffer
        self._slice_seconds = 0.0
        self._loaded = False
        self._prompt_host = False
        self._running = False

    def rehearse(self) -> bool:
        """Works on our own messages instead of a host's."""
        self._frames.feed(_REHEARSAL)
        self._work()
        return self._outbox.finished

    def serve(self, walls: tuple[WallReport, ...]) -> None:
        """Announces itself, then works until the script has settled or the host hangs up."""
        hello = encode(Ready(walls=walls))
        try:
            self._connection.sendall(pack_length(len(hello)) + hello)
            if not select.select([self._connection], [], [], 0)[0]:
                self._runtime.rehearse()  # a spare: nobody waits for it yet
            while not self._outbox.finished:
                if not self._wait():
                    return
                self._work()
                self._outbox.flush()
        except (BrokenPipeError, ConnectionResetError):
            return  # the host is gone or wants nothing more

    def _wait(self) -> bool:
        """Waits for bytes or a timer. False: the host hung up."""
        began = time.monotonic()
        if self._prompt_host:
            while time.monotonic() - began < _SPIN_SECONDS:
                try:
                    return self._receive(socket.MSG_DONTWAIT)
                except BlockingIOError:
                    continue
        delay = self._runtime.timers.delay()
        if delay is not None and not select.select([self._connection], [], [], delay)[0]:
            return True
        received = self._receive(0)
        self._prompt_host = _CAN_SPIN and self._running and time.monotonic() - began < _PROMPT_SECONDS
        return received

    def _receive(self, flags: int) -> bool:
        count = self._connection.recv_into(self._buffer, 0, flags)
        if count:
            with memoryview(self._buffer) as view:
                self._frames.feed(view[:count])
        return count > 0

    def _work(self) -> None:
        """One slice: from waking up until nothing is left to do."""
        self._outbox.start_slice()
        if self._slice_seconds:
            signal.setitimer(signal.ITIMER_PROF, self._slice_seconds)
        while (frame := self._frames.next_frame()) is not None:
            self._take(frame)
            self._drain()
        while not self._outbox.finished and (timer := self._runtime.timers.pop_due()) is not None:
            self._runtime.fire(timer)
            self._drain()
        if self._running and not self._outbox.finished:
            self._runtime.idle(float(len(self._runtime.timers)))

    def _take(self, frame: bytes) -> None:
        if self._running:
            self._runtime.settle(frame.decode())
            return
        match decode_host_message(frame):
            case Load() as load if not self._loaded:
                self._loaded = True
                self._slice_seconds = load.limits.slice_seconds
                signal.setitimer(signal.ITIMER_PROF, self._slice_seconds)
                args = None if load.args is msgspec.UNSET else bytes(load.args).decode()
                self._runtime.load(load.script, load.header, args, encode(load.limits).decode())
            case Go() if self._loaded:
                self._running = True
                self._runtime.go()
            case message:
                raise RuntimeError(f"the host sent {type(message).__name__} out of order")

    def _drain(self) -> None:
        """Runs promise jobs until none is left, with a look at the socket now and then: an answer may be what they
        wait for."""
        jobs = self._jobs
        until_peek = _PEEK_EVERY
        while jobs and not self._outbox.finished:
            jobs.popleft()()
            until_peek -= 1
            if not until_peek:
                until_peek = _PEEK_EVERY
                self._outbox.flush()
                self._peek()

    def _peek(self) -> None:
        try:
            if not self._receive(socket.MSG_DONTWAIT):
                os._exit(0)  # the host hung up on a script that never lets its jobs run dry
        except BlockingIOError:
            return
        while self._running and (frame := self._frames.next_frame()) is not None:
            self._runtime.settle(frame.decode())
