"""Which processes a test of the acp: agent has: to prove that none is left."""

from __future__ import annotations

import psutil

__all__ = ["SLEEP", "leave_out_neighbours", "processes"]

SLEEP = "86399"
"""Seconds that only the scripted agent's children sleep."""

_neighbours: set[int] = set()


def leave_out_neighbours() -> None:
    """What runs now belongs to other tests of the session, such as an engine they share: it is not counted."""
    _neighbours.clear()
    _neighbours.update(processes())


def processes() -> set[int]:
    """This test's processes: descendants, and whatever else the scripted agent starts, without zombies."""
    found = {child.pid for child in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", SLEEP]:
            found.add(process.pid)
    living = {pid for pid in found if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE}
    return living - _neighbours
