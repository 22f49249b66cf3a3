"""What one call costs, counted instead of timed: a change that doubles the work fails here on any machine.

Counted on the host's side of a real run: frames and bytes each way, calls of send and recv, turns of the event loop
(each is one system call), changes of what it waits for, and tasks.
"""

from __future__ import annotations

import asyncio
import collections
import selectors
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from orchestrator import AgentRequest, EngineConfig, WorkflowEngine, WorkflowStartRequest
from orchestrator import run as run_module
from orchestrator.connection import WorkerConnection
from protocol.framing import FrameDecoder
from tests.support import META

AGENTS = 400
SLOTS = 16
BOUND = 45.0


class Ledger:
    """What was counted."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.sent = bytearray()
        self.received = bytearray()

    def frames(self, data: bytearray) -> collections.Counter[str]:
        """The frames of one direction, by the type each names first."""
        decoder = FrameDecoder(1 << 30)
        decoder.feed(data)
        types: collections.Counter[str] = collections.Counter()
        while (frame := decoder.next_frame()) is not None:
            types[frame[:40].split(b'"')[3].decode()] += 1
        assert decoder.buffered == 0
        return types


class CountingSocket:
    """The worker's socket, with its traffic on the ledger."""

    def __init__(self, real: socket.socket, ledger: Ledger) -> None:
        self._real = real
        self._ledger = ledger

    def send(self, data: bytes | bytearray) -> int:
        self._ledger.counts["send"] += 1
        sent = self._real.send(data)
        self._ledger.sent += memoryview(data)[:sent]
        return sent

    def recv(self, size: int) -> bytes:
        self._ledger.counts["recv"] += 1
        data = self._real.recv(size)
        self._ledger.received += data
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class CountingSelector(selectors.DefaultSelector):
    """The loop's selector: one select is one turn of the loop, the rest are changes of what it waits for."""

    ledger: Ledger

    def select(self, timeout: float | None = None) -> Any:
        self.ledger.counts["turn"] += 1
        return super().select(timeout)

    def register(self, *args: Any, **kwargs: Any) -> Any:
        self.ledger.counts["watch"] += 1
        return super().register(*args, **kwargs)

    def unregister(self, *args: Any, **kwargs: Any) -> Any:
        self.ledger.counts["watch"] += 1
        return super().unregister(*args, **kwargs)

    def modify(self, *args: Any, **kwargs: Any) -> Any:
        self.ledger.counts["watch"] += 1
        return super().modify(*args, **kwargs)


async def answer(request: AgentRequest) -> str:
    """At once, so that every turn of the loop belongs to the engine."""
    return f"ok:{request.prompt}"


@pytest.fixture
def work_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ledger]:
    """Runs a script to its end and returns what only that run cost."""

    def measure(script: str, *, args: Any = None, expect: Any = None) -> Ledger:
        ledger = Ledger()

        def counted(connection: socket.socket, *rest: Any) -> WorkerConnection:
            return WorkerConnection(CountingSocket(connection, ledger), *rest)  # type: ignore[arg-type]

        def counting_task(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **kwargs: Any) -> Any:
            ledger.counts["task"] += 1
            return asyncio.Task(coroutine, loop=loop, **kwargs)

        def new_loop() -> asyncio.AbstractEventLoop:
            selector = CountingSelector()
            selector.ledger = ledger
            loop = asyncio.SelectorEventLoop(selector)
            loop.set_task_factory(counting_task)
            return loop

        async def main() -> None:
            config = EngineConfig(max_concurrent_agents=SLOTS, spare_workers=0, max_items_per_call=10_000)
            async with asyncio.timeout(BOUND), WorkflowEngine(config) as engine:
                engine.agents.register("default", answer)
                ledger.counts.clear()
                request = WorkflowStartRequest(script=script, meta=META, args=args)
                async with await engine.start(request) as workflow:
                    result = await workflow.result
                    assert (result.error, result.value) == (None, expect)
                    counts = ledger.counts.copy()
            ledger.counts = counts

        monkeypatch.setattr(run_module, "WorkerConnection", counted)
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        return ledger

    return measure


# What starting and ending a run adds to each count, generously: the zygote's messages, timers, the end of file.
OVERHEAD = {"send": 2, "recv": 8, "turn": 40, "watch": 12, "task": 8}


