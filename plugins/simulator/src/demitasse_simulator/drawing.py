"""Showing a simulated step: as events for a trace viewer, and as a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from demitasse_simulator.happenings import Happening

COLOURS = {
    "read": "#6a6a6a",
    "forward": "#1f4e79",
    "backward": "#f7b24d",
    "synchronise": "#3fb58a",
}
WAIT = "#ececec"
"""Colours of different lightness, which can be told apart in print and by people who see few colours."""

WIDTH, ROW, LEFT, TOP = 1200, 34, 110, 56


def trace(happenings: Sequence[Happening], title: str) -> str:
    """Return JSON that chrome://tracing and Perfetto open: times in microseconds, a row for each
    resource."""
    first = min((each.start for each in happenings), default=0.0)
    rows = _resources(happenings)
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": f"simulated: {title}"}}
    ]
    for number, name in enumerate(rows, 1):
        named = {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        events.append(named)
    for each in happenings:
        # Both ends are rounded: Perfetto omits events that overlap their neighbour by a nanosecond.
        start, stop = (round((end - first) * 1e6, 3) for end in (each.start, each.stop))
        events.append(
            {
                "name": each.name,
                "cat": each.phase,
                "ph": "X",
                "ts": start,
                "dur": round(stop - start, 3),
                "pid": 1,
                "tid": rows.index(each.resource) + 1,
                "args": {**each.facts, "time": f"simulated, {each.source}"},
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def picture(happenings: Sequence[Happening], title: str, seconds: float = math.inf) -> str:
    """Return an SVG: a row for each resource, its activities in the colours of their phases, and a time
    axis below. A line marks the end of the step, which takes ``seconds``, if something lasts longer,
    such as reading the samples of a later step."""
    rows = _resources(happenings)
    first = min((each.start for each in happenings), default=0.0)
    end = max((each.stop for each in happenings), default=1.0)
    scale = (WIDTH - LEFT - 20) / max(end - first, 1e-12)
    height = TOP + ROW * len(rows) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{shortened(title, WIDTH - 20, 15)}</text>',
    ]
    there = {"wait" if each.source == "wait" else each.phase for each in happenings}
    colours = {phase: colour for phase, colour in {**COLOURS, "wait": WAIT}.items() if phase in there}
    for number, (phase, colour) in enumerate(colours.items()):
        x = LEFT + 120 * number
        parts.append(f'<rect x="{x}" y="30" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="40">{phase}</text>')
    for number, name in enumerate(rows):
        y = TOP + ROW * number
        parts.append(f'<text x="10" y="{y + 20}">{escape(name)}</text>')
    foot = TOP + ROW * len(rows)
    for after, text in _ticks(end - first):
        left = LEFT + after * scale
        anchor = "end" if left > WIDTH - 50 else "middle"
        parts.append(f'<line x1="{left:.1f}" y1="{TOP}" x2="{left:.1f}" y2="{foot}" stroke="#ccc"/>')
        parts.append(f'<text x="{left:.1f}" y="{foot + 18}" text-anchor="{anchor}">{text}</text>')
    for each in happenings:
        y = TOP + ROW * rows.index(each.resource) + 4
        left, width = LEFT + (each.start - first) * scale, each.seconds * scale
        fill = WAIT if each.source == "wait" else COLOURS[each.phase]
        # Between activities that are narrower, the edges would be all that is seen.
        edge = ' stroke="white" stroke-width="0.2"' if width > 2 else ""
        parts.append(
            f'<rect x="{left:.2f}" y="{y}" width="{max(width, 0.2):.2f}" height="{ROW - 8}" '
            f'fill="{fill}"{edge}><title>{escape(each.name)} {each.phase} '
            f"{each.seconds * 1e3:.4g} ms (simulated)</title></rect>"
        )
    if end - first > 1.001 * seconds:
        at = LEFT + (seconds - min(first, 0.0)) * scale
        parts.append(
            f'<line x1="{at:.1f}" y1="{TOP - 4}" x2="{at:.1f}" y2="{foot}" stroke="black" '
            f'stroke-dasharray="4 3"/><text x="{at:.1f}" y="{foot + 34}" text-anchor="middle">'
            f"end of the step</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def shortened(text: str, pixels: float, size: float = 12) -> str:
    """Return a text for SVG that is at most so wide: of a longer one, the middle is left out. A tooltip
    has all of it."""
    most = max(3, int(pixels / (0.6 * size)))
    if len(text) <= most:
        return escape(text)
    ends = text[: most // 2], text[-(most - most // 2 - 1) :]
    return f"{'…'.join(map(escape, ends))}<title>{escape(text)}</title>"


def _ticks(seconds: float) -> Iterator[tuple[float, str]]:
    """Yield five to ten round times from 0 to the end, each in seconds and as text."""
    if seconds <= 0:
        return
    unit, many = next(
        (u, m) for u, m in (("s", 1.0), ("ms", 1e3), ("us", 1e6)) if seconds * m >= 1 or m == 1e6
    )
    span = seconds * many
    decade = 10.0 ** math.floor(math.log10(span))
    apart = next(part * decade for part in (0.1, 0.2, 0.5, 1.0) if span / (part * decade) <= 10)
    for number in range(int(span / apart + 1e-9) + 1):
        yield number * apart / many, f"{number * apart:,.12g} {unit}"


def _resources(happenings: Iterable[Happening]) -> list[str]:
    known = ("compute", "sync", "network", "statistics", "storage")
    there = {each.resource for each in happenings}
    return [name for name in known if name in there] + sorted(there.difference(known))
