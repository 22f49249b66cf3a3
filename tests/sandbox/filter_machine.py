"""The kernel's classic BPF machine, as far as seccomp allows it: says what a filter answers to any call.

Written from the kernel's documentation, independent of the assembler it checks: it decodes bytes.
"""

from __future__ import annotations

import struct

__all__ = ["run"]

_WORD = 0xFFFFFFFF


def run(program: bytes, *, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """The filter's verdict on one call.

    Raises:
        AssertionError: the program does something the kernel's verifier refuses, or runs off its end.
    """
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=IIQ6Q", number & _WORD, architecture, 0, *(a & 0xFFFFFFFFFFFFFFFF for a in padded))
    instructions = list(struct.iter_unpack("=HBBI", program))
    assert 0 < len(instructions) <= 4096
    accumulator, counter = 0, 0
    while counter < len(instructions):
        code, if_true, if_false, k = instructions[counter]
        counter += 1
        match code:
            case 0x20:
                assert k % 4 == 0, "unaligned load"
                assert k < len(data), "load beyond seccomp_data"
                (accumulator,) = struct.unpack_from("=I", data, k)
            case 0x54:
                accumulator &= k
            case 0x05:
                counter += k
            case 0x15:
                counter += if_true if accumulator == k else if_false
            case 0x35:
                counter += if_true if accumulator >= k else if_false
            case 0x45:
                counter += if_true if accumulator & k else if_false
            case 0x06:
                return k
            case _:
                raise AssertionError(f"the kernel refuses instruction {code:#x}")
    raise AssertionError("the program has no verdict")