def assert_at_most(ledger: Ledger, calls: int, **per_call: float) -> None:
    """No count is over its share per call plus the overhead of a run."""
    over = {
        name: f"{ledger.counts[name]} > {calls * share + OVERHEAD[name]:g}"
        for name, share in per_call.items()
        if ledger.counts[name] > calls * share + OVERHEAD[name]
    }
    assert not over, f"{calls} calls cost more than they may: {over}"


def test_a_sequential_agent_call_costs_one_frame_one_write_and_one_task(work_of: Callable[..., Ledger]) -> None:
    ledger = work_of(f"for (let i = 0; i < {AGENTS}; i++) await agent('task'); return 1", expect=1)
    assert ledger.frames(ledger.sent) == {"load": 1, "go": 1, "agent-settled": AGENTS}
    assert ledger.frames(ledger.received) == {"ready": 1, "loaded": 1, "agent": AGENTS, "result": 1}
    assert_at_most(ledger, AGENTS, send=1, recv=1, turn=2, watch=0, task=1)


@pytest.mark.parametrize(
    ("shape", "calls"),
    [
        (f"parallel(Array.from({{ length: {AGENTS} }}, () => () => agent('task')))", AGENTS),
        (f"pipeline(Array.from({{ length: {AGENTS} }}), () => agent('task'), () => agent('task'))", 2 * AGENTS),
    ],
    ids=["parallel", "pipeline"],
)
def test_agents_at_once_share_their_writes_reads_and_turns(
    work_of: Callable[..., Ledger], shape: str, calls: int
) -> None:
    ledger = work_of(f"return (await {shape}).length", expect=AGENTS)
    assert ledger.frames(ledger.sent) == {"load": 1, "go": 1, "agent-settled": calls}
    assert ledger.frames(ledger.received) == {"ready": 1, "loaded": 1, "agent": calls, "result": 1}
    # Sixteen run at once: an answer may cost a quarter of what it would alone. (In fact it is about an eighth.)
    assert_at_most(ledger, calls, send=0.25, recv=0.25, turn=0.5, watch=0.25, task=1)


def test_an_agent_call_sends_little_more_than_its_prompt_and_answer(work_of: Callable[..., Ledger]) -> None:
    small = work_of(f"for (let i = 0; i < {AGENTS}; i++) await agent('task'); return 1", expect=1)
    large = work_of(f"for (let i = 0; i < {AGENTS}; i++) await agent('task'.repeat(250)); return 1", expect=1)
    assert len(small.received) <= 50 * AGENTS + 2000
    assert len(small.sent) <= 60 * AGENTS + 2000
    # A prompt of 996 more characters, and its echo in the answer, cross once each.
    assert len(large.received) - len(small.received) <= 1000 * AGENTS
    assert len(large.sent) - len(small.sent) <= 1000 * AGENTS


def test_log_lines_cost_a_frame_each_and_reads_and_turns_only_together(work_of: Callable[..., Ledger]) -> None:
    lines = 5000
    ledger = work_of(f"for (let i = 0; i < {lines}; i++) log('line'); return 1", expect=1)
    assert ledger.frames(ledger.received)["log"] == lines
    assert ledger.counts["send"] == 2
    # A turn handles up to 64 frames; a read may bring fewer, since the worker writes while the host reads.
    assert_at_most(ledger, lines, recv=0.1, turn=0.2, watch=0.1, task=0)


def test_a_large_value_crosses_once_each_way(work_of: Callable[..., Ledger]) -> None:
    size = 2_000_000
    ledger = work_of("return args", args="x" * size, expect="x" * size)
    assert len(ledger.sent) <= size + 1000
    assert len(ledger.received) <= size + 2000
    # In pieces of at least 16 KiB on average, whatever the kernel's buffers are.
    assert_at_most(ledger, size // 16384, send=1, recv=1, turn=2, watch=0.5, task=0)


def test_a_run_without_agents_costs_two_writes_and_a_handful_of_turns(work_of: Callable[..., Ledger]) -> None:
    ledger = work_of("return 1", expect=1)
    assert ledger.frames(ledger.sent) == {"load": 1, "go": 1}
    assert ledger.frames(ledger.received) == {"ready": 1, "loaded": 1, "result": 1}
    assert_at_most(ledger, 0, send=0, recv=0, turn=0, watch=0, task=0)
