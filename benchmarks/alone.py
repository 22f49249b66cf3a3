"""One task in a process of its own: what a host's memory grows by depends on what it has freed before."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec

from benchmarks.tasks import Memory, Series

__all__ = ["measure_alone"]

_BOUND = 150.0


async def measure_alone(task: Memory) -> Series:
    """Measures our engine in a fresh interpreter."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.alone",
        cwd=Path(__file__).parents[1], stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_BOUND):
            output, _ = await process.communicate(msgspec.json.encode(task))
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise RuntimeError("the measuring process failed")
    return msgspec.json.decode(output, type=Series)


def main() -> None:
    """Task on stdin, series on stdout."""
    from benchmarks.ours import OurEngine

    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Memory)
    series = asyncio.run(OurEngine(alone=True).measure(task))
    sys.stdout.buffer.write(msgspec.json.encode(series))


if __name__ == "__main__":
    main()
