"""What a test worker does once its walls are up. Each job yields what it found; nothing here may need a file."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.sandbox.escape_attacks import ATTACKS, Surroundings, call, invoke

__all__ = ["JOBS"]

_PAGE = 4096


def _attack(run: Callable[[], object]) -> dict[str, Any]:
    try:
        got = run()
    except OSError as error:
        return {"errno": error.errno}
    return {"got": repr(got)[:200]}


def attacks(
    own: socket.socket, _evaluate: Callable[[str], object], names: list[str], place: list[Any]
) -> Iterator[Any]:
    """Attempts the named attacks; announces each first, so that one that ends the process is known by name."""
    surroundings = Surroundings(*place)._replace(own=own.fileno())
    chosen = {attack.name: attack for attack in ATTACKS}
    for name in names:
        attack = chosen[name]
        yield {"attempting": name}
        yield _attack(lambda run=attack.run: run(surroundings)) | {"name": name}


def sweep(_own: socket.socket, _evaluate: Callable[[str], object], numbers: list[int]) -> Iterator[Any]:
    """Makes every call of ``numbers`` with several kinds of arguments; yields each answer that is not EPERM."""
    # Without the filter this would be dangerous for the machine, so one harmless call goes first.
    try:
        call("getppid")
    except PermissionError:
        pass
    else:
        yield {"unconfined": True}
        return
    room = ctypes.create_string_buffer(_PAGE)
    address = ctypes.addressof(room)
    made = 0
    for number in numbers:
        for arguments in (
            (0,) * 6,
            (-1,) * 6,
            (address,) * 6,
            (1, address, address, 1, 1, 1),
            (-100, address, 0, 0, 0, 0),
        ):
            made += 1
            answer = _attack(lambda n=number, a=arguments: invoke(n, *a))
            if answer != {"errno": 1}:
                yield {"number": number, "arguments": list(arguments)} | answer
    yield {"made": made}


def evaluate(_own: socket.socket, evaluate: Callable[[str], object], sources: list[str]) -> Iterator[Any]:
    """Evaluates JavaScript in the engine that was loaded before the fork."""
    for source in sources:
        value = evaluate(source)
        yield str(value) if isinstance(value, str) else value


def hold(own: socket.socket, _evaluate: Callable[[str], object]) -> Iterator[Any]:
    """Waits until the test lets go."""
    yield "holding"
    own.recv(1)


def services(own: socket.socket, _evaluate: Callable[[str], object]) -> Iterator[Any]:
    """Uses everything a worker is promised it can use."""
    import select

    poll = select.poll()
    poll.register(own, select.POLLIN)
    yield {"poll": poll.poll(0)}
    yield {"select": [len(ready) for ready in select.select([own], [], [], 0)]}
    own.settimeout(0.001)
    try:
        own.recv(1)
    except TimeoutError:
        yield {"timeout": True}
    own.settimeout(None)
    signal.setitimer(signal.ITIMER_PROF, 30)
    yield {"timer": signal.setitimer(signal.ITIMER_PROF, 0)[0] > 0}
    yield {"entropy": len(os.urandom(16))}
    time.sleep(0)
    yield {"clock": time.monotonic() > 0 and time.process_time() > 0 and time.time() > 0}
    with mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[5] = 5
        yield {"memory": memory[5]}
    yield {"descriptors_in_python": socket.socket(fileno=own.fileno()).detach() == own.fileno()}


def abort(_own: socket.socket, _evaluate: Callable[[str], object]) -> Iterator[Any]:
    """Ends the way a failed assertion in native code does."""
    yield "aborting"
    os.abort()


def spin(_own: socket.socket, _evaluate: Callable[[str], object], slice_seconds: float, ignore: bool) -> Iterator[Any]:
    """Never ends by itself; optionally under the slice timer, or ignoring the signal of the CPU limit."""
    if ignore:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_PROF, slice_seconds)
    yield "spinning"
    while True:
        pass


def _map(length: int, protection: int, flags: int = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) -> int:
    return call("mmap", 0, length, protection, flags, -1, 0)


def _touch(address: int, length: int, step: int = _PAGE) -> None:
    for offset in range(0, length, step):
        ctypes.c_char.from_address(address + offset).value = b"x"


def _writable_pages() -> None:
    while True:
        _touch(_map(1 << 20, 3), 1 << 20)


def _small_writable_pages() -> None:
    while True:
        _touch(_map(_PAGE, 3), _PAGE)
        _map(_PAGE, 0)  # keeps neighbours from being merged into one mapping


def _reserved_then_opened() -> None:
    while True:
        address = _map(1 << 20, 0)
        call("mprotect", address, 1 << 20, 3)
        _touch(address, 1 << 20)


def _the_heap() -> None:
    end = call("brk", 0)
    while True:
        grown = call("brk", end + (1 << 20))
        if grown == end:
            raise MemoryError
        _touch(end, 1 << 20)
        end = grown


def _one_growing_mapping() -> None:
    address, length = _map(1 << 20, 3), 1 << 20
    while True:
        address = call("mremap", address, length, length + (1 << 20), 1)
        _touch(address + length, 1 << 20)
        length += 1 << 20


def _page_tables() -> None:
    """Read-only pages cost no page of their own, but one page of tables per two megabytes of addresses."""
    while True:
        address = _map(64 << 20, 1)
        for offset in range(0, 64 << 20, 2 << 20):
            ctypes.string_at(address + offset, 1)


def _python_objects() -> None:
    kept: list[bytes] = []
    while True:
        kept.append(bytes(1000))


def _shared_pages() -> None:
    while True:
        _touch(_map(1 << 20, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS), 1 << 20)


CODE: list[int] = []
"""Where the engine's code region starts; set by the server, known to any attacker who reads its own registers."""

