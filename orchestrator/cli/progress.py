"""What a run looks like from outside: the events of one run reduced to what a person wants to see.

Keeps no transcript: an agent that ended becomes a count. Keyed by ``seq``, since labels repeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from protocol.events import AgentEnded, WorkflowEvent

__all__ = ["ActiveAgent", "PhaseCount", "Progress", "clean", "seconds", "tally", "tokens"]


class ActiveAgent(msgspec.Struct, frozen=True):
    """An agent at work. ``since`` is on the progress's clock."""

    label: str
    phase: str | None
    since: float


class PhaseCount(msgspec.Struct):
    """What the agents of one phase came to so far."""

    running: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Progress:
    """Reduces events. Attributes are read by a view at its own pace.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self.name = ""
        self.phase: str | None = None
        self.last_log = ""
        self.active: dict[int, ActiveAgent] = {}
        self.phases: dict[str | None, PhaseCount] = {}  # in the order in which their first agents started
        self.total = PhaseCount()
        self.over = False

    def take(self, event: WorkflowEvent) -> str:
        """Takes one event in and returns the line that tells it, without a newline; empty when there is none."""
        from protocol.events import AgentEnded, AgentStarted, LogWritten, PhaseStarted, WorkflowEnded, WorkflowStarted

        match event:
            case WorkflowStarted():
                self.name = event.run.meta.name
                return f"workflow {clean(self.name)} ({event.run.id})"
            case PhaseStarted(title=title):
                self.phase = title
                return f"== {clean(title)}"
            case LogWritten(message=message):
                self.last_log = message
                return f"   {clean(message)}"
            case AgentStarted(seq=seq, label=label, phase=phase):
                self.active[seq] = ActiveAgent(label, phase, self.clock())
                for count in (self.phases.setdefault(phase, PhaseCount()), self.total):
                    count.running += 1
                return f"-> #{seq} {clean(label)}"
            case AgentEnded():
                return self._ended(event)
            case WorkflowEnded():
                self.over = True
                return ""
            case _:
                return ""

    def _ended(self, event: AgentEnded) -> str:
        for count in (self.phases.setdefault(event.phase, PhaseCount()), self.total):
            count.running -= 1
            count.input_tokens += event.input_tokens
            count.output_tokens += event.output_tokens
            match event.outcome:
                case "completed":
                    count.completed += 1
                case "failed":
                    count.failed += 1
                case "cancelled":
                    count.cancelled += 1
        started = self.active.pop(event.seq, None)
        facts = [seconds(self.clock() - started.since)] if started else []
        facts += [used] if (used := tokens(event.input_tokens, event.output_tokens)) else []
        about = f"#{event.seq} {clean(event.label)}" + (f" ({', '.join(facts)})" if facts else "")
        if event.outcome == "completed":
            return f"ok {about}"
        if event.outcome == "failed":
            return f"FAILED {about}: {clean(event.error or 'no reason given')}"
        return f"cancelled {about}"


def tally(count: PhaseCount) -> str:
    """How many agents are in which state, leaving out what is none, and the tokens they used."""
    parts = [f"{count.running} running"] if count.running else []
    parts += [f"{count.completed} done"]
    ended = count.completed + count.failed + count.cancelled
    if count.failed:
        parts.insert(0, f"{count.failed} of {ended + count.running} FAILED")
    if count.cancelled:
        parts.append(f"{count.cancelled} cancelled")
    used = tokens(count.input_tokens, count.output_tokens)
    return ", ".join(parts) + (f" · {used}" if used else "")


def tokens(given: int, produced: int) -> str:
    """Tokens for people; empty when no provider reported any."""
    return f"{given:,} tokens in, {produced:,} out" if given or produced else ""


def clean(text: str, *, lines: bool = False) -> str:
    """Text of a script or an agent as a terminal may be shown it: no escape sequences, and on one line by default."""
    kept = "\n\t" if lines else ""
    if not lines:
        text = " ".join(text.splitlines())
    return "".join(char if char.isprintable() or char in kept else "\ufffd" for char in text)


def seconds(value: float) -> str:
    """A duration for people."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
