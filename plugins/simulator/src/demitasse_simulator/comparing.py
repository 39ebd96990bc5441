"""Predictions side by side, for several numbers of nodes and for several machines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from demitasse_simulator.drawing import COLOURS, shortened
from demitasse_simulator.program import Simulation
from demitasse_simulator.report import human_bytes

LINES = ("#2a6f97", "#d1495b", "#e69f00", "#009e73", "#7b2cbf", "#56b4e9", "#3d405b")
"""Colours of machines."""

WIDTH, LEFT, RIGHT, TOP, CURVES, BARS, GAP = 900, 90, 30, 56, 300, 200, 90
"""Sizes of a picture: its width and margins, the heights of its two panels, and the gap between
these."""

NARROWEST = 46
"""The least width of a bar and its margins: a picture of many is wider."""


@dataclass(frozen=True)
class Row:
    """A prediction beside others: ``machine`` is the label of its machine, ``speedup`` its samples per
    second over those of the first row, and ``efficiency`` its samples per second and node over those of
    the first row for the same machine."""

    machine: str
    simulation: Simulation
    speedup: float
    efficiency: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for reports."""
        beside = {"machine": self.machine, "speedup": self.speedup, "efficiency": self.efficiency}
        return {**self.simulation.to_dict(), **beside}


def row(machine: str, simulation: Simulation, before: Sequence[Row]) -> Row:
    """Return the row of a prediction, given the rows ``before`` it."""
    same = [each.simulation for each in before if each.machine == machine]
    first, own = (before[0].simulation if before else simulation), (same or [simulation])[0]
    return Row(
        machine,
        simulation,
        simulation.samples_per_second / first.samples_per_second,
        simulation.samples_per_second / simulation.nodes / (own.samples_per_second / own.nodes),
    )


class Table:
    """A table for people, printed line by line as rows become known. ``machines`` are the labels that
    rows will have."""

    HEAD = (
        *("nodes", "batch", "step, ms", "read", "forward", "backward", "synchronise", "samples/s"),
        *("speedup", "efficiency", "memory"),
    )
    WIDTHS = (7, 8, 11, 9, 9, 9, 11, 11, 8, 10, 22)

    def __init__(self, machines: Sequence[str]) -> None:
        self._machines = max(map(len, [*machines, "machine"])) if len(set(machines)) > 1 else 0

    def head(self) -> str:
        """Return the line with the names of the columns."""
        return self._line("machine", self.HEAD)

    def line(self, row: Row) -> str:
        """Return the line of a prediction."""
        s = row.simulation
        fits = "" if s.fits is None else ", fits" if s.fits else ", does not fit"
        milliseconds = [f"{1e3 * s.phases[name]:,.2f}" for name in COLOURS]
        cells = (f"{s.nodes:,}", f"{s.batch:,}", f"{1e3 * s.seconds:,.2f}", *milliseconds,
                 f"{s.samples_per_second:,.1f}", f"{row.speedup:,.2f}", f"{row.efficiency:.1%}",
                 f"{human_bytes(s.memory['worker'])}{fits}")  # fmt: skip
        return self._line(row.machine, cells)

    def _line(self, machine: str, cells: Sequence[str]) -> str:
        first = f"{machine:{self._machines}}  " if self._machines else ""
        fields = (f"{cell:>{width}}" for cell, width in zip(cells, self.WIDTHS, strict=True))
        return (first + " ".join(fields)).rstrip()


def picture(rows: Sequence[Row], title: str) -> str:
    """Return an SVG. Its upper panel, if a machine has several numbers of nodes, shows samples per
    second by nodes, both logarithmic, and beside them proportional scaling from the first. The lower
    panel shows the phases of each step."""
    several = any(len(mine) > 1 for mine in _by_machine(rows))
    bars = TOP + (CURVES + GAP if several else 0)
    height = bars + BARS + GAP - 36
    right = max(WIDTH - RIGHT, LEFT + NARROWEST * len(rows))
    wide = right + RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {height}" width="{wide}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{wide}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{shortened(title, wide - 20, 15)}</text>',
        *(_curves(rows, right) if several else ()),
        *_bars(rows, bars, right),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _by_machine(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(mine) for _, mine in groupby(rows, lambda row: row.machine)]


