"""How a run ended: the value of a `WorkflowRun.result`."""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.events import StopReason

__all__ = ["AgentFailure", "PhaseSummary", "WorkflowResult"]


class AgentFailure(msgspec.Struct, frozen=True):
    """One agent that failed. Keyed by ``seq``: labels repeat."""

    seq: int
    label: str
    phase: str | None
    reason: str


class PhaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the agents of one phase came to. ``title`` is ``None`` for agents outside any phase.

    Args:
        started: children a provider started; the sum of the three counts below.
        input_tokens, output_tokens: what the providers reported, also for agents that failed.
    """

    title: str | None
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class WorkflowResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one run.

    Args:
        value: what the script returned, decoded JSON; ``None`` unless completed.
        stop_reason: ``completed``, ``cancelled`` or ``error``.
        error: what happened, ready to be shown to a model; present exactly when not completed.
        code: the `ErrorCode` of ``error``.
        agents_started: children a provider started; the sum of the three counts below.
        failures: each failed agent with its reason, so that a completed run with five dead agents shows them.
        warnings: what was changed or left behind on the way.
        input_tokens, output_tokens: what providers reported.
        phases: the same by phase, in the order in which their first agents started.
    """

    value: Any = None
    stop_reason: StopReason
    error: str | None = None
    code: str | None = None
    agents_started: int = 0
    agents_completed: int = 0
    agents_failed: int = 0
    agents_cancelled: int = 0
    failures: tuple[AgentFailure, ...] = ()
    warnings: tuple[str, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    phases: tuple[PhaseSummary, ...] = ()
