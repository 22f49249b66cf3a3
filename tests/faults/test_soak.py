"""Many runs with random kills, cancels and agent faults, and many random frames: nothing leaks, the host never raises.

``--soak N`` and ``--fuzz N`` set how many, ``--fault-seed N`` repeats one. Both print a tally (``-s`` shows it).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import psutil
import pytest

from orchestrator import (
    AbortController,
    AbortSignal,
    AgentFailed,
    AgentRequest,
    AgentResult,
    EngineConfig,
    EventOrderChecker,
    WorkflowEvent,
    WorkflowResult,
    WorkflowStartRequest,
)
from orchestrator.faults import CrashPoint, FakeWorker, FakeWorkerEngine, FaultEngine, Stage, Way
from orchestrator.run import RunDriver
from protocol.errors import WorkflowError
from protocol.messages import Loaded, Ready, encode
from tests.conftest import run_async
from tests.faults.frames import Frames
from tests.support import META

MIB = 1 << 20


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    chosen = request.config.getoption("--fault-seed")
    return random.SystemRandom().randrange(1 << 32) if chosen is None else int(chosen)


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a tally where everybody sees it."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", file=sys.stderr)

    return show


@contextlib.contextmanager
def no_host_exceptions() -> Iterator[None]:
    """Fails on anything the event loop or the engine logs as an error."""
    seen: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(self.format(record))

    handler = Handler(logging.ERROR)
    for name in ("asyncio", "orchestrator"):
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in ("asyncio", "orchestrator"):
            logging.getLogger(name).removeHandler(handler)
    assert not seen, f"{len(seen)} errors of the host, the first: {seen[0]}"


def measure() -> dict[str, int]:
    me = psutil.Process()
    return {
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "children": len(me.children(recursive=True)),
        "tasks": len(asyncio.all_tasks()),
    }


# ------------------------------------------------------------------------------------------------- soak

SCRIPTS = {
    "value": "return args",
    "agents": "return await parallel([1, 2, 3].map(i => () => agent('any')))",
    "pipeline": "return await pipeline([1, 2, 3], () => agent('any'), x => agent('any'), x => x)",
    "unawaited": "agent('any'); agent('any'); return 'early'",
    "narrates": "for (let i = 0; i < 500; i++) { log('line ' + i); if (i % 50 === 0) await null } return 'said'",
    "floods": "for (;;) { log('x'.repeat(1000)); await null }",
    "waits": "log('waiting'); await new Promise(r => setTimeout(r, 1e9))",
    "spins": "log('spinning'); for (;;) {}",
    "stalls": "await new Promise(() => {})",
    "throws": "throw new Error('on purpose')",
    "bad value": "return {when: new Date()}",
    "large": "return 'x'.repeat(300000)",
    "does not parse": "return }",
}
ENDLESS = {"floods", "waits", "spins"}
CHAOS = ["nothing"] * 6 + ["cancel", "signal", "kill", "crash", "crash", "stop", "dispose", "task"]


class Soak:
    """Lanes of runs, one after the other in each, on one engine."""

    def __init__(self, seed: int, runs: int) -> None:
        self.random = random.Random(seed)
        self.left = runs
        self.tally: collections.Counter[str] = collections.Counter()
        self.started = self.disposed = self.events = 0
        self.engine = FaultEngine(
            EngineConfig(
                max_concurrent_agents=3,
                spare_workers=2,
                max_workers=8,
                memory_limit=64 * MIB,
                dispose_grace=0.3,
                run_timeout=5.0,
                max_frame=256 * 1024,
            )
        )
        self.engine.agents.register("default", self)
        self._listeners: dict[str, Callable[[WorkflowEvent], None]] = {}
        self.engine.events.subscribe(self._hear)

    def _hear(self, event: WorkflowEvent) -> None:
        self.events += 1

    # ------------------------------------------------------------ a provider of every temper

    async def start(self, request: AgentRequest) -> Any:
        if (chance := self.random.random()) < 0.05:
            raise RuntimeError("refused")
        if chance < 0.3:
            await asyncio.sleep(self.random.random() * 0.003)
        self.started += 1
        return _SoakRun(self, request)

    # ------------------------------------------------------------ lanes

    async def lane(self) -> None:
        while self.left > 0:
            self.left -= 1
            kind = self.random.choice(list(SCRIPTS))
            chaos = self.random.choice(CHAOS)
            if kind in ENDLESS and chaos == "nothing":
                chaos = "cancel"
            await self.one(kind, chaos)

    async def one(self, kind: str, chaos: str) -> None:
        controller = AbortController()
        request = WorkflowStartRequest(script=SCRIPTS[kind], meta=META, args=[kind], signal=controller.signal)
        disturbing = asyncio.create_task(self.disturb(chaos, controller))
        try:
            result = await self.hold(request, chaos, disturbing)
        finally:
            disturbing.cancel()
            await asyncio.wait({disturbing})
        assert controller.signal.listener_count == 0
        self.tally[self.judge(kind, result)] += 1

    async def hold(
        self, request: WorkflowStartRequest, chaos: str, disturbing: asyncio.Task[None]
    ) -> WorkflowResult | WorkflowError | None:
        async def life() -> WorkflowResult:
            if chaos in ("crash", "stop"):
                stage = self.random.choice([stage for stage in Stage if stage is not Stage.ZYGOTE_STARTING])
                ways = [Way.STOPS_READING] if chaos == "stop" else [way for way in Way if way is not Way.STOPS_READING]
                self.engine.arm(CrashPoint(stage, self.random.choice(ways)))
            # Nothing is between: the point acts on this run, unless it waits for a place. Then another may take it, and
            # one that stops there is ended by a limit.
            async with await self.engine.start(request) as run:
                if chaos == "dispose":
                    await disturbing
                    await run.dispose()
                return await run.result

        task = asyncio.create_task(life())
        if chaos == "task":
            await asyncio.wait({task, disturbing}, return_when=asyncio.FIRST_COMPLETED)
            task.cancel()
        try:
            return await task
        except WorkflowError as error:
            return error
        except asyncio.CancelledError:
            return None

    async def disturb(self, chaos: str, controller: AbortController) -> None:
        await asyncio.sleep(self.random.random() ** 3 * 0.02)
        match chaos:
            case "cancel" | "signal" | "stop":
                controller.abort("soak")
            case "kill":
                about = self.engine.describe()
                victims = [*about.worker_pids, *([about.zygote_pid] if self.random.random() < 0.05 else [])]
                for pid in victims[: self.random.randrange(1, 4)]:
                    with contextlib.suppress(ProcessLookupError, TypeError):
                        os.kill(pid, self.random.choice([signal.SIGKILL, signal.SIGTERM]))  # type: ignore[arg-type]
                controller.abort("soak")  # whichever worker it was, this run must end
            case "crash":
                await asyncio.sleep(0.5)  # the script may never come to the stage
                controller.abort("soak")
            case _:
                pass

    def judge(self, kind: str, result: WorkflowResult | WorkflowError | None) -> str:
        if result is None:
            return "task cancelled"
        if isinstance(result, WorkflowError):
            assert result.code in ("SCRIPT_PARSE", "WORKER_DIED", "CANCELLED"), result
            return f"refused {result.code}"
        assert (result.error is None) == (result.stop_reason == "completed"), result
        assert result.agents_started == result.agents_completed + result.agents_failed + result.agents_cancelled
        if result.stop_reason == "completed":
            assert kind not in ENDLESS, result
            if kind == "value":
                assert result.value == ["value"]
        return f"{result.stop_reason} {result.code or ''}".strip()


class _SoakRun:
    def __init__(self, soak: Soak, request: AgentRequest) -> None:
        self.id = f"child-{request.seq}"
        self._soak = soak
        self._request = request
        self._disposed = False

    @property
    def result(self) -> Any:
        return self._result()

    async def _result(self) -> AgentResult:
        chance = self._soak.random.random()
        if chance < 0.05:
            raise RuntimeError("broke")
        if chance < 0.15:
            raise AgentFailed("no luck")
        if chance < 0.2:
            raise asyncio.CancelledError
        if chance < 0.25:
            await self._request.signal.wait()
        if chance < 0.26:
            await asyncio.sleep(3600)  # deaf to the signal
        if chance < 0.5:
            await asyncio.sleep(self._soak.random.random() * 0.005)
        return AgentResult(text="x" * self._soak.random.choice([1, 100, 100_000]))

    async def dispose(self) -> None:
        assert not self._disposed, "disposed twice"
        self._disposed = True
        self._soak.disposed += 1
        if self._soak.random.random() < 0.05:
            raise RuntimeError("dispose broke")


@pytest.mark.timeout(0)  # bounded below, by the number of runs
def test_a_soak_of_random_faults_leaks_nothing(
    request: pytest.FixtureRequest, seed: int, tell: Callable[[str], None]
) -> None:
    runs = int(request.config.getoption("--soak"))

    async def main() -> str:
        warm_up = max(50, runs // 5)
        began = time.monotonic()
        others = measure()["children"]  # servers that other tests of this session keep
        soak = Soak(seed, warm_up)
        async with soak.engine:
            await asyncio.gather(*(soak.lane() for _ in range(6)))
            before = await settled(soak, others)
            resident = psutil.Process().memory_info().rss
            soak.left = runs
            await asyncio.gather(*(soak.lane() for _ in range(6)))
            after = await settled(soak, others)
            grown = psutil.Process().memory_info().rss - resident
            assert after == before, f"{before} before, {after} after"
            assert soak.started == soak.disposed
            assert grown < 24 * MIB, f"grown by {grown / MIB:.1f} MiB in {runs} runs"
        lines = [f"{count:7} {what}" for what, count in soak.tally.most_common()]
        took = time.monotonic() - began
        head = (
            f"soak, seed {seed}: {warm_up} + {runs} runs in {took:.0f} s, {soak.started} agents, {soak.events} events"
        )
        return "\n".join([head, *lines, f"        left over: nothing ({after}), memory {grown / MIB:+.1f} MiB"])

    async def settled(soak: Soak, others: int) -> dict[str, int]:
        """Once the kernel and the loop have let go of what ended: the zygote and the spares stay."""
        async with await soak.engine.start(WorkflowStartRequest(script="return 1", meta=META)) as run:
            await run.result  # there is a zygote now, whatever was killed
        gc.collect()
        seen = measure()
        for _ in range(1000):
            await asyncio.sleep(0.01)
            about = soak.engine.describe()
            seen = measure()
            ours = seen["children"] - others
            if about.workers_alive == about.spare_workers == 2 and seen["tasks"] == 1 and ours == 3:
                break
        return seen

    with no_host_exceptions():
        try:
            tally = run_async(main(), timeout=120 + runs * 0.5)
        except BaseException:
            tell(f"soak failed: repeat it with --fault-seed {seed} --soak {runs}")
            raise
    tell(tally)


# ------------------------------------------------------------------------------------------------- fuzz

FRAMES_PER_RUN = 25
AFTER_THE_END = 3  # frames a run still gets once it is closed: most would only meet closed runs otherwise
HEADED = "export const meta = {name: 'n', description: 'd'}\n"


async def begun(engine: FakeWorkerEngine, frames: Frames, signal: AbortSignal) -> tuple[asyncio.Task[Any], RunDriver]:
    """A run that has come as far as chance will have it: nothing was heard, it is ready, or its script runs."""
    headed = frames.random.random() < 0.2
    request = WorkflowStartRequest(script=HEADED if headed else "", meta=None if headed else META, signal=signal)
    starting = asyncio.create_task(engine.start(request))
    while not engine._runs:  # noqa: ASYNC110 - a turn of the loop or two
        await asyncio.sleep(0)
    (driver,) = engine._runs
    far = frames.random.choice([0, 1, 2, 2, 2, 2])
    loaded = Loaded(msgspec.Raw(b'{"name":"n","description":"d"}')) if headed else Loaded()
    for message in (Ready(), loaded)[:far]:
        driver.frame_received(encode(message))
    return starting, driver


@pytest.mark.timeout(0)
def test_random_and_mutated_frames_never_raise_in_the_host(
    request: pytest.FixtureRequest, seed: int, tell: Callable[[str], None], events_are_in_order: EventOrderChecker
) -> None:
    """Every frame goes through the driver's own inlet, in whatever state the frames before it left the run."""
    wanted = int(request.config.getoption("--fuzz"))
    tally: collections.Counter[str] = collections.Counter()
    config = EngineConfig(memory_limit=None, spare_workers=0, max_concurrent_agents=2, dispose_grace=0.05)

    async def agent(incoming: AgentRequest) -> str:
        return "ok"

    async def script(worker: FakeWorker) -> None:
        await worker.killed.wait()

    async def one(engine: FakeWorkerEngine, frames: Frames) -> None:
        controller = AbortController()
        starting, driver = await begun(engine, frames, controller.signal)
        beyond = 0
        for frame in frames.some(FRAMES_PER_RUN):
            state = driver.machine.state.name.lower()
            tally[f"frames met by a run that was {state}"] += 1
            driver.frame_received(frame)
            if frames.random.random() < 0.1:
                await asyncio.sleep(0)
            beyond += state in ("closing", "settled")
            if beyond == AFTER_THE_END:
                break
        controller.abort("fuzz")
        try:
            async with await starting as run:
                result = await run.result
        except WorkflowError as error:
            str(error).encode()
            tally[f"refused {error.code}"] += 1
        else:
            str(result.error).encode()
            tally[f"{result.stop_reason} {result.code or ''}".strip()] += 1
        assert controller.signal.listener_count == 0
        engine.pool.workers.clear()  # the test's own records would be the leak
        events_are_in_order.check_complete()
        events_are_in_order._runs.clear()

    def met() -> int:
        return sum(count for what, count in tally.items() if what.startswith("frames"))

    async def main() -> None:
        frames = Frames(seed)
        async with FakeWorkerEngine(script, config) as engine:
            engine.agents.register("default", agent)
            resident = runs = 0
            while met() < wanted:
                await one(engine, frames)
                runs += 1
                if runs == 200:
                    gc.collect()
                    resident = psutil.Process().memory_info().rss
            gc.collect()
            grown = psutil.Process().memory_info().rss - resident if resident else 0
            assert grown < 8 * MIB, f"grown by {grown / MIB:.1f} MiB in {runs} runs"
            tally["runs"] = runs
            tally["memory grown, KiB"] = grown // 1024

    began = time.monotonic()
    with no_host_exceptions():
        try:
            run_async(main(), timeout=120 + wanted * 0.005)
        except BaseException:
            tell(f"fuzz failed: repeat it with --fault-seed {seed} --fuzz {wanted}")
            raise
    lines = [f"{count:7} {what}" for what, count in tally.most_common()]
    tell("\n".join([f"fuzz, seed {seed}: {met()} frames in {time.monotonic() - began:.0f} s", *lines]))
    for state in ("loading", "running", "closing", "settled"):
        assert tally[f"frames met by a run that was {state}"] > wanted // 500, tally
    assert tally["error PROTOCOL"] > wanted // 100, tally


