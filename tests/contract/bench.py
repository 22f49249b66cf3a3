"""Runs rows of the reference table on this engine, all in one loop and on few engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

from orchestrator import (
    AbortController,
    AgentEnded,
    AgentRequest,
    AgentResult,
    AgentStarted,
    EngineConfig,
    EventOrderChecker,
    WorkflowEngine,
    WorkflowError,
    WorkflowEvent,
    WorkflowRun,
    WorkflowStartRequest,
)
from tests.contract.reference_table import Outcome, Row
from tests.support import META

DEFAULTS: dict[str, Any] = {"max_concurrent_agents": 8, "spare_workers": 1, "dispose_grace": 0.3}


class ScriptedRun:
    """One agent of `ScriptedProvider`."""

    def __init__(self, request: AgentRequest) -> None:
        self.id = f"child-{request.seq}"
        self._request = request

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._answer()

    async def _answer(self) -> AgentResult:
        match self._request.prompt:
            case "hang":
                await self._request.signal.wait()
                return AgentResult(stop_reason="aborted")
            case "deaf":
                await self._request.signal.wait()
                await asyncio.sleep(0)  # ignores the abort for as long as it can without outliving the test
                return AgentResult(text="too late")
            case "fail":
                return AgentResult(text="partial", stop_reason="error")
            case "reject":
                raise RuntimeError("child result rejected")
            case "structured":
                return AgentResult(text="t", structured={"n": 1, "extra": [True]})
            case "structured-wrong":
                return AgentResult(text="t", structured={"n": "not a number"})
            case "structured-nan":
                return AgentResult(text="t", structured={"n": float("nan")})
            case prompt:
                return AgentResult(text=f"ok:{prompt}")

    async def dispose(self) -> None:
        pass


class ScriptedProvider:
    """The prompt picks the behaviour, as in the harness the reference was measured with."""

    async def start(self, request: AgentRequest) -> ScriptedRun:
        if request.prompt == "startfail":
            raise RuntimeError("provider refused")
        return ScriptedRun(request)


class Bench:
    """Engines by configuration, opened on demand, closed together."""

    def __init__(self) -> None:
        self._engines: dict[str, WorkflowEngine] = {}

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for engine in self._engines.values():
            await engine.aclose()

    def _engine(self, config: dict[str, Any]) -> WorkflowEngine:
        key = json.dumps(config, sort_keys=True)
        if key not in self._engines:
            engine = self._engines[key] = WorkflowEngine(EngineConfig(**config))
            engine.agents.register("default", ScriptedProvider())
        return self._engines[key]

    async def observe(self, row: Row) -> Outcome:
        """Runs one row and says how it ended."""
        setup = row.setup
        engine = self._engine(DEFAULTS | dict(setup.config))
        checker = EventOrderChecker()
        events: list[WorkflowEvent] = []
        live: list[WorkflowRun] = []
        controller = AbortController()
        disposing: list[asyncio.Task[None]] = []

        def act(moment: str) -> None:
            match setup.act:
                case (at, "cancel") if at == moment:
                    live[0].cancel(setup.reason)
                case (at, "abort") if at == moment:
                    controller.abort()
                case (at, "dispose") if at == moment:
                    disposing.append(asyncio.get_running_loop().create_task(live[0].dispose()))
                case _:
                    pass

        def listen(event: WorkflowEvent) -> None:
            checker(event)
            events.append(event)
            act(event.type.removeprefix("workflow/"))

        remove = engine.events.subscribe(listen)
        try:
            request = {"meta": META} | dict(setup.request)
            act("before")
            try:
                run = await engine.start(WorkflowStartRequest(script=row.script, signal=controller.signal, **request))
            except WorkflowError as error:
                assert not events, f"a refused request emitted {events}"
                return Outcome("refused", text=_first_line(error.message))
            live.append(run)
            act("now")
            async with run, asyncio.timeout(20):
                result = await run.result
                act("after")
                assert await run.result is result
            await asyncio.gather(*disposing)
            checker.check_complete()
        finally:
            remove()
        assert controller.signal.listener_count == 0
        assert sum(isinstance(event, AgentStarted) for event in events) == result.agents_started
        ends = tuple(event.outcome for event in events if isinstance(event, AgentEnded))
        assert result.stop_reason != "completed" or result.error is None
        return Outcome(
            result.stop_reason, result.value, _first_line(result.error or ""), result.agents_started, _sorted(ends)
        )


def _sorted(ends: tuple[str, ...]) -> tuple[str, ...]:
    """Agents end in any order."""
    return tuple(sorted(ends))


def normal(outcome: Outcome) -> tuple[object, ...]:
    """What two outcomes are compared by. JSON text of the value, because Python takes ``1``, ``1.0`` and ``-0.0``,
    or ``True`` and ``1``, for equal."""
    value = json.dumps(outcome.value, sort_keys=True)
    return (outcome.kind, value, outcome.text, outcome.started, _sorted(outcome.ends), outcome.late)


def _first_line(text: str) -> str:
    line = text.split("\n", 1)[0]
    head, place, _ = line.rpartition(" (line ")
    return head if place else line
