"""Asking the kernel about processes that are not our children."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Exits", "host", "pids_of"]

ROOT = str(Path(__file__).resolve().parents[2])

PRELUDE = """
import asyncio, os, signal, sys
from orchestrator import *

async def agent(request):
    if request.prompt == 'hang':
        await asyncio.Event().wait()
    return 'ok'

META = {'name': 'host', 'description': 'a host process'}
SPIN = "log('spinning'); for (;;) {}"

async def start(engine, script, **fields):
    return await engine.start(WorkflowStartRequest(script=script, meta=META, **fields))

async def say_pids(engine, workers=2):
    while len(engine.describe().worker_pids) < workers:
        await asyncio.sleep(0.001)
    about = engine.describe()
    print(about.zygote_pid, *about.worker_pids, flush=True)

async def new_engine(**settings):
    engine = WorkflowEngine(EngineConfig(spare_workers=1, max_concurrent_agents=4, **settings))
    engine.agents.register('default', agent)
    said = asyncio.Event()
    telling = ('workflow/log', 'workflow/agent-start')
    engine.events.subscribe(lambda event: said.set() if event.type in telling else None)
    engine.said = said
    return engine
"""


class Exits:
    """Watches processes by pidfd, which cannot be fooled by a process id that is used again.

    Make it while they live, or soon after: one that has ended already needs no watching. `all_gone` then waits for the
    kernel to say that each has ended.
    """

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self._fds: list[int] = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._fds.append(os.pidfd_open(pid))

    def all_gone(self, timeout: float = 20.0) -> bool:
        waiting = select.poll()
        for fd in self._fds:
            waiting.register(fd, select.POLLIN)
        left = len(self._fds)
        while left:
            ended = waiting.poll(timeout * 1000)
            if not ended:
                return False
            for fd, _ in ended:
                waiting.unregister(fd)
                left -= 1
        return True

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)

    def __enter__(self) -> Exits:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


@contextlib.contextmanager
def host(body: str, *, strict: bool = True, leave_open: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Starts a Python process that embeds the engine; it does not outlive the block. ``body`` follows the prelude.

    ``strict=False`` for hosts that leave without closing their engine: what they leave open is warned of otherwise.
    ``leave_open`` keeps the standard input open until ``communicate``: a host that reads it waits for the test.
    """
    flags = ["-X", "dev", "-W", "error"] if strict else []
    with subprocess.Popen(
        [sys.executable, *flags, "-c", PRELUDE + body],
        cwd=ROOT,
        stdin=subprocess.PIPE if leave_open else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def pids_of(process: subprocess.Popen[str]) -> list[int]:
    """What `say_pids` printed."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the host said nothing: {process.communicate(timeout=20)[1]}"
    return [int(word) for word in line.split()]
