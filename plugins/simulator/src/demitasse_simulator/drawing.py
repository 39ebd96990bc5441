"""A simulated step for the eye: as events for a trace viewer, and as a picture."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from demitasse_simulator.step import Happening

COLOURS = {
    "read": "#8c8c8c",
    "forward": "#4c78a8",
    "backward": "#f58518",
    "synchronise": "#54a24b",
}

WIDTH, ROW, LEFT, TOP = 1200, 34, 110, 56


def trace(happenings: Sequence[Happening], title: str) -> str:
    """JSON that chrome://tracing and Perfetto open: microseconds, a row for each resource."""
    first = min((each.start for each in happenings), default=0.0)
    rows = _resources(happenings)
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": f"simulated: {title}"}}
    ]
    for number, name in enumerate(rows, 1):
        named = {"name": "thread_name", "ph": "M", "pid": 1, "tid": number, "args": {"name": name}}
        events.append(named)
    for each in happenings:
        events.append(
            {
                "name": each.name,
                "cat": each.phase,
                "ph": "X",
                "ts": round((each.start - first) * 1e6, 3),
                "dur": round(each.seconds * 1e6, 3),
                "pid": 1,
                "tid": rows.index(each.resource) + 1,
                "args": {**each.facts, "time": f"simulated, {each.source}"},
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def picture(happenings: Sequence[Happening], title: str) -> str:
    """An SVG: a row for each resource, what it does in the colour of its phase, milliseconds below."""
    rows = _resources(happenings)
    first = min((each.start for each in happenings), default=0.0)
    end = max((each.stop for each in happenings), default=1.0)
    scale = (WIDTH - LEFT - 20) / max(end - first, 1e-12)
    height = TOP + ROW * len(rows) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{escape(title)}</text>',
    ]
    for number, (phase, colour) in enumerate(COLOURS.items()):
        x = LEFT + 120 * number
        parts.append(f'<rect x="{x}" y="30" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 17}" y="40">{phase}</text>')
    for number, name in enumerate(rows):
        y = TOP + ROW * number
        parts.append(f'<text x="10" y="{y + 20}">{escape(name)}</text>')
    for each in happenings:
        y = TOP + ROW * rows.index(each.resource) + 4
        left, width = LEFT + (each.start - first) * scale, each.seconds * scale
        fill = "#d9d9d9" if each.source == "wait" else COLOURS[each.phase]
        parts.append(
            f'<rect x="{left:.2f}" y="{y}" width="{max(width, 0.2):.2f}" height="{ROW - 8}" '
            f'fill="{fill}" stroke="white" stroke-width="0.2"><title>{escape(each.name)} {each.phase} '
            f"{each.seconds * 1e3:.4g} ms (simulated)</title></rect>"
        )
    y = TOP + ROW * len(rows)
    for tenth in range(0, 11, 2):
        left = LEFT + (WIDTH - LEFT - 20) * tenth / 10
        parts.append(f'<line x1="{left:.1f}" y1="{TOP}" x2="{left:.1f}" y2="{y}" stroke="#ccc"/>')
        milliseconds = (end - first) * tenth * 100
        parts.append(
            f'<text x="{left:.1f}" y="{y + 18}" text-anchor="middle">{milliseconds:.4g} ms</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _resources(happenings: Iterable[Happening]) -> list[str]:
    known = ("compute", "sync", "network", "storage")
    there = {each.resource for each in happenings}
    return [name for name in known if name in there] + sorted(there.difference(known))
