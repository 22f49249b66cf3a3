"""``workflow doctor``: what this machine gives the engine, and how long a worker takes to start on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import statistics
import sys
import time
from importlib import metadata
from typing import Any

import msgspec

from orchestrator.agents import AgentRequest
from orchestrator.cli.progress import clean
from orchestrator.cli.report import json_bytes
from orchestrator.config import EngineConfig
from orchestrator.engine import EngineDescription, WorkflowEngine, WorkflowStartRequest
from orchestrator.workflow_file import ConfiguredAgent, WorkflowFile
from protocol.errors import WorkflowError

__all__ = ["doctor_command", "version"]

STARTS = 10
DISTRIBUTION = "workflow-orchestrator"


class AgentDiagnosis(msgspec.Struct, frozen=True):
    """One agent of ``workflow.toml``. ``problem`` is what it lacks here; ``None`` when it could start."""

    kind: str
    max_concurrent: int | None
    problem: str | None


class FileDiagnosis(msgspec.Struct, frozen=True):
    """The ``workflow.toml`` that holds here."""

    name: str
    default: str | None
    agents: dict[str, AgentDiagnosis]
    limits: dict[str, Any]


class Diagnosis(msgspec.Struct, frozen=True):
    """What ``--json`` prints. Times are milliseconds from the start of ``return 1`` to its result."""

    version: str
    system: str
    packages: dict[str, str]
    engine: EngineDescription
    first_start_ms: float
    fresh_worker_ms: float
    spare_worker_ms: float
    workflow_file: FileDiagnosis | None


def version() -> str:
    """The version of this package, as it is installed."""
    return _version_of(DISTRIBUTION)


def doctor_command(file: WorkflowFile | None, *, as_json: bool) -> int:
    """Prints the diagnosis, with what ``file`` says. Returns 0, or 1 when no script can run here."""
    try:
        diagnosis = asyncio.run(_diagnose(file))
    except WorkflowError as error:
        print(f"workflow: no script can run here: {error.message}", file=sys.stderr)
        return 1
    if as_json:
        sys.stdout.buffer.write(json_bytes(diagnosis))
    else:
        sys.stdout.buffer.write(f"{_render(diagnosis)}\n".encode())
    return 0


async def _diagnose(file: WorkflowFile | None) -> Diagnosis:
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
        workflow_file=None if file is None else _diagnose_file(file),
    )


def _diagnose_file(file: WorkflowFile) -> FileDiagnosis:
    agents = {
        name: AgentDiagnosis(agent.kind, agent.max_concurrent, _problem(agent)) for name, agent in file.agents.items()
    }
    return FileDiagnosis(file.name, file.default, agents, file.limits)


def _problem(agent: ConfiguredAgent) -> str | None:
    """What an agent lacks here, without starting it: its program, its package, the variable of its key."""
    settings: Any = agent.settings
    if agent.kind in ("command", "acp"):
        program: str = settings.argv[0]
        place = settings.cwd if os.path.dirname(program) and settings.cwd is not None else "."
        if shutil.which(os.path.join(place, program) if os.sep in program else program) is None:
            return f"the program {program!r} was not found"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # a Python agent's module may print while it is imported
            agent.make()
    except ValueError as error:
        return str(error)
    own_server = agent.kind == "openai" and (settings.base_url or os.environ.get("OPENAI_BASE_URL"))
    if agent.kind == "openai" and not own_server and not os.environ.get(settings.api_key_env):
        return f"the environment variable {settings.api_key_env} is not set"
    return None


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
    return "\n".join([*lines, *_render_file(diagnosis.workflow_file)])


def _render_file(file: FileDiagnosis | None) -> list[str]:
    if file is None:
        return ["configuration  no workflow.toml here or above: agents are named with --agent"]
    default = "no default agent: without --agent a run rehearses" if file.default is None else f"agent {file.default}"
    lines = [f"configuration  {file.name}: {default}"]
    for name, agent in file.agents.items():
        cap = "" if agent.max_concurrent is None else f", at most {agent.max_concurrent} at once"
        lines.append(f"  {'ok  ' if agent.problem is None else 'DOWN'} {name}: {agent.kind}{cap}{_because(agent)}")
    if file.limits:
        lines.append(f"  limits: {', '.join(f'{name} = {value}' for name, value in file.limits.items())}")
    return lines


def _because(agent: AgentDiagnosis) -> str:
    return "" if agent.problem is None else f": {clean(agent.problem)}"


def _version_of(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(not installed as a package)"
