"""The driver against a worker that a test plays: every misbehaviour of a worker, without a process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from orchestrator import (
    AbortController,
    AgentRequest,
    EngineConfig,
    WorkflowEvent,
    WorkflowResult,
    WorkflowStartRequest,
)
from orchestrator.faults import FakeWorker, FakeWorkerEngine, FakeWorkerScript
from protocol.errors import ErrorCode, WorkflowError
from protocol.framing import pack_length
from protocol.messages import (
    AgentCalled,
    AgentRejected,
    AgentSettled,
    Loaded,
    LogCalled,
    PhaseCalled,
    Ready,
    Rejected,
    ResultReturned,
    ScriptFailed,
    WallReport,
)
from tests.conftest import run_async
from tests.support import META, scripted_agent

CONFIG = EngineConfig(memory_limit=None, spare_workers=0, max_concurrent_agents=2, dispose_grace=0.05)
RESULT = ResultReturned(msgspec.Raw(b'"done"'))


class Told:
    """What the host told about one run with a fake worker."""

    def __init__(self, result: WorkflowResult, events: list[WorkflowEvent], worker: FakeWorker) -> None:
        self.result = result
        self.types = [event.type.removeprefix("workflow/") for event in events]
        self.worker = worker
        self.outcome = (result.stop_reason, result.code)


def play(
    script: FakeWorkerScript,
    *,
    agent: Any = scripted_agent,
    config: EngineConfig = CONFIG,
    then: Callable[[Any], None] | None = None,
    **request: Any,
) -> Told:
    """Runs one run whose worker follows ``script``. ``then(run)`` is called right after the start."""

    async def main() -> Told:
        events: list[WorkflowEvent] = []
        async with FakeWorkerEngine(script, config) as engine:
            engine.agents.register("default", agent)
            engine.events.subscribe(events.append)
            request.setdefault("meta", META)
            async with await engine.start(WorkflowStartRequest(script="", **request)) as run:
                if then is not None:
                    then(run)
                result = await run.result
            return Told(result, events, engine.pool.workers[0])

    return run_async(main())


async def forever() -> None:
    await asyncio.Event().wait()


# ------------------------------------------------------------------------------------------------- hostile messages


def test_a_whole_run_needs_nothing_but_the_wire() -> None:
    async def script(worker: FakeWorker) -> None:
        load = await worker.begin()
        assert bytes(load.args) == b'{"x":1}'  # type: ignore[arg-type]
        worker.send(PhaseCalled("one"))
        worker.send(LogCalled("hello"))
        worker.send(AgentCalled(1, "look"))
        reply = await worker.receive()
        assert reply == AgentSettled(1, msgspec.Raw(b'"ok:look"'), 0)
        worker.send(RESULT)

    told = play(script, args={"x": 1})
    assert told.result.value == "done"
    assert told.types == ["start", "phase", "log", "agent-start", "agent-end", "end"]


GARBAGE: dict[str, bytes] = {
    "no JSON": b"\x00\xff\x17",
    "bytes that are not text": b'{"type":"log","message":"\xff\xfe"}',
    "JSON of another kind": b"[1,2,3]",
    "no type": b'{"message":"x"}',
    "an unknown type": b'{"type":"please"}',
    "a type of the other direction": b'{"type":"go"}',
    "a number for a text": b'{"type":"log","message":7}',
    "a text over its limit": msgspec.json.encode({"type": "log", "message": "x" * 100_000}),
    "an error over its limit": msgspec.json.encode(
        {"type": "failed", "code": "SCRIPT_ERROR", "message": "x" * 100_000}
    ),
    "a code over its limit": msgspec.json.encode({"type": "failed", "code": "X" * 100, "message": "x"}),
    "a negative seq": b'{"type":"agent","seq":-1,"prompt":"x"}',
    "a seq of zero": b'{"type":"agent","seq":0,"prompt":"x"}',
    "a seq beyond integers": b'{"type":"agent","seq":1e300,"prompt":"x"}',
    "a seq that is not next": b'{"type":"agent","seq":2,"prompt":"x"}',
    "an empty prompt": b'{"type":"agent","seq":1,"prompt":""}',
    "no prompt": b'{"type":"agent","seq":1}',
    "an option nobody knows": b'{"type":"agent","seq":1,"prompt":"x","options":{"shell":true}}',
    "an option of a wrong type": b'{"type":"agent","seq":1,"prompt":"x","options":{"effort":[1]}}',
    "JSON nested a hundred thousand deep": b'{"type":"result","value":' + b"[" * 100_000,
    "a closed value nested that deep": b'{"type":"result","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a result with a hole": b'{"type":"result","value":}',
    "half a message": b'{"type":"log","mess',
    "a second ready": b'{"type":"ready"}',
    "a second loaded": b'{"type":"loaded"}',
    "a late rejection": b'{"type":"rejected","code":"SCRIPT_PARSE","message":"x"}',
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_from_a_worker_ends_its_run_with_protocol_and_nothing_else(what: str) -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.send_frame(GARBAGE[what])
        await worker.killed.wait()

    told = play(script)
    assert told.outcome == ("error", ErrorCode.PROTOCOL)
    assert "the worker broke the protocol" in str(told.result.error)
    assert len(str(told.result.error)) < 600
    assert told.types == ["start", "end"]
    assert told.worker.killed.is_set()


@pytest.mark.parametrize("length", [0, 0xFFFF_FFFF, 0x7FFF_FFFF, 201 << 20])
def test_a_senseless_length_ends_the_run_before_anything_is_allocated(length: int) -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.send_raw(pack_length(length) + b"x")
        await worker.killed.wait()

    told = play(script)
    assert told.outcome == ("error", ErrorCode.PROTOCOL)
    assert f"{length} bytes was announced" in str(told.result.error)


@pytest.mark.parametrize(
    "early",
    [
        LogCalled("x"),
        PhaseCalled("x"),
        AgentCalled(1, "x"),
        RESULT,
        ScriptFailed("SCRIPT_ERROR", "x"),
        Loaded(),
        Rejected("SCRIPT_PARSE", "x"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_before_ready_breaks_the_protocol(early: Any) -> None:
    async def script(worker: FakeWorker) -> None:
        worker.send(early)
        await worker.killed.wait()

    told = play(script)
    assert told.outcome == ("error", ErrorCode.PROTOCOL)
    assert told.types == ["start", "end"]


def test_an_unknown_code_of_a_rejection_is_not_taken_over() -> None:
    async def script(worker: FakeWorker) -> None:
        worker.send(Ready())
        worker.send(Rejected("AGENT_CAP", "made up"))
        await worker.killed.wait()

    with pytest.raises(WorkflowError) as caught:
        play(script)
    assert caught.value.code == ErrorCode.PROTOCOL


def test_missing_walls_refuse_the_start_when_they_are_required() -> None:
    async def script(worker: FakeWorker) -> None:
        worker.send(Ready((WallReport("landlock", False, "too old a kernel"),)))
        await worker.killed.wait()

    config = msgspec.structs.replace(CONFIG, sandbox="required")
    with pytest.raises(WorkflowError, match="landlock"):
        play(script, config=config)


def test_a_second_result_and_everything_after_the_first_is_ignored() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.obeys_kill = False
        worker.send(RESULT)
        worker.send(ResultReturned(msgspec.Raw(b'"other"')))
        worker.send(LogCalled("after the end"))
        worker.send_frame(b"garbage")
        await worker.killed.wait()
        worker.exit(-9)

    told = play(script)
    assert told.result.value == "done"
    assert told.types == ["start", "end"]


# ------------------------------------------------------------------------------------------------- deaths


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20])
def test_a_frame_cut_short_by_death_is_no_message(cut: int) -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        payload = b'{"type":"result","value":"done"}'
        worker.send_raw((pack_length(len(payload)) + payload)[:cut])
        worker.exit(-11)

    told = play(script)
    assert told.outcome == ("error", ErrorCode.WORKER_DIED)
    assert "SIGSEGV" in str(told.result.error)


def test_a_result_that_arrives_with_the_death_stands() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.send(RESULT)
        worker.exit(-9)

    assert play(script).result.value == "done"


def test_a_result_is_read_even_when_the_exit_report_overtakes_it() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.report(0)
        worker.send(RESULT)
        worker.hang_up()

    assert play(script).result.value == "done"


def test_an_exit_without_a_result_is_an_error_even_with_code_zero() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.exit(0)

    told = play(script)
    assert told.outcome == ("error", ErrorCode.WORKER_DIED)
    assert "exited with code 0 before the run settled: it left without a result" in str(told.result.error)


def limited(monkeypatch: pytest.MonkeyPatch, **shorter: float) -> None:
    """Shortens what is no setting."""
    from orchestrator import run as run_module

    limits = run_module.lc.RunLimits
    monkeypatch.setattr(run_module.lc, "RunLimits", lambda **values: limits(**values, **shorter))


def test_a_hang_up_without_a_report_is_a_death_nobody_can_explain(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, exit_report_timeout=0.02)

    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.obeys_kill = False
        worker.hang_up()
        await forever()

    assert play(script).outcome == ("error", ErrorCode.WORKER_DIED)


def test_a_worker_that_died_while_it_was_leased_is_seen_by_its_run() -> None:
    async def script(worker: FakeWorker) -> None:
        worker.exit(-9)

    told = play(script)
    assert told.outcome == ("error", ErrorCode.WORKER_DIED)
    assert "last seen: starting" in str(told.result.error)


def test_a_worker_that_never_answers_the_load_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, load_timeout=0.02)

    async def script(worker: FakeWorker) -> None:
        worker.send(Ready())
        await worker.killed.wait()

    told = play(script)
    assert told.outcome == ("error", ErrorCode.WORKER_DIED)
    assert "had not read the script" in str(told.result.error)


DYING: dict[str, tuple[int, dict[str, Any], str, ErrorCode]] = {
    "code 3": (3, {}, "exited with code 3 before the run settled: it failed inside", ErrorCode.WORKER_DIED),
    "killed": (
        -signal.SIGKILL,
        {},
        "was killed by SIGKILL before the run settled: the system does",
        ErrorCode.WORKER_DIED,
    ),
    "segfault": (
        -signal.SIGSEGV,
        {},
        "SIGSEGV before the run settled: the JavaScript engine crashed",
        ErrorCode.WORKER_DIED,
    ),
    "terminated": (-signal.SIGTERM, {}, "SIGTERM before the run settled: something on this", ErrorCode.WORKER_DIED),
    "a real-time signal": (-40, {}, "was killed by signal 40", ErrorCode.WORKER_DIED),
    "spin": (-signal.SIGPROF, {"cpu_seconds": 5.0}, "without yielding (sync_timeout)", ErrorCode.SCRIPT_TIMEOUT),
    "CPU limit": (-signal.SIGXCPU, {"cpu_seconds": 9.0}, "CPU time of 9 s (cpu_limit", ErrorCode.SCRIPT_TIMEOUT),
    "CPU limit, hard": (-signal.SIGKILL, {"cpu_seconds": 10.0}, "CPU time of 9 s", ErrorCode.SCRIPT_TIMEOUT),
    "memory": (-signal.SIGSEGV, {"peak_memory": 90 << 20}, "limit of 100 MiB", ErrorCode.WORKER_MEMORY),
    "memory, by abort": (-signal.SIGABRT, {"peak_memory": 90 << 20}, "ran out of memory", ErrorCode.WORKER_MEMORY),
    "sandbox": (-signal.SIGSYS, {}, "a system call its sandbox forbids", ErrorCode.WORKER_DIED),
}


@pytest.mark.parametrize("how", DYING)
def test_a_death_says_how_why_what_it_used_and_what_was_last_seen(how: str) -> None:
    code, usage, text, error_code = DYING[how]

    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.send(LogCalled("last words"))
        worker.exit(code, **usage)

    config = msgspec.structs.replace(CONFIG, cpu_limit=9, memory_limit=100 << 20)
    told = play(script, config=config)
    assert told.outcome == ("error", error_code)
    error = str(told.result.error)
    assert text in error
    assert f"peak memory {usage.get('peak_memory', 50 << 20) >> 20} MiB" in error
    assert "CPU time" in error
    assert "last seen: log('last words')" in error


# ------------------------------------------------------------------------------------------------- cancel and dispose


def test_a_cancel_does_not_wait_for_the_process_to_go() -> None:
    """The result is there although the process is not gone; dispose is what waits for that, within its bound."""

    async def main() -> None:
        async def script(worker: FakeWorker) -> None:
            worker.obeys_kill = False
            await worker.begin()
            await forever()

        async with FakeWorkerEngine(script, CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            run = await engine.start(WorkflowStartRequest(script="", meta=META))
            run.cancel("enough")
            assert (await run.result).error == "workflow run cancelled: enough"
            (fake,) = engine.pool.workers
            assert fake.alive
            disposing = asyncio.create_task(run.dispose())
            await asyncio.wait({disposing}, timeout=0.02)
            assert not disposing.done()
            fake.exit(-9)
            await disposing

    run_async(main())


def test_a_cancelled_start_leaves_nothing_and_announces_nothing() -> None:
    async def main() -> None:
        async def script(worker: FakeWorker) -> None:
            worker.send(Ready())
            await worker.receive()
            loading.set()
            await forever()

        loading = asyncio.Event()
        events: list[WorkflowEvent] = []
        controller = AbortController()
        async with FakeWorkerEngine(script, CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(events.append)
            request = WorkflowStartRequest(script="", meta=META, signal=controller.signal)
            starting = asyncio.create_task(engine.start(request))
            await loading.wait()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert controller.signal.listener_count == 0
            assert engine.pool.workers[0].killed.is_set()
        assert events == []

    run_async(main())


def test_a_start_cancelled_in_the_moment_of_its_admission_still_ends_its_run() -> None:
    """workflow/start is out, so workflow/end must follow, and the agent it started by then must go."""

    async def main() -> None:
        aborted: list[str] = []

        async def agent(request: AgentRequest) -> str:
            request.signal.add_listener(aborted.append)
            await forever()
            return ""

        async def script(worker: FakeWorker) -> None:
            await worker.begin()
            worker.send(AgentCalled(1, "work"))
            await worker.killed.wait()

        events: list[WorkflowEvent] = []

        def listen(event: WorkflowEvent) -> None:
            events.append(event)
            if event.type == "workflow/start":
                starting.cancel()

        async with FakeWorkerEngine(script, CONFIG) as engine:
            engine.agents.register("default", agent)
            engine.events.subscribe(listen)
            starting = asyncio.create_task(engine.start(WorkflowStartRequest(script="", meta=META)))
            with pytest.raises(asyncio.CancelledError):
                await starting
        assert [event.type for event in events][-1] == "workflow/end"

    run_async(main())


def test_a_start_cancelled_while_its_worker_dies_lets_go_of_the_callers_signal_at_once() -> None:
    """The run waits for the word of how its worker died, with nobody to hold it: found by the soak."""

    async def main() -> None:
        async def script(worker: FakeWorker) -> None:
            worker.obeys_kill = False
            worker.send(Ready())
            await worker.receive()
            worker.hang_up()
            await forever()

        controller = AbortController()
        async with FakeWorkerEngine(script, CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(lambda event: starting.cancel() if event.type == "workflow/start" else None)
            request = WorkflowStartRequest(script="", meta=META, signal=controller.signal)
            starting = asyncio.create_task(engine.start(request))
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert controller.signal.listener_count == 0
            engine.pool.workers[0].report(-11)

    run_async(main())


def test_closing_the_engine_does_not_wait_for_a_start_that_was_refused() -> None:
    """A refused start never settles as a run does; a close that waits for it would sit out its whole grace."""

    async def main() -> None:
        async def script(worker: FakeWorker) -> None:
            worker.send(Ready())
            await worker.receive()
            loading.set()
            await refuse.wait()
            worker.send(Rejected("SCRIPT_PARSE", "no"))

        loading, refuse = asyncio.Event(), asyncio.Event()
        engine = FakeWorkerEngine(script, msgspec.structs.replace(CONFIG, dispose_grace=1000.0))
        engine.agents.register("default", scripted_agent)
        starting = asyncio.create_task(engine.start(WorkflowStartRequest(script="", meta=META)))
        await loading.wait()
        closing = asyncio.create_task(engine.aclose())
        await asyncio.sleep(0)
        refuse.set()
        with pytest.raises(WorkflowError):
            await starting
        await closing

    run_async(main(), timeout=20)


def test_an_engine_whose_close_is_cancelled_has_killed_its_workers() -> None:
    async def main() -> None:
        async def script(worker: FakeWorker) -> None:
            await worker.begin()
            await forever()

        engine = FakeWorkerEngine(script, msgspec.structs.replace(CONFIG, dispose_grace=1000.0))
        engine.agents.register("default", scripted_agent)
        run = await engine.start(WorkflowStartRequest(script="", meta=META))
        closing = asyncio.create_task(engine.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert engine.pool.alive == 0
        assert (await run.result).stop_reason == "cancelled"

    run_async(main())


def test_a_reply_to_a_worker_that_is_gone_is_dropped_in_silence() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.send(AgentCalled(1, "one"))
        worker.send(AgentCalled(2, "two", options={"effort": "high"}))
        worker.hang_up()
        worker.report(-9)

    told = play(script)
    assert told.outcome == ("error", ErrorCode.WORKER_DIED)


def test_a_refused_call_is_answered_and_the_run_goes_on() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.send(AgentCalled(1, "one", options={"effort": "high"}))
        reply = await worker.receive()
        assert isinstance(reply, AgentRejected)
        assert reply.code == ErrorCode.UNSUPPORTED_OPTION
        worker.send(RESULT)

    assert play(script).result.value == "done"
