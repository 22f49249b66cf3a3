"""Puts the walls up in the one order that works, and reports each.

The order: first what needs files or free descriptors, then what takes them away, and the system call filter last
because it takes away the calls the others are made with.
"""

from __future__ import annotations

from typing import Final

from protocol.messages import WallReport
from worker.sandbox import codespace, descriptors, environment, landlock, limits, privileges, seccomp

__all__ = ["LIFECYCLE", "NAMES", "Plan", "raise_walls"]

NAMES: Final = (
    "descriptors",
    "rlimits",
    "parent-death",
    "not-dumpable",
    "no-new-privileges",
    "landlock",
    "seccomp",
    "environment",
)
LIFECYCLE: Final = frozenset({"descriptors", "rlimits", "parent-death"})
"""Part of how a worker lives and dies, not only of its security: applied in every mode."""


class Plan:
    """Everything about the walls that does not depend on the worker, made once before the first fork.

    Attributes:
        codespace: Where the engine keeps compiled code; None when it was not loaded yet.
    """

    def __init__(self) -> None:
        self.ruleset = landlock.probe()
        self.codespace = codespace.find()
        self.filter = seccomp.build(self.codespace)

    def complete(self) -> None:
        """Look for the engine again if it was not there; costs every worker a millisecond if left to them."""
        if self.codespace is None:
            self.codespace = codespace.find()
            if self.codespace is not None:
                self.filter = seccomp.build(self.codespace)


def raise_walls(
    plan: Plan,
    chosen: frozenset[str],
    *,
    keep_fd: int,
    parent_pid: int,
    memory_limit: int | None,
    cpu_limit: int | None,
) -> tuple[WallReport, ...]:
    """Put up the chosen walls; the rest are reported as left out. See `worker.sandbox.confine` for the arguments."""
    outcome: dict[str, tuple[bool, str]] = {}
    everything = chosen > LIFECYCLE
    usage = limits.measure()
    if "seccomp" in chosen:
        plan.complete()
    if "environment" in chosen:
        outcome["environment"] = environment.verify_empty()
    if "rlimits" in chosen:
        limits.volunteer_for_oom()
    if "parent-death" in chosen:
        outcome["parent-death"] = privileges.die_with_parent(parent_pid)
    if "descriptors" in chosen:
        outcome["descriptors"] = descriptors.keep_only(keep_fd)
    if "rlimits" in chosen:
        outcome["rlimits"] = limits.set_limits(usage=usage, memory=memory_limit, cpu=cpu_limit, walls=everything)
    if "no-new-privileges" in chosen:
        outcome["no-new-privileges"] = privileges.drop()
    if "not-dumpable" in chosen:
        outcome["not-dumpable"] = privileges.forbid_inspection()
    if "landlock" in chosen:
        outcome["landlock"] = landlock.restrict(plan.ruleset)
    if everything and "rlimits" in chosen:
        closed = limits.close_descriptor_table(descriptors.NEEDED)
        if outcome["rlimits"][0]:
            outcome["rlimits"] = closed
        uncounted = "seccomp" in chosen and plan.codespace is None and memory_limit is not None
        if outcome["rlimits"][0] and uncounted:
            outcome["rlimits"] = (False, "memory made read-only is not counted: the engine's code region was not found")
    if "seccomp" in chosen:
        outcome["seccomp"] = seccomp.install(plan.filter)
    left_out = (False, "left out: the sandbox is off")
    return tuple(WallReport(name, *outcome.get(name, left_out)) for name in NAMES)
