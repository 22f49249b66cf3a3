"""The few kernel calls Python has no function for, made through libc by ctypes.

Every call either returns what the kernel returned or raises `OSError` with the kernel's errno; nothing here decides
what a failure means. Importable everywhere, usable on Linux only.
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["prctl", "syscall"]

# `CDLL(None)` is the process itself on POSIX and a TypeError on Windows, where nothing of this module is called.
_libc = ctypes.CDLL(None if sys.platform != "win32" else "msvcrt", use_errno=True)

if sys.platform == "linux":
    # Prototypes instead of a wrapper object per argument: it makes a call about three times cheaper, and a worker
    # makes some twenty of them while a run waits for it.
    _libc.syscall.restype = ctypes.c_long
    _libc.syscall.argtypes = [ctypes.c_long] * 7
    _libc.prctl.restype = ctypes.c_int
    _libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def syscall(number: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, e: int = 0, f: int = 0) -> int:
    """Make one system call; pointers are passed as addresses.

    Raises:
        OSError: the kernel refused.
    """
    result: int = _libc.syscall(number, a, b, c, d, e, f)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    """Change or read one attribute of this process.

    Raises:
        OSError: the kernel refused.
    """
    result: int = _libc.prctl(option, a, b, c, d)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
