"""What each wall of the sandbox costs: its own calls, timed inside a freshly forked child that confines itself."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tasks import Series

__all__ = ["measure_walls"]

_BOUND = 60.0


async def measure_walls(runs: int) -> Series:
    """In a small process of its own: forking this one would copy the benchmark's memory with it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.walls", str(runs), stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[1], env={},
    )  # fmt: skip
    try:
        async with asyncio.timeout(_BOUND):
            output, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    return json.loads(output)


def _steps() -> list[tuple[str, Any, str]]:
    from worker.sandbox import descriptors, environment, landlock, limits, privileges, seccomp

    return [
        ("rlimits", limits, "measure"),
        ("environment", environment, "verify_empty"),
        ("rlimits", limits, "volunteer_for_oom"),
        ("parent-death", privileges, "die_with_parent"),
        ("descriptors", descriptors, "keep_only"),
        ("rlimits", limits, "set_limits"),
        ("no-new-privileges", privileges, "drop"),
        ("not-dumpable", privileges, "forbid_inspection"),
        ("landlock", landlock, "restrict"),
        ("rlimits", limits, "close_descriptor_table"),
        ("seccomp", seccomp, "install"),
    ]


def _timed(function: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        before = time.perf_counter()
        answer = function(*args, **kwargs)
        spent[name] = spent.get(name, 0.0) + (time.perf_counter() - before) * 1e6
        return answer

    return call


def _child(connection: socket.socket, parent: int) -> None:
    from worker import sandbox

    spent: dict[str, float] = {}
    for name, module, function in _steps():
        setattr(module, function, _timed(getattr(module, function), name, spent))
    before = time.perf_counter()
    sandbox.confine(keep_fd=connection.fileno(), parent_pid=parent, mode="auto", memory_limit=512 << 20, cpu_limit=600)
    spent["all"] = (time.perf_counter() - before) * 1e6
    connection.sendall(json.dumps(spent).encode())
    os._exit(0)


def main(runs: int) -> None:
    """Prints the series as JSON."""
    from worker import sandbox
    from worker.spidermonkey import load_engine

    load_engine()  # as in the zygote: the plan covers where the engine keeps its code, and a fork copies what it maps
    sandbox.prepare()
    series: Series = {}
    for _ in range(runs):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                _child(theirs, os.getppid())
            finally:
                os._exit(1)
        theirs.close()
        with ours:
            report = json.loads(ours.recv(65536) or b"{}")
        if os.waitpid(pid, 0)[1] != 0:
            raise SystemExit("a confined child failed")
        for name, spent in report.items():
            series.setdefault(name, []).append(spent)
    print(json.dumps(series))


if __name__ == "__main__":
    main(int(sys.argv[1]))
