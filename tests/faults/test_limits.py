"""Every limit ends the run that reaches it, says which limit it was, and touches no other run."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from orchestrator import (
    AgentRequest,
    AgentResult,
    EngineConfig,
    WorkflowEngine,
    WorkflowError,
    WorkflowResult,
    WorkflowStartRequest,
)
from protocol.errors import ErrorCode
from tests.conftest import run_async
from tests.support import META

MIB = 1 << 20
SMALL = EngineConfig(
    max_concurrent_agents=4,
    spare_workers=0,
    sync_timeout=0.2,
    memory_limit=64 * MIB,
    max_frame=256 * 1024,
    max_depth=50,
    max_total_agents=3,
    max_items_per_call=5,
    token_budget=None,
)
NESTED = "let v = 1; for (let i = 0; i < {depth}; i++) v = [v]; return v"

LIMITS: dict[str, tuple[str, ErrorCode, str]] = {
    "slice: a loop": ("for (;;) {}", ErrorCode.SCRIPT_TIMEOUT, "sync_timeout"),
    "slice: after a yield": ("await null; for (;;) {}", ErrorCode.SCRIPT_TIMEOUT, "sync_timeout"),
    "slice: after an agent": ("await agent('x'); for (;;) {}", ErrorCode.SCRIPT_TIMEOUT, "sync_timeout"),
    "slice: in a timer": (
        "setTimeout(() => { for (;;) {} }); await new Promise(() => {})",
        ErrorCode.SCRIPT_TIMEOUT,
        "",
    ),
    "slice: a regular expression": (
        "await agent('x'); return /^(a+)+$/.test('a'.repeat(40) + '!')",
        ErrorCode.SCRIPT_TIMEOUT,
        "sync_timeout",
    ),
    "slice: jobs without end": ("for (;;) await null", ErrorCode.SCRIPT_TIMEOUT, "sync_timeout"),
    "slice: thenables without end": (
        "const t = {then(r) { r(t) }}; await t",
        ErrorCode.SCRIPT_TIMEOUT,
        "sync_timeout",
    ),
    "slice: a sort that never ends": (
        "[3, 2, 1].sort(() => { for (;;) {} }); return 1",
        ErrorCode.SCRIPT_TIMEOUT,
        "sync_timeout",
    ),
    "slice: reading the result": ("return {get x() { for (;;) {} }}", ErrorCode.SCRIPT_TIMEOUT, "sync_timeout"),
    "memory: arrays": ("const a = []; for (;;) a.push(new Array(1e5).fill(1))", ErrorCode.WORKER_MEMORY, "memory"),
    "memory: one array": ("return new Array(1e8).fill(7).length", ErrorCode.WORKER_MEMORY, "memory"),
    "memory: strings": ("const a = []; for (;;) a.push('x'.repeat(1e6) + a.length)", ErrorCode.WORKER_MEMORY, "memory"),
    "memory: typed arrays": (
        "const a = []; for (;;) a.push(new Uint8Array(8e6).fill(7))",
        ErrorCode.WORKER_MEMORY,
        "memory",
    ),
    "memory: a map": ("const m = new Map(); for (let i = 0;; i++) m.set(i, {i})", ErrorCode.WORKER_MEMORY, "memory"),
    "memory: closures": (
        "let f = () => 0; for (let i = 0;; i++) { const g = f; f = () => g }",
        ErrorCode.WORKER_MEMORY,
        "memory",
    ),
    "frame: the result": ("return 'x'.repeat(300000)", ErrorCode.RESULT_UNSERIALIZABLE, "limit of 262144 bytes"),
    "frame: many small values": (
        "return Array(100000).fill('abc')",
        ErrorCode.RESULT_UNSERIALIZABLE,
        "limit of 262144 bytes",
    ),
    "frame: a prompt": ("await agent('x'.repeat(300000))", ErrorCode.INVALID_ARGUMENT, "limit of 262144 bytes"),
    "depth: the result": (NESTED.replace("{depth}", "51"), ErrorCode.RESULT_UNSERIALIZABLE, "deeper than 50 levels"),
    "depth: far beyond": (NESTED.replace("{depth}", "1e6"), ErrorCode.RESULT_UNSERIALIZABLE, "deeper than 50 levels"),
    "recursion": ("const f = () => f() + 1; return f()", ErrorCode.SCRIPT_ERROR, "too much recursion"),
    "agents": ("for (let i = 0; i < 9; i++) await agent('x')", ErrorCode.AGENT_CAP, "total agent cap (3)"),
    "items": ("await parallel(Array(6).fill(async () => 1))", ErrorCode.ITEM_CAP, "received 6 items"),
}


async def _agent(request: AgentRequest) -> str:
    if request.prompt == "neighbour":
        await request.parent.wait()
    return "ok"


def beside_a_neighbour(script: str, config: EngineConfig = SMALL) -> WorkflowResult:
    """Runs ``script`` while another run is in the middle of an agent call; the other one must not notice."""

    async def main() -> WorkflowResult:
        async with WorkflowEngine(config) as engine:
            engine.agents.register("default", _agent)

            def request(body: str, **fields: Any) -> WorkflowStartRequest:
                return WorkflowStartRequest(script=body, meta=META, **fields)

            release = asyncio.Event()
            neighbour = "const a = await agent('neighbour'); return [a, await agent('again')]"
            async with await engine.start(request(neighbour, parent=release)) as other:
                async with await engine.start(request(script)) as run:
                    result = await run.result
                assert not other.result.done()  # type: ignore[attr-defined]
                release.set()
                assert (await other.result).value == ["ok", "ok"]
            async with await engine.start(request("return args", args="next")) as following:
                assert (await following.result).value == "next"
            return result

    return run_async(main())


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_ends_only_the_run_that_reaches_it_and_is_named(limit: str) -> None:
    script, code, text = LIMITS[limit]
    patient = limit.startswith("memory")  # filling it takes longer than a slice of the others may
    result = beside_a_neighbour(script, msgspec.structs.replace(SMALL, sync_timeout=20.0) if patient else SMALL)
    assert (result.stop_reason, result.code) == ("error", code), result
    assert text in str(result.error)


def test_the_wall_clock_of_a_run_is_limited_also_while_it_waits() -> None:
    config = EngineConfig(run_timeout=0.3, spare_workers=0, max_concurrent_agents=2)

    async def main() -> None:
        async with WorkflowEngine(config) as engine:
            engine.agents.register("default", _agent)
            for script in ("await new Promise(r => setTimeout(r, 1e9))", "await agent('neighbour')", "for (;;) {}"):
                request = WorkflowStartRequest(script=script, meta=META, parent=asyncio.Event())
                async with await engine.start(request) as run:
                    result = await run.result
                assert (result.stop_reason, result.code) == ("error", ErrorCode.SCRIPT_TIMEOUT)
                assert "its limit of 0.3 s (run_timeout)" in str(result.error)

    run_async(main())


def test_the_cpu_time_of_a_run_is_limited_over_all_its_slices() -> None:
    """Each slice is short; together they are too much."""
    script = "for (;;) { const end = Date.now() + 20; while (Date.now() < end) {} await agent('x') }"
    config = EngineConfig(cpu_limit=1, spare_workers=0, max_concurrent_agents=4, max_total_agents=10_000)
    result = beside_a_neighbour(script, config)
    assert result.code == ErrorCode.SCRIPT_TIMEOUT
    assert "CPU time of 1 s (cpu_limit" in str(result.error)


def test_a_script_may_catch_what_it_ran_out_of_and_go_on() -> None:
    script = """
    let caught;
    try { const f = () => f() + 1; f() } catch (e) { caught = e.name }
    return [caught, await agent('x')]
    """
    assert beside_a_neighbour(script).value == ["InternalError", "ok"]


def test_depth_up_to_the_limit_is_no_error() -> None:
    result = beside_a_neighbour(NESTED.replace("{depth}", "50"))
    assert result.stop_reason == "completed"


def test_what_is_said_before_a_spin_is_heard_and_named_in_its_death() -> None:
    result = beside_a_neighbour("log('last words'); for (;;) {}")
    assert "last seen: log('last words')" in str(result.error)


@pytest.mark.parametrize("depth", [1000, 5000, 100_000])
def test_arguments_and_answers_nested_too_deeply_are_one_clear_error(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]

    async def deep(request: AgentRequest) -> Any:
        return AgentResult(structured=value)

    async def main() -> None:
        async with WorkflowEngine(SMALL) as engine:
            engine.agents.register("default", deep)
            with pytest.raises(WorkflowError) as caught:
                await engine.start(WorkflowStartRequest(script="return 1", meta=META, args=value))
            assert caught.value.code == ErrorCode.INVALID_ARGUMENT
            script = "return await agent('x', {schema: {type: 'object'}})"
            async with await engine.start(WorkflowStartRequest(script=script, meta=META)) as run:
                result = await run.result
            assert result.code == ErrorCode.AGENT_RESULT

    run_async(main())
