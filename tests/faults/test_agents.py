"""Providers at their worst: slow, deaf, hanging, raising anything, answering nonsense. The run settles all the same."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orchestrator import (
    AgentEnded,
    AgentFailed,
    AgentRequest,
    AgentResult,
    EngineConfig,
    Usage,
    WorkflowEngine,
    WorkflowEvent,
    WorkflowResult,
    WorkflowStartRequest,
)
from protocol.errors import ErrorCode
from tests.conftest import run_async
from tests.support import META

CONFIG = EngineConfig(max_concurrent_agents=4, spare_workers=0, dispose_grace=0.05)
ONE = "return await agent('x')"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class _Run:
    def __init__(self, provider: Provider, request: AgentRequest) -> None:
        self.id = f"child-{request.seq}"
        self._provider = provider
        self._request = request

    @property
    def result(self) -> Awaitable[Any]:
        return self._provider.on_result(self._request)

    async def dispose(self) -> None:
        self._provider.disposed.append(self._request.seq)
        await self._provider.on_dispose(self._request)


class Provider:
    """A provider each of whose three moments is a function of the test."""

    def __init__(
        self,
        *,
        start: Callable[[AgentRequest], Awaitable[Any]] | None = None,
        result: Callable[[AgentRequest], Awaitable[Any]] | None = None,
        dispose: Callable[[AgentRequest], Awaitable[Any]] | None = None,
    ) -> None:
        self.on_start = start or self._nothing
        self.on_result = result or self._answer
        self.on_dispose = dispose or self._nothing
        self.started: list[int] = []
        self.disposed: list[int] = []

    async def start(self, request: AgentRequest) -> Any:
        made = await self.on_start(request)
        self.started.append(request.seq)
        return _Run(self, request) if made is None else made

    async def _nothing(self, request: AgentRequest) -> None:
        return

    async def _answer(self, request: AgentRequest) -> AgentResult:
        return AgentResult(text="ok")


def run_with(
    provider: Any, script: str = ONE, *, config: EngineConfig = CONFIG
) -> tuple[WorkflowResult, list[WorkflowEvent]]:
    async def main() -> tuple[WorkflowResult, list[WorkflowEvent]]:
        events: list[WorkflowEvent] = []
        async with WorkflowEngine(config) as engine:
            engine.agents.register("default", provider)
            engine.events.subscribe(events.append)
            async with await engine.start(WorkflowStartRequest(script=script, meta=META)) as run:
                result = await run.result
        return result, events

    return run_async(main())


def types(events: list[WorkflowEvent]) -> list[str]:
    return [event.type.removeprefix("workflow/") for event in events]


async def forever(_request: AgentRequest) -> Any:
    await asyncio.Event().wait()


# ------------------------------------------------------------------------------------------------- the abort is ignored


@pytest.mark.parametrize("moment", ["start", "result", "dispose"])
def test_a_provider_that_hangs_costs_the_grace_and_is_cancelled_then(moment: str) -> None:
    """It never looks at the signal; its task is cancelled once the grace is over, so nothing of it is left."""

    async def main() -> None:
        hanging = asyncio.Event()

        async def hangs(_request: AgentRequest) -> Any:
            hanging.set()
            await asyncio.Event().wait()

        provider = Provider(**{moment: hangs})
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", provider)
            script = "await agent('a'); await new Promise(r => setTimeout(r, 1e9))"
            async with await engine.start(WorkflowStartRequest(script=script, meta=META)) as run:
                await hanging.wait()
                run.cancel("enough")
                result = await run.result
        assert result.stop_reason == "cancelled"
        assert "1 agent was still running" in result.warnings[0]
        assert "dispose_grace" in result.warnings[0]
        assert provider.disposed == provider.started
        assert result.agents_started == len(provider.started)

    run_async(main())


def test_a_dispose_that_hangs_does_not_hold_the_script_or_the_slot() -> None:
    provider = Provider(dispose=forever)
    config = EngineConfig(max_concurrent_agents=1, spare_workers=0, dispose_grace=0.05)
    result, _ = run_with(provider, "return [await agent('a'), await agent('b'), await agent('c')]", config=config)
    assert result.value == ["ok", "ok", "ok"]
    assert provider.disposed == [1, 2, 3]
    assert "3 agents were still running" in result.warnings[0]


def test_an_agent_that_swallows_its_cancellation_is_left_to_end_and_still_disposed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def stubborn(_request: AgentRequest) -> Any:
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()
            return AgentResult(text="late")

        provider = Provider(result=stubborn)
        announced = asyncio.Event()
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", provider)
            engine.events.subscribe(lambda event: announced.set() if event.type.endswith("agent-start") else None)
            async with await engine.start(WorkflowStartRequest(script=ONE, meta=META)) as run:
                await announced.wait()
                run.cancel()
                result = await run.result
            assert result.agents_cancelled == 1
            assert provider.disposed == [1]  # beside the result that never came
            release.set()

    with caplog.at_level(logging.WARNING):
        run_async(main())
    assert any("ignores its abort" in record.message for record in caplog.records)


def test_a_start_that_fulfils_long_after_the_run_is_disposed_and_never_announced() -> None:
    async def main() -> None:
        release, entered, disposed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def note(_request: AgentRequest) -> None:
            disposed.set()

        async def slow(_request: AgentRequest) -> None:
            entered.set()
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await release.wait()

        events: list[WorkflowEvent] = []
        provider = Provider(start=slow, dispose=note)
        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", provider)
            engine.events.subscribe(events.append)
            async with await engine.start(WorkflowStartRequest(script=ONE, meta=META)) as run:
                await entered.wait()
                run.cancel()
                assert (await run.result).agents_started == 0
            assert provider.disposed == []
            release.set()
            await disposed.wait()
        assert provider.disposed == [1]
        assert types(events) == ["start", "end"]

    with contextlib.ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        logging.disable(logging.WARNING)
        run_async(main())


def test_a_deaf_agent_does_not_hold_its_siblings() -> None:
    async def agent(request: AgentRequest) -> Any:
        return await (forever(request) if request.prompt == "deaf" else Provider()._answer(request))

    result, events = run_with(
        Provider(result=agent), "agent('deaf'); return await parallel([1, 2, 3].map(i => () => agent(`a${i}`)))"
    )
    assert result.value == ["ok", "ok", "ok"]
    assert (result.agents_completed, result.agents_cancelled) == (3, 1)
    assert types(events).count("agent-end") == 4


# ------------------------------------------------------------------------------------------------- it raises


RAISED: dict[str, Callable[[], BaseException]] = {
    "an ordinary error": lambda: RuntimeError("it broke"),
    "an error without text": lambda: ValueError(),
    "an error that cannot be printed": lambda: Unprintable(),
    "a lone surrogate": lambda: RuntimeError("half \ud83d"),
    "a group": lambda: ExceptionGroup("several", [ValueError("one"), TypeError("two")]),
    "a timeout": lambda: TimeoutError(),
    "the end of an iterator": lambda: StopAsyncIteration(),
}


def raiser(what: str) -> Callable[[AgentRequest], Awaitable[Any]]:
    async def raises(_request: AgentRequest) -> Any:
        raise RAISED[what]()

    return raises


@pytest.mark.parametrize("what", RAISED)
def test_a_start_that_raises_refuses_the_call_without_an_event(what: str) -> None:
    provider = Provider(start=raiser(what))
    result, events = run_with(provider)
    assert result.code == ErrorCode.AGENT_START
    assert types(events) == ["start", "end"]
    assert provider.disposed == []
    str(result.error).encode()


@pytest.mark.parametrize("what", RAISED)
def test_a_result_that_raises_breaks_the_agent_with_a_readable_reason(what: str) -> None:
    provider = Provider(result=raiser(what))
    result, events = run_with(provider)
    assert result.code == ErrorCode.AGENT_RESULT
    assert [event.outcome for event in events if isinstance(event, AgentEnded)] == ["failed"]
    assert provider.disposed == [1]
    result.failures[0].reason.encode()


@pytest.mark.parametrize("what", RAISED)
def test_a_dispose_that_raises_is_logged_and_changes_nothing(what: str, caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider(dispose=raiser(what))
    result, _ = run_with(provider, "return [await agent('a'), await agent('b')]")
    assert result.value == ["ok", "ok"]
    assert provider.disposed == [1, 2]
    assert sum("disposing agent" in record.message for record in caplog.records) == 2


@pytest.mark.parametrize("moment", ["start", "result", "dispose"])
def test_a_provider_that_raises_a_cancellation_of_its_own_cancels_only_that_agent(moment: str) -> None:
    async def cancelled(_request: AgentRequest) -> Any:
        raise asyncio.CancelledError

    provider = Provider(**{moment: cancelled})
    script = "try { return [await agent('a')] } catch (e) { return e.code }"
    result, _ = run_with(provider, script)
    assert result.value == {"start": "AGENT_START", "result": [None], "dispose": ["ok"]}[moment]
    assert provider.disposed == provider.started


def test_one_agent_that_is_cancelled_by_its_provider_fails_alone() -> None:
    async def agent(request: AgentRequest) -> Any:
        if request.prompt == "a2":
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            future.cancel()
            return await future
        return AgentResult(text=request.prompt)

    result, _ = run_with(Provider(result=agent), "return await parallel([1, 2, 3].map(i => () => agent(`a${i}`)))")
    assert result.value == ["a1", None, "a3"]
    assert [(failure.seq, failure.reason) for failure in result.failures] == [(2, "it was cancelled by its provider")]


# ------------------------------------------------------------------------------------------------- it answers nonsense


NONSENSE: dict[str, Any] = {
    "nothing": None,
    "a text": "just text",
    "a dictionary": {"text": "x"},
    "a number for a text": AgentResult(text=7),  # type: ignore[arg-type]
    "no number of tokens": AgentResult(text="x", usage=Usage(output_tokens="many")),  # type: ignore[arg-type]
    "a negative number of tokens": AgentResult(text="x", usage=Usage(output_tokens=-5)),
    "something for a usage": AgentResult(text="x", usage=object()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", NONSENSE)
def test_an_answer_that_is_none_breaks_the_agent(what: str) -> None:
    async def answer(_request: AgentRequest) -> Any:
        return NONSENSE[what]

    provider = Provider(result=answer)
    result, _ = run_with(provider)
    assert result.code == ErrorCode.AGENT_RESULT, result
    assert provider.disposed == [1]


STRUCTURED: dict[str, Any] = {
    "NaN": {"n": float("nan")},
    "a set": {"n": {1, 2}},
    "bytes": {"n": b"x"},
    "an object": {"n": object()},
    "keys that are no text": {1: 2},
}


@pytest.mark.parametrize("what", STRUCTURED)
def test_a_structured_answer_that_is_not_json_breaks_the_agent_and_names_the_place(what: str) -> None:
    async def answer(_request: AgentRequest) -> Any:
        return AgentResult(structured=STRUCTURED[what])

    result, _ = run_with(Provider(result=answer), "return await agent('x', {schema: {type: 'object'}})")
    assert result.code == ErrorCode.AGENT_RESULT
    assert "answer" in str(result.error)


def test_a_circular_answer_breaks_the_agent() -> None:
    circle: dict[str, Any] = {}
    circle["self"] = circle

    async def answer(_request: AgentRequest) -> Any:
        return AgentResult(structured=circle)

    result, _ = run_with(Provider(result=answer), "return await agent('x', {schema: {type: 'object'}})")
    assert result.code == ErrorCode.AGENT_RESULT


def test_a_start_that_returns_something_without_an_id_is_refused_and_what_it_is_is_disposed() -> None:
    disposed: list[bool] = []

    class NoId:
        async def dispose(self) -> None:
            disposed.append(True)

    async def start(_request: AgentRequest) -> Any:
        return NoId()

    result, events = run_with(Provider(start=start))
    assert result.code == ErrorCode.AGENT_START
    assert types(events) == ["start", "end"]
    assert disposed == [True]


# ------------------------------------------------------------------------------------------------- siblings


def test_an_agent_that_breaks_ends_the_run_with_its_error_and_not_with_a_siblings_abort() -> None:
    async def agent(request: AgentRequest) -> Any:
        if request.prompt == "breaks":
            raise RuntimeError("the first to break")
        await asyncio.Event().wait()

    script = "return await parallel(['a', 'breaks', 'b', 'c', 'd'].map(p => () => agent(p)))"
    result, events = run_with(agent, script)
    assert result.code == ErrorCode.AGENT_RESULT
    assert "the first to break" in str(result.error)
    ended = [event.outcome for event in events if isinstance(event, AgentEnded)]
    assert (ended.count("failed"), ended.count("cancelled")) == (1, result.agents_cancelled)


def test_four_of_five_dead_agents_are_visible_in_a_completed_run() -> None:
    async def agent(request: AgentRequest) -> Any:
        if request.prompt != "a3":
            raise AgentFailed(f"no luck with {request.prompt}")
        return "ok"

    result, _ = run_with(agent, "return await parallel([1, 2, 3, 4, 5].map(i => () => agent(`a${i}`)))")
    assert result.value == [None, None, "ok", None, None]
    assert (result.agents_completed, result.agents_failed) == (1, 4)
    assert {failure.reason for failure in result.failures} == {f"no luck with a{i}" for i in (1, 2, 4, 5)}


def test_an_agent_whose_task_ends_the_interpreter_still_ends_its_run() -> None:
    async def main() -> WorkflowResult:
        async def agent(_request: AgentRequest) -> str:
            raise SystemExit(3)

        async with WorkflowEngine(CONFIG) as engine:
            engine.agents.register("default", agent)
            async with await engine.start(WorkflowStartRequest(script=ONE, meta=META)) as run:
                return await run.result

    with pytest.raises(SystemExit):
        run_async(main())
