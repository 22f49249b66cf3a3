"""One engine for the scripts of a module: starting one for each of two hundred scripts would be most of the time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from orchestrator import AgentRequest, EngineConfig, WorkflowEngine, WorkflowEvent, WorkflowStartRequest
from tests.support import META, Ran, scripted_agent

RunScript = Callable[..., Ran]


def pytest_collection_finish(session: pytest.Session) -> None:
    """The leak check collects garbage after every test: half of the time of a thousand quick ones, unless it skips
    what was there before the first."""
    gc.collect()
    gc.freeze()


class SharedEngine:
    """Runs one script at a time on one engine. The agent of each run is the caller's own."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._agent: Any = scripted_agent
        self._engine = self._runner.run(self._open())

    async def _open(self) -> WorkflowEngine:
        engine = WorkflowEngine(EngineConfig(max_concurrent_agents=8, spare_workers=0))
        engine.agents.register("default", self._answer)
        await engine.__aenter__()
        return engine

    async def _answer(self, request: AgentRequest) -> Any:
        return await self._agent(request)

    def run(self, script: str, *, agent: Any = scripted_agent, meta: Any = META, **request: Any) -> Ran:
        """Runs one script to its end."""
        self._agent = agent
        return self._runner.run(self._run(WorkflowStartRequest(script=script, meta=meta, **request)))

    async def _run(self, request: WorkflowStartRequest) -> Ran:
        events: list[WorkflowEvent] = []
        remove = self._engine.events.subscribe(events.append)
        try:
            async with asyncio.timeout(30), await self._engine.start(request) as run:
                result = await run.result
        finally:
            remove()
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left, timeout=5)  # of the pool, on their way out; anything of a run would stay
        assert not [task for task in left if not task.done()], f"tasks left behind: {left}"
        return Ran(result, events)

    def close(self) -> None:
        try:
            self._runner.run(self._engine.aclose())
        finally:
            self._runner.close()


@pytest.fixture(scope="module")
def shared_engine() -> Iterator[SharedEngine]:
    engine = SharedEngine()
    yield engine
    engine.close()


@pytest.fixture
def script(shared_engine: SharedEngine) -> RunScript:
    """``script(text, **request)`` runs it; as `tests.support.run_script`, without an engine of its own."""
    return shared_engine.run


@pytest.fixture
def value(script: RunScript) -> Callable[..., Any]:
    """``value(text, **request)`` runs a script that must complete, and gives what it returned."""

    def run(text: str, **request: Any) -> Any:
        result = script(text, **request).result
        assert result.stop_reason == "completed", f"{result.code}: {result.error}"
        return result.value

    return run


@pytest.fixture
def failure(script: RunScript) -> Callable[..., tuple[str | None, str]]:
    """``failure(text, **request)`` runs a script that must fail, and gives the code and the error."""

    def run(text: str, **request: Any) -> tuple[str | None, str]:
        result = script(text, **request).result
        assert (result.stop_reason, result.value) == ("error", None), f"{result.stop_reason}: {result.value}"
        assert result.error is not None
        return result.code, result.error

    return run
