"""What tests of whole runs share: a scripted agent and a one-call run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator import (
    AgentFailed,
    AgentRequest,
    AgentResult,
    EngineConfig,
    WorkflowEngine,
    WorkflowEvent,
    WorkflowResult,
    WorkflowStartRequest,
)
from tests.conftest import run_async

META = {"name": "test", "description": "a test"}


async def scripted_agent(request: AgentRequest) -> str | AgentResult:
    """Answers by prompt: ``fail`` fails, ``boom`` breaks, ``hang`` waits for the abort, ``structured`` is an object."""
    match request.prompt:
        case "hang":
            await asyncio.Event().wait()
        case "fail":
            raise AgentFailed("no luck")
        case "boom":
            raise RuntimeError("the provider broke")
        case "structured":
            return AgentResult(structured={"n": 1, "extra": [True]})
        case "structured-wrong":
            return AgentResult(structured={"n": "not a number"})
        case _:
            pass
    return f"ok:{request.prompt}"


class Ran(NamedTuple):
    """A finished run: its result and its events."""

    result: WorkflowResult
    events: list[WorkflowEvent]

    @property
    def types(self) -> list[str]:
        return [event.type.removeprefix("workflow/") for event in self.events]


def run_script(
    script: str,
    *,
    agent: Any = scripted_agent,
    config: EngineConfig | None = None,
    meta: Any = META,
    on_event: Callable[[Any, Any], None] | None = None,
    **request: Any,
) -> Ran:
    """Runs one script to its end in its own engine. ``on_event(run, event)`` sees the events after the start."""

    async def main() -> Ran:
        events: list[WorkflowEvent] = []
        async with WorkflowEngine(config or EngineConfig(max_concurrent_agents=8, spare_workers=0)) as engine:
            engine.agents.register("default", agent)
            live: list[Any] = []

            def listen(event: WorkflowEvent) -> None:
                events.append(event)
                if on_event is not None and live:
                    on_event(live[0], event)

            engine.events.subscribe(listen)
            async with await engine.start(WorkflowStartRequest(script=script, meta=meta, **request)) as workflow:
                live.append(workflow)
                result = await workflow.result
        return Ran(result, events)

    return run_async(main())