_ENOUGH = 400 << 20  # stops an attempt that gets through before it harms the machine


def _written_then_locked(protection: int) -> None:
    """Pages that are no longer writable are not counted as data, but stay in memory."""
    for _ in range(_ENOUGH >> 20):
        address = _map(1 << 20, 3)
        _touch(address, 1 << 20)
        with contextlib.suppress(PermissionError):
            call("mprotect", address, 1 << 20, protection)
    raise MemoryError


def _written_then_read_only() -> None:
    _written_then_locked(1)


def _written_then_executable() -> None:
    _written_then_locked(5)


def _written_then_unreadable() -> None:
    _written_then_locked(0)


def _code() -> None:
    """Pages of the engine's code region, which it must be able to write and then execute."""
    for address in range(CODE[0], CODE[0] + _ENOUGH, 1 << 20):
        call("mprotect", address, 1 << 20, 3)
        _touch(address, 1 << 20)
        with contextlib.suppress(PermissionError):
            call("mprotect", address, 1 << 20, 5)
    raise MemoryError


def _code_moved_away() -> None:
    """The same few pages of the code region over and over, each time moved to where nobody looks."""
    end = CODE[0]
    for _ in range(_ENOUGH >> 20):
        call("mprotect", end, 1 << 20, 3)
        _touch(end, 1 << 20)
        call("mprotect", end, 1 << 20, 5)
        away = _map(1 << 20, 0)
        try:
            call("mremap", end, 1 << 20, 1 << 20, 3, away)
        except PermissionError:
            end += 1 << 20  # not moved, so the next page
        else:
            call("mmap", end, 1 << 20, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10, -1, 0)
    raise MemoryError


_HOARDS: dict[str, Callable[[], None]] = {
    "writable pages": _writable_pages,
    "small writable pages": _small_writable_pages,
    "pages reserved first and opened later": _reserved_then_opened,
    "the heap": _the_heap,
    "one growing mapping": _one_growing_mapping,
    "page tables": _page_tables,
    "Python objects": _python_objects,
    "shared pages": _shared_pages,
    "pages made read-only after they were written": _written_then_read_only,
    "pages made executable after they were written": _written_then_executable,
    "pages made unreadable after they were written": _written_then_unreadable,
    "compiled code": _code,
    "compiled code moved away": _code_moved_away,
}


def hoard(own: socket.socket, _evaluate: Callable[[str], object], way: str) -> Iterator[Any]:
    """Takes memory in one way until refused, then waits so that it can be measured from outside."""
    try:
        _HOARDS[way]()
    except (OSError, MemoryError):
        own.sendall(b'"refused"\n')  # made before the memory ran out
        own.recv(1)  # in here, because leaving the handler frees what the exception's frames hold
    yield from ()


JOBS: dict[str, Callable[..., Iterator[Any]]] = {
    job.__name__: job for job in (attacks, sweep, evaluate, hold, services, abort, spin, hoard)
}
