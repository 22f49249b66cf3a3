"""The rehearsal a worker has behind it before its script comes: it comes to its end, and leaves no trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import EngineConfig
from tests.support import run_script

_REHEARSE = """
from worker.session import Runtime
from worker.spidermonkey import load_engine
runtime = Runtime(load_engine())
ended = [runtime.rehearse() for _ in range(3)]
print(ended, runtime.outbox.finished, len(runtime.engine.queue.jobs), len(runtime.timers))
"""

_LOOK_AROUND = """
const names = Object.keys(globalThis).sort();
const first = await agent('who am I');
return { names, first, spent: budget.spent(), timer: setTimeout(() => {}, 1e6), args: typeof args };
"""


def test_a_rehearsal_comes_to_its_end_and_can_be_repeated() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _REHEARSE], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=50
    )
    assert done.stdout.split("\n")[0] == "[True, True, True] False 0 0", done.stderr


@pytest.mark.parametrize("spares", [0, 2], ids=["just forked", "rehearsed again as a spare"])
def test_a_script_finds_no_trace_of_the_rehearsal(spares: int) -> None:
    ran = run_script(_LOOK_AROUND, config=EngineConfig(max_concurrent_agents=2, spare_workers=spares))
    assert ran.result.value == {
        "names": ["agent", "args", "budget", "clearTimeout", "log", "parallel", "phase", "pipeline", "setTimeout"],
        "first": "ok:who am I",
        "spent": 0,
        "timer": 1,
        "args": "undefined",
    }
    assert ran.types == ["start", "agent-start", "agent-end", "end"]
    [started] = [event for event in ran.events if event.type == "workflow/agent-start"]
    assert (started.seq, started.phase) == (1, None)