def _curves(rows: Sequence[Row], right: float) -> Iterator[str]:
    """Draw lines of samples per second, one for each machine."""
    nodes = sorted({row.simulation.nodes for row in rows})
    ideal = [[_in_proportion(mine[0], end) for end in _ends(mine)] for mine in _by_machine(rows)]
    rates = [
        *(row.simulation.samples_per_second for row in rows),
        *(rate for two in ideal for rate in two),
    ]
    across = _Logarithm(nodes[0], nodes[-1], LEFT, right)
    up = _Logarithm(min(rates), max(rates), TOP + CURVES, TOP)
    taken = math.inf
    for count in reversed(nodes):
        x, words = across(count), f"{count:,}"
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + CURVES}" stroke="#eee"/>'
        if x + 4 * len(words) < taken:
            taken = x - 4 * len(words)
            yield _middle(x, TOP + CURVES + 18, words)
    yield f'<text x="{LEFT - 6}" y="{TOP + CURVES + 34}" text-anchor="end">nodes</text>'
    for rate in up.round_numbers():
        y = up(rate)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#eee"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rate:,.15g}</text>'
    yield f'<text x="{LEFT}" y="{TOP - 10}">samples/s by nodes (simulated); dashed: in proportion</text>'
    for number, (mine, two) in enumerate(zip(_by_machine(rows), ideal, strict=True)):
        colour = LINES[number % len(LINES)]
        (x1, x2), (y1, y2) = map(across, _ends(mine)), map(up, two)
        yield (
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-dasharray="4 4" opacity="0.6"/>'
        )
        ordered = sorted(mine, key=lambda row: row.simulation.nodes)
        points = [(across(r.simulation.nodes), up(r.simulation.samples_per_second)) for r in ordered]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        taken = -math.inf
        for (x, y), each in zip(points, ordered, strict=True):
            said = f"{each.machine}, {each.simulation.joined}: {each.simulation.samples_per_second:,.1f}"
            mark = f"<title>{escape(said)} samples/s</title>"
            yield f'<path d="{_marked(number, x, y)}" fill="{colour}">{mark}</path>'
            if each is not mine[0] and x > taken:
                taken = x + 26
                # Below and to the right, where a rising line leaves room; above at the foot.
                high = y + 18 if y < TOP + CURVES - 22 else y - 8
                yield (
                    f'<text x="{x + 20:.1f}" y="{high:.1f}" text-anchor="end" font-size="11" '
                    f'fill="{colour}">{_percent(each.efficiency)}</text>'
                )
    if len(ideal) > 1:
        yield from _legend([mine[0].machine for mine in _by_machine(rows)])


def _ends(mine: Sequence[Row]) -> tuple[int, int]:
    """Return the least and the largest number of nodes."""
    nodes = [row.simulation.nodes for row in mine]
    return min(nodes), max(nodes)


def _in_proportion(first: Row, nodes: int) -> float:
    """Return the samples per second of so many nodes if each adds what those of the first row do."""
    return first.simulation.samples_per_second / first.simulation.nodes * nodes


def _legend(machines: Sequence[str]) -> Iterator[str]:
    """Draw the names of the lines, on paper: a line may pass behind them."""
    wide = 40 + 7.2 * min(max(map(len, machines)), 60)
    area = f'x="{LEFT + 4}" y="{TOP + 2}" width="{wide:.0f}" height="{18 * len(machines) + 8}"'
    yield f'<rect {area} fill="white" opacity="0.8"/>'
    for number, machine in enumerate(machines):
        y, colour = TOP + 18 + 18 * number, LINES[number % len(LINES)]
        yield f'<path d="{_marked(number, LEFT + 18, y - 4, 5)}" fill="{colour}"/>'
        yield f'<text x="{LEFT + 30}" y="{y}">{shortened(machine, 432)}</text>'


