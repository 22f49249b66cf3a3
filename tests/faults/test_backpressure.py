"""Floods in both directions: memory stays bounded, and only the run that floods feels it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

import msgspec
import psutil
import pytest

from orchestrator import AgentRequest, EngineConfig, LogWritten, WorkflowEngine, WorkflowEvent, WorkflowStartRequest
from orchestrator.bus import CONGESTED_AT
from orchestrator.faults import FakeWorker, FakeWorkerEngine
from protocol.errors import ErrorCode
from protocol.framing import pack_length
from protocol.messages import AgentCalled, AgentSettled, LogCalled, ResultReturned, encode
from tests.conftest import run_async
from tests.support import META, run_script, scripted_agent

CONFIG = EngineConfig(max_concurrent_agents=2, spare_workers=0, dispose_grace=0.05)
FLOOD = "for (let i = 0; ; i++) log(`${i} ` + 'x'.repeat(1000))"
MIB = 1 << 20


def request(script: str, **fields: Any) -> WorkflowStartRequest:
    return WorkflowStartRequest(script=script, meta=META, **fields)


# ------------------------------------------------------------------------------------------------- listeners


def test_ten_thousand_large_messages_reach_a_slow_listener_in_order_with_few_in_memory() -> None:
    async def main() -> None:
        emitted = handled = furthest = 0
        seen: list[int] = []

        def count(event: WorkflowEvent) -> None:
            nonlocal emitted, furthest
            emitted += 1
            furthest = max(furthest, emitted - handled)

        async def slow(event: WorkflowEvent) -> None:
            nonlocal handled
            await asyncio.sleep(0)
            handled += 1
            if isinstance(event, LogWritten):
                seen.append(int(event.message.split(" ", 1)[0]))

        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(count)
            engine.events.subscribe(slow)
            resident = psutil.Process().memory_info().rss
            flood = "for (let i = 0; i < 10000; i++) log(`${i} ` + 'x'.repeat(10000)); return 'all said'"
            async with await engine.start(request(flood)) as run:
                assert (await run.result).value == "all said"
                grown = psutil.Process().memory_info().rss - resident
        assert seen == list(range(10_000))
        assert furthest < CONGESTED_AT + 200
        assert grown < 64 * MIB  # of 100 MB that passed

    run_async(main())


def test_a_run_is_not_held_back_by_the_flood_of_another_run() -> None:
    """The listener does not take a single event until the quiet run is over: order, not time, is what is tested."""

    async def main() -> None:
        release = asyncio.Event()

        async def blocked(event: WorkflowEvent) -> None:
            await release.wait()

        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            flooding_events = 0

            def count(event: WorkflowEvent) -> None:
                nonlocal flooding_events
                flooding_events += isinstance(event, LogWritten)
                if flooding_events == CONGESTED_AT:
                    congested.set()

            congested = asyncio.Event()
            engine.events.subscribe(count)
            engine.events.subscribe(blocked)
            async with await engine.start(request(FLOOD)) as flooding:
                await congested.wait()
                async with await engine.start(request("log('a'); return await agent('quiet')")) as quiet:
                    assert (await quiet.result).value == "ok:quiet"
                assert not flooding.result.done()  # type: ignore[attr-defined]
                flooding.cancel("enough")
                assert (await flooding.result).stop_reason == "cancelled"
            assert flooding_events < CONGESTED_AT + 200
            release.set()

    run_async(main())


def test_a_flood_without_listeners_is_cancelled_at_once() -> None:
    async def main() -> None:
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            said = asyncio.Event()
            engine.events.subscribe(lambda event: said.set() if isinstance(event, LogWritten) else None)
            async with await engine.start(request(FLOOD)) as run:
                await said.wait()
                run.cancel("enough")
                assert run.result.done()  # type: ignore[attr-defined]  # nothing was waited for
                assert (await run.result).code == ErrorCode.CANCELLED

    run_async(main())


@pytest.mark.parametrize("ending", ["cancel", "dispose", "worker killed"])
@pytest.mark.parametrize("yielding", ["", "; await null"])
@pytest.mark.parametrize("hook", ["log", "phase"])
def test_a_flood_of_any_kind_ends_when_it_is_told_to_and_other_runs_go_on(
    hook: str, yielding: str, ending: str
) -> None:
    async def main() -> None:
        events: list[WorkflowEvent] = []
        async with WorkflowEngine(msgspec.structs.replace(CONFIG, sync_timeout=30.0)) as engine:
            engine.agents.register("default", scripted_agent)
            said = asyncio.Event()

            def listen(event: WorkflowEvent) -> None:
                events.append(event)
                if event.type == f"workflow/{hook}":
                    said.set()

            engine.events.subscribe(listen)
            flood = f"for (let i = 0; ; i++) {{ {hook}(`${{i}} ` + 'x'.repeat(200)){yielding} }}"
            async with await engine.start(request(flood)) as flooding:
                await said.wait()
                async with await engine.start(request("return await agent('quiet')")) as quiet:
                    assert (await quiet.result).value == "ok:quiet"
                assert not flooding.result.done()  # type: ignore[attr-defined]
                match ending:
                    case "cancel":
                        flooding.cancel("enough")
                    case "dispose":
                        await flooding.dispose()
                    case _:
                        for pid in engine.describe().worker_pids:
                            os.kill(pid, signal.SIGKILL)
                result = await flooding.result
            assert result.stop_reason == ("error" if ending == "worker killed" else "cancelled")
            mine = [event for event in events if event.run.id == flooding.id]
            assert mine[-1].type == "workflow/end"
            if ending == "worker killed":
                assert f"last seen: {hook}(" in str(result.error)

    run_async(main())


def test_an_events_iterator_that_is_not_read_holds_its_run_back_and_loses_nothing() -> None:
    async def main() -> None:
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            emitted = 0

            def count(event: WorkflowEvent) -> None:
                nonlocal emitted
                emitted += 1
                if emitted == CONGESTED_AT:
                    congested.set()

            congested = asyncio.Event()
            engine.events.subscribe(count)
            script = "for (let i = 0; i < 5000; i++) { log(`${i}`); await null } return 1"
            async with await engine.start(request(script)) as run:
                stream = run.events()
                await congested.wait()
                said = [event.message async for event in stream if isinstance(event, LogWritten)]
                assert said == [str(number) for number in range(5000)]
                assert (await run.result).value == 1

    run_async(main())


def test_a_listener_that_raises_starves_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        heard: list[str] = []

        def raises(event: WorkflowEvent) -> None:
            raise RuntimeError("the listener broke")

        async def fails(event: WorkflowEvent) -> None:
            raise RuntimeError("the listener's coroutine broke")

        def cancelled(event: WorkflowEvent) -> None:
            raise asyncio.CancelledError

        async def cancels_itself(event: WorkflowEvent) -> None:
            raise asyncio.CancelledError

        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            for listener in (raises, fails, cancelled, cancels_itself):
                engine.events.subscribe(listener)
            engine.events.subscribe(lambda event: heard.append(event.type.removeprefix("workflow/")))
            async with await engine.start(request("log('a'); phase('b'); return await agent('x')")) as run:
                assert (await run.result).value == "ok:x"
        assert heard == ["start", "log", "phase", "agent-start", "agent-end", "end"]

    with caplog.at_level(logging.CRITICAL, logger="orchestrator.bus"):
        run_async(main())


def test_a_listener_that_never_returns_loses_narration_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("orchestrator.run._STUCK_AFTER", 0.05)

    async def main() -> None:
        async def stuck(event: WorkflowEvent) -> None:
            await asyncio.Event().wait()

        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(stuck)
            flood = "for (let i = 0; i < 20000; i++) log('x'); return await agent('after')"
            async with await engine.start(request(flood)) as run:
                assert (await run.result).value == "ok:after"

    run_async(main())
    assert any("is stuck and loses log and phase events" in record.message for record in caplog.records)


# ------------------------------------------------------------------------------------------------- the other direction


def test_no_more_agents_start_for_a_worker_that_does_not_read_its_answers() -> None:
    """Each answer is a megabyte; the calls are all there from the beginning."""
    calls = 40
    started: list[int] = []
    ready_to_read = asyncio.Event()

    async def agent(incoming: AgentRequest) -> str:
        started.append(incoming.seq)
        return "x" * MIB

    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        for seq in range(1, calls + 1):
            worker.send(AgentCalled(seq, "large"))
        await ready_to_read.wait()
        for _ in range(calls):
            assert isinstance(await worker.receive(), AgentSettled)
        worker.send(ResultReturned(msgspec.Raw(b"1")))

    async def main() -> None:
        async with FakeWorkerEngine(script, msgspec.structs.replace(CONFIG, memory_limit=None)) as engine:
            engine.agents.register("default", agent)
            async with await engine.start(request("")) as run:
                count = -1
                while count != len(started) or not started:  # until nothing moves any more
                    count = len(started)
                    for _ in range(50):
                        await asyncio.sleep(0)
                assert 4 <= len(started) <= 8
                ready_to_read.set()
                assert (await run.result).agents_completed == calls

    run_async(main())


def test_a_worker_that_does_not_read_is_cancelled_like_any_other() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        for seq in range(1, 9):
            worker.send(AgentCalled(seq, "large"))
        await worker.killed.wait()

    async def agent(incoming: AgentRequest) -> str:
        if incoming.seq == 5:
            fifth.set()
        return "x" * MIB

    async def main() -> None:
        async with FakeWorkerEngine(script, msgspec.structs.replace(CONFIG, memory_limit=None)) as engine:
            engine.agents.register("default", agent)
            async with await engine.start(request("")) as run:
                await fifth.wait()
                run.cancel("enough")
                assert (await run.result).stop_reason == "cancelled"

    fifth = asyncio.Event()
    run_async(main())


def test_a_worker_that_dies_while_it_is_sent_ten_megabytes() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        worker.send(AgentCalled(1, "large"))
        await worker.receive_bytes(1000)  # the first bytes of the answer
        worker.exit(-9)

    async def agent(incoming: AgentRequest) -> str:
        return "x" * (10 * MIB)

    async def main() -> None:
        async with FakeWorkerEngine(script, msgspec.structs.replace(CONFIG, memory_limit=None)) as engine:
            engine.agents.register("default", agent)
            async with await engine.start(request("")) as run:
                assert (await run.result).code == ErrorCode.WORKER_DIED

    run_async(main())


def test_a_worker_that_dies_with_its_last_words_unread_is_heard_to_the_end() -> None:
    async def script(worker: FakeWorker) -> None:
        await worker.begin()
        frames = [encode(LogCalled(str(number))) for number in range(300)]
        await worker.send_all(b"".join(pack_length(len(frame)) + frame for frame in frames))
        worker.exit(-9)

    async def main() -> None:
        events: list[WorkflowEvent] = []
        async with FakeWorkerEngine(script, msgspec.structs.replace(CONFIG, memory_limit=None)) as engine:
            engine.agents.register("default", scripted_agent)
            engine.events.subscribe(events.append)
            async with await engine.start(request("")) as run:
                assert "last seen: log('299')" in str((await run.result).error)
        assert sum(isinstance(event, LogWritten) for event in events) == 300

    run_async(main())


# ------------------------------------------------------------------------------------------------- large values


def test_ten_megabytes_pass_both_ways() -> None:
    text = "é" * (5 * MIB)
    ran = run_script("return [args, await agent('big')]", args=text, agent=_answers("y" * (10 * MIB)))
    assert ran.result.value == [text, "y" * (10 * MIB)]


@pytest.mark.parametrize("value", ["'x'.repeat(100 << 20)", "Array(3000).fill('y'.repeat(40000))"])
def test_a_result_of_a_hundred_megabytes_is_refused_with_the_limit(value: str) -> None:
    ran = run_script(f"return {value}")
    assert ran.result.code == ErrorCode.RESULT_UNSERIALIZABLE
    assert "workflow result is over the limit of 67108864 bytes for one message" in str(ran.result.error)


def test_an_agents_answer_of_a_hundred_megabytes_breaks_that_agent_with_the_limit() -> None:
    ran = run_script("return await agent('big')", agent=_answers("y" * (100 * MIB)))
    assert ran.result.code == ErrorCode.AGENT_RESULT
    assert "over the limit of 67108864 (max_frame)" in str(ran.result.error)


def test_a_prompt_over_the_limit_is_refused_and_the_script_goes_on() -> None:
    script = "try { await agent('x'.repeat(200000)) } catch (e) { return e.code }"
    ran = run_script(script, config=EngineConfig(max_frame=64 * 1024, spare_workers=0))
    assert ran.result.value == "INVALID_ARGUMENT"


def _answers(text: str) -> Any:
    async def agent(incoming: AgentRequest) -> str:
        return text

    return agent
