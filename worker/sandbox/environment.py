"""Nothing of the host's environment is in the process: neither in what Python sees nor in its memory.

`os.environ.clear()` leaves every value readable on the stack of the process; only an exec with an empty environment
keeps them out. That is how the parent of all workers is started, and this wall checks that it was.
"""

from __future__ import annotations

import os
import sys

__all__ = ["verify_empty"]

_SET_BY_PYTHON = frozenset({"LC_CTYPE"})
"""CPython writes it itself when it starts in the C locale."""


def verify_empty() -> tuple[bool, str]:
    """Whether the environment is empty, and the detail. Must run before the process is made not dumpable."""
    if set(os.environ) - _SET_BY_PYTHON:
        return False, "the process has environment variables: start it with an empty environment"
    if sys.platform != "linux":
        return False, "no variables are set; this system does not let the process check its memory for them"
    try:
        descriptor = os.open("/proc/self/environ", os.O_RDONLY)
    except OSError as error:
        return False, f"the environment block cannot be read ({error.strerror})"
    try:
        block = os.read(descriptor, 1)
    finally:
        os.close(descriptor)
    if block:
        return False, "the process was started with environment variables and their values are still in its memory"
    return True, ""
