"""A scripted engine for races the real one cannot be made to lose, and what tests of tool calls share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from orchestrator import (
    AbortSignal,
    AgentEnded,
    AgentStarted,
    LogWritten,
    PhaseStarted,
    WorkflowEnded,
    WorkflowEvent,
    WorkflowMeta,
    WorkflowResult,
    WorkflowRunInfo,
    WorkflowStarted,
    WorkflowStartRequest,
)
from orchestrator.sessions import DEFAULT_RULES, MemorySessionLog, SessionEvent
from orchestrator.tool import ToolEvent, ToolProgressed, ToolRegistry, ToolResult, WorkflowTool
from protocol.events import RunId

META = {"name": "demo", "description": "a test"}
ARGUMENTS: dict[str, Any] = {"script": "return 1", "meta": META}


def run_info(run_id: str = "run-1", name: str = "demo") -> WorkflowRunInfo:
    return WorkflowRunInfo(RunId(run_id), WorkflowMeta(name=name, description="a test"))


class Story:
    """The events of one run, by the words of the contract."""

    def __init__(self, run_id: str = "run-1", name: str = "demo") -> None:
        self.info = run_info(run_id, name)

    def start(self) -> WorkflowEvent:
        return WorkflowStarted(self.info)

    def phase(self, title: str) -> WorkflowEvent:
        return PhaseStarted(self.info, title)

    def log(self, message: str) -> WorkflowEvent:
        return LogWritten(self.info, message)

    def agent(self, seq: int, label: str = "work", phase: str | None = None) -> WorkflowEvent:
        return AgentStarted(self.info, seq, label, f"child-{seq}", phase)

    def agent_end(
        self, seq: int, outcome: Any = "completed", label: str = "work", phase: str | None = None
    ) -> WorkflowEvent:
        return AgentEnded(self.info, seq, label, f"child-{seq}", outcome, phase)

    def end(self, stop_reason: Any = "completed", agents: int = 0) -> WorkflowEvent:
        return WorkflowEnded(self.info, stop_reason, agents)


class FakeEvents:
    """Listeners, called directly, contained as the contract asks."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Any], object]] = []

    def subscribe(self, listener: Callable[[Any], object], /) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener) if listener in self.listeners else None

    def emit(self, *events: WorkflowEvent) -> None:
        for event in events:
            for listener in tuple(self.listeners):
                listener(event)


class FakeRun:
    """A run whose every step the test decides."""

    def __init__(self, info: WorkflowRunInfo) -> None:
        self.id = info.id
        self.meta = info.meta
        self.cancels: list[str | None] = []
        self.disposals = 0
        self.at_rest = False
        self.on_dispose: Callable[[], Awaitable[None]] | None = None
        self._result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def result(self) -> Awaitable[Any]:
        return asyncio.shield(self._result)

    def settle(self, **fields: Any) -> None:
        if not self._result.done():
            self._result.set_result(WorkflowResult(**{"stop_reason": "completed", **fields}))

    def settle_with(self, result: Any) -> None:
        self._result.set_result(result)

    def cancel(self, reason: str | None = None) -> None:
        self.cancels.append(reason)
        self.settle(stop_reason="cancelled", error=f"workflow run cancelled: {reason}")

    async def dispose(self) -> None:
        self.disposals += 1
        if self.on_dispose is not None:
            await self.on_dispose()
        self.settle(stop_reason="cancelled", error="workflow run cancelled: disposed")
        self.at_rest = True


class FakeEngine:
    """Runs ``on_start(engine, request, run)`` inside ``start``; raising there refuses the run."""

    def __init__(self, on_start: Callable[[FakeEngine, WorkflowStartRequest, FakeRun], Any] | None = None) -> None:
        self.events = FakeEvents()
        self.on_start = on_start
        self.requests: list[WorkflowStartRequest] = []
        self.runs: list[FakeRun] = []
        self.info = run_info()

    async def start(self, request: WorkflowStartRequest, /) -> FakeRun:
        self.requests.append(request)
        run = FakeRun(self.info)
        self.runs.append(run)
        if self.on_start is not None:
            answer = self.on_start(self, request, run)
            if isinstance(answer, Coroutine):
                await answer
        return run

    @property
    def run(self) -> FakeRun:
        return self.runs[-1]


class CallingAgent:
    """An agent with a session, as the tool's caller."""

    def __init__(self, session_id: str = "s1", session: Any = None) -> None:
        self.session = session if session is not None else MemorySessionLog(session_id, DEFAULT_RULES)

    @property
    def records(self) -> list[tuple[str, dict[str, Any]]]:
        events: tuple[SessionEvent, ...] = self.session.events
        return [(event.type, dict(event.data)) for event in events]


class Mounted:
    """The workflow tool in a registry, with everything it dispatches kept."""

    def __init__(self, engine: Any, **settings: Any) -> None:
        self.tool = WorkflowTool(engine, **settings)
        self.registry = ToolRegistry()
        self.registry.register(self.tool.definition)
        self.events: list[ToolEvent] = []
        self.registry.events.subscribe(self.events.append)

    async def call(
        self,
        arguments: Any = None,
        *,
        agent: Any = "an agent",
        signal: AbortSignal | None = None,
        session_id: str = "s1",
        call_id: str = "c1",
        parent: Any = None,
    ) -> ToolResult:
        return await self.registry.call(
            self.tool.definition.name,
            ARGUMENTS if arguments is None else arguments,
            session_id=session_id,
            call_id=call_id,
            agent=agent,
            signal=signal,
            parent=parent,
        )

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    @property
    def views(self) -> list[str]:
        return [view_text(event) for event in self.events if isinstance(event, ToolProgressed)]


def view_text(event: ToolProgressed) -> str:
    return "\n".join(block.text for block in event.view.content if hasattr(block, "text"))  # pyright: ignore


async def until(condition: Callable[[], bool]) -> None:
    """Lets other tasks run until the condition holds; the test's own timeout bounds it."""
    while not condition():  # noqa: ASYNC110 - what it waits for has no event of its own
        await asyncio.sleep(0)
