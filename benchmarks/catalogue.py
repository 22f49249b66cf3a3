"""Which measurements there are: their tasks, the figures read from them, and the targets."""

from __future__ import annotations

from typing import Literal

import msgspec

from benchmarks.tasks import (
    Calls,
    Cancel,
    Flood,
    LargeValue,
    LogRate,
    Memory,
    StartToResult,
    Task,
    Throughput,
    Walls,
)

__all__ = ["GROWTH_SIZES", "CatalogueEntry", "FigureSpec", "catalogue"]

GROWTH_SIZES = (10, 100, 1000, 10_000)


class FigureSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table. ``target`` is on a quiet two-core machine with the sandbox on; ``factor`` against the
    reference."""

    title: str
    series: str
    unit: str
    better: Literal["lower", "higher"] = "lower"
    target: float | None = None
    factor: float | None = None


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One task, measured ``rounds`` times in turn with the reference."""

    name: str
    task: Task
    figures: tuple[FigureSpec, ...]
    rounds: int = 5
    quick_rounds: int = 1
    peer: bool = True
    """Whether the reference can do the same work at all."""


def _between(body: str) -> str:
    """The calls alone, between two log lines: what starting a run costs is another figure."""
    return f"log('go'); {body}; log('done'); return 1"


def _sequential(count: int) -> str:
    return _between(f"for (let i = 0; i < {count}; i++) await agent('task ' + i)")


def _parallel(count: int) -> str:
    return _between(f"await parallel(Array.from({{ length: {count} }}, (_, i) => () => agent('task ' + i)))")


def _pipeline(items: int) -> str:
    stages = "async (x) => agent('one ' + x), async (x) => agent('two ' + x), async (x) => agent('three ' + x)"
    return _between(f"await pipeline(Array.from({{ length: {items} }}, (_, i) => i), {stages})")


_SPIN = "await agent('task'); while (true) {}"


def _ms(title: str, series: str, target: float | None = None, factor: float | None = None) -> FigureSpec:
    return FigureSpec(title=title, series=series, unit="ms", target=target, factor=factor)


def _per_call(title: str, target: float | None = None, factor: float | None = None) -> FigureSpec:
    return FigureSpec(title=title, series="per_call", unit="µs", target=target, factor=factor)


def _starting() -> list[CatalogueEntry]:
    return [
        CatalogueEntry(
            name="start-warm",
            task=StartToResult(temperature="warm"),
            figures=(_ms("start to result, warm", "result", 1.2, 30), _ms("dispose of a finished run", "dispose")),
        ),
        CatalogueEntry(
            name="start-fork",
            task=StartToResult(temperature="fork"),
            figures=(_ms("start to result, with the fork", "result", 4.0, 10),),
        ),
        CatalogueEntry(
            name="start-cold",
            task=StartToResult(temperature="cold", runs=3),
            figures=(_ms("new engine to first result", "result", 200),),
        ),
        CatalogueEntry(
            name="start-unsandboxed",
            task=StartToResult(temperature="fork", sandbox="off"),
            figures=(_ms("start to result, with the fork, sandbox off", "result"),),
            peer=False,
        ),
        CatalogueEntry(
            name="walls",
            task=Walls(),
            figures=(FigureSpec(title="sandbox wall: {series}", series="*", unit="µs"),),
            rounds=2,
            peer=False,
        ),
        *(
            CatalogueEntry(
                name=f"rate-{at_once}",
                task=Throughput(at_once=at_once),
                figures=(
                    FigureSpec(
                        title=f"runs, {at_once} at once" if at_once > 1 else "runs, one after the other",
                        series="rate",
                        unit="/s",
                        better="higher",
                        target={1: 200.0, 16: 400.0}.get(at_once),
                        factor=10 if at_once == 16 else None,
                    ),
                ),
                rounds=3,
            )
            for at_once in (1, 4, 16)
        ),
    ]


