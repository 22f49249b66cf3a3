"""Turns samples into figures, a table and JSON."""

from __future__ import annotations

import os
import platform
import statistics
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.catalogue import FigureSpec

__all__ = ["Figure", "Machine", "Report", "Sample", "describe_machine", "print_table"]


class Sample(msgspec.Struct, frozen=True):
    """The spread of one series: quartiles around the median, and the extremes."""

    median: float
    low: float
    high: float
    minimum: float
    maximum: float
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Sample:
        ordered = sorted(values)
        low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else ordered * 3
        return cls(*(round(value, 4) for value in (middle, low, high, ordered[0], ordered[-1])), len(ordered))


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. ``ratio`` is how many times better ours is; ``met`` whether the targets are reached."""

    measurement: str
    title: str
    unit: str
    better: Literal["lower", "higher"]
    ours: Sample
    peer: Sample | None = None
    ratio: float | None = None
    target: float | None = None
    factor: float | None = None
    met: bool | None = None

    @classmethod
    def of(cls, measurement: str, spec: FigureSpec, name: str, ours: list[float], peer: list[float] | None) -> Figure:
        mine = Sample.of(ours)
        theirs = Sample.of(peer) if peer else None
        ratio = None
        if theirs is not None and mine.median > 0 and theirs.median > 0:
            ratio = theirs.median / mine.median if spec.better == "lower" else mine.median / theirs.median
        checks: list[bool] = []
        if spec.target is not None:
            checks.append((spec.target - mine.median) * (1 if spec.better == "lower" else -1) >= 0)
        if spec.factor is not None and ratio is not None:
            checks.append(ratio >= spec.factor)
        return cls(
            measurement=measurement,
            title=spec.title.replace("{series}", name),
            unit=spec.unit,
            better=spec.better,
            ours=mine,
            peer=theirs,
            ratio=None if ratio is None else round(ratio, 2),
            target=spec.target,
            factor=spec.factor,
            met=all(checks) if checks else None,
        )


class Machine(msgspec.Struct, frozen=True):
    """Where and beside what it was measured."""

    processor: str
    cores: int
    kernel: str
    python: str
    engine: str
    walls_up: int
    walls: int
    node: str | None
    load_before: tuple[float, float, float]


class Report(msgspec.Struct, kw_only=True):
    """Everything one go of the benchmarks found."""

    machine: Machine
    load_after: tuple[float, float, float] = (0.0, 0.0, 0.0)
    quick: bool = False
    figures: list[Figure] = msgspec.field(default_factory=list[Figure])
    failures: dict[str, str] = msgspec.field(default_factory=dict[str, str])


def describe_machine(engine: str, walls_up: int, walls: int, node: str | None) -> Machine:
    """Reads what the table says about the machine."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return Machine(
        processor, os.cpu_count() or 1, platform.release(), platform.python_version(), engine, walls_up, walls, node,
        os.getloadavg(),
    )  # fmt: skip


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _spread(sample: Sample | None, unit: str) -> str:
    if sample is None:
        return "–"
    middle = f"{_number(sample.median)} {unit}"
    return middle if sample.count == 1 else f"{middle} [dim]({_number(sample.low)}–{_number(sample.high)})[/dim]"


def _target(figure: Figure) -> str:
    parts: list[str] = []
    if figure.target is not None:
        parts.append(f"{'≤' if figure.better == 'lower' else '≥'} {_number(figure.target)} {figure.unit}")
    if figure.factor is not None:
        parts.append(f"≥ {figure.factor:g}×")
    return ", ".join(parts)


def print_table(report: Report, console: Console) -> None:
    """The table, with the machine and its load in the header."""
    machine = report.machine
    load = " ".join(f"{value:.2f}" for value in machine.load_before)
    after = " ".join(f"{value:.2f}" for value in report.load_after)
    node = f", Node {machine.node}" if machine.node else ""
    console.print(
        f"{machine.processor}, {machine.cores} cores, kernel {machine.kernel}, "
        f"Python {machine.python}, {machine.engine}{node}"
    )
    console.print(f"load average before {load}, after {after}; sandbox walls up: {machine.walls_up} of {machine.walls}")
    console.print("median (quartiles); the ratio says how many times better ours is")
    table = Table(box=None, pad_edge=False)
    for heading in ("", "ours", "reference", "ratio", "target", ""):
        table.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for figure in report.figures:
        table.add_row(
            figure.title,
            _spread(figure.ours, figure.unit),
            _spread(figure.peer, figure.unit),
            "" if figure.ratio is None else f"{figure.ratio:.3g}×",
            _target(figure),
            "" if figure.met is None else "[green]met[/green]" if figure.met else "[red]missed[/red]",
        )
    console.print(table)
    for name, problem in report.failures.items():
        console.print(f"[red]{name}: {problem}[/red]")
