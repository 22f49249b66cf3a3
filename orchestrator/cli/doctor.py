"""``workflow doctor``: what this machine gives the engine, and how long a worker takes to start on it."""

from __future__ import annotations

import asyncio
import platform
import statistics
import sys
import time
from importlib import metadata

import msgspec

from orchestrator.agents import AgentRequest
from orchestrator.cli.report import json_bytes
from orchestrator.config import EngineConfig
from orchestrator.engine import EngineDescription, WorkflowEngine, WorkflowStartRequest
from protocol.errors import WorkflowError

__all__ = ["doctor_command", "version"]

STARTS = 10
DISTRIBUTION = "workflow-orchestrator"


class Diagnosis(msgspec.Struct, frozen=True):
    """What ``--json`` prints. Times are milliseconds from the start of ``return 1`` to its result."""

    version: str
    system: str
    packages: dict[str, str]
    engine: EngineDescription
    first_start_ms: float
    fresh_worker_ms: float
    spare_worker_ms: float


def version() -> str:
    """The version of this package, as it is installed."""
    return _version_of(DISTRIBUTION)


def doctor_command(*, as_json: bool) -> int:
    """Prints the diagnosis. Returns 0, or 1 when no script can run here."""
    try:
        diagnosis = asyncio.run(_diagnose())
    except WorkflowError as error:
        print(f"workflow: no script can run here: {error.message}", file=sys.stderr)
        return 1
    if as_json:
        sys.stdout.buffer.write(json_bytes(diagnosis))
    else:
        sys.stdout.buffer.write(f"{_render(diagnosis)}\n".encode())
    return 0


async def _diagnose() -> Diagnosis:
    fresh, first, description = await _measure(spares=0)
    spare, _, _ = await _measure(spares=2)
    return Diagnosis(
        version=version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}",
        packages={name: _version_of(name) for name in ("pythonmonkey", "msgspec", "jsonschema-rs", "tree-sitter")},
        engine=description,
        first_start_ms=round(first, 2),
        fresh_worker_ms=round(fresh, 2),
        spare_worker_ms=round(spare, 2),
    )


async def _measure(spares: int) -> tuple[float, float, EngineDescription]:
    """The median time of a run, the time of the first one with everything it starts, and what it ran on."""

    async def nobody(_: AgentRequest) -> str:
        raise RuntimeError("the script of a diagnosis starts no agent")

    began = time.perf_counter()
    async with WorkflowEngine(EngineConfig(spare_workers=spares)) as engine:
        engine.agents.register("default", nobody)
        times: list[float] = []
        for number in range(STARTS + 1):
            at = began if number == 0 else time.perf_counter()
            request = WorkflowStartRequest(
                script="return 1", meta={"name": "doctor", "description": "measures a start"}
            )
            async with await engine.start(request) as run:
                result = await run.result
                times.append((time.perf_counter() - at) * 1000)
            if result.stop_reason != "completed":
                raise WorkflowError(result.code, result.error)  # pyright: ignore[reportArgumentType]
            if spares:
                await asyncio.sleep(0.02)  # lets the pool refill, as between two runs of a host
        return statistics.median(times[1:]), times[0], engine.describe()


def _render(diagnosis: Diagnosis) -> str:
    engine = diagnosis.engine
    lines = [
        f"workflow-orchestrator {diagnosis.version}",
        f"system         {diagnosis.system}",
        f"engine         {engine.engine} in Python {engine.python}",
        f"packages       {', '.join(f'{name} {number}' for name, number in diagnosis.packages.items())}",
        f"worker mode    {engine.worker_mode}: {engine.mode_reason}",
        f"start of a run {diagnosis.spare_worker_ms} ms with a spare worker, {diagnosis.fresh_worker_ms} ms with a "
        f"fresh one, {diagnosis.first_start_ms} ms the first time",
        f"sandbox        {engine.sandbox}",
    ]
    for wall in engine.walls:
        detail = f": {wall.detail}" if wall.detail else ""
        lines.append(f"  {'up  ' if wall.up else 'DOWN'} {wall.name}{detail}")
    return "\n".join(lines)


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"
