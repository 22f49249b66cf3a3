"""Providers by name: their caps over all runs, and their end."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator import EngineConfig, WorkflowEngine, WorkflowStartRequest
from orchestrator.agent_slots import AgentSlots, CappedProvider
from orchestrator.agents import AgentRegistry, AgentRequest, FunctionProvider
from orchestrator.signals import AbortController
from protocol.errors import ErrorCode, WorkflowError
from tests.conftest import run_async
from tests.support import META
from tests.test_providers import make_request


class Desk:
    """Agents that work until they are let go, counted."""

    def __init__(self) -> None:
        self.working: deque[asyncio.Future[str]] = deque()
        self.most = 0
        self.order: list[str] = []
        self._arrived = asyncio.Event()

    async def __call__(self, request: AgentRequest) -> str:
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.working.append(done)
        self.order.append(request.prompt)
        self.most = max(self.most, len(self.working))
        self._arrived.set()
        try:
            return await done
        finally:
            if done in self.working:
                self.working.remove(done)

    async def until(self, number: int) -> None:
        """Waits until so many are at work."""
        while len(self.working) < number:
            self._arrived.clear()
            await self._arrived.wait()

    def finish_one(self) -> None:
        self.working.popleft().set_result("done")


class Closable:
    def __init__(self, problem: Exception | None = None) -> None:
        self.closed = 0
        self._problem = problem

    async def start(self, request: AgentRequest) -> Any:
        raise NotImplementedError

    async def aclose(self) -> None:
        self.closed += 1
        if self._problem is not None:
            raise self._problem


def start_request(script: str, **fields: Any) -> WorkflowStartRequest:
    return WorkflowStartRequest(script=script, meta=META, **fields)


async def turns(condition: Callable[[], bool]) -> None:
    """Lets the loop go round until the condition holds."""
    async with asyncio.timeout(30):
        while True:
            await asyncio.sleep(0)
            if condition():
                return


MANY = "return await parallel(args.map(n => () => agent(n)))"


def test_a_cap_holds_over_all_runs_of_an_engine_and_slots_go_round_in_order() -> None:
    async def main() -> None:
        desk = Desk()
        async with WorkflowEngine(EngineConfig(max_concurrent_agents=8, spare_workers=0)) as engine:
            engine.agents.register("default", desk, max_concurrent=2)
            async with (
                await engine.start(start_request(MANY, args=["a1", "a2", "a3"])) as first,
                await engine.start(start_request(MANY, args=["b1", "b2", "b3"])) as second,
            ):
                for _ in range(6):
                    await desk.until(1)
                    desk.finish_one()
                assert (await first.result).value == ["done"] * 3
                assert (await second.result).value == ["done"] * 3
        assert desk.most == 2
        assert [name for name in desk.order if name[0] == "a"] == ["a1", "a2", "a3"]

    run_async(main())


def test_agents_of_other_providers_do_not_wait() -> None:
    async def main() -> None:
        desk = Desk()
        script = "return await Promise.all([agent('x'), agent('y'), agent('z', {provider: 'other'})].slice(2))"
        async with WorkflowEngine(EngineConfig(max_concurrent_agents=8, spare_workers=0)) as engine:

            async def other(request: AgentRequest) -> str:
                return "at once"

            engine.agents.register("default", desk, max_concurrent=1)
            engine.agents.register("other", other)
            async with await engine.start(start_request(script)) as run:
                assert (await run.result).value == ["at once"]

    run_async(main())


def test_an_agent_that_waits_is_released_when_its_run_is_cancelled_and_the_other_run_goes_on() -> None:
    async def main() -> None:
        desk = Desk()
        async with WorkflowEngine(EngineConfig(max_concurrent_agents=8, spare_workers=0, dispose_grace=30)) as engine:
            engine.agents.register("default", desk, max_concurrent=1)
            async with await engine.start(start_request(MANY, args=["holder"])) as holder:
                await desk.until(1)
                capped = engine.agents.get("default")
                assert isinstance(capped, CappedProvider)
                async with await engine.start(start_request(MANY, args=["late", "later"])) as waiter:
                    await turns(lambda: capped.slots.waiting == 2)
                    waiter.cancel("enough")
                    result = await waiter.result
                    assert (result.stop_reason, result.agents_started, result.warnings) == ("cancelled", 0, ())
                    assert (capped.slots.waiting, capped.slots.free) == (0, 0)
                desk.finish_one()
                assert (await holder.result).value == ["done"]
            assert capped.slots.free == 1
        assert desk.order == ["holder"]

    run_async(main())


def test_the_slot_of_an_agent_that_is_refused_fails_or_breaks_is_free_again() -> None:
    async def main() -> None:
        class Refusing:
            async def start(self, request: AgentRequest) -> Any:
                raise OSError("no")

        async def broken(request: AgentRequest) -> str:
            raise RuntimeError("broken")

        for provider in (Refusing(), FunctionProvider(broken)):
            async with WorkflowEngine(EngineConfig(spare_workers=0)) as engine:
                engine.agents.register("default", provider, max_concurrent=1)
                script = "const codes = []; for (const n of [1, 2, 3]) await agent('x').catch(e => codes.push(e.code))"
                async with await engine.start(start_request(f"{script}; return codes")) as run:
                    assert len((await run.result).value) == 3
                assert vars(engine.agents.get("default"))["slots"].free == 1

    run_async(main())


def test_a_wait_for_a_slot_may_be_cancelled_aborted_from_a_thread_or_won_in_the_same_moment() -> None:
    async def main() -> None:
        slots = AgentSlots(1)
        quiet = AbortController()
        await slots.take(quiet.signal)

        cancelled = asyncio.create_task(slots.take(quiet.signal))
        await turns(lambda: slots.waiting == 1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert cancelled.cancelled()
        assert (slots.waiting, quiet.signal.listener_count) == (0, 0)

        controller = AbortController()
        aborted = asyncio.create_task(slots.take(controller.signal))
        await turns(lambda: slots.waiting == 1)
        await asyncio.to_thread(controller.abort, "from elsewhere")
        with pytest.raises(WorkflowError, match="from elsewhere") as caught:
            await aborted
        assert caught.value.code is ErrorCode.CANCELLED

        lucky = asyncio.create_task(slots.take(quiet.signal))
        await turns(lambda: slots.waiting == 1)
        slots.give_back()  # the slot is its own now, and the cancel comes before it knows
        lucky.cancel()
        await asyncio.wait([lucky])
        assert (slots.free, slots.waiting) == (1, 0)

        with pytest.raises(WorkflowError, match="from elsewhere"):
            await slots.take(controller.signal)
        assert slots.free == 1

    run_async(main())


def test_whoever_waits_longest_is_next_and_nobody_overtakes() -> None:
    async def main() -> None:
        slots = AgentSlots(1)
        signal = AbortController().signal
        await slots.take(signal)
        order: list[int] = []

        async def worker(number: int) -> None:
            await slots.take(signal)
            order.append(number)
            slots.give_back()

        workers: list[asyncio.Task[None]] = []
        for number in range(5):
            workers.append(asyncio.create_task(worker(number)))
            await turns(lambda: slots.waiting == len(workers))
        slots.give_back()
        newcomer = asyncio.create_task(worker(99))
        await asyncio.gather(*workers, newcomer)
        assert order == [0, 1, 2, 3, 4, 99]

    run_async(main())


def test_a_cap_changes_neither_the_options_nor_what_the_registry_holds() -> None:
    registry = AgentRegistry()
    provider = FunctionProvider(Desk.__call__, supported_options=("effort",))  # type: ignore[arg-type]
    remove = registry.register("capped", provider, max_concurrent=3)
    assert getattr(registry.get("capped"), "supported_options", None) == ("effort",)
    assert dict(registry.providers) == {"capped": provider}
    remove()
    assert registry.names == ()
    with pytest.raises(WorkflowError, match="no subagent provider"):
        registry.get("capped")


@pytest.mark.parametrize("cap", [0, -1, 1.5, True, "4"])
def test_a_cap_that_is_no_positive_number_is_refused(cap: Any) -> None:
    with pytest.raises(WorkflowError, match="must be a positive whole number") as caught:
        AgentRegistry().register("a", Closable(), max_concurrent=cap)
    assert caught.value.code is ErrorCode.INVALID_ARGUMENT


def test_each_provider_is_closed_once_and_one_that_fails_keeps_none_from_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        registry = AgentRegistry()
        shared, broken, replaced = Closable(), Closable(RuntimeError("stuck")), Closable()
        registry.register("one", replaced)
        registry.register("one", shared)
        registry.register("two", shared, max_concurrent=1)
        registry.register("broken", broken)
        registry.register("plain", FunctionProvider(Desk.__call__))  # type: ignore[arg-type]
        await registry.aclose()
        await registry.aclose()
        assert (shared.closed, broken.closed, replaced.closed) == (1, 1, 0)

    with caplog.at_level(logging.ERROR):
        run_async(main())
    assert [record.message for record in caplog.records] == ["an agent provider failed to close: Closable"]


def test_requests_pass_a_cap_unchanged() -> None:
    async def main() -> None:
        seen: list[AgentRequest] = []

        async def agent(request: AgentRequest) -> str:
            seen.append(request)
            return "x"

        capped = CappedProvider(FunctionProvider(agent), 1)
        request = make_request("p")
        run = await capped.start(request)
        assert run.id.startswith("agent-")
        assert (await run.result).text == "x"
        await run.dispose()
        assert seen == [request]

    run_async(main())