def _working() -> list[CatalogueEntry]:
    return [
        CatalogueEntry(
            name="agents-sequential",
            task=Calls(script=_sequential(1000), calls=1000),
            figures=(_per_call("agent() one after the other, 1000", 80, 1.5),),
        ),
        CatalogueEntry(
            name="agents-parallel",
            task=Calls(script=_parallel(1000), calls=1000),
            figures=(_per_call("agent() in parallel, 1000, cap 16", 25, 2.5),),
        ),
        CatalogueEntry(
            name="agents-pipeline",
            task=Calls(script=_pipeline(1000), calls=3000),
            figures=(_per_call("agent() in pipeline, 1000×3", 25),),
        ),
        CatalogueEntry(
            name="logs",
            task=LogRate(),
            figures=(
                FigureSpec(
                    title="log events to a listener",
                    series="rate",
                    unit="/s",
                    better="higher",
                    target=300_000,
                    factor=2,
                ),
            ),
        ),
        CatalogueEntry(
            name="result-10mb",
            task=LargeValue(direction="result"),
            figures=(_ms("10 MB result", "total", 180), _ms("10 MB result, after it is built", "built")),
        ),
        CatalogueEntry(
            name="args-10mb",
            task=LargeValue(direction="args"),
            figures=(_ms("10 MB args", "total", 80), _ms("10 MB args, the start call", "start")),
        ),
    ]


def _ending() -> list[CatalogueEntry]:
    return [
        CatalogueEntry(
            name="cancel-blocked",
            task=Cancel(script="await agent('hang')"),
            figures=(_ms("cancel of a blocked run", "cancel"), _ms("dispose after that", "dispose")),
        ),
        CatalogueEntry(
            name="cancel-spinning",
            task=Cancel(script=_SPIN, ready="agent-end", settle=0.05, runs=2),
            figures=(_ms("cancel of a spinning run", "cancel", 15),),
            rounds=2,
        ),
        CatalogueEntry(
            name="cancel-deaf",
            task=Cancel(script="await agent('deaf')", grace=0.1, runs=3),
            figures=(_ms("cancel, the agent is deaf, grace 100 ms", "cancel"),),
            rounds=3,
        ),
        CatalogueEntry(
            name="dispose-live",
            task=Cancel(script="await agent('hang')", cancel=False),
            figures=(_ms("dispose of a live run", "dispose"),),
        ),
    ]


def _loaded() -> list[CatalogueEntry]:
    return [
        *(
            CatalogueEntry(
                name=f"memory-{live}",
                task=Memory(live=live, slots=16),
                figures=(
                    FigureSpec(
                        title=f"memory of one of {live} live runs, PSS",
                        series="pss",
                        unit="MiB",
                        target=3.0,
                    ),
                    FigureSpec(title=f"memory of one of {live} live runs, private", series="private", unit="MiB"),
                    _ms(f"{live} runs: until all are live", "start"),
                    _ms(f"{live} runs: cancelled and gone", "end", 5000 if live == 1000 else None),
                ),
                rounds=1 if live > 20 else 2,
                peer=live <= 200,  # a thousand threads of the reference would take some 14 GB
            )
            for live in (20, 200, 1000)
        ),
        CatalogueEntry(
            name="flood",
            task=Flood(grace=0.1),
            figures=(
                _ms("another run's start to result in a log flood, added", "other", 10),
                _ms("longest stall of the host's loop in a log flood", "stall"),
            ),
            rounds=2,
        ),
    ]


def _growing() -> list[CatalogueEntry]:
    entries: list[CatalogueEntry] = []
    for shape, make, title in (
        ("sequential", _sequential, "one after the other"),
        ("parallel", _parallel, "in parallel"),
    ):
        for size in GROWTH_SIZES:
            entries.append(
                CatalogueEntry(
                    name=f"growth-{shape}-{size}",
                    task=Calls(script=make(size), calls=size),
                    figures=(
                        _ms(f"a run with {size} agents {title}", "total"),
                        _per_call(f"of it, per agent ({size} {title})"),
                    ),
                    rounds=3 if size < 10_000 else 2,
                )
            )
    return entries


def catalogue() -> list[CatalogueEntry]:
    """Every measurement, in the order of the table."""
    return [*_starting(), *_working(), *_ending(), *_loaded(), *_growing()]
