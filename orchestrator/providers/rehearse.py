"""Stand-in agents: they answer at once, always the same, in the shape the script asks for.

A rehearsal shows which phases a script goes through and how many agents with which prompts it would pay for, before
anyone pays. What follows from an answer's content (a loop until "no more findings", a branch on a verdict) is a guess.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable

import msgspec

from orchestrator.agents import PASS_THROUGH_OPTIONS, AgentRequest, AgentResult

__all__ = ["RehearsalPhase", "RehearseProvider", "RehearseSettings"]

_child_numbers = itertools.count(1)


class RehearseSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How stand-in agents answer.

    Args:
        seed: varies the schema-shaped answers; the same seed gives the same answers.
    """

    seed: int = 0


class RehearsalPhase(msgspec.Struct, frozen=True):
    """What one phase would cost. ``title`` is ``None`` for agents outside every phase."""

    title: str | None
    agents: int
    prompt_characters: int
    labels: tuple[str, ...]


class RehearseProvider:
    """Answers every agent by itself. Understands every pass-through option, as it does nothing with them.

    Args:
        settings: see `RehearseSettings`.
    """

    supported_options = PASS_THROUGH_OPTIONS

    def __init__(self, settings: RehearseSettings | None = None) -> None:
        self._seed = (settings or RehearseSettings()).seed
        self._phases: dict[str | None, list[tuple[str, int]]] = {}

    async def start(self, request: AgentRequest) -> _RehearsedRun:
        """Counts the agent and answers it."""
        self._phases.setdefault(request.phase, []).append((request.label, len(request.prompt)))
        return _RehearsedRun(request, self._seed + request.seq)

    def phases(self) -> tuple[RehearsalPhase, ...]:
        """What was asked for so far, by phase, in the order the phases were first used."""
        return tuple(
            RehearsalPhase(
                title=title,
                agents=len(calls),
                prompt_characters=sum(size for _, size in calls),
                labels=tuple(label for label, _ in calls),
            )
            for title, calls in self._phases.items()
        )


class _RehearsedRun:
    def __init__(self, request: AgentRequest, seed: int) -> None:
        self.id = f"rehearsed-{next(_child_numbers)}"
        self._request = request
        self._seed = seed

    @property
    def result(self) -> Awaitable[AgentResult]:
        return self._answer()

    async def _answer(self) -> AgentResult:
        if self._request.schema is None:
            return AgentResult(text=f"Rehearsed answer of “{self._request.label}”.")
        from orchestrator.schemas import sample_instance

        try:
            return AgentResult(structured=sample_instance(self._request.schema, self._seed))
        except ValueError as error:  # a legal schema may be as hard to satisfy as it likes
            return AgentResult(stop_reason="error", error=f"it cannot be rehearsed: {error}")

    async def dispose(self) -> None:
        """Nothing runs."""
