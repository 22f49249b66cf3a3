"""A small assembler for seccomp filters: a decision tree over call numbers, with argument checks as leaves.

The tree costs eight comparisons instead of one per listed call. That matters twice: for calls whose arguments are
checked, and when the filter is installed, because the kernel then runs it once for every call number there is to find
the ones it may skip it for.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = [
    "ALLOW",
    "DENY",
    "KILL",
    "Check",
    "Instruction",
    "Rule",
    "assemble",
    "at_most",
    "equals",
    "flags_within",
    "one_of",
    "program",
]

ALLOW = 0x7FFF0000
KILL = 0x80000000
DENY = 0x00050000 | 1
"""Fail the call with EPERM: a script that trips over a wall gets an error it can report instead of a silent death."""

_LOAD, _JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_LONGEST_JUMP = 255


class Instruction(NamedTuple):
    """One classic BPF instruction; jumps count the instructions skipped."""

    code: int
    k: int
    if_true: int = 0
    if_false: int = 0


class Check(NamedTuple):
    """One condition on one argument's low or high 32 bits (both architectures are little-endian).

    Attributes:
        argument: Index from 0 to 5.
        high: Look at the upper half.
        mask: Bits that are compared with ``values``.
        values: Accepted values of the masked word; empty means that the others decide.
        forbidden: Bits that must all be clear.
        floor: Smallest accepted value, unsigned.
        limit: Largest accepted value, unsigned.
    """

    argument: int
    high: bool = False
    mask: int = 0xFFFFFFFF
    values: tuple[int, ...] = ()
    forbidden: int = 0
    floor: int = 0
    limit: int | None = None


def equals(argument: int, value: int) -> tuple[Check, ...]:
    """The argument's low word is ``value``."""
    return (Check(argument, values=(value,)),)


def one_of(argument: int, *values: int, mask: int = 0xFFFFFFFF) -> tuple[Check, ...]:
    """The argument's low word, masked, is one of ``values``."""
    return (Check(argument, mask=mask, values=values),)


def flags_within(argument: int, allowed: int) -> tuple[Check, ...]:
    """The argument's low word has no bit outside ``allowed``."""
    return (Check(argument, forbidden=~allowed & 0xFFFFFFFF),)


def at_most(argument: int, limit: int) -> tuple[Check, ...]:
    """The argument's low word, unsigned, is not above ``limit``."""
    return (Check(argument, limit=limit),)


Rule = tuple[tuple[Check, ...], ...]
"""Alternatives, each a conjunction of checks: the call is allowed if one of them holds. ``((),)`` always does."""


def program(audit: int, rules: Mapping[int, Rule]) -> list[Instruction]:
    """Build the filter: another architecture is killed, a listed call whose rule holds is allowed, the rest denied.

    Args:
        audit: The only accepted `AUDIT_ARCH_*` value.
        rules: By call number.
    """
    deny = (Instruction(_RETURN, DENY),)
    segments: list[tuple[int, tuple[Instruction, ...]]] = [(0, deny)]
    for number in sorted(rules):
        if segments[-1][0] == number:
            segments.pop()
        segments += [(number, _leaf(rules[number])), (number + 1, deny)]
    merged = [segment for i, segment in enumerate(segments) if i == 0 or segment[1] != segments[i - 1][1]]
    return [
        Instruction(_LOAD, _ARCHITECTURE_OFFSET),
        Instruction(_JUMP_EQUAL, audit, 1, 0),
        Instruction(_RETURN, KILL),
        Instruction(_LOAD, _NUMBER_OFFSET),
        *_tree(merged),
    ]


def assemble(instructions: Sequence[Instruction]) -> bytes:
    """The bytes the kernel takes, eight per instruction."""
    return b"".join(struct.pack("=HBBI", i.code, i.if_true, i.if_false, i.k) for i in instructions)


def _tree(segments: Sequence[tuple[int, tuple[Instruction, ...]]]) -> list[Instruction]:
    if len(segments) == 1:
        return list(segments[0][1])
    middle = len(segments) // 2
    below, above = _tree(segments[:middle]), _tree(segments[middle:])
    pivot = segments[middle][0]
    if len(below) <= _LONGEST_JUMP:
        return [Instruction(_JUMP_AT_LEAST, pivot, len(below), 0), *below, *above]
    return [Instruction(_JUMP_AT_LEAST, pivot, 0, 1), Instruction(_JUMP, len(below)), *below, *above]


def _leaf(rule: Rule) -> tuple[Instruction, ...]:
    code: list[Instruction] = [Instruction(_RETURN, DENY)]
    for alternative in reversed(rule):
        block = [Instruction(_RETURN, ALLOW)]
        for check in reversed(alternative):
            block = [*_condition(check, skip=len(block)), *block]
        code = [*block, *code] if alternative else block
    return tuple(code)


def _condition(check: Check, skip: int) -> list[Instruction]:
    """Instructions that fall through when the check holds and otherwise skip ``skip`` more instructions."""
    tests: list[Instruction] = []
    last = len(check.values) - 1
    for i, value in enumerate(check.values):
        tests.append(Instruction(_JUMP_EQUAL, value, last - i, skip if i == last else 0))
    if check.mask != 0xFFFFFFFF:
        tests.insert(0, Instruction(_AND, check.mask))
    if check.limit is not None and check.limit < 0xFFFFFFFF:
        tests.insert(0, Instruction(_JUMP_AT_LEAST, check.limit + 1, skip + len(tests), 0))
    if check.floor:
        tests.insert(0, Instruction(_JUMP_AT_LEAST, check.floor, 0, skip + len(tests)))
    if check.forbidden:
        tests.insert(0, Instruction(_JUMP_ANY_BIT, check.forbidden, skip + len(tests), 0))
    offset = _ARGUMENTS_OFFSET + 8 * check.argument + (4 if check.high else 0)
    return [Instruction(_LOAD, offset), *tests]