def _marked(number: int, x: float, y: float, size: float = 4) -> str:
    """Return the path of a machine's mark: a square, a diamond or a triangle up or down."""
    s = size
    shapes = (
        f"m{-s} {-s}h{2 * s}v{2 * s}h{-2 * s}z",
        f"m0 {-1.4 * s:g}l{1.4 * s:g} {1.4 * s:g} {-1.4 * s:g} {1.4 * s:g} {-1.4 * s:g} {-1.4 * s:g}z",
        f"m0 {-1.2 * s:g}l{1.2 * s:g} {2.2 * s:g}h{-2.4 * s:g}z",
        f"m0 {1.2 * s:g}l{1.2 * s:g} {-2.2 * s:g}h{-2.4 * s:g}z",
    )
    return f"M{x:.1f} {y:.1f}{shapes[number % len(shapes)]}"


def _percent(part: float) -> str:
    """Return a part as text; of less than one percent, its first digit."""
    return f"{part:.0%}" if part >= 0.0095 else f"{100 * part:.1g}%"


def _bars(rows: Sequence[Row], top: float, right: float) -> Iterator[str]:
    """Draw a bar for each step, divided into its phases. The longest bar of each machine has the full
    height."""
    step, foot = (right - LEFT) / len(rows), top + BARS
    machines = _by_machine(rows)
    scale = "; each machine to its own scale" if len(machines) > 1 else ""
    yield f'<text x="{LEFT}" y="{top - 10}">ms a step (simulated){scale}</text>'
    for number, (phase, colour) in enumerate(COLOURS.items()):
        x = right - 100 * (len(COLOURS) - number)
        yield f'<rect x="{x}" y="{top - 20}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="{top - 10}">{phase}</text>'
    yield f'<line x1="{LEFT}" y1="{foot}" x2="{right}" y2="{foot}" stroke="#999"/>'
    yield f'<text x="{LEFT - 6}" y="{foot + 18}" text-anchor="end">nodes</text>'
    left = float(LEFT)
    for mine in machines:
        longest = max(row.simulation.seconds for row in mine)
        if len(machines) > 1:
            wide = step * len(mine)
            yield _middle(left + wide / 2, foot + 38, shortened(mine[0].machine, wide - 6))
        for each in mine:
            yield from _bar(each.simulation, left + step * 0.15, step * 0.7, foot, longest)
            left += step


def _bar(s: Simulation, x: float, width: float, foot: float, longest: float) -> Iterator[str]:
    y = foot
    for phase, colour in COLOURS.items():
        high = (BARS - 16) * s.phases[phase] / longest
        y -= high
        yield (
            f'<rect x="{x:.1f}" y="{y:.2f}" width="{width:.1f}" height="{high:.2f}" fill="{colour}">'
            f"<title>{phase} {_four_digits(1e3 * s.phases[phase])} ms</title></rect>"
        )
    yield _middle(x + width / 2, y - 4, _four_digits(1e3 * s.seconds))
    yield _middle(x + width / 2, foot + 18, f"{s.nodes:,}")


def _four_digits(value: float) -> str:
    """Return a number with four digits, or all of those before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _middle(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'


class _Logarithm:
    """A logarithmic axis from ``start`` to ``stop`` in the picture. Calling it with a number returns the
    number's position."""

    def __init__(self, least: float, most: float, start: float, stop: float) -> None:
        self._ends, self._start = (least, most), start
        self._low, self._most = math.log10(least), math.log10(most)
        self._scale = (stop - start) / (self._most - self._low or 1.0)

    def __call__(self, value: float) -> float:
        return self._start + (math.log10(value) - self._low) * self._scale

    def round_numbers(self) -> list[float]:
        """Return round numbers on the axis: powers of ten and, if these are too few, also 3
        times them, or 2 and 5 times them, or the multiples of one."""
        whole = range(math.floor(self._low), math.ceil(self._most) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5)):
            found = [f * 10.0**power for power in whole for f in factors]
            inside = [v for v in found if self._low <= math.log10(v) <= self._most]
            if len(inside) > 2:
                return inside
        least, most = self._ends
        decade = 10.0 ** math.floor(math.log10(most - least or most))
        apart = next(f * decade for f in (0.1, 0.2, 0.5, 1.0) if (most - least) / (f * decade) <= 6)
        multiples = range(math.ceil(least / apart), math.floor(most / apart) + 1)
        return [float(f"{each * apart:.12g}") for each in multiples]
