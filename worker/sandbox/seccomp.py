"""The allow-list: what a warm worker may still ask of the kernel. Everything else fails with EPERM.

The list was made by tracing a worker through every kind of script, and then by asking of each call what code that has
taken over the process could do with it. Arguments are checked wherever a call does more than a worker needs.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping

from worker.sandbox import bpf, numbers
from worker.sandbox.codespace import Codespace
from worker.sandbox.kernel import syscall

__all__ = ["RULES", "Filter", "build", "install", "instructions", "memory_rules"]

_OWN_PID = 0xFFFFFFFE
"""Stands in the template for the process's own id, which exists only after the fork. No process can have it."""

_SECCOMP_SET_MODE_FILTER = 1

_PRIVATE_ANONYMOUS = 0x02 | 0x20
# FIXED, DENYWRITE, EXECUTABLE, NORESERVE, POPULATE, STACK, FIXED_NOREPLACE. Not SHARED and GROWSDOWN, which
# RLIMIT_DATA does not count; not LOCKED, HUGETLB and DROPPABLE, which spend what other processes need.
_MMAP_FLAGS = _PRIVATE_ANONYMOUS | 0x10 | 0x800 | 0x1000 | 0x4000 | 0x8000 | 0x20000 | 0x100000
# PEEK, TRUNC, DONTWAIT, WAITALL, NOSIGNAL, MORE, CMSG_CLOEXEC. Not OOB: urgent data on unix sockets has been a way
# into the kernel from inside sandboxes.
_MESSAGE_FLAGS = 0x2 | 0x20 | 0x40 | 0x100 | 0x4000 | 0x8000 | 0x40000000
# NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE, HUGEPAGE, NOHUGEPAGE. Not HWPOISON and SOFT_OFFLINE, by which
# root takes memory away from the whole machine; not MERGEABLE, a side channel into other processes.
_ADVICE = (0, 1, 2, 3, 4, 8, 14, 15)
_FUTEX_COMMAND, _FUTEX_WAIT_AND_WAKE = 0x7F, (0, 1, 9, 10)
_LAST_STATIC_CLOCK = 15
"""Above it, as unsigned, are the clocks that read another process's CPU time."""

_SOCKET_LEVEL, _SOCKET_FACTS = 1, (3, 4, 38, 39)
_PROT_WRITE = 2
_FIONBIO = 0x5421
_F_GETFD, _F_GETFL = 1, 3
_ITIMER_PROF = 2
_MEMBARRIER_PRIVATE = (0, 8, 16, 32, 64)

_ANY: tuple[bpf.Check, ...] = ()

RULES: Mapping[str, tuple[bpf.Check, ...]] = {
    # The one socket. Reading and writing name a descriptor, and no other is open.
    "read": _ANY,
    "write": _ANY,
    "readv": _ANY,
    "writev": _ANY,
    "recvfrom": bpf.flags_within(3, _MESSAGE_FLAGS),
    # No address: a connected stream refuses one anyway, a datagram socket would send anywhere.
    "sendto": bpf.flags_within(3, _MESSAGE_FLAGS) + bpf.equals(4, 0) + (bpf.Check(4, high=True, values=(0,)),),
    "recvmsg": bpf.flags_within(2, _MESSAGE_FLAGS),
    "sendmsg": bpf.flags_within(2, _MESSAGE_FLAGS),
    "shutdown": _ANY,
    "close": _ANY,
    "poll": _ANY,
    "ppoll": _ANY,
    "select": _ANY,
    "pselect6": _ANY,
    # What `socket.socket(fileno=…)` and `setblocking` ask.
    "getsockname": _ANY,
    "getsockopt": bpf.equals(1, _SOCKET_LEVEL) + bpf.one_of(2, *_SOCKET_FACTS),
    "ioctl": bpf.equals(1, _FIONBIO),
    "fcntl": bpf.one_of(1, _F_GETFD, _F_GETFL),
    # Memory. Executable pages must stay possible: the engine compiles.
    "mmap": bpf.flags_within(3, _MMAP_FLAGS) + bpf.one_of(3, _PRIVATE_ANONYMOUS, mask=_PRIVATE_ANONYMOUS),
    "munmap": _ANY,
    "mremap": _ANY,  # stricter once the engine's code region is known: see `memory_rules`
    "mprotect": _ANY,
    "madvise": bpf.one_of(2, *_ADVICE),
    "brk": _ANY,
    # Locks of this process, which the interpreter takes even with one thread.
    "futex": bpf.one_of(1, *_FUTEX_WAIT_AND_WAKE, mask=_FUTEX_COMMAND),
    "membarrier": bpf.one_of(0, *_MEMBARRIER_PRIVATE),
    "sched_yield": _ANY,
    # Time, and the timer that bounds a slice.
    "clock_gettime": bpf.at_most(0, _LAST_STATIC_CLOCK),
    "clock_getres": bpf.at_most(0, _LAST_STATIC_CLOCK),
    "clock_nanosleep": bpf.at_most(0, _LAST_STATIC_CLOCK),
    "nanosleep": _ANY,
    "gettimeofday": _ANY,
    "time": _ANY,
    "setitimer": bpf.equals(0, _ITIMER_PROF),
    "getitimer": bpf.equals(0, _ITIMER_PROF),
    "restart_syscall": _ANY,
    # Itself.
    "getrandom": _ANY,
    "getrusage": _ANY,
    "getpid": _ANY,
    "gettid": _ANY,
    "rt_sigaction": _ANY,
    "rt_sigprocmask": _ANY,
    "rt_sigreturn": _ANY,
    "sigaltstack": _ANY,
    # Only to itself, so that abort() ends as SIGABRT and is reported as what it was.
    "tgkill": bpf.equals(0, _OWN_PID),
    "exit": _ANY,
    "exit_group": _ANY,
}
"""Checks by call name; names an architecture does not have are skipped there."""


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