def test_random_bytes_on_the_socket_end_the_run_and_nothing_else(request: pytest.FixtureRequest, seed: int) -> None:
    """The same through the connection: lengths that lie, frames in any chunks, and then the end."""
    streams = max(50, min(10_000, int(request.config.getoption("--fuzz")) // 100))
    frames = Frames(seed)

    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        with contextlib.suppress(OSError):
            for chunk in frames.stream():
                await worker.send_all(chunk)
        worker.exit(frames.random.choice([0, 3, -9, -11]))

    async def agent(incoming: AgentRequest) -> str:
        return "ok"

    async def main() -> None:
        config = EngineConfig(memory_limit=None, spare_workers=0, max_concurrent_agents=2, dispose_grace=0.05)
        async with FakeWorkerEngine(script, config) as engine:
            engine.agents.register("default", agent)
            for _ in range(streams):
                async with await engine.start(WorkflowStartRequest(script="", meta=META)) as run:
                    result = await run.result
                assert result.code in (None, "PROTOCOL", "WORKER_DIED", "SCRIPT_ERROR"), result
                engine.pool.workers.clear()

    with no_host_exceptions():
        run_async(main())


@pytest.mark.parametrize("number", range(3))
def test_frames_of_a_seed_are_always_the_same(number: int) -> None:
    assert list(Frames(number).some(50)) == list(Frames(number).some(50))
    assert any(_is_valid(frame) for frame in Frames(number).some(200))
    assert not all(_is_valid(frame) for frame in Frames(number).some(200))


def _is_valid(frame: bytes) -> bool:
    from protocol.messages import decode_worker_message

    try:
        decode_worker_message(frame)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return True
