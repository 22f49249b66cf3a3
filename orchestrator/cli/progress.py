"""What a run looks like from outside: the events of one run reduced to what a person wants to see.

Keeps no transcript: an agent that ended becomes a count. Keyed by ``seq``, since labels repeat.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from protocol.events import WorkflowEvent

__all__ = ["ActiveAgent", "Progress", "clean", "seconds"]


class ActiveAgent(msgspec.Struct, frozen=True):
    """An agent at work. ``since`` is on the progress's clock."""

    label: str
    phase: str | None
    since: float


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
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
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
                return f"-> #{seq} {clean(label)}"
            case AgentEnded(seq=seq, label=label, outcome=outcome, error=error):
                started = self.active.pop(seq, None)
                took = f" ({seconds(self.clock() - started.since)})" if started else ""
                if outcome == "completed":
                    self.completed += 1
                    return f"ok #{seq} {clean(label)}{took}"
                if outcome == "failed":
                    self.failed += 1
                    return f"FAILED #{seq} {clean(label)}{took}: {clean(error or 'no reason given')}"
                self.cancelled += 1
                return f"cancelled #{seq} {clean(label)}{took}"
            case WorkflowEnded():
                self.over = True
                return ""
            case _:
                return ""

    @property
    def counts(self) -> str:
        """How many agents are in which state, leaving out what is none."""
        parts = [f"{len(self.active)} running", f"{self.completed} done"]
        if self.failed:
            parts.append(f"{self.failed} FAILED")
        if self.cancelled:
            parts.append(f"{self.cancelled} cancelled")
        return ", ".join(parts)


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
