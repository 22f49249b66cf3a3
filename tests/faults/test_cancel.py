"""One channel of cancellation: caller's signal, ``cancel()`` and the host's own tasks all lead to the same end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from orchestrator import (
    AbortController,
    AgentRequest,
    EngineConfig,
    WorkflowEngine,
    WorkflowEvent,
    WorkflowRun,
    WorkflowStartRequest,
)
from protocol.errors import ErrorCode, WorkflowError
from tests.conftest import run_async
from tests.support import META, scripted_agent

CONFIG = EngineConfig(max_concurrent_agents=2, spare_workers=0, dispose_grace=0.2)
HANGS = "return await agent('hang')"
SPINS = "log('spinning'); for (;;) {}"
HEADER = "export const meta = {name: 'n', description: 'd'}\n"


def request(script: str, **fields: Any) -> WorkflowStartRequest:
    return WorkflowStartRequest(script=script, **({"meta": META} | fields))


class Watched:
    """An engine whose events are kept, and can be waited for by type."""

    def __init__(self, config: EngineConfig = CONFIG, agent: Any = scripted_agent) -> None:
        self.engine = WorkflowEngine(config)
        self.engine.agents.register("default", agent)
        self.engine.events.subscribe(self._hear)
        self.events: list[WorkflowEvent] = []
        self._heard: dict[str, asyncio.Event] = {}

    def _hear(self, event: WorkflowEvent) -> None:
        self.events.append(event)
        self._event(event.type).set()

    def _event(self, kind: str) -> asyncio.Event:
        return self._heard.setdefault(kind, asyncio.Event())

    async def heard(self, kind: str) -> None:
        await self._event(f"workflow/{kind}").wait()

    @property
    def types(self) -> list[str]:
        return [event.type.removeprefix("workflow/") for event in self.events]

    async def __aenter__(self) -> Watched:
        await self.engine.__aenter__()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.engine.aclose()


# ------------------------------------------------------------------------------------------------- the caller's signal


@pytest.mark.parametrize("script", [HANGS, SPINS])
def test_an_abort_of_the_callers_signal_cancels_with_its_reason_to_follow(script: str) -> None:
    async def main() -> None:
        async with Watched() as watched:
            controller = AbortController()
            async with await watched.engine.start(request(script, signal=controller.signal)) as run:
                await watched.heard("log" if script is SPINS else "agent-start")
                controller.abort("the user left")
                result = await run.result
            assert (result.stop_reason, result.code) == ("cancelled", ErrorCode.CANCELLED)
            assert controller.signal.listener_count == 0

    run_async(main())


@pytest.mark.parametrize("how", ["abort", "cancel"])
def test_a_cancel_from_another_thread(how: str) -> None:
    async def main() -> None:
        async with Watched() as watched:
            controller = AbortController()
            async with await watched.engine.start(request(HANGS, signal=controller.signal)) as run:
                await watched.heard("agent-start")
                stop = controller.abort if how == "abort" else run.cancel
                thread = threading.Thread(target=stop, args=("from elsewhere",))
                thread.start()
                assert (await run.result).stop_reason == "cancelled"
                thread.join()
            assert controller.signal.listener_count == 0

    run_async(main())


@pytest.mark.parametrize("kind", ["start", "log", "phase", "agent-start"])
def test_a_cancel_from_a_listener(kind: str) -> None:
    """In the middle of the handling of the very event."""

    async def main() -> None:
        async with Watched() as watched:
            controller = AbortController()

            def stop(event: WorkflowEvent) -> None:
                if event.type == f"workflow/{kind}":
                    controller.abort("a listener had enough")

            watched.engine.events.subscribe(stop)
            script = "log('a'); phase('b'); return await agent('hang')"
            async with await watched.engine.start(request(script, signal=controller.signal)) as run:
                assert (await run.result).stop_reason == "cancelled"
            assert watched.types[-1] == "end"
            assert watched.types.count(kind) == 1

    run_async(main())


def test_a_cancel_from_the_agent_itself() -> None:
    async def main() -> None:
        live: list[WorkflowRun] = []

        async def agent(incoming: AgentRequest) -> str:
            live[0].cancel("the agent had enough")
            await asyncio.Event().wait()
            return ""

        async with Watched(agent=agent) as watched:
            script = "await new Promise(r => setTimeout(r, 1)); return await agent('x')"
            async with await watched.engine.start(request(script)) as run:
                live.append(run)
                assert (await run.result).error == "workflow run cancelled: the agent had enough"

    run_async(main())


def test_agents_get_the_runs_own_signal_and_its_abort() -> None:
    async def main() -> None:
        signals: list[Any] = []

        async def agent(incoming: AgentRequest) -> str:
            signals.append(incoming.signal)
            if incoming.prompt == "hang":
                await asyncio.Event().wait()
            return "ok"

        controller = AbortController()
        async with Watched(agent=agent) as watched:
            script = "agent('hang'); return await agent('quick')"  # one is never awaited
            async with await watched.engine.start(request(script, signal=controller.signal)) as run:
                assert (await run.result).value == "ok"
        first, second = signals
        assert first is second
        assert first is not controller.signal
        assert first.aborted
        assert first.listener_count == 0
        assert (controller.signal.aborted, controller.signal.listener_count) == (False, 0)

    run_async(main())


def test_a_hundred_runs_on_one_signal_leave_no_callback_on_it() -> None:
    async def main() -> None:
        controller = AbortController()
        async with Watched() as watched:
            for number in range(100):
                async with await watched.engine.start(
                    request("return args", args=number, signal=controller.signal)
                ) as run:
                    assert (await run.result).value == number
            assert controller.signal.listener_count == 0

    run_async(main())


@pytest.mark.parametrize("header", [False, True])
def test_a_signal_that_was_aborted_before_the_start_runs_nothing(header: bool) -> None:
    """With a header there is no run yet to be cancelled: its meta is read in the worker."""

    async def main() -> None:
        controller = AbortController()
        controller.abort("early")
        async with Watched() as watched:
            script = (HEADER if header else "") + "log('never')"
            meta = None if header else META
            starting = watched.engine.start(request(script, meta=meta, signal=controller.signal))
            if header:
                with pytest.raises(WorkflowError) as caught:
                    await starting
                assert caught.value.code == ErrorCode.CANCELLED
                assert watched.events == []
            else:
                async with await starting as run:
                    assert (await run.result).stop_reason == "cancelled"
                assert watched.types == ["start", "end"]
            assert controller.signal.listener_count == 0

    run_async(main())


# ------------------------------------------------------------------------------------------------- a pool of one

ONE = EngineConfig(max_workers=1, spare_workers=0, max_concurrent_agents=2, dispose_grace=0.2)


@pytest.mark.parametrize("stuck", [HANGS, SPINS, "await new Promise(r => setTimeout(r, 1e9))"])
def test_in_a_pool_of_one_a_stuck_run_is_cancelled_and_the_next_starts(stuck: str) -> None:
    async def main() -> None:
        async with Watched(ONE) as watched:
            async with await watched.engine.start(request(stuck)) as run:
                waiting = asyncio.create_task(watched.engine.start(request("return 'next'")))
                await watched.heard("start")
                run.cancel()
                assert (await run.result).stop_reason == "cancelled"
                async with await waiting as following:
                    assert (await following.result).value == "next"
            assert watched.engine.describe().workers_alive == 0

    run_async(main())


def test_a_start_that_waits_for_a_worker_is_ended_by_its_signal() -> None:
    async def main() -> None:
        async with Watched(ONE) as watched, await watched.engine.start(request(HANGS)) as run:
            controller = AbortController()
            waiting = asyncio.create_task(watched.engine.start(request("log('never')", signal=controller.signal)))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not waiting.done()
            controller.abort("no longer wanted")
            async with await waiting as never:
                assert (await never.result).stop_reason == "cancelled"
            assert controller.signal.listener_count == 0
            run.cancel()
            await run.result
            async with await watched.engine.start(request("return 1")) as following:  # no place was lost
                assert (await following.result).value == 1

    run_async(main())


def test_a_start_that_waits_for_a_worker_can_be_cancelled_and_gives_its_place_on() -> None:
    async def main() -> None:
        async with Watched(ONE) as watched:
            run = await watched.engine.start(request(HANGS))
            waiting = [asyncio.create_task(watched.engine.start(request("return args", args=n))) for n in range(4)]
            await asyncio.sleep(0)
            waiting[1].cancel()
            await run.dispose()
            waiting[0].cancel()  # the place is on its way to it
            for place in (0, 1):
                with pytest.raises(asyncio.CancelledError):
                    await waiting[place]
            for place in (2, 3):
                async with await waiting[place] as following:
                    assert (await following.result).value == place

    run_async(main())


def test_closing_the_engine_tells_those_who_wait_for_a_worker() -> None:
    async def main() -> None:
        watched = Watched(ONE)
        async with watched:
            run = await watched.engine.start(request(HANGS))
            waiting = asyncio.create_task(watched.engine.start(request("return 1")))
            await watched.heard("agent-start")
            run.cancel()
        with pytest.raises(WorkflowError, match="closed"):
            await waiting

    run_async(main())


def test_more_starts_than_workers_while_the_zygote_starts_keep_to_the_cap() -> None:
    async def main() -> None:
        most = 0

        def look(_event: WorkflowEvent) -> None:
            nonlocal most
            most = max(most, watched.engine.describe().workers_alive)

        watched = Watched(EngineConfig(max_workers=2, spare_workers=1, max_concurrent_agents=2))
        watched.engine.events.subscribe(look)
        try:

            async def one(number: int) -> Any:
                async with await watched.engine.start(request("log('x'); return args", args=number)) as run:
                    return (await run.result).value

            assert await asyncio.gather(*(one(number) for number in range(12))) == list(range(12))
            assert most == 2
        finally:
            await watched.engine.aclose()

    run_async(main())


# ------------------------------------------------------------------------------------------------- tasks of the host


def test_cancelling_the_task_that_awaits_a_result_cancels_the_run() -> None:
    async def main() -> None:
        async with Watched() as watched, await watched.engine.start(request(HANGS)) as run:

            async def wait() -> None:
                await run.result

            waiting = asyncio.create_task(wait())
            await watched.heard("agent-start")
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await run.result).stop_reason == "cancelled"

    run_async(main())


def test_a_holder_cancelled_inside_its_block_leaves_nothing() -> None:
    async def main() -> None:
        async with Watched() as watched:

            async def hold() -> None:
                async with await watched.engine.start(request(SPINS)) as run:
                    await run.result

            holding = asyncio.create_task(hold())
            await watched.heard("log")
            holding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await holding
            assert watched.types[-1] == "end"
            assert watched.engine.describe().workers_alive == 0

    run_async(main())


def test_a_dispose_that_is_cancelled_still_ends_the_run() -> None:
    async def main() -> None:
        async with Watched() as watched:
            run = await watched.engine.start(request(HANGS))
            await watched.heard("agent-start")
            disposing = asyncio.create_task(run.dispose())
            await asyncio.sleep(0)
            disposing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await disposing
            assert (await run.result).stop_reason == "cancelled"
            await run.dispose()

    run_async(main())


async def cancel_a_start_after(watched: Watched, steps: int) -> None:
    watched.events.clear()
    starting = asyncio.create_task(watched.engine.start(request("await agent('x'); return 1")))
    for _ in range(steps):
        await asyncio.sleep(0)
    starting.cancel()
    try:
        run = await starting
    except asyncio.CancelledError:
        assert watched.types in ([], ["start", "end"])
    else:
        await run.dispose()
    assert watched.types.count("start") == watched.types.count("end")


def test_a_start_can_be_cancelled_at_every_step_and_leaves_nothing() -> None:
    """After its first step of the loop, after its second, and so on."""

    async def main() -> None:
        async with Watched() as watched:
            for steps in [*range(40), *range(40, 400, 20)]:
                await cancel_a_start_after(watched, steps)
                async with await watched.engine.start(request("return args", args=steps)) as run:
                    assert (await run.result).value == steps

    run_async(main())


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 5, 10, 50])
def test_a_start_can_be_cancelled_while_the_zygote_starts(steps: int) -> None:
    async def main() -> None:
        watched = Watched()
        try:
            await cancel_a_start_after(watched, steps)
        finally:
            await watched.engine.aclose()

    run_async(main())


def test_everything_may_be_done_twice() -> None:
    async def main() -> None:
        async with Watched() as watched:
            run = await watched.engine.start(request(HANGS))
            await watched.heard("agent-start")
            run.cancel("first")
            run.cancel("second")
            assert (await run.result).error == "workflow run cancelled: first"
            assert await run.result is await run.result
            await run.dispose()
            await run.dispose()
            run.cancel("third")
            assert watched.types.count("end") == 1
        await watched.engine.aclose()

    run_async(main())


@pytest.mark.parametrize("reason", ["\ud83d", "", "x" * 100_000, 7, None])
def test_any_reason_for_a_cancel_is_text_in_the_end(reason: Any) -> None:
    async def main() -> None:
        async with Watched() as watched, await watched.engine.start(request(HANGS)) as run:
            run.cancel(reason)
            error = (await run.result).error
            assert error is not None
            error.encode()

    run_async(main())


def test_a_stopped_engine_leaves_its_runs_alone() -> None:
    async def main() -> None:
        async with Watched() as watched, await watched.engine.start(request("return await agent('x')")) as run:
            watched.engine.stop()
            with pytest.raises(WorkflowError, match="stopped"):
                await watched.engine.start(request("return 1"))
            assert (await run.result).value == "ok:x"

    run_async(main())


def test_closing_an_engine_cancels_what_does_not_end_within_the_grace() -> None:
    async def main() -> None:
        async with Watched() as watched:
            run = await watched.engine.start(request(SPINS))
            await watched.heard("log")
        assert (await run.result).error == "workflow run cancelled: the workflow engine was closed"

    run_async(main())
