"""Watches a provider through the agent stages of the crash table, and holds its agents where a stage wants them.

What it guarantees: the provider underneath sees an ordinary life (one start, one result awaited, one dispose); only the
moment its answers are handed on is delayed, and a delayed answer is released by the abort.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec

from orchestrator.agents import AgentProvider, AgentRequest, AgentResult, AgentRun
from orchestrator.faults.crash_point import CrashPoint
from orchestrator.faults.stages import Stage

__all__ = ["ProbeProvider", "ProbedAgent"]

_HELD = {Stage.AGENT_STARTING, Stage.AGENT_RUNNING, Stage.DISPOSING}


class ProbedAgent(msgspec.Struct):
    """What became of one agent.

    Args:
        seq: of its call.
        started: its provider's start has fulfilled.
        settled: its result came, or raised.
        disposed: how often it was disposed.
        aborted: the run's signal was aborted by the end.
    """

    seq: int
    started: bool = False
    settled: bool = False
    disposed: int = 0
    aborted: bool = False


class ProbeProvider:
    """Wraps the provider under test for one cell.

    Attributes:
        agents: every agent asked for, oldest first.
    """

    def __init__(self, inner: AgentProvider, point: CrashPoint) -> None:
        self._inner = inner
        self._point = point
        self.agents: list[ProbedAgent] = []
        self.supported_options: tuple[str, ...] = tuple(getattr(inner, "supported_options", ()))

    async def start(self, request: AgentRequest) -> AgentRun:
        agent = ProbedAgent(request.seq)
        self.agents.append(agent)

        def note_abort(_reason: str) -> None:
            agent.aborted = True

        request.signal.add_listener(note_abort)
        if self._point.stage is Stage.AGENT_STARTING and len(self.agents) == 2:
            await self._point.trip()
            await request.signal.wait()
        run = await self._inner.start(request)
        agent.started = True
        return _ProbedRun(run, agent, request, self._point)


class _ProbedRun:
    def __init__(self, run: AgentRun, agent: ProbedAgent, request: AgentRequest, point: CrashPoint) -> None:
        self._run = run
        self._agent = agent
        self._request = request
        self._point = point

    @property
    def id(self) -> str:
        return self._run.id

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._result()

    async def _result(self) -> AgentResult:
        try:
            outcome: Any = await self._run.result
            if self._point.stage in _HELD:
                await self._request.signal.wait()
            return outcome
        finally:
            self._agent.settled = True

    async def dispose(self) -> None:
        self._agent.disposed += 1
        if self._point.stage is Stage.DISPOSING:
            self._point.trip_at_once()
        await self._run.dispose()
