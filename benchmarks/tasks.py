"""What can be measured: one small struct per kind of measurement, understood by every subject.

A subject (our engine in this process, the reference in one long-lived Node process) takes a task and answers with named
series of samples. Both run the same script text under the same caps, so a ratio compares the same work.
"""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

__all__ = [
    "Calls",
    "Cancel",
    "Flood",
    "LargeValue",
    "LogRate",
    "Memory",
    "Series",
    "StartToResult",
    "Subject",
    "Task",
    "Throughput",
    "Walls",
]

Series = dict[str, list[float]]
"""Samples by name. Milliseconds, microseconds, per second or MiB: the figure that shows a series names its unit."""


class _Task(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    grace: float = 5.0
    """Seconds a closing run waits for agents that ignore the abort, and a spinning script in the reference."""
    slots: int = 16
    """Agents of one run at work at once."""


class StartToResult(_Task, frozen=True, tag="start"):
    """``return 1`` from the start call to its result, one after the other with a pause between two.

    ``warm`` finds a spare worker ready, ``fork`` has none, ``cold`` makes a new engine each time.
    Series: ``result`` and ``dispose`` in ms.
    """

    temperature: Literal["warm", "fork", "cold"] = "warm"
    runs: int = 20
    pause: float = 0.02
    sandbox: Literal["auto", "off"] = "auto"


class Throughput(_Task, frozen=True, tag="throughput"):
    """Whole runs (start, result, dispose) of ``return 1``, some at once. Series: ``rate`` in runs per second."""

    at_once: int = 1
    runs: int = 100


class Calls(_Task, frozen=True, tag="calls"):
    """A script that makes ``calls`` agent calls between two log lines.

    Series: ``per_call`` in µs between the two lines, ``total`` in ms from the start call to the result.
    """

    script: str
    calls: int


class LogRate(_Task, frozen=True, tag="logs"):
    """A script that logs ``events`` lines while a listener counts. Series: ``rate`` per second, first to last."""

    events: int = 50_000


class LargeValue(_Task, frozen=True, tag="value"):
    """A 10 MB value out of the script or into it. Series: ``total`` in ms from start call to result, ``start`` in ms
    until the start call is back, ``built`` in ms from the log line after building to the result (results only)."""

    direction: Literal["result", "args"] = "result"
    items: int = 100_000


class Cancel(_Task, frozen=True, tag="cancel"):
    """Waits for ``ready``, lets ``settle`` seconds pass, then cancels (or only disposes).

    Series: ``cancel`` in ms from the cancel call to the result, ``dispose`` in ms of the dispose call after it (or of
    the live run when ``cancel`` is false).
    """

    script: str
    ready: Literal["agent-start", "agent-end"] = "agent-start"
    settle: float = 0.0
    runs: int = 5
    cancel: bool = True


class Memory(_Task, frozen=True, tag="memory"):
    """``live`` runs that each wait for an agent.

    Series, in MiB per live run: ``pss`` and ``private``: what the runs added to this process and, in processes of
    their own, what those hold. ``start`` in ms until all wait, ``end`` in ms from cancelling all until nothing is left.
    """

    live: int = 20


class Flood(_Task, frozen=True, tag="flood"):
    """One run logs for ever for ``seconds`` while others start one after the other.

    Series: ``other`` in ms of start to result during the flood less the median before it, ``stall`` in ms: the longest
    time the host's loop did not turn.
    """

    seconds: float = 0.5


class Walls(_Task, frozen=True, tag="walls"):
    """What each wall of the sandbox costs one worker. Series in µs by the wall's name, and ``all``."""

    runs: int = 50


Task = StartToResult | Throughput | Calls | LogRate | LargeValue | Cancel | Memory | Flood | Walls


class Subject(Protocol):
    """Whatever can be measured."""

    name: str

    async def measure(self, task: Task) -> Series:
        """Does the work of one task and returns its samples."""
        ...

    async def close(self) -> None: ...
