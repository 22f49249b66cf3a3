"""Where the engine keeps compiled code: the one place a worker may make a written page read-only.

SpiderMonkey reserves its code region when it starts, two gigabytes of addresses without pages, and fills it from the
bottom. It is found as what no other part of a process looks like: a gapless run of anonymous mappings of that size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["Codespace", "find", "find_in"]

_SMALLEST = 1 << 30
_USED = 64 << 20
"""Bytes of the region a worker may use. Three thousand hot functions of 120 statements each fit; beyond it the engine
aborts, as it does when it is out of memory."""
_LONGEST = 8 << 20


class Codespace(NamedTuple):
    """The usable part of the region.

    Attributes:
        start: Its first address.
        length: Bytes.
        longest: Bytes of the longest range whose protection may change at once; it may begin at the very end.
    """

    start: int
    length: int = _USED
    longest: int = _LONGEST

    def pieces(self) -> Iterator[tuple[int, int, int]]:
        """It as ranges inside blocks of 4 GB: the block's number, the first and the last low word."""
        first, last = self.start, self.start + self.length - 1
        while first <= last:
            end = min(last, first | 0xFFFFFFFF)
            yield first >> 32, first & 0xFFFFFFFF, end & 0xFFFFFFFF
            first = end + 1


def find() -> Codespace | None:
    """The code region of the engine loaded in this process; None where there is none."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            return find_in(maps)
    except OSError:
        return None


def find_in(maps: Iterable[bytes]) -> Codespace | None:
    """The code region by the lines of `/proc/<pid>/maps`."""
    run_start = run_end = 0
    for line in maps:
        addresses, _permissions, _offset, _device, inode, *name = line.split(None, 5)
        low, _, high = addresses.partition(b"-")
        start, end = int(low, 16), int(high, 16)
        # The kernel names an anonymous mapping [anon:...] where it supports names; a heap or a stack is not one.
        anonymous = inode == b"0" and (not name or name[0].strip() == b"" or name[0].startswith(b"[anon:"))
        if not anonymous or start != run_end:
            run_start = start
        run_end = end if anonymous else 0
        if anonymous and run_end - run_start >= _SMALLEST:
            return Codespace(run_start)
    return None
