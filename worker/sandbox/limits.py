"""What the process may use: memory, CPU time, and nothing of what it does not need.

Memory is counted from what the process uses when the limits are set, so the engine's own share is not charged to a
script. Two limits together bound it whichever way it is taken: `RLIMIT_DATA` counts writable private pages, and
`RLIMIT_AS` keeps read-only mappings, which cost page tables and are not data, to a fixed amount of addresses. That
written pages stay writable, and so counted, is the system call filter's part (`seccomp.memory_rules`).
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

if sys.platform != "win32":
    import resource  # here and not where it is used: importing it in every fork costs more than all the walls

__all__ = ["ADDRESS_SLACK", "Usage", "close_descriptor_table", "measure", "set_limits", "volunteer_for_oom"]

ADDRESS_SLACK = 1 << 30
"""Addresses beyond the memory limit: room for the aligned reservations the engine trims at once. Costs no memory."""

_FORBIDDEN = ("RLIMIT_FSIZE", "RLIMIT_NPROC", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE")


class Usage(NamedTuple):
    """Bytes of address space and of data (with the stack) a process has mapped."""

    addresses: int
    data: int


def measure() -> Usage | None:
    """What this process uses now; None where the system does not say."""
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None
    try:
        fields = os.read(descriptor, 256).split()
    finally:
        os.close(descriptor)
    page = resource.getpagesize() if sys.platform != "win32" else 0
    return Usage(int(fields[0]) * page, int(fields[5]) * page)


def volunteer_for_oom() -> None:
    """When the machine runs out of memory, a worker is the process to lose."""
    try:
        descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(descriptor, b"1000")
    except OSError:
        pass  # an outer sandbox may hold it; it is a courtesy to the host, not a wall
    finally:
        os.close(descriptor)


def set_limits(*, usage: Usage | None, memory: int | None, cpu: int | None, walls: bool) -> tuple[bool, str]:
    """Set them; returns whether all hold and the detail.

    Args:
        usage: As `measure` gave it in this process.
        memory: Bytes beyond ``usage``.
        cpu: Seconds; the first signal is SIGXCPU, and a second later SIGKILL for a process that ignores it.
        walls: Also forbid files, processes, locked memory and message queues.
    """
    wanted = {"RLIMIT_CORE": (0, 0)}
    if cpu is not None:
        wanted["RLIMIT_CPU"] = (cpu, cpu + 1)
    if memory is not None and usage is not None:
        data, addresses = usage.data + memory, usage.addresses + memory + ADDRESS_SLACK
        wanted |= {"RLIMIT_DATA": (data, data), "RLIMIT_AS": (addresses, addresses)}
    if walls:
        wanted |= dict.fromkeys(_FORBIDDEN, (0, 0))
    refused = [name for name, (soft, hard) in wanted.items() if not _lower(name, soft, hard)]
    if memory is not None and usage is None:
        refused.append("memory, because this system does not say what is used")
    return (False, "not limited: " + ", ".join(refused)) if refused else (True, "")


def close_descriptor_table(slots: int) -> tuple[bool, str]:
    """No descriptor can be made any more: a table of ``slots``, all of them taken."""
    return (True, "") if _lower("RLIMIT_NOFILE", slots, slots) else (False, "not limited: RLIMIT_NOFILE")


def _lower(name: str, soft: int, hard: int) -> bool:
    """Set a limit, or keep one an outer sandbox has set lower; whether it holds now."""
    if sys.platform == "win32":
        return False
    which: int | None = getattr(resource, name, None)
    if which is None:
        return True  # the system has no such thing to limit
    try:
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(which, (soft, hard))
    except (OSError, ValueError):
        return False
    return True
