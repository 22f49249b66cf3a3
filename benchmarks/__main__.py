"""``python -m benchmarks``: measures, prints the table, writes JSON and the plot."""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.catalogue import CatalogueEntry, catalogue
from benchmarks.ours import OurEngine
from benchmarks.peer import PeerEngine, PeerError
from benchmarks.plot import draw
from benchmarks.report import Figure, Report, describe_machine, print_table
from benchmarks.tasks import Series, Subject
from orchestrator import EngineConfig, WorkflowEngine, WorkflowStartRequest

_SLOW_IN_QUICK = ("memory-1000", "growth-sequential-10000", "growth-parallel-10000")


def _arguments() -> argparse.Namespace:
    names = [entry.name for entry in catalogue()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--only", nargs="+", metavar="NAME", help=f"measure only these (a prefix will do): {', '.join(names)}")
    add("--peer", action="store_true", help="install the reference with npm and measure it in turn with ours")
    add("--peer-folder", type=Path, metavar="DIR", help="where to install it (default: the user's cache)")
    add("--quick", action="store_true", help="one round each, without the largest sizes")
    add("--json", type=Path, metavar="FILE", help="write everything as JSON")
    add("--plot", type=Path, metavar="FILE", help="draw the comparison as SVG")
    add("--from-json", type=Path, metavar="FILE", help="measure nothing: print and plot an earlier --json")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.only or () if not any(known.startswith(name) for known in names)]
    if unknown:
        parser.error(f"no measurement is named {', '.join(unknown)}")
    return arguments


def _chosen(arguments: argparse.Namespace) -> list[CatalogueEntry]:
    entries = catalogue()
    if arguments.only:
        entries = [entry for entry in entries if any(entry.name.startswith(name) for name in arguments.only)]
    elif arguments.quick:
        entries = [entry for entry in entries if entry.name not in _SLOW_IN_QUICK]
    return entries


async def _describe(node: str | None) -> Report:
    async def nobody(_request: object) -> str:
        return ""

    async with WorkflowEngine(EngineConfig(spare_workers=0)) as engine:
        engine.agents.register("default", nobody)
        request = WorkflowStartRequest(script="return 1", meta={"name": "bench", "description": "a benchmark"})
        async with await engine.start(request) as run:
            await run.result
        about = engine.describe()
    up = sum(wall.up for wall in about.walls)
    return Report(machine=describe_machine(f"{about.engine} ({about.worker_mode})", up, len(about.walls), node))


def _add(collected: Series, series: Series) -> None:
    for name, values in series.items():
        collected.setdefault(name, []).extend(values)


async def _measure(entry: CatalogueEntry, subjects: list[Subject], report: Report) -> None:
    """All rounds of one entry. The subjects take turns, and turns at being first; one that fails drops out."""
    taking_part = list(subjects if entry.peer else subjects[:1])
    collected: dict[str, Series] = {subject.name: {} for subject in taking_part}
    for number in range(entry.quick_rounds if report.quick else entry.rounds):
        for subject in tuple(taking_part if number % 2 == 0 else taking_part[::-1]):
            try:
                _add(collected[subject.name], await subject.measure(entry.task))
            except (RuntimeError, TimeoutError, OSError) as error:
                report.failures[f"{entry.name}, {subject.name}"] = f"{type(error).__name__}: {error}"
                taking_part.remove(subject)
    ours, *others = (collected[subject.name] for subject in subjects if subject.name in collected)
    peer = others[0] if others else {}
    report.figures += [
        Figure.of(entry.name, spec, name, ours[name], peer.get(name))
        for spec in entry.figures
        for name in (ours if spec.series == "*" else (spec.series,))
        if ours.get(name)
    ]


async def _run(arguments: argparse.Namespace, progress: Console) -> Report:
    subjects: list[Subject] = [OurEngine()]
    node = None
    if arguments.peer:
        progress.print("installing the reference, if it is not there yet")
        peer = await PeerEngine.install(arguments.peer_folder)
        node = peer.node_version
        subjects.append(peer)
    try:
        report = await _describe(node)
        report.quick = arguments.quick
        for entry in _chosen(arguments):
            progress.print(f"[dim]{entry.name}[/dim]")
            await _measure(entry, subjects, report)
        report.load_after = os.getloadavg()
        return report
    finally:
        for subject in subjects:
            await subject.close()


def _raise_descriptor_limit() -> None:
    """A thousand live runs hold a thousand sockets here."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    arguments = _arguments()
    if arguments.from_json:
        report = msgspec.json.decode(arguments.from_json.read_bytes(), type=Report)
    else:
        _raise_descriptor_limit()
        try:
            report = asyncio.run(_run(arguments, Console(stderr=True)))
        except PeerError as error:
            print(error, file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
    console = Console() if sys.stdout.isatty() else Console(width=200)
    print_table(report, console)
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    if arguments.plot:
        arguments.plot.write_text(draw(report), "utf-8")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
