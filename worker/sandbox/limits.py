"""What the process may use: memory, CPU time, and nothing of what it does not need.

Memory is counted from what the process uses when the limits are set, so the engine's own share is not charged to a
script. Two limits together bound it whichever way it is taken: `RLIMIT_DATA` counts writable private pages, and
`RLIMIT_AS` keeps read-only mappings, which cost page tables and are not data, to a fixed amount of addresses.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

__all__ = ["ADDRESS_SLACK", "Usage", "close_descriptor_table", "measure", "set_limits", "volunteer_for_oom"]

ADDRESS_SLACK = 1 << 30
"""Addresses beyond the memory limit: room for the aligned reservations the engine trims at once. Costs no memory."""


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
    page = os.sysconf("SC_PAGE_SIZE")
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
    if sys.platform == "win32":
        return False, "Windows has no resource limits"
    import resource

    wanted: list[tuple[str, int, int]] = [("RLIMIT_CORE", 0, 0)]
    missing: list[str] = []
    if cpu is not None:
        wanted.append(("RLIMIT_CPU", cpu, cpu + 1))
    if memory is not None and usage is None:
        missing.append("memory (this system does not say what is used)")
    elif memory is not None and usage is not None:
        wanted.append(("RLIMIT_DATA", usage.data + memory, usage.data + memory))
        addresses = usage.addresses + memory + ADDRESS_SLACK
        wanted.append(("RLIMIT_AS", addresses, addresses))
    if walls:
        wanted += [(name, 0, 0) for name in ("RLIMIT_FSIZE", "RLIMIT_NPROC", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE")]
    for name, soft, hard in wanted:
        which: int | None = getattr(resource, name, None)
        if which is None:
            missing.append(name)
            continue
        ceiling = resource.getrlimit(which)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        try:
            resource.setrlimit(which, (soft, hard))
        except (OSError, ValueError):
            missing.append(name)
    if missing:
        return False, "not limited: " + ", ".join(missing)
    return True, ""


def close_descriptor_table(slots: int) -> tuple[bool, str]:
    """No descriptor can be made any more: a table of ``slots``, all of them taken."""
    if sys.platform == "win32":
        return False, "Windows has no resource limits"
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (slots, slots))
    except (OSError, ValueError):
        return False, "not limited: RLIMIT_NOFILE"
    return True, ""
