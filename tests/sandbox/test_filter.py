"""The system call filter as a function: what it answers to every call, on both architectures, without installing it."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.sandbox import filter_machine, syscall_numbers
from worker.sandbox import bpf, codespace, numbers, seccomp

ALLOW, KILL_PROCESS, EPERM = 0x7FFF0000, 0x80000000, 0x00050001
OWN_PID_PLACEHOLDER = 0xFFFFFFFE

MACHINES = [
    pytest.param(numbers.X86_64, syscall_numbers.X86_64, id="x86_64"),
    pytest.param(numbers.AARCH64, syscall_numbers.AARCH64, id="aarch64"),
]

# Stated here again, by hand: a call added to the policy must be added, and thought about, twice.
UNCHECKED = [
    "read",
    "write",
    "readv",
    "writev",
    "shutdown",
    "close",
    "poll",
    "ppoll",
    "select",
    "pselect6",
    "getsockname",
    "munmap",
    "mremap",
    "mprotect",
    "brk",
    "sched_yield",
    "nanosleep",
    "gettimeofday",
    "time",
    "restart_syscall",
    "getrandom",
    "getrusage",
    "getpid",
    "gettid",
    "rt_sigaction",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sigaltstack",
    "exit",
    "exit_group",
]

# One harmless form of each call whose arguments are checked.
CHECKED: dict[str, tuple[int, ...]] = {
    "recvfrom": (3, 0, 0, 0x40),
    "sendto": (3, 0, 0, 0x4000, 0, 0),
    "recvmsg": (3, 0, 0x40000000),
    "sendmsg": (3, 0, 0x4000),
    "getsockopt": (3, 1, 3),
    "ioctl": (3, 0x5421),
    "fcntl": (3, 3),
    "mmap": (0, 4096, 3, 0x22, -1, 0),
    "madvise": (0, 4096, 4),
    "futex": (0, 0x80 | 0, 0),
    "membarrier": (8,),
    "clock_gettime": (1,),
    "clock_getres": (1,),
    "clock_nanosleep": (1, 0),
    "setitimer": (2,),
    "getitimer": (2,),
    "tgkill": (OWN_PID_PLACEHOLDER, 1, 6),
}

ACCEPTED = [
    ("recvfrom", (3, 0, 0, 0)),
    ("recvfrom", (3, 0, 0, 0x2 | 0x40)),
    ("sendto", (3, 0, 0, 0, 0, 0)),
    ("getsockopt", (3, 1, 39)),
    ("fcntl", (3, 1)),
    ("mmap", (0, 4096, 7, 0x22 | 0x4000)),
    ("mmap", (0, 4096, 0, 0x22 | 0x10)),
    ("mmap", (0, 4096, 0, 0x22 | 0x100000)),
    ("madvise", (0, 4096, 8)),
    ("futex", (0, 1)),
    ("futex", (0, 0x80 | 9)),
    ("futex", (0, 0x100 | 0x80 | 9)),
    ("clock_gettime", (2,)),
    ("clock_nanosleep", (0, 1)),
]

REFUSED = [
    ("urgent data, which has been a way into the kernel", "sendto", (3, 0, 1, 0x1, 0, 0)),
    ("urgent data by message", "sendmsg", (3, 0, 0x1)),
    ("reading urgent data", "recvfrom", (3, 0, 1, 0x1)),
    ("reading the socket's error queue", "recvmsg", (3, 0, 0x2000)),
    ("sending to an address", "sendto", (3, 0, 1, 0, 0x7FFF1000, 16)),
    ("sending to an address above four gigabytes", "sendto", (3, 0, 1, 0, 0x7FFF << 32, 16)),
    ("the peer's credentials", "getsockopt", (3, 1, 17)),
    ("a descriptor of the peer process", "getsockopt", (3, 1, 77)),
    ("an option of another level", "getsockopt", (3, 6, 3)),
    ("pushing input into a terminal", "ioctl", (3, 0x5412)),
    ("asynchronous notification", "ioctl", (3, 0x5452)),
    ("a signal's receiver", "fcntl", (3, 8)),
    ("changing flags", "fcntl", (3, 4)),
    ("duplicating", "fcntl", (3, 0)),
    ("shared memory", "mmap", (0, 4096, 3, 0x21)),
    ("shared memory, validated", "mmap", (0, 4096, 3, 0x23)),
    ("a growing mapping", "mmap", (0, 4096, 3, 0x122)),
    ("locked memory", "mmap", (0, 4096, 3, 0x2022)),
    ("huge pages", "mmap", (0, 4096, 3, 0x40022)),
    ("droppable memory", "mmap", (0, 4096, 3, 0x28)),
    ("a file's pages", "mmap", (0, 4096, 3, 0x02)),
    ("a flag of the future", "mmap", (0, 4096, 3, 0x22 | 1 << 31)),
    ("poisoning the machine's memory", "madvise", (0, 4096, 100)),
    ("taking the machine's pages offline", "madvise", (0, 4096, 101)),
    ("merging pages with other processes", "madvise", (0, 4096, 12)),
    ("priority inheritance", "futex", (0, 6)),
    ("moving waiters", "futex", (0, 0x80 | 11)),
    ("a stall of every CPU", "membarrier", (1,)),
    ("another process's CPU clock", "clock_gettime", (0xFFFFFFFA,)),
    ("another process's CPU clock", "clock_getres", (0xFFFFFFFA,)),
    ("waiting on another process's CPU clock", "clock_nanosleep", (0xFFFFFFFA, 0)),
    ("a device's clock", "clock_gettime", (16,)),
    ("the real-time timer", "setitimer", (0,)),
    ("a signal to another process", "tgkill", (1, 1, 9)),
    ("a signal to the process group", "tgkill", (0, 0, 9)),
    ("a signal to everyone", "tgkill", (-1, -1, 9)),
]


def program(machine: numbers.Architecture) -> bytes:
    return bpf.assemble(seccomp.instructions(machine))


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_every_number_outside_the_list_is_refused_whatever_its_arguments(
    machine: numbers.Architecture, table: dict[str, int]
) -> None:
    code = program(machine)
    allowed = {table[name] for name in (*UNCHECKED, *CHECKED) if name in table}
    chance = random.Random(20)
    beyond = [chance.getrandbits(32) for _ in range(3000)]
    beyond += [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, *range(0x40000000, 0x40000400)]
    fillings = [(0,) * 6, (2**64 - 1,) * 6, tuple(chance.getrandbits(64) for _ in range(6))]
    for number in [*range(1024), *beyond]:
        if number not in allowed:
            for arguments in fillings:
                verdict = filter_machine.run(code, architecture=machine.audit, number=number, arguments=arguments)
                assert verdict == EPERM, f"call {number:#x} got {verdict:#x}"


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_every_call_of_the_list_is_allowed_in_its_harmless_form(
    machine: numbers.Architecture, table: dict[str, int]
) -> None:
    code = program(machine)
    garbage = (2**64 - 1,) * 6
    cases = [(name, garbage) for name in UNCHECKED] + list(CHECKED.items()) + ACCEPTED
    for name, arguments in cases:
        if name in table:
            verdict = filter_machine.run(code, architecture=machine.audit, number=table[name], arguments=arguments)
            assert verdict == ALLOW, f"{name}{arguments} got {verdict:#x}"


@pytest.mark.parametrize(("machine", "table"), MACHINES)
@pytest.mark.parametrize(("what", "name", "arguments"), REFUSED, ids=[f"{r[1]}: {r[0]}" for r in REFUSED])
def test_an_allowed_call_is_refused_for(
    machine: numbers.Architecture, table: dict[str, int], what: str, name: str, arguments: tuple[int, ...]
) -> None:
    verdict = filter_machine.run(program(machine), architecture=machine.audit, number=table[name], arguments=arguments)
    assert verdict == EPERM, what


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_a_call_made_as_another_architecture_kills_the_process(
    machine: numbers.Architecture, table: dict[str, int]
) -> None:
    code = program(machine)
    others = {0x40000003, 0xC000003E, 0xC00000B7, 0x40000028, 0} - {machine.audit}
    for other in others:
        for number in (0, table["getpid"], table["exit_group"]):
            assert filter_machine.run(code, architecture=other, number=number) == KILL_PROCESS


def test_the_x32_form_of_an_allowed_call_is_refused() -> None:
    code = program(numbers.X86_64)
    for number in numbers.X86_64.numbers.values():
        verdict = filter_machine.run(code, architecture=numbers.X86_64.audit, number=number | 0x40000000)
        assert verdict == EPERM


@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_the_sandbox_and_the_attacks_agree_on_every_number(
    machine: numbers.Architecture, table: dict[str, int]
) -> None:
    for name, number in (machine.numbers | machine.own).items():
        assert table[name] == number, name
    assert set(machine.numbers) == {name for name in seccomp.RULES if name in table}


@pytest.mark.parametrize(
    ("table", "header"),
    [
        pytest.param(syscall_numbers.X86_64, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", id="x86_64"),
        pytest.param(syscall_numbers.AARCH64, "/usr/include/asm-generic/unistd.h", id="aarch64"),
    ],
)
def test_the_numbers_are_those_of_the_kernel_headers(table: dict[str, int], header: str) -> None:
    path = Path(header)
    if not path.exists():
        pytest.skip(f"the kernel headers are not installed ({path.name})")
    stated = {
        name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\b", path.read_text())
    }
    ours = {name: table[name] for name in (*seccomp.RULES, "seccomp", "capset", "close_range") if name in table}
    assert ours == {name: stated[name] for name in ours}


# ------------------------------------------------------------------------------------ pages that were written once

MEGABYTE, BLOCK = 1 << 20, 1 << 32
NONE, READ, WRITE, EXECUTE = 0, 1, 2, 4

PLACES = [
    pytest.param(0x274D200D9000, id="in the middle of a block"),
    pytest.param(0x7F12 * BLOCK - 16 * MEGABYTE, id="across two blocks of 4 GB"),
    pytest.param(0x7F12 * BLOCK - 64 * MEGABYTE, id="up to the end of a block"),
    pytest.param(0x7F12 * BLOCK, id="from the start of a block"),
    pytest.param(BLOCK + 4096, id="low in memory"),
]


@pytest.mark.parametrize("start", PLACES)
@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_only_compiled_code_may_stop_being_writable(
    machine: numbers.Architecture, table: dict[str, int], start: int
) -> None:
    space = codespace.Codespace(start)
    code = bpf.assemble(seccomp.instructions(machine, space))

    def protect(address: int, length: int, protection: int) -> int:
        arguments = (address, length, protection)
        return filter_machine.run(code, architecture=machine.audit, number=table["mprotect"], arguments=arguments)

    end = start + space.length
    for address in (0, 4096, start - 4096, start, start + MEGABYTE, end - 4096, end, 2**47 - 4096, 2**64 - 4096):
        inside = start <= address < end
        for protection in (READ | WRITE, READ | WRITE | EXECUTE, WRITE):
            assert protect(address, 4096, protection) == ALLOW
        for protection in (NONE, READ, READ | EXECUTE, EXECUTE, READ | 0x01000000):
            assert protect(address, 4096, protection) == (ALLOW if inside else EPERM), (hex(address), protection)
        for length in (space.longest + 1, BLOCK, BLOCK + 4096, 2**64 - 1):
            assert protect(address, length, READ | EXECUTE) == EPERM
    assert protect(start, space.longest, READ | EXECUTE) == ALLOW


@pytest.mark.parametrize("start", PLACES)
@pytest.mark.parametrize(("machine", "table"), MACHINES)
def test_compiled_code_cannot_be_moved_away(machine: numbers.Architecture, table: dict[str, int], start: int) -> None:
    space = codespace.Codespace(start)
    code = bpf.assemble(seccomp.instructions(machine, space))
    reach = start + space.length + space.longest

    def move(address: int, length: int) -> int:
        arguments = (address, length, length, 3, 0x10000000)
        return filter_machine.run(code, architecture=machine.audit, number=table["mremap"], arguments=arguments)

    chance = random.Random(7)
    for _ in range(3000):
        length = chance.choice([0, 4096, 64 * MEGABYTE, BLOCK - 1, BLOCK, 2**40, chance.getrandbits(33)])
        address = max(0, start + chance.choice([-1, 1]) * chance.getrandbits(chance.randint(1, 35)))
        if address < reach and address + length > start:
            assert move(address, length) == EPERM, (hex(address), hex(length))
    for address in (start + 3 * BLOCK, 2**47 - MEGABYTE, *([start - 4 * BLOCK] if start > 4 * BLOCK else [])):
        assert move(address, 512 * MEGABYTE) == ALLOW, "a large block of the heap must be able to grow"


def test_the_code_region_is_found_among_the_mappings_of_a_process() -> None:
    maps = b"""\
5581f2a00000-5581f2a21000 rw-p 00000000 00:00 0                          [heap]
1e2903760000-1e290376c000 r-xp 00000000 00:00 0
1e290376c000-1e290377c000 ---p 00000000 00:00 0                          [anon:js-executable-memory]
1e290377c000-1e290378c000 r-xp 00000000 00:00 0
1e290378c000-1e298336c000 ---p 00000000 00:00 0
7f1180800000-7f1200800000 r--p 00000000 fe:00 2164971                    /usr/lib/large library (deleted).so
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
""".splitlines()
    assert codespace.find_in(maps) == codespace.Codespace(0x1E2903760000)
    assert codespace.find_in(maps[:4] + maps[5:]) is None
    assert codespace.find_in(maps[:2] + maps[4:]) == codespace.Codespace(0x1E290378C000)
