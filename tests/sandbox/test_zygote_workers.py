"""The walls where they are used: workers the real pool forked, looked at from outside."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from orchestrator import AgentRequest, EngineConfig, WorkflowEngine, WorkflowStartRequest
from tests.conftest import run_async

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

META = {"name": "walls", "description": "looks at its own worker"}


def test_a_worker_of_the_real_pool_is_behind_every_wall_while_its_script_runs() -> None:
    async def main() -> None:
        seen: list[int] = []
        down: dict[str, str] = {}
        async with WorkflowEngine(EngineConfig(sandbox="auto", spare_workers=0)) as engine:

            async def look(request: AgentRequest) -> str:
                described = engine.describe()
                down.update({wall.name: wall.detail for wall in described.walls if not wall.up})
                for pid in described.worker_pids:
                    look_at(pid)
                    seen.append(pid)
                return "seen"

            engine.agents.register("default", look)
            script = "const seen = await agent('look'); return [seen, new Date(2024, 0, 1, 12).getHours()];"
            async with await engine.start(WorkflowStartRequest(script=script, meta=META)) as run:
                result = await run.result
            assert (result.stop_reason, result.error, result.value) == ("completed", None, ["seen", 12])
        assert len(seen) == 1
        assert set(down) <= {"landlock"}, down
        if down:
            pytest.skip(f"every other wall is up, but not on this kernel: {down['landlock']}")

    run_async(main())


def look_at(pid: int) -> None:
    base = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (base / "status").read_text().splitlines() if ":\t" in line)
    assert (status["Seccomp"], status["NoNewPrivs"], status["CapEff"]) == ("2", "1", "0" * 16)
    assert status["Threads"] == "1"
    if os.geteuid() == 0:  # nobody else can look into a process that is not dumpable
        links = [os.readlink(base / "fd" / name).partition(":")[0] for name in sorted(os.listdir(base / "fd"), key=int)]
        assert links == ["pipe", "socket"]
        mappings = [line.split()[1] for line in (base / "maps").read_text().splitlines()]
        assert not [mapping for mapping in mappings if "w" in mapping and mapping.endswith("s")]
        assert (base / "environ").read_bytes() == b""
