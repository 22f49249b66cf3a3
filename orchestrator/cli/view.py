"""Shows a run while it goes on: a live region on a terminal, plain lines elsewhere. Both write to stderr only.

Guarantees: showing never blocks the event loop for longer than a terminal takes, never fails the run, and shows text
of scripts and agents without control characters. Narration beyond what a reader can follow is left out, and said so.
"""

from __future__ import annotations

import asyncio
import collections
import os
import sys
from typing import TYPE_CHECKING, Protocol

from orchestrator.cli.progress import Progress, clean, seconds, tally
from orchestrator.cli.writer import LineWriter

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

    from protocol.events import WorkflowEvent

__all__ = ["LiveView", "PlainView", "View", "make_view"]

REFRESH = 0.125
SHOWN_AGENTS = 8
SHOWN_PHASES = 6
LINES_PER_REFRESH = 20
LINE_LIMIT = 2000
"""Characters of one line: a log of a megabyte is for ``--events``, not for a terminal."""


class View(Protocol):
    """Where a run is shown."""

    def take(self, event: WorkflowEvent) -> None:
        """Shows one event."""
        ...

    def say(self, text: str) -> None:
        """Shows a line of our own; may hold newlines."""
        ...

    def close(self) -> None:
        """Shows what is still to show and leaves the terminal as it was. Idempotent."""
        ...


def make_view() -> View:
    """The view that suits stderr."""
    return LiveView() if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else PlainView()


class PlainView:
    """One line per event."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._writer = LineWriter(sys.stderr.fileno())
        self._left_out = 0

    def take(self, event: WorkflowEvent) -> None:
        line = self._progress.take(event)
        if not line:
            return
        if self._writer.behind:
            self._left_out += 1
            return
        self._admit_gap()
        self._writer.put(f"{_cut(line)}\n".encode())

    def say(self, text: str) -> None:
        self._admit_gap()
        self._writer.put(f"{text}\n".encode("utf-8", "replace"))

    def close(self) -> None:
        self._admit_gap()
        self._writer.finish()

    def _admit_gap(self) -> None:
        if self._left_out:
            self._writer.put(f"   … {self._left_out} lines left out: stderr is read too slowly\n".encode())
            self._left_out = 0


class LiveView:
    """A region at the bottom that is redrawn, with the narration scrolling above it."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._progress = Progress()
        self._console = console or Console(stderr=True, highlight=False, markup=False, emoji=False)
        self._lines: collections.deque[str] = collections.deque(maxlen=LINES_PER_REFRESH)
        self._left_out = 0
        # No refresh thread: redrawing is ours, in the loop, so no line can be printed by two threads at once.
        self._live: Live | None = Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=True
        )
        self._live.start()
        self._task = asyncio.get_running_loop().create_task(self._redraw(), name="live view")

    def take(self, event: WorkflowEvent) -> None:
        line = self._progress.take(event)
        if line and not line.startswith(("-> ", "ok ")):  # what the region itself shows
            self._add(_cut(line))

    def say(self, text: str) -> None:
        for line in text.split("\n"):
            self._add(line)
        if self._live is None:
            self._flush()

    def close(self) -> None:
        if self._live is None:
            return
        self._task.cancel()
        self._flush()
        self._live.stop()
        self._live = None

    def _add(self, line: str) -> None:
        if len(self._lines) == self._lines.maxlen:
            self._left_out += 1
        self._lines.append(line)

    async def _redraw(self) -> None:
        while self._live is not None:
            self._flush()
            self._live.update(self._region(), refresh=True)
            await asyncio.sleep(REFRESH)

    def _flush(self) -> None:
        from rich.text import Text

        if self._left_out:
            self._console.print(Text(f"   … {self._left_out} lines left out (--events keeps them)", style="dim"))
            self._left_out = 0
        while self._lines:
            line = self._lines.popleft()
            self._console.print(Text(line, style=_style(line)), soft_wrap=True)

    def _region(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        progress, now = self._progress, self._progress.clock()
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append(clean(progress.name) or "starting", style="bold")
        if progress.phase is not None:
            head.append(f" · {clean(progress.phase)}", style="cyan")
        head.append(f" · {tally(progress.total)}", style="red" if progress.total.failed else "")
        head.append(f" · {seconds(now - progress.began)}", style="dim")
        rows = [head]
        phases = [item for item in progress.phases.items() if item[0] is not None]
        if len(phases) > SHOWN_PHASES:
            rows.append(Text(f"  {len(phases) - SHOWN_PHASES} phases before", style="dim"))
        for title, count in phases[-SHOWN_PHASES:]:
            row = Text(f"  {clean(title or '')}: ", style="cyan", no_wrap=True, overflow="ellipsis")
            row.append(tally(count), style="red" if count.failed else "dim")
            rows.append(row)
        for seq, agent in list(progress.active.items())[:SHOWN_AGENTS]:
            row = Text(f"  #{seq} {clean(agent.label)} ", no_wrap=True, overflow="ellipsis")
            row.append(seconds(now - agent.since), style="dim")
            rows.append(row)
        if len(progress.active) > SHOWN_AGENTS:
            rows.append(Text(f"  and {len(progress.active) - SHOWN_AGENTS} more", style="dim"))
        if progress.last_log:
            rows.append(Text(f"  {_cut(clean(progress.last_log))}", style="dim", no_wrap=True, overflow="ellipsis"))
        return Group(*rows)


def _cut(line: str) -> str:
    return line if len(line) <= LINE_LIMIT else f"{line[: LINE_LIMIT - 1]}…"


def _style(line: str) -> str:
    if line.startswith("FAILED "):
        return "red"
    return "bold cyan" if line.startswith("== ") else ""
