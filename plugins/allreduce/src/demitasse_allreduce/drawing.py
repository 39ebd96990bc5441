"""A schedule drawn as a picture: a lane for each rank, a column for each round, an arrow for each
message, and, after each round, how much every rank has summed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from demitasse import PlanError, Round, Schedule, rounds_of

Array = np.ndarray[Any, np.dtype[Any]]

MOST_RANKS, MOST_ROUNDS = 64, 160
LEFT, TOP, LANE, COLUMN, BAR = 110, 96, 40, 104, 44
GAP = 14
"""Pixels between one group of ranks and the next."""

INK, FAINT, PAPER, BAND = "#26323c", "#d8dee3", "#ffffff", "#f3f6f8"
ADDS, TAKES, CROSSES = "#1f6fb2", "#2b9a66", "#d1495b"
COMPLETE, SHADES = "#12507f", 16
NOTE = 18
"""The height of a line below the legend."""

FONT = "font-family='Helvetica, Arial, sans-serif'"


def picture(
    schedule: Schedule, groups: Sequence[Sequence[int]] = (), title: str = "", notes: Sequence[str] = ()
) -> str:
    """Return the picture as SVG text. Messages between ranks of different ``groups`` have another
    colour. A bar shows a rank's vector from its first element to its last, darker where it has more
    contributions. Raises PlanError if the schedule has more ranks or rounds than fit."""
    rounds = list(rounds_of(schedule))
    if schedule.ranks > MOST_RANKS or len(rounds) > MOST_ROUNDS:
        raise PlanError(
            f"{schedule.algorithm}: {schedule.ranks} ranks in {len(rounds)} rounds do not fit in a "
            f"picture (valid: to {MOST_RANKS} ranks and {MOST_ROUNDS} rounds; fewer ranks or chunks)"
        )
    members = [list(group) for group in groups] or [list(range(schedule.ranks))]
    lanes, bands = _lanes(members)
    group_of = {rank: i for i, group in enumerate(members) for rank in group}
    title = title or f"{schedule.algorithm}: {schedule.goal}"
    foot = max(bottom for _, bottom in bands)
    legend, legend_width = _legend(foot + 26, len(bands) > 1, bool(rounds))
    texts = max(12.5 * len(title), *(6.9 * len(note) for note in notes), legend_width)
    wide = max(LEFT + COLUMN * len(rounds) + BAR + 30, round(texts) + 40)
    deep = foot + 48 + NOTE * len(notes)
    body = [_text(20, 34, title, 20, INK, "bold")]
    counted = f"{schedule.ranks} rank{'s' * (schedule.ranks != 1)}"
    body.append(_text(20, 56, f"{counted}, {schedule.size:,} elements", 13, "#5b6b78"))
    body.append(_text(LEFT - 44, TOP - 14, "rank", 11, "#5b6b78", extra="text-anchor='end'"))
    if rounds:
        body.append(_text(LEFT, TOP - 14, "round", 11, "#5b6b78"))
    for number, (top, bottom) in enumerate(bands):
        area = f"x='14' y='{top}' width='{wide - 28}' height='{bottom - top}' rx='8'"
        body.append(f"<rect {area} fill='{BAND}'/>")
        if len(bands) > 1:
            middle = (top + bottom) / 2
            turned = f"transform='rotate(-90 28 {middle})' text-anchor='middle'"
            body.append(_text(28, middle + 4, f"group {number}", 11, "#8a98a4", extra=turned))
    for rank, y in lanes.items():
        body.append(_text(LEFT - 44, y + 5, str(rank), 14, INK, "bold", "text-anchor='end'"))
        body.append(f"<line x1='{LEFT}' y1='{y}' x2='{wide - 30}' y2='{y}' stroke='{FAINT}'/>")
    for number in range(len(rounds)):
        x = LEFT + COLUMN * number + BAR + (COLUMN - BAR) / 2
        body.append(_text(x, TOP - 14, str(number), 11, "#8a98a4", extra="text-anchor='middle'"))
    cells, shades = _progress(schedule, rounds)
    pieces: dict[str, list[str]] = {FAINT: [], PAPER: []}
    for number, shade in enumerate(shades):
        for rank, y in lanes.items():
            x = LEFT + COLUMN * number
            for back, edge in ((FAINT, 1), (PAPER, 0)):
                pieces[back].append(f"M{x - edge} {y:g}h{BAR + 2 * edge}")
            for colour, piece in _pieces(x, y, shade[rank], cells, schedule.size):
                pieces.setdefault(colour, []).append(piece)
    for colour, all_of_it in pieces.items():
        height = 16 if colour == FAINT else 14
        body.append(
            f"<path fill='none' stroke='{colour}' stroke-width='{height}' d='{''.join(all_of_it)}'/>"
        )
    for number, each in enumerate(rounds):
        body += _arrows(number, each, lanes, group_of, schedule.size)
    body += legend
    body += [_text(20, foot + 52 + NOTE * i, note, 12, "#5b6b78") for i, note in enumerate(notes)]
    size = f"width='{wide}' height='{deep}' viewBox='0 0 {wide} {deep}'"
    heads = "".join(_head(colour) for colour in (ADDS, TAKES, CROSSES))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT}>"
        f"<title>{escape(title)}</title><defs>{heads}</defs>"
        f"<rect width='{wide}' height='{deep}' fill='{PAPER}'/>" + "\n".join(body) + "</svg>\n"
    )


def _lanes(members: Sequence[Sequence[int]]) -> tuple[dict[int, float], list[tuple[float, float]]]:
    """Return the height of each rank's lane, and the (top, bottom) of each group's band."""
    lanes: dict[int, float] = {}
    bands, y = [], float(TOP)
    for group in members:
        top = y
        for rank in group:
            lanes[rank] = y + LANE / 2
            y += LANE
        bands.append((top, y))
        y += GAP
    return lanes, bands


def _progress(schedule: Schedule, rounds: Sequence[Round]) -> tuple[Array, list[Array]]:
    """Return the edges of cells and, for the time before the first round and after each round, the part
    of all contributions that each cell of each rank has, of shape (ranks, cells)."""
    edges = [column for each in rounds for column in (each.start, each.stop)]
    cells = np.unique(np.concatenate([[0, schedule.size], *edges]))
    gathers = schedule.goal in ("broadcast", "allgather")
    held = np.ones((schedule.ranks, max(0, len(cells) - 1)))
    if gathers:
        for rank in range(schedule.ranks):
            whole = (0, schedule.size * (rank == schedule.root))
            start, stop = whole if schedule.goal == "broadcast" else schedule.owner(schedule, rank)
            held[rank] = (cells[:-1] >= start) & (cells[1:] <= stop)
    shades = [held.copy()]
    for each in rounds:
        first, last = np.searchsorted(cells, each.start), np.searchsorted(cells, each.stop)
        sent = [held[s, a:b].copy() for s, a, b in zip(each.source, first, last, strict=True)]
        adds = np.broadcast_to(each.reduces, each.source.shape)
        for i, values in enumerate(sent):
            kept = held[each.target[i], first[i] : last[i]] * bool(adds[i])
            held[each.target[i], first[i] : last[i]] = kept + values
        shades.append(held.copy())
    return cells, [shade if gathers else shade / schedule.ranks for shade in shades]


def _pieces(x: float, y: float, shade: Array, cells: Array, size: int) -> Iterator[tuple[str, str]]:
    """Yield the colour and the path of each piece of a rank's vector. Neighbouring cells of one colour
    are one piece."""
    # What is complete stands out; what is not has one of so many shades as an eye tells apart.
    levels = np.where(shade >= 1, SHADES, np.ceil(np.minimum(shade, 1) * (SHADES - 1)))
    changes = np.flatnonzero(np.diff(levels, prepend=-1.0))
    for i, start in enumerate(changes):
        stop = changes[i + 1] if i + 1 < len(changes) else len(shade)
        left, right = BAR * cells[start] / size, BAR * cells[stop] / size
        colour = COMPLETE if levels[start] == SHADES else _shade(levels[start] / (SHADES - 1))
        yield colour, f"M{x + left:.2f} {y:g}h{right - left:.2f}"


def _shade(part: float) -> str:
    """Return a colour from pale to full."""
    pale, full = (226, 235, 242), (84, 156, 208)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(pale, full, strict=True))


def _arrows(
    number: int, each: Round, lanes: dict[int, float], group_of: dict[int, int], size: int
) -> list[str]:
    made = []
    adds = np.broadcast_to(each.reduces, each.source.shape)
    left = LEFT + COLUMN * number + BAR / 2 + 24
    right = LEFT + COLUMN * (number + 1) - BAR / 2 + 18
    for i in range(len(each.source)):
        source, target = int(each.source[i]), int(each.target[i])
        colour = ADDS if adds[i] else TAKES
        if group_of.get(source) != group_of.get(target):
            colour = CROSSES
        width = 1 + 3 * int(each.elements[i]) / max(1, size)
        style = "" if adds[i] else " stroke-dasharray='5 3'"
        words = (
            f"{source} to {target}: {each.start[i]}:{each.stop[i]}, {'added' if adds[i] else 'taken'}"
        )
        made.append(
            f"<line x1='{left:g}' y1='{lanes[source]:g}' x2='{right:g}' y2='{lanes[target]:g}' "
            f"stroke='{colour}' stroke-width='{width:.2f}'{style} "
            f"marker-end='url(#{colour[1:]})'><title>{escape(words)}</title></line>"
        )
    return made


def _legend(y: float, grouped: bool, moves: bool) -> tuple[list[str], int]:
    """Return the legend and its width."""
    entries = [(ADDS, "", "added by its receiver"), (TAKES, "5 3", "taken over")]
    entries += [(CROSSES, "", "between groups")] if grouped else []
    made, x = [], 20
    for colour, dashes, words in entries if moves else ():
        dash = f" stroke-dasharray='{dashes}'" if dashes else ""
        ends = f"x1='{x}' y1='{y}' x2='{x + 26}' y2='{y}'"
        made.append(f"<line {ends} stroke='{colour}' stroke-width='2.5'{dash}/>")
        made.append(_text(x + 32, y + 4, words, 12, INK))
        x += 60 + 7 * len(words)
    shades = [(_shade(0.1), "begun"), (_shade(1), "nearly complete"), (COMPLETE, "complete")]
    for colour, words in shades if moves else shades[2:]:
        made.append(f"<rect x='{x}' y='{y - 7}' width='26' height='14' fill='{colour}'/>")
        made.append(_text(x + 32, y + 4, words, 12, INK))
        x += 60 + 7 * len(words)
    return made, x


def _head(colour: str) -> str:
    shape = "viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' markerHeight='8' orient='auto'"
    units = "markerUnits='userSpaceOnUse'"
    return (
        f"<marker id='{colour[1:]}' {shape} {units}><path d='M0 0L8 4L0 8z' fill='{colour}'/></marker>"
    )


def _text(
    x: float, y: float, words: str, size: int, colour: str, weight: str = "normal", extra: str = ""
) -> str:
    style = f"font-size='{size}' fill='{colour}' font-weight='{weight}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style} {extra}>{escape(words)}</text>"
