"""The crash table from the command line: ``python -m orchestrator.faults AGENT``.

Guarantees: a character for each cell on stdout (``.`` right, ``F`` wrong), a line for each stage unless they are
shuffled, then every problem; exit code 0 when all cells are right, 1 when one is not, 2 for a usage error.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from orchestrator.agents import AgentProvider
from orchestrator.faults.crash_table import BENCH_CONFIG, CellReport, CrashBench
from orchestrator.faults.stages import AGENT_STAGES, CrashCell, Stage, crash_cells
from protocol.errors import WorkflowError

__all__ = ["main"]

app = App(
    name="python -m orchestrator.faults",
    help="Kills the workers of runs at every stage in every way, with your agents at work, and says what went wrong.",
    help_on_error=False,
    version_flags=[],
)


@app.default
def table(
    agent: Annotated[
        str | None,
        Parameter(
            name="AGENT",
            help="As for `workflow run --agent`: python:module:function, command:ARGV, … Without one, agents that "
            "answer at once.",
        ),
    ] = None,
    /,
    *,
    agent_stages: Annotated[
        bool, Parameter(negative="", help="Only the stages in which an agent is at work.", show_default=False)
    ] = False,
    cancels: Annotated[
        bool, Parameter(negative="--no-cancels", help="Also with a cancel before, at and after.")
    ] = True,
    seed: Annotated[int | None, Parameter(help="Shuffle the cells by this number.")] = None,
    max_failures: Annotated[int, Parameter(help="Stop after so many cells that are wrong.")] = 10,
    cell_timeout: Annotated[float, Parameter(help="Seconds a cell may take, for agents that take their time.")] = 30.0,
    settle_timeout: Annotated[float, Parameter(help="Seconds until what is still there counts as left.")] = 5.0,
) -> int:
    """Runs the crash table against AGENT."""
    cells = crash_cells(stages=AGENT_STAGES if agent_stages else Stage, cancels=cancels)
    if seed is not None:
        random.Random(seed).shuffle(cells)
    try:
        provider = _provider(agent)
        bench = CrashBench(provider, config=BENCH_CONFIG, cell_timeout=cell_timeout, settle_timeout=settle_timeout)
        return asyncio.run(_run(bench, provider, cells, seed is None, max_failures))
    except (ValueError, WorkflowError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _provider(spec: str | None) -> AgentProvider | None:
    if spec is None:
        return None
    from orchestrator.providers import provider_from_spec

    return provider_from_spec(spec)


async def _run(
    bench: CrashBench, provider: AgentProvider | None, cells: list[CrashCell], by_stage: bool, max_failures: int
) -> int:
    wrong: list[CellReport] = []
    done = 0
    shown: Stage | None = None
    try:
        async with bench:
            for cell in cells:
                if by_stage and cell.stage is not shown:
                    shown = cell.stage
                    print(f"{'' if done == 0 else chr(10)}{shown:17} ", end="")
                report = await bench.run(cell)
                done += 1
                print("." if report.ok else "F", end="", flush=True)
                if not report.ok:
                    wrong.append(report)
                    if len(wrong) >= max_failures:
                        break
    finally:
        close: Any = getattr(provider, "aclose", None)
        if close is not None:
            await close()
    print("", *wrong, "", f"{done - len(wrong)} of {done} cells right ({len(cells)} in all)", sep="\n")
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    try:
        return app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
