"""System call numbers of the two architectures the walls are built for.

Only what the allow-list names or the walls themselves call. From `asm/unistd_64.h` (x86_64) and
`asm-generic/unistd.h` (aarch64); a test compares them with the headers of the machine it runs on.
"""

from __future__ import annotations

import platform
import struct
import sys
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["AARCH64", "CAPSET", "CLOSE_RANGE", "LANDLOCK_CREATE_RULESET", "LANDLOCK_RESTRICT_SELF", "SECCOMP"]
__all__ += ["X86_64", "Architecture", "native"]


class Architecture(NamedTuple):
    """What a filter has to know about a machine.

    Attributes:
        name: As `platform.machine` says it.
        audit: The kernel's `AUDIT_ARCH_*` value, which a filter compares before it trusts a call's number.
        numbers: System call numbers by name; a call the architecture does not have is absent.
        own: Numbers of the calls the walls make for themselves.
    """

    name: str
    audit: int
    numbers: MappingProxyType[str, int]
    own: MappingProxyType[str, int]


CAPSET = "capset"
CLOSE_RANGE = "close_range"
LANDLOCK_CREATE_RULESET = "landlock_create_ruleset"
LANDLOCK_RESTRICT_SELF = "landlock_restrict_self"
SECCOMP = "seccomp"

# Calls added since 2019 have one number everywhere.
_COMMON = {CLOSE_RANGE: 436, LANDLOCK_CREATE_RULESET: 444, LANDLOCK_RESTRICT_SELF: 446}

X86_64 = Architecture(
    "x86_64",
    0xC000003E,
    MappingProxyType(
        {
            "read": 0,
            "write": 1,
            "close": 3,
            "poll": 7,
            "mmap": 9,
            "mprotect": 10,
            "munmap": 11,
            "brk": 12,
            "rt_sigaction": 13,
            "rt_sigprocmask": 14,
            "rt_sigreturn": 15,
            "ioctl": 16,
            "readv": 19,
            "writev": 20,
            "select": 23,
            "sched_yield": 24,
            "mremap": 25,
            "madvise": 28,
            "nanosleep": 35,
            "getitimer": 36,
            "setitimer": 38,
            "getpid": 39,
            "sendto": 44,
            "recvfrom": 45,
            "sendmsg": 46,
            "recvmsg": 47,
            "shutdown": 48,
            "getsockname": 51,
            "getsockopt": 55,
            "exit": 60,
            "fcntl": 72,
            "gettimeofday": 96,
            "getrusage": 98,
            "sigaltstack": 131,
            "gettid": 186,
            "time": 201,
            "futex": 202,
            "restart_syscall": 219,
            "clock_gettime": 228,
            "clock_getres": 229,
            "clock_nanosleep": 230,
            "exit_group": 231,
            "tgkill": 234,
            "pselect6": 270,
            "ppoll": 271,
            "getrandom": 318,
            "membarrier": 324,
        }
    ),
    MappingProxyType({CAPSET: 126, SECCOMP: 317} | _COMMON),
)

AARCH64 = Architecture(
    "aarch64",
    0xC00000B7,
    MappingProxyType(
        {
            "fcntl": 25,
            "ioctl": 29,
            "close": 57,
            "read": 63,
            "write": 64,
            "readv": 65,
            "writev": 66,
            "pselect6": 72,
            "ppoll": 73,
            "exit": 93,
            "exit_group": 94,
            "futex": 98,
            "nanosleep": 101,
            "getitimer": 102,
            "setitimer": 103,
            "clock_gettime": 113,
            "clock_getres": 114,
            "clock_nanosleep": 115,
            "sched_yield": 124,
            "restart_syscall": 128,
            "tgkill": 131,
            "sigaltstack": 132,
            "rt_sigaction": 134,
            "rt_sigprocmask": 135,
            "rt_sigreturn": 139,
            "getrusage": 165,
            "gettimeofday": 169,
            "getpid": 172,
            "gettid": 178,
            "getsockname": 204,
            "sendto": 206,
            "recvfrom": 207,
            "getsockopt": 209,
            "shutdown": 210,
            "sendmsg": 211,
            "recvmsg": 212,
            "brk": 214,
            "munmap": 215,
            "mremap": 216,
            "mmap": 222,
            "mprotect": 226,
            "madvise": 233,
            "getrandom": 278,
            "membarrier": 283,
        }
    ),
    MappingProxyType({CAPSET: 91, SECCOMP: 277} | _COMMON),
)


def native() -> Architecture | None:
    """The architecture this process runs as; None where no table fits (another machine, 32-bit or x32 Python)."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return None
    return {"x86_64": X86_64, "aarch64": AARCH64}.get(platform.machine())
