"""Predictions side by side, for several numbers of nodes and for several machines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from demitasse_simulator.drawing import COLOURS
from demitasse_simulator.program import Simulation
from demitasse_simulator.report import human_bytes

LINES = ("#2a6f97", "#d1495b", "#2b9348", "#e09f3e", "#7b2cbf", "#3d405b")
"""Colours of machines."""

WIDTH, LEFT, RIGHT, TOP, CURVES, BARS, GAP = 900, 90, 30, 56, 300, 200, 90
"""Sizes of a picture: its width and margins, the heights of its two panels, and the gap between
these."""


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
    height = bars + BARS + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{escape(title)}</text>',
        *(_curves(rows) if several else ()),
        *_bars(rows, bars),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _by_machine(rows: Sequence[Row]) -> list[list[Row]]:
    return [list(mine) for _, mine in groupby(rows, lambda row: row.machine)]


def _curves(rows: Sequence[Row]) -> Iterator[str]:
    """Draw lines of samples per second, one for each machine."""
    nodes = [row.simulation.nodes for row in rows]
    rates = [row.simulation.samples_per_second for row in rows]
    ideal = [
        mine[0].simulation.samples_per_second * mine[-1].simulation.nodes / mine[0].simulation.nodes
        for mine in _by_machine(rows)
    ]
    across = _Logarithm(min(nodes), max(nodes), LEFT, WIDTH - RIGHT)
    up = _Logarithm(min(rates), max([*rates, *ideal]), TOP + CURVES, TOP)
    for count in sorted(set(nodes)):
        x = across(count)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{TOP + CURVES}" stroke="#eee"/>'
        yield _middle(x, TOP + CURVES + 18, f"{count:,}")
    for rate in up.decades():
        y = up(rate)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#eee"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{rate:,.15g}</text>'
    yield f'<text x="{LEFT}" y="{TOP - 10}">samples/s by nodes (simulated); dashed: in proportion</text>'
    for number, (mine, most) in enumerate(zip(_by_machine(rows), ideal, strict=True)):
        colour = LINES[number % len(LINES)]
        points = [(across(r.simulation.nodes), up(r.simulation.samples_per_second)) for r in mine]
        yield (
            f'<line x1="{points[0][0]:.1f}" y1="{points[0][1]:.1f}" x2="{points[-1][0]:.1f}" '
            f'y2="{up(most):.1f}" stroke="{colour}" stroke-dasharray="4 4" opacity="0.6"/>'
        )
        if len(ideal) > 1:
            y = TOP + 18 + 18 * number
            yield f'<rect x="{LEFT + 12}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
            yield f'<text x="{LEFT + 30}" y="{y}">{escape(mine[0].machine)}</text>'
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for (x, y), each in zip(points, mine, strict=True):
            yield (
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>'
                f"{escape(each.machine)}, {each.simulation.joined}: "
                f"{each.simulation.samples_per_second:,.1f} samples/s</title></circle>"
            )
            if each is not mine[0]:
                # Below and to the right, where a rising line leaves room.
                yield (
                    f'<text x="{x + 20:.1f}" y="{y + 18:.1f}" text-anchor="end" font-size="11" '
                    f'fill="{colour}">{each.efficiency:.0%}</text>'
                )


def _bars(rows: Sequence[Row], top: float) -> Iterator[str]:
    """Draw a bar for each step, divided into its phases. The longest bar of each machine has the full
    height."""
    step, foot = (WIDTH - LEFT - RIGHT) / len(rows), top + BARS
    machines = _by_machine(rows)
    scale = ", to each machine's scale" if len(machines) > 1 else ""
    yield f'<text x="{LEFT}" y="{top - 10}">a step, ms (simulated{scale})</text>'
    for number, (phase, colour) in enumerate(COLOURS.items()):
        x = WIDTH - RIGHT - 110 * (len(COLOURS) - number)
        yield f'<rect x="{x}" y="{top - 20}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="{top - 10}">{phase}</text>'
    yield f'<line x1="{LEFT}" y1="{foot}" x2="{WIDTH - RIGHT}" y2="{foot}" stroke="#999"/>'
    yield f'<text x="{LEFT - 6}" y="{foot + 18}" text-anchor="end">nodes</text>'
    left = float(LEFT)
    for mine in machines:
        longest = max(row.simulation.seconds for row in mine)
        if len(machines) > 1:
            middle = left + step * len(mine) / 2
            yield _middle(middle, foot + 38, escape(mine[0].machine))
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
            f"<title>{phase} {1e3 * s.phases[phase]:,.4g} ms</title></rect>"
        )
    yield _middle(x + width / 2, y - 4, f"{1e3 * s.seconds:,.4g}")
    yield _middle(x + width / 2, foot + 18, f"{s.nodes:,}")


def _middle(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'


class _Logarithm:
    """A logarithmic axis from ``start`` to ``stop`` in the picture. Calling it with a number returns the
    number's position."""

    def __init__(self, least: float, most: float, start: float, stop: float) -> None:
        self._low, self._start = math.log10(least), start
        self._most = math.log10(most)
        self._scale = (stop - start) / (self._most - self._low or 1.0)

    def __call__(self, value: float) -> float:
        return self._start + (math.log10(value) - self._low) * self._scale

    def decades(self) -> list[float]:
        """Return round numbers on the axis: powers of ten and, if these are too few, also 3
        times them, or 2 and 5 times them."""
        whole = range(math.floor(self._low), math.ceil(self._most) + 1)
        for factors in ((1,), (1, 3), (1, 2, 5)):
            found = [f * 10.0**power for power in whole for f in factors]
            inside = [v for v in found if self._low <= math.log10(v) <= self._most]
            if len(inside) > 2:
                break
        return inside
