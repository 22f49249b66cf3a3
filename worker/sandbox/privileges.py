"""What binds the process to its parent and keeps it from ever having more rights than now."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys

from worker.sandbox import numbers
from worker.sandbox.kernel import prctl, syscall

__all__ = ["die_with_parent", "drop", "forbid_inspection"]

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CAPABILITY_VERSION_3 = 0x20080522

_header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), 8)
_no_capabilities = ctypes.create_string_buffer(24)
_NOT_LINUX = "this system has no such control; the worker is a separate process with a clean environment"


def die_with_parent(parent_pid: int) -> tuple[bool, str]:
    """Ask for SIGKILL when the thread that forked this process ends; exits at once if the parent is gone already."""
    if sys.platform == "win32":
        return False, _NOT_LINUX
    if sys.platform != "linux":
        if os.getppid() != parent_pid:
            os._exit(1)
        return False, _NOT_LINUX
    try:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except OSError as error:
        return False, f"the kernel refused it ({error.strerror})"
    finally:
        # Asked after the request: a parent that died before it would never have been noticed.
        if os.getppid() != parent_pid:
            os._exit(1)
    return True, ""


def forbid_inspection() -> tuple[bool, str]:
    """No core dump, and no process without privileges can attach or read this one's memory."""
    if sys.platform != "linux":
        return False, _NOT_LINUX
    try:
        prctl(_PR_SET_DUMPABLE, 0)
    except OSError as error:
        return False, f"the kernel refused it ({error.strerror})"
    return True, ""


def drop() -> tuple[bool, str]:
    """Give up every capability (root's powers) and the chance to gain any by exec."""
    if sys.platform != "linux":
        return False, _NOT_LINUX
    architecture = numbers.native()
    try:
        prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if architecture is None:
            return False, "none can be gained, but root's are kept: no system call table for this platform"
        syscall(architecture.own[numbers.CAPSET], ctypes.addressof(_header), ctypes.addressof(_no_capabilities))
    except OSError as error:
        return False, f"the kernel refused it ({error.strerror})"
    return True, ""
