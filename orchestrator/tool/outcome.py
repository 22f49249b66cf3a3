"""What a person wants to know of a run besides its value: which agents failed and why, and the warnings."""

from __future__ import annotations

from orchestrator.results import WorkflowResult
from orchestrator.sessions.text import one_line

__all__ = ["outcome_notes"]

MAX_FAILURES_SHOWN = 10
MAX_LABEL = 80
MAX_REASON = 300


def outcome_notes(details: object) -> list[str]:
    """The failed agents and the warnings, each as a paragraph that lists them; empty when there are none.

    Args:
        details: `ToolResult.details` of a call; anything but a `WorkflowResult` has nothing to tell.
    """
    if not isinstance(details, WorkflowResult):
        return []
    notes: list[str] = []
    if details.failures:
        lines = [f"{details.agents_failed} of {details.agents_started} agents failed:"]
        lines += [
            f"- {one_line(failure.label, MAX_LABEL)}: {one_line(failure.reason, MAX_REASON)}"
            for failure in details.failures[:MAX_FAILURES_SHOWN]
        ]
        if len(details.failures) > MAX_FAILURES_SHOWN:
            lines.append(f"- and {len(details.failures) - MAX_FAILURES_SHOWN} more")
        notes.append("\n".join(lines))
    if details.warnings:
        notes.append("\n".join(["Warnings:", *(f"- {one_line(text, MAX_REASON)}" for text in details.warnings)]))
    return notes
