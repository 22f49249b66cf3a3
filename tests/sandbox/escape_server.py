"""A small fork server with the real engine in it: what the zygote is, reduced to what the escape tests need.

Exec'd by the tests with an empty environment. It answers two requests on its control socket, one JSON line each:
``start`` (with a descriptor: the worker's socket) forks a worker, puts walls up and runs a job; ``wait`` tells how a
worker ended.
"""

from __future__ import annotations

import fcntl
import gc
import json
import os
import socket
import struct
import sys
from typing import Any


def _outer_filter(refuse: dict[str, int]) -> None:
    """Emulates an outer sandbox: a filter that answers the given calls with an error and allows the rest."""
    import ctypes

    from tests.sandbox import syscall_numbers
    from tests.sandbox.escape_attacks import call

    code = [(0x20, 0, 0, 0)]
    for name, error in refuse.items():
        code += [(0x15, 0, 1, syscall_numbers.NATIVE[name]), (0x06, 0, 0, 0x00050000 | error)]
    code.append((0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in code))
    call("prctl", 38, 1, 0, 0, 0)
    call("prctl", 22, 2, struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(program)))


def _work(connection: socket.socket, request: dict[str, Any], evaluate: Any, plan: Any, parent: int) -> None:
    from tests.sandbox.escape_jobs import JOBS
    from worker import sandbox
    from worker.sandbox import walls

    if request["outer"]:
        _outer_filter(request["outer"])
        plan = walls.Plan()
    options = {
        "keep_fd": connection.fileno(),
        "parent_pid": parent if request["parent"] is None else request["parent"],
        "memory_limit": request["memory"],
        "cpu_limit": request["cpu"],
    }
    if request["mode"] is not None:
        reports = sandbox.confine(mode=request["mode"], **options)
    else:
        reports = walls.raise_walls(plan, frozenset(request["walls"]), **options)

    def tell(what: object) -> None:
        connection.sendall(json.dumps(what).encode() + b"\n")

    tell([[report.name, report.up, report.detail] for report in reports])
    for found in JOBS[request["job"]](connection, evaluate, **request["arguments"]):
        tell(found)


def _become(user: int) -> None:
    """Stop being root, for good, and be an ordinary process of ``user`` as an exec would have made it."""
    from tests.sandbox.escape_attacks import call

    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    call("prctl", 4, 1, 0, 0, 0)  # changing the user made it not dumpable, and its own /proc files root's


def _who() -> dict[str, Any]:
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status if ":" in line)
    return {"users": sorted(set(map(int, fields["Uid"].split()))), "capabilities": int(fields["CapEff"], 16)}


def main(root: str, control_fd: int, user: int, forget: bool) -> None:
    sys.path.insert(0, root)
    from tests.sandbox import escape_jobs  # everything is imported before the first fork
    from worker.sandbox import walls
    from worker.spidermonkey import keep_work_off_helper_threads, load_engine

    engine = load_engine()
    reason = keep_work_off_helper_threads()
    if reason is not None:
        raise SystemExit(reason)
    if user >= 0:  # after the imports: an interpreter below a private directory is a common way to install one
        _become(user)
    plan = walls.Plan()
    if plan.codespace is not None:
        escape_jobs.CODE.append(plan.codespace.start)
    engine.evaluate("void new Intl.DateTimeFormat('en').format(new Date(0)); void new Date(0).toString()")
    control = socket.socket(fileno=control_fd)
    if forget:
        os.environ.clear()
    # One below and one above the number a worker's socket gets.
    leaked = [os.open("/etc", os.O_RDONLY | os.O_DIRECTORY), fcntl.fcntl(os.open("/etc/passwd", os.O_RDONLY), 0, 200)]
    gc.collect()
    gc.freeze()
    control.sendall(json.dumps(_who() | {"pid": os.getpid(), "leaked": leaked}).encode() + b"\n")
    own = os.getpid()
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1 << 20, 1)
        if not data:
            return
        request = json.loads(data)
        if request["do"] == "wait":
            _, status, usage = os.wait4(request["pid"], 0)
            answer: dict[str, Any] = {"status": os.waitstatus_to_exitcode(status), "peak": usage.ru_maxrss * 1024}
        else:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    control.close()
                    _work(socket.socket(fileno=descriptors[0]), request, engine.evaluate, plan, own)
                    code = 7
                finally:
                    os._exit(code)
            os.close(descriptors[0])
            answer = {"pid": pid}
        control.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")
