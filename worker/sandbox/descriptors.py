"""Only the worker's own socket stays open.

Descriptor 0 becomes the reading end of a pipe nobody can write to. It is there to be occupied: `poll` refuses to look
at even one descriptor under `RLIMIT_NOFILE` 0, so the limit is 1, and the one slot that leaves must not be free.
"""

from __future__ import annotations

import os
import sys

from worker.sandbox import numbers
from worker.sandbox.kernel import syscall

__all__ = ["NEEDED", "keep_only"]

NEEDED = 1
"""The smallest `RLIMIT_NOFILE` under which a worker can still poll its socket."""

_HIGHEST = 2**32 - 1
_FALLBACK_HIGHEST = 65536


def keep_only(descriptor: int) -> tuple[bool, str]:
    """Close everything but ``descriptor``; returns whether that is so and the detail.

    Raises:
        ValueError: ``descriptor`` is 0, 1 or 2, where any library's stray output would end up in the conversation.
    """
    if descriptor <= 2:
        raise ValueError(
            f"the worker's socket is descriptor {descriptor}; it must not be a standard stream: use 3 or more"
        )
    if sys.platform == "win32":
        return False, "Windows gives a process only the handles it is started with; nothing was closed"
    try:
        _close_range(0, descriptor - 1)
        _close_range(descriptor + 1, _HIGHEST)
        reader, writer = os.pipe()
        os.close(writer)
    except OSError as error:
        return False, f"descriptors could not be closed ({error.strerror})"
    if reader != 0:
        return False, "descriptor 0 could not be occupied"
    return True, "only the run's socket"


def _close_range(first: int, last: int) -> None:
    architecture = numbers.native()
    if architecture is not None:
        try:
            syscall(architecture.own[numbers.CLOSE_RANGE], first, last, 0)
        except OSError:
            pass  # before Linux 5.9, or an outer filter that does not know the call
        else:
            return
    for number in _open_descriptors():
        if first <= number <= last:
            try:
                os.close(number)
            except OSError:
                continue  # the listing's own descriptor


def _open_descriptors() -> list[int]:
    directory = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    try:
        return [int(name) for name in os.listdir(directory)]
    except (OSError, ValueError):
        return list(range(_FALLBACK_HIGHEST))
