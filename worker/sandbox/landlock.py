"""No file and no TCP port, and nothing outside may be signalled or reached by an abstract socket name.

The ruleset handles every right the running kernel knows and grants none. Which rights those are is asked one bit at a
time instead of looked up by ABI version, so a kernel newer than this file denies its new rights too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from worker.sandbox import numbers
from worker.sandbox.kernel import syscall

__all__ = ["Ruleset", "probe", "restrict"]

_VERSION_FLAG = 1
_WORDS = ("files", "TCP", "scope")
"""What the three words of `struct landlock_ruleset_attr` are about, in their order."""


class Ruleset:
    """Every right this kernel can deny, and the version of its interface.

    Attributes:
        abi: 0 where Landlock cannot be used.
        reason: Why not, when ``abi`` is 0.
        rights: The three words of a ruleset: file rights, network rights, scopes.
    """

    def __init__(self, abi: int, rights: tuple[int, int, int], reason: str = "") -> None:
        self.abi = abi
        self.reason = reason
        self.rights = rights
        self._attribute = ctypes.create_string_buffer(struct.pack("=QQQ", *rights), 24)
        self._address = ctypes.addressof(self._attribute)

    def create(self) -> int:
        """A descriptor of the ruleset. A kernel that knows fewer words accepts the longer struct if they are zero."""
        return syscall(_number(numbers.LANDLOCK_CREATE_RULESET), self._address, 24, 0)


def probe() -> Ruleset:
    """Ask the kernel for its version and rights. Opens and closes descriptors: call it before there are limits."""
    architecture = numbers.native()
    if architecture is None:
        return Ruleset(0, (0, 0, 0), "Landlock needs 64-bit Linux on x86_64 or aarch64")
    try:
        abi = syscall(_number(numbers.LANDLOCK_CREATE_RULESET), 0, 0, _VERSION_FLAG)
    except OSError as error:
        return Ruleset(0, (0, 0, 0), _why_not(error))
    found = [0, 0, 0]
    for word in range(3):
        for bit in range(64):
            trial = [0, 0, 0]
            trial[word] = 1 << bit
            try:
                os.close(Ruleset(abi, (trial[0], trial[1], trial[2])).create())
            except OSError:
                break  # rights are numbered without gaps
            found[word] |= trial[word]
    return Ruleset(abi, (found[0], found[1], found[2]))


def restrict(ruleset: Ruleset) -> tuple[bool, str]:
    """Put it on; returns whether it is up and the detail. Needs `PR_SET_NO_NEW_PRIVS` and one free descriptor."""
    if not ruleset.abi:
        return False, ruleset.reason
    try:
        descriptor = ruleset.create()
        try:
            syscall(_number(numbers.LANDLOCK_RESTRICT_SELF), descriptor, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        return False, _why_not(error)
    covered = ", ".join(name for name, rights in zip(_WORDS, ruleset.rights, strict=True) if rights)
    return True, f"ABI {ruleset.abi}: {covered}"


def _number(name: str) -> int:
    return numbers.X86_64.own[name]  # one number on every architecture


def _why_not(error: OSError) -> str:
    match error.errno:
        case errno.ENOSYS:
            return "the kernel has no Landlock: it needs Linux 5.13 or later, built with it"
        case errno.EOPNOTSUPP:
            return "Landlock is off: name it in the kernel's lsm= boot parameter"
        case errno.EPERM | errno.EACCES:
            return "an outer sandbox refuses Landlock: allow landlock_create_ruleset and landlock_restrict_self in it"
        case _:
            return f"the kernel refused Landlock ({error.strerror})"
