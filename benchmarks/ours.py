"""Our engine as a subject: a fresh engine per task, through its public surface alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from statistics import median
from typing import Any, assert_never

from benchmarks.alone import measure_alone
from benchmarks.tasks import (
    Calls,
    Cancel,
    Flood,
    LargeValue,
    LogRate,
    Memory,
    Series,
    StartToResult,
    Task,
    Throughput,
    Walls,
)
from benchmarks.walls import measure_walls
from orchestrator import AgentRequest, EngineConfig, WorkflowEngine, WorkflowResult, WorkflowRun, WorkflowStartRequest

__all__ = ["OurEngine", "large_items"]

_META = {"name": "bench", "description": "a benchmark"}
_BOUND = 120.0  # seconds any one task may take
_TICK = 0.005  # seconds between two turns of the loop while a stall is looked for


def now() -> float:
    """Milliseconds."""
    return time.perf_counter() * 1000


def large_items(count: int) -> list[dict[str, Any]]:
    """About 10 MB of JSON at 100,000: the same objects the script builds in `LargeValue`."""
    return [{"id": i, "name": f"item-{i}", "text": "x" * 62} for i in range(count)]


async def _agent(request: AgentRequest) -> str:
    """Answers at once, except ``hang`` (until the abort) and ``deaf`` (ignores the abort, bounded by the task)."""
    match request.prompt:
        case "hang":
            await request.signal.wait()
        case "deaf":
            deadline = now() + 2000
            while (left := deadline - now()) > 0:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(left / 1000)
        case _:
            pass
    return f"ok:{request.prompt}"


@contextlib.asynccontextmanager
async def _engine(task: Task, **settings: Any) -> AsyncIterator[WorkflowEngine]:
    config = EngineConfig(
        max_concurrent_agents=task.slots,
        max_total_agents=1_000_000,
        max_items_per_call=100_000,
        dispose_grace=task.grace,
        **settings,
    )
    async with WorkflowEngine(config) as engine:
        engine.agents.register("default", _agent)
        yield engine


def _start(engine: WorkflowEngine, script: str, **request: Any) -> Any:
    return engine.start(WorkflowStartRequest(script=script, meta=_META, **request))


def _completed(result: WorkflowResult) -> WorkflowResult:
    if result.stop_reason != "completed":
        raise RuntimeError(f"the measured run did not complete: {result.error}")
    return result


async def _one(engine: WorkflowEngine, script: str = "return 1", **request: Any) -> None:
    async with await _start(engine, script, **request) as run:
        _completed(await run.result)


def _when(engine: WorkflowEngine, kind: str, count: int = 1) -> asyncio.Future[None]:
    """Resolves at the ``count``-th event of a kind."""
    reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen = 0

    def listen(event: Any) -> None:
        nonlocal seen
        if event.type == f"workflow/{kind}":
            seen += 1
            if seen == count and not reached.done():
                reached.set_result(None)

    remove = engine.events.subscribe(listen)
    reached.add_done_callback(lambda _done: remove())
    return reached


def _log_times(engine: WorkflowEngine) -> list[float]:
    times: list[float] = []
    engine.events.subscribe(lambda event: times.append(now()) if event.type == "workflow/log" else None)
    return times


class OurEngine:
    """Measures in this process, but memory in a fresh one; workers are where they always are.

    Args:
        alone: this process is that fresh one.
    """

    name = "ours"

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone

    async def measure(self, task: Task) -> Series:
        async with asyncio.timeout(_BOUND):
            match task:
                case StartToResult():
                    return await self._start_to_result(task)
                case Throughput():
                    return await self._throughput(task)
                case Calls():
                    return await self._calls(task)
                case LogRate():
                    return await self._log_rate(task)
                case LargeValue():
                    return await self._large_value(task)
                case Cancel():
                    return await self._cancel(task)
                case Memory():
                    return await (self._memory(task) if self._alone else measure_alone(task))
                case Flood():
                    return await self._flood(task)
                case Walls():
                    return await measure_walls(task.runs)
                case _:
                    assert_never(task)

    async def close(self) -> None:
        """Nothing outlives a task."""

    async def _start_to_result(self, task: StartToResult) -> Series:
        if task.temperature == "cold":
            return {"result": [await self._cold(task) for _ in range(task.runs)]}
        results: list[float] = []
        disposes: list[float] = []
        async with _engine(task, sandbox=task.sandbox, spare_workers=0 if task.temperature == "fork" else 2) as engine:
            await _one(engine)
            for _ in range(task.runs):
                await asyncio.sleep(task.pause)
                before = now()
                run = await _start(engine, "return 1")
                _completed(await run.result)
                after = now()
                await run.dispose()
                disposes.append(now() - after)
                results.append(after - before)
        return {"result": results, "dispose": disposes}

    async def _cold(self, task: StartToResult) -> float:
        before = now()
        async with _engine(task) as engine, await _start(engine, "return 1") as run:
            _completed(await run.result)
            return now() - before

    async def _throughput(self, task: Throughput) -> Series:
        async with _engine(task, spare_workers=max(2, task.at_once)) as engine:
            for _ in range(3):
                await _one(engine)
            left = task.runs

            async def lane() -> None:
                nonlocal left
                while left > 0:
                    left -= 1
                    await _one(engine)

            before = now()
            await asyncio.gather(*(lane() for _ in range(task.at_once)))
            return {"rate": [task.runs / (now() - before) * 1000]}

    async def _calls(self, task: Calls) -> Series:
        async with _engine(task) as engine:
            await _one(engine)
            times = _log_times(engine)
            before = now()
            await _one(engine, task.script)
            total = now() - before
        return {"per_call": [(times[-1] - times[0]) * 1000 / task.calls], "total": [total]}

    async def _log_rate(self, task: LogRate) -> Series:
        async with _engine(task) as engine:
            await _one(engine)
            times = _log_times(engine)
            await _one(engine, f"for (let i = 0; i < {task.events}; i++) log('line ' + i); return 1")
        if len(times) != task.events:
            raise RuntimeError(f"{len(times)} of {task.events} log events arrived")
        return {"rate": [task.events / (times[-1] - times[0]) * 1000]}

    async def _large_value(self, task: LargeValue) -> Series:
        async with _engine(task) as engine:
            await _one(engine)
            times = _log_times(engine)
            items = large_items(task.items)
            if task.direction == "result":
                item = "{ id: i, name: 'item-' + i, text: 'x'.repeat(62) }"
                build = f"Array.from({{ length: {task.items} }}, (_, i) => ({item}))"
                before = now()
                run = await _start(engine, f"const v = {build}; log('built'); return v")
            else:
                before = now()
                run = await _start(engine, "return args.length", args=items)
            started = now()
            async with run:
                result = _completed(await run.result)
                after = now()
            if result.value != (items if task.direction == "result" else task.items):
                raise RuntimeError("the value that came back is not the one that was sent")
        series = {"total": [after - before], "start": [started - before]}
        if times:
            series["built"] = [after - times[0]]
        return series

    async def _cancel(self, task: Cancel) -> Series:
        cancels: list[float] = []
        disposes: list[float] = []
        async with _engine(task) as engine:
            await _one(engine)
            for _ in range(task.runs):
                ready = _when(engine, task.ready)
                run = await _start(engine, task.script)
                await ready
                await asyncio.sleep(task.settle)
                if task.cancel:
                    before = now()
                    run.cancel("benchmark")
                    result = await run.result
                    cancels.append(now() - before)
                    if result.stop_reason != "cancelled":
                        raise RuntimeError(f"a cancelled run ended as {result.stop_reason}")
                before = now()
                await run.dispose()
                disposes.append(now() - before)
        return {"cancel": cancels, "dispose": disposes} if task.cancel else {"dispose": disposes}

    async def _memory(self, task: Memory) -> Series:
        # A worker cannot be inspected by its own user while the sandbox forbids it, unless that user is root.
        try:
            return await self._memory_of(task, "auto")
        except PermissionError:
            return await self._memory_of(task, "off")

    async def _memory_of(self, task: Memory, sandbox: str) -> Series:
        async with _engine(task, sandbox=sandbox, spare_workers=0) as engine:
            await _one(engine)
            base = _memory_of_process("self")
            all_live = _when(engine, "agent-start", task.live)
            before = now()
            runs: list[WorkflowRun] = []
            try:
                async with asyncio.TaskGroup() as group:
                    starts = [group.create_task(_start(engine, "await agent('hang')")) for _ in range(task.live)]
                runs = [start.result() for start in starts]
                await all_live
                started = now() - before
                workers = [_memory_of_process(pid) for pid in engine.describe().worker_pids]
                host = _memory_of_process("self")
            finally:
                before = now()
                for run in runs:
                    run.cancel("benchmark")
                await asyncio.gather(*(run.dispose() for run in runs))
            ended = now() - before
            if len(workers) != task.live or engine.describe().workers_alive:
                raise RuntimeError(f"{len(workers)} workers served {task.live} runs, some are left")
        return {
            "pss": [(sum(pss for pss, _ in workers) + host[0] - base[0]) / task.live],
            "private": [(sum(private for _, private in workers) + host[1] - base[1]) / task.live],
            "start": [started],
            "end": [ended],
        }

    async def _flood(self, task: Flood) -> Series:
        async with _engine(task) as engine:
            engine.events.subscribe(lambda _event: None)
            calm = await _latencies(engine, lambda done: done >= 10)
            ready = _when(engine, "log", 1000)
            worst = 0.0

            async def turn() -> None:
                nonlocal worst
                last = now()
                while True:
                    await asyncio.sleep(_TICK)
                    worst = max(worst, now() - last - _TICK * 1000)
                    last = now()

            async with await _start(engine, "await agent('task'); for (;;) log('x')"):
                await ready
                turning = asyncio.create_task(turn())
                end = now() + task.seconds * 1000
                flooded = await _latencies(engine, lambda done: done >= 100 or now() > end)
                turning.cancel()
                await asyncio.wait({turning})
        return {"other": [sample - median(calm) for sample in flooded], "stall": [worst]}


async def _latencies(engine: WorkflowEngine, enough: Callable[[int], bool]) -> list[float]:
    samples: list[float] = []
    while not enough(len(samples)):
        await asyncio.sleep(0.02)
        before = now()
        async with await _start(engine, "return 1") as run:
            _completed(await run.result)
            samples.append(now() - before)
    return samples


def _memory_of_process(pid: int | str) -> tuple[float, float]:
    """Proportional and private resident memory in MiB."""
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0])
    return fields["Pss"] / 1024, (fields["Private_Clean"] + fields["Private_Dirty"]) / 1024
