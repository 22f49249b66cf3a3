"""The comparison and the growth as one SVG, drawn without a plotting library so that it reads well in a diff."""

from __future__ import annotations

import math
from html import escape

from benchmarks.report import Figure, Report

__all__ = ["draw"]

_WIDTH = 920
_ROW = 22
_OURS = "#0b7285"
_PEER = "#c2410c"
_COMPARED = (
    "start-warm",
    "start-fork",
    "rate-1",
    "rate-16",
    "agents-sequential",
    "agents-parallel",
    "agents-pipeline",
    "logs",
    "result-10mb",
    "args-10mb",
    "cancel-spinning",
    "memory-20",
    "flood",
)


class _Canvas:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, colour: str = "#333"
    ) -> None:
        look = f'text-anchor="{anchor}" font-size="{size}" fill="{colour}"'
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {look}>{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = "#ddd", width: float = 1) -> None:
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
        )

    def bar(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}" rx="2" fill="{colour}"/>'
        )

    def curve(self, points: list[tuple[float, float]], colour: str, dashed: bool) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        self.parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]


def _value(number: float, unit: str) -> str:
    shown = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{shown} {unit}".replace(" /s", "/s")


def _bars(canvas: _Canvas, figures: list[Figure], top: float) -> float:
    """How many times better ours is, on a logarithmic axis. Returns the y below it."""
    shown = [figure for figure in figures if figure.ratio]
    if not shown:
        return top
    left, right = 330.0, _WIDTH - 250.0
    ceiling = max(10.0, max(figure.ratio or 1.0 for figure in shown))
    floor = min(1.0, min(figure.ratio or 1.0 for figure in shown))
    span = math.log10(ceiling) - math.log10(floor)

    def at(ratio: float) -> float:
        return left + (math.log10(ratio) - math.log10(floor)) / span * (right - left)

    canvas.text(16, top, "How many times better than the reference (logarithmic)", size=15, colour="#111")
    top += 16
    bottom = top + len(shown) * _ROW + 6
    tick = 10.0 ** math.ceil(math.log10(floor) - 1e-9)
    while tick <= ceiling * 1.0001:
        canvas.line(at(tick), top, at(tick), bottom, "#888" if tick == 1 else "#ddd")
        canvas.text(at(tick), bottom + 13, f"{tick:g}×", anchor="middle", size=11, colour="#666")
        tick *= 10
    for number, figure in enumerate(shown):
        y = top + number * _ROW + 4
        ratio = figure.ratio or 1.0
        canvas.text(left - 10, y + 12, figure.title, anchor="end")
        start, end = sorted((at(1.0), at(ratio)))
        canvas.bar(start, y, end - start, _ROW - 7, _OURS if ratio >= 1 else _PEER)
        canvas.text(end + 6, y + 12, f"{ratio:.3g}×", size=11, colour="#111")
        assert figure.peer is not None
        both = f"{_value(figure.ours.median, figure.unit)}  vs  {_value(figure.peer.median, figure.unit)}"
        canvas.text(_WIDTH - 16, y + 12, both, anchor="end", size=11, colour="#555")
    return bottom + 40


def _growth(canvas: _Canvas, figures: list[Figure], top: float) -> float:
    """Milliseconds of a whole run against its number of agents, both logarithmic."""
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for figure in figures:
        _, _, rest = figure.measurement.partition("growth-")
        if not rest or figure.unit != "ms":
            continue
        shape, _, size = rest.partition("-")
        curves.setdefault((shape, "ours"), []).append((int(size), figure.ours.median))
        if figure.peer is not None:
            curves.setdefault((shape, "reference"), []).append((int(size), figure.peer.median))
    if not curves:
        return top
    points = [point for curve in curves.values() for point in curve]
    x_low, x_high = (math.log10(edge({size for size, _ in points})) for edge in (min, max))
    y_low = math.floor(math.log10(min(cost for _, cost in points)))
    y_high = math.ceil(math.log10(max(cost for _, cost in points)))
    left, right, height = 80.0, _WIDTH - 250.0, 260.0
    title = "How the cost of a run grows with its agents (ms, start to result, both logarithmic)"
    canvas.text(16, top, title, size=15, colour="#111")
    top += 16

    def at(size: float, cost: float) -> tuple[float, float]:
        x = left + (math.log10(size) - x_low) / max(x_high - x_low, 1e-9) * (right - left)
        return x, top + height - (math.log10(cost) - y_low) / max(y_high - y_low, 1e-9) * height

    for power in range(y_low, y_high + 1):
        y = at(10**x_low, 10**power)[1]
        canvas.line(left, y, right, y)
        canvas.text(left - 8, y + 4, f"{10**power:g} ms", anchor="end", size=11, colour="#666")
    for size in sorted({size for size, _ in points}):
        x = at(size, 10**y_low)[0]
        canvas.line(x, top, x, top + height)
        canvas.text(x, top + height + 15, f"{size:,}", anchor="middle", size=11, colour="#666")
    canvas.text((left + right) / 2, top + height + 32, "agents in the run", anchor="middle", size=11, colour="#666")
    for number, ((shape, who), curve) in enumerate(sorted(curves.items())):
        colour = _OURS if who == "ours" else _PEER
        dashed = shape == "parallel"
        canvas.curve([at(size, cost) for size, cost in sorted(curve)], colour, dashed)
        y = top + 20 + number * 20
        canvas.curve([(right + 24, y - 4), (right + 54, y - 4)], colour, dashed)
        canvas.text(right + 64, y, f"{who}, {'in parallel' if dashed else 'one after the other'}")
    return top + height + 52


def draw(report: Report) -> str:
    """The SVG. Draws what the report has: without the reference, the growth alone."""
    first: dict[str, Figure] = {}
    for figure in report.figures:
        first.setdefault(figure.measurement, figure)
    canvas = _Canvas()
    y = _bars(canvas, [first[name] for name in _COMPARED if name in first], 30.0)
    y = _growth(canvas, report.figures, y)
    machine = report.machine
    canvas.text(
        16, y,
        f"{machine.processor}, {machine.cores} cores, Python {machine.python}, {machine.engine}"
        f"{f', Node {machine.node}' if machine.node else ''}; sandbox walls up: {machine.walls_up} of {machine.walls}; "
        f"load {machine.load_before[0]:.1f} before, {report.load_after[0]:.1f} after",
        size=11, colour="#666",
    )  # fmt: skip
    height = y + 18
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}" font-family="system-ui, sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(canvas.parts) + "\n</svg>\n"
    )
