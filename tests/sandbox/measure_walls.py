"""Measures what the walls cost a worker: ``python -m tests.sandbox.measure_walls [rounds]``.

A tool, not a test. Each round forks two workers from a process with the engine loaded: one confines itself and is
timed as a whole, the other is timed wall by wall. Run it with an empty environment (``env -i``) to have every wall up.
"""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from worker import sandbox
from worker.sandbox import descriptors, environment, landlock, limits, privileges, seccomp, walls
from worker.spidermonkey import keep_work_off_helper_threads, load_engine

MEMORY, CPU = 512 << 20, 60


def steps(plan: walls.Plan, parent: int, keep: int) -> list[tuple[str, Callable[[], object]]]:
    """The walls in the order of `walls.raise_walls`."""
    usage = limits.measure()
    return [
        ("environment", environment.verify_empty),
        ("first to go when memory is short", limits.volunteer_for_oom),
        ("parent-death", lambda: privileges.die_with_parent(parent)),
        ("descriptors", lambda: descriptors.keep_only(keep)),
        ("rlimits", lambda: limits.set_limits(usage=usage, memory=MEMORY, cpu=CPU, walls=True)),
        ("no-new-privileges", privileges.drop),
        ("not-dumpable", privileges.forbid_inspection),
        ("landlock", lambda: landlock.restrict(plan.ruleset)),
        ("rlimits: descriptors", lambda: limits.close_descriptor_table(descriptors.NEEDED)),
        ("seccomp", lambda: seccomp.install(plan.filter)),
    ]


def in_worker(work: Callable[[socket.socket], object]) -> tuple[object, int]:
    """Runs ``work`` in a fork; returns its answer and the private bytes the process has afterwards."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            theirs.sendall(json.dumps(work(theirs)).encode())
            theirs.recv(1)
            os._exit(0)
        answer = json.loads(ours.recv(1 << 16))
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            private = sum(int(kb) * 1024 for kb in re.findall(r"Private_\w+: +(\d+) kB", rollup))
        except OSError:
            private = -1  # only root can look into a process that is not dumpable
        ours.sendall(b"x")
        os.waitpid(pid, 0)
        return answer, private


def main(rounds: int) -> None:
    load_engine()
    keep_work_off_helper_threads()
    started = time.perf_counter()
    sandbox.prepare()
    print(f"prepare, once per pool: {1e3 * (time.perf_counter() - started):.2f} ms")
    plan, parent = walls.Plan(), os.getpid()
    gc.collect()
    gc.freeze()

    def confine(connection: socket.socket, mode: str) -> tuple[float, int]:
        begin = time.perf_counter()
        reports = sandbox.confine(
            keep_fd=connection.fileno(), parent_pid=parent, mode=mode, memory_limit=MEMORY, cpu_limit=CPU
        )
        return time.perf_counter() - begin, sum(report.up for report in reports)

    def step_by_step(connection: socket.socket) -> list[tuple[str, float]]:
        taken: list[tuple[str, float]] = []
        for name, step in steps(plan, parent, connection.fileno()):
            begin = time.perf_counter()
            step()
            taken.append((name, time.perf_counter() - begin))
        return taken

    whole: dict[str, list[float]] = defaultdict(list)
    memory: dict[str, list[int]] = defaultdict(list)
    single: dict[str, list[float]] = defaultdict(list)
    up = 0
    for _ in range(rounds):
        for mode in ("off", "auto"):
            (seconds, up), private = in_worker(lambda c, mode=mode: confine(c, mode))  # type: ignore[misc]
            whole[mode].append(seconds)
            memory[mode].append(private)
        for name, seconds in in_worker(step_by_step)[0]:  # type: ignore[attr-defined]
            single[name].append(seconds)
    for mode in ("off", "auto"):
        print(f"confine {mode}: {summary(whole[mode])}, private memory {statistics.median(memory[mode]) / 1024:.0f} kB")
    print(f"walls up in auto: {up} of {len(sandbox.NAMES)}")
    for name, values in single.items():
        print(f"  {name}: {summary(values)}")


def summary(seconds: list[float]) -> str:
    ordered = sorted(1e3 * value for value in seconds)
    late = ordered[int(len(ordered) * 0.95)]
    return f"median {statistics.median(ordered):.3f} ms, best {ordered[0]:.3f}, 95 % {late:.3f}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
