"""The end of a run: the outcome as JSON for programs, and a summary in which a dead agent cannot be overlooked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.cli.progress import clean, seconds, tokens

if TYPE_CHECKING:
    from orchestrator.engine import WorkflowEngine
    from orchestrator.providers import RehearseProvider
    from orchestrator.results import PhaseSummary, WorkflowResult
    from protocol.errors import WorkflowError

__all__ = [
    "json_bytes",
    "outcome_of",
    "outcome_of_refusal",
    "rehearsal_notice",
    "rehearsal_outcome",
    "rehearsal_summary",
    "summary",
    "walls_notice",
]

SHOWN_FAILURES = 20
SHOWN_LABELS = 5
REASON_LIMIT = 300


def json_bytes(value: object, *, compact: bool = False) -> bytes:
    """JSON for stdout, with its newline. UTF-8 whatever the locale says."""
    data = msgspec.json.encode(value)
    return (data if compact else msgspec.json.format(data, indent=2)) + b"\n"


def outcome_of(run_id: str, result: WorkflowResult) -> dict[str, Any]:
    """The whole outcome of a run, as ``--json`` prints it."""
    return {
        "run_id": run_id,
        "stop_reason": result.stop_reason,
        "code": result.code,
        "error": result.error,
        "value": result.value,
        "agents_started": result.agents_started,
        "agents": {
            "completed": result.agents_completed,
            "failed": result.agents_failed,
            "cancelled": result.agents_cancelled,
        },
        "failures": result.failures,
        "warnings": result.warnings,
        "input_tokens": result.input_tokens,
        "output_tokens": result.output_tokens,
        "phases": result.phases,
    }


def outcome_of_refusal(error: WorkflowError) -> dict[str, Any]:
    """What ``--json`` prints for a script that never became a run."""
    none = {"completed": 0, "failed": 0, "cancelled": 0}
    return {
        "run_id": None,
        "stop_reason": "error",
        "code": error.code,
        "error": error.message,
        "value": None,
        "agents_started": 0,
        "agents": none,
        "failures": [],
        "warnings": [],
        "input_tokens": 0,
        "output_tokens": 0,
        "phases": [],
    }


def rehearsal_notice(names: Sequence[str], *, all_of_them: bool) -> str:
    """What is said before a run in which the providers of these names rehearse."""
    who = "no agent does any work" if all_of_them else f"no agent of {', '.join(names)} does any work"
    return (
        f"REHEARSAL: {who}. Answers are made up in the shape of the schemas, so the result means nothing.\n"
        "           For real work name an agent: --agent 'command:claude -p', --agent openai:MODEL, or in workflow.toml"
    )


def rehearsal_outcome(rehearsal: RehearseProvider) -> list[dict[str, Any]]:
    """What ``--json`` adds to the outcome of a rehearsal: its cost by phase."""
    return [
        {
            "phase": phase.title,
            "agents": phase.agents,
            "prompt_characters": phase.prompt_characters,
            "labels": phase.labels,
        }
        for phase in rehearsal.phases()
    ]


def rehearsal_summary(rehearsal: RehearseProvider) -> str:
    """What a rehearsed run would have cost, for people."""
    phases = rehearsal.phases()
    agents = sum(phase.agents for phase in phases)
    characters = sum(phase.prompt_characters for phase in phases)
    lines = [f"REHEARSED: a real run like this one starts {_agents(agents)} with {characters} characters of prompts"]
    for phase in phases:
        labels = [clean(label) for label in dict.fromkeys(phase.labels)]
        shown = ", ".join(labels[:SHOWN_LABELS]) + (", …" if len(labels) > SHOWN_LABELS else "")
        title = "(no phase)" if phase.title is None else clean(phase.title)
        lines.append(f"  {title}: {_agents(phase.agents)}, {phase.prompt_characters} characters: {shown}")
    return "\n".join(lines)


def summary(result: WorkflowResult, elapsed: float) -> str:
    """How it ended: one line, then each phase where there are several, what failed and why, warnings, and the error."""
    ended = "failed" if result.stop_reason == "error" else result.stop_reason
    used = tokens(result.input_tokens, result.output_tokens)
    lines = [f"{ended} in {seconds(elapsed)}: {_counts(result)}{'; ' + used if used else ''}"]
    if len(result.phases) > 1:
        lines += [_phase_line(phase) for phase in result.phases]
    for failure in result.failures[:SHOWN_FAILURES]:
        phase = f" [{clean(failure.phase)}]" if failure.phase is not None else ""
        lines.append(f"  failed: #{failure.seq} {clean(failure.label)}{phase}: {_reason(failure.reason)}")
    if len(result.failures) > SHOWN_FAILURES:
        lines.append(f"  … and {len(result.failures) - SHOWN_FAILURES} more failed (--json lists them all)")
    lines += [f"  warning: {_reason(warning)}" for warning in result.warnings]
    if result.error is not None:
        code = f" [{result.code}]" if result.code else ""
        lines.append(f"workflow: run {ended}{code}: {clean(result.error, lines=True)}")
    return "\n".join(lines)


def walls_notice(engine: WorkflowEngine) -> str:
    """Says which walls of the sandbox are down; empty when all are up. ``auto`` must never be silent about it."""
    description = engine.describe()
    if description.sandbox == "off":
        return "warning: the sandbox is off: the script's worker is confined by nothing but its process"
    down = [f"{wall.name} ({wall.detail})" if wall.detail else wall.name for wall in description.walls if not wall.up]
    if not down:
        return ""
    return f"warning: this system lacks parts of the sandbox: {', '.join(down)}; `workflow doctor` tells more"


def _phase_line(phase: PhaseSummary) -> str:
    title = "(no phase)" if phase.title is None else clean(phase.title)
    used = tokens(phase.input_tokens, phase.output_tokens)
    counted = _count(phase.started, phase.completed, phase.failed, phase.cancelled)
    return f"  {title}: {counted}{'; ' + used if used else ''}"


def _counts(result: WorkflowResult) -> str:
    return _count(result.agents_started, result.agents_completed, result.agents_failed, result.agents_cancelled)


def _count(started: int, completed: int, failed: int, cancelled: int) -> str:
    if not started:
        return "no agents"
    if failed:
        text = f"{failed} of {_agents(started)} FAILED, {completed} completed"
    else:
        text = f"{_agents(completed)} completed"
    return text + (f", {cancelled} cancelled" if cancelled else "")


def _agents(number: int) -> str:
    return f"{number} agent{'' if number == 1 else 's'}"


def _reason(text: str) -> str:
    text = clean(text)
    return text if len(text) <= REASON_LIMIT else f"{text[: REASON_LIMIT - 1]}…"