class Filter:
    """An assembled filter, ready for `install`; the own process id is patched in after the fork."""

    def __init__(self, architecture: numbers.Architecture, codespace: Codespace | None) -> None:
        code = bpf.assemble(instructions(architecture, codespace))
        placeholder = struct.pack("=I", _OWN_PID)
        self.count = len(code) // 8
        self.calls = sum(name in architecture.numbers for name in RULES)
        self._pid_offsets = [i + 4 for i in range(0, len(code), 8) if code[i + 4 : i + 8] == placeholder]
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(self.count, ctypes.addressof(self._code))
        self._address = ctypes.addressof(self._program)
        self._number = architecture.own[numbers.SECCOMP]

    def install(self) -> None:
        """Confine this process, for good. Needs `PR_SET_NO_NEW_PRIVS` first.

        Raises:
            OSError: the kernel has no filters, or an outer sandbox refuses the call.
        """
        pid = os.getpid()
        for offset in self._pid_offsets:
            struct.pack_into("=I", self._code, offset, pid)
        # Without SECCOMP_FILTER_FLAG_TSYNC: after a fork there is one thread.
        syscall(self._number, _SECCOMP_SET_MODE_FILTER, 0, self._address)


def memory_rules(codespace: Codespace) -> dict[str, bpf.Rule]:
    """Keep every page that was written among those `RLIMIT_DATA` counts: the writable ones.

    Without these a page could be written and then made read-only, which takes it off the account and leaves it in
    memory. Compiled code needs just that, but only where the engine keeps its code; so there it stays allowed, in a
    stretch of limited length, and what is there cannot be moved away.
    """
    writable: bpf.Rule = ((bpf.Check(2, mask=_PROT_WRITE, values=(_PROT_WRITE,)),),)
    short = (bpf.Check(1, high=True, values=(0,)), bpf.Check(1, limit=codespace.longest))
    within = tuple(
        (bpf.Check(0, high=True, values=(high,)), bpf.Check(0, floor=first, limit=last), *short)
        for high, first, last in codespace.pieces()
    )
    # A range shorter than 4 GB that starts two blocks of 4 GB below the code ends before it.
    block, under_a_block = codespace.start >> 32, bpf.Check(1, high=True, values=(0,))
    elsewhere: bpf.Rule = ((under_a_block, bpf.Check(0, high=True, floor=block + 2)),)
    if block >= 2:
        elsewhere += ((under_a_block, bpf.Check(0, high=True, limit=block - 2)),)
    return {"mprotect": writable + within, "mremap": elsewhere}


def instructions(architecture: numbers.Architecture, codespace: Codespace | None = None) -> list[bpf.Instruction]:
    """The filter for an architecture, with a placeholder where the process's own id goes."""
    rules: dict[str, bpf.Rule] = {name: (checks,) for name, checks in RULES.items()}
    if codespace is not None:
        rules |= memory_rules(codespace)
    known = architecture.numbers
    return bpf.program(architecture.audit, {known[name]: rule for name, rule in rules.items() if name in known})


def build(codespace: Codespace | None) -> Filter | None:
    """The filter for this machine; None where there is no table for it."""
    architecture = numbers.native()
    return None if architecture is None else Filter(architecture, codespace)


def install(ready: Filter | None) -> tuple[bool, str]:
    """Put the filter on; returns whether it is up and the detail to report."""
    if ready is None:
        return False, "no system call table for this platform: the filter needs 64-bit Linux on x86_64 or aarch64"
    try:
        ready.install()
    except OSError as error:
        return False, f"the kernel refused the filter ({error.strerror}): it needs CONFIG_SECCOMP_FILTER"
    return True, f"{ready.calls} calls allowed, everything else is refused with EPERM"
