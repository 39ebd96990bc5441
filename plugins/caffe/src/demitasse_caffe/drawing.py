"""A net as a picture: SVG text, made without any other program.

Layers are boxes, coloured by family, with the numbers that people look for. Blobs are the lines between
them, with their shapes if these are known. A layer that works in place is a chip in the box of the layer
whose blob it changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from demitasse import Layer, LayerType, Location, ModelError, unknown
from demitasse_caffe.blob_shapes import Opener, blob_shapes
from demitasse_caffe.layer_summary import FAMILIES, family, summary
from demitasse_caffe.layered_layout import Layout, Line, Point, arrange
from demitasse_caffe.net import NetFile, define
from demitasse_caffe.schema import schema
from demitasse_caffe.upgrade import upgrade_net

DIRECTIONS = ("TB", "BT", "LR")
PHASES = {"TRAIN": 0, "TEST": 1}
LONGEST = 44
"""The number of characters of a name that are shown; the tooltip shows all of them."""

_MARGIN, _PADDING, _ROW, _CHIP = 28.0, 12.0, 16.0, 20.0
_WIDEST_CHIPS = 260.0
_STYLE = """
text { font-family: "Helvetica Neue", Helvetica, Arial, sans-serif; fill: #24313f; }
.net { font-size: 20px; font-weight: 600; } .note { font-size: 12px; fill: #6a7683; }
.name { font-size: 13px; font-weight: 600; } .text { font-size: 11px; fill: #4a5663; }
.chip { font-size: 10.5px; } .shape { font-size: 10.5px; fill: #5d6975; }
.halo { font-size: 10.5px; fill: #ffffff; stroke: #ffffff; stroke-width: 3.5px; }
.line { fill: none; stroke: #93a0ad; stroke-width: 1.4; }
"""


@dataclass
class Box:
    """A layer, or an output that no layer reads, with its text and the in-place layers on it."""

    layer: Layer | None
    name: str
    family: str
    text: list[str]
    chips: list[Layer] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0


@dataclass
class Blob:
    """A blob as one layer left it: its box, its label, and its readers."""

    box: int
    label: str
    readers: list[int] = field(default_factory=list)


def svg(
    net_message: Any,
    rankdir: str = "TB",
    phase: str | int | None = None,
    *,
    layer_types: Mapping[str, LayerType] | None = None,
    open_source: Opener | None = None,
) -> str:
    """Return a net (a NetParameter in any format) as SVG text.

    ``rankdir`` is TB, BT or LR. ``phase`` is TRAIN, TEST, Caffe's number for one of them, or None for
    the layers of both. ``open_source`` (a runtime's) provides the shapes of samples. Raise ModelError.
    """
    if rankdir not in DIRECTIONS:
        raise ModelError(unknown("rankdir", str(rankdir), DIRECTIONS))
    layers = _layers(net_message, phase, layer_types or {})
    testing = phase is not None and _number(phase) == PHASES["TEST"]
    shapes, assumed = blob_shapes(layers, "test" if testing else "train", layer_types, open_source)
    boxes, blobs = _boxes(layers, shapes)
    for box in boxes:
        _measure(box)
    sideways = rankdir == "LR"
    lines = [
        Line(blob.box, reader, number) for number, blob in enumerate(blobs) for reader in blob.readers
    ]
    sizes = [(box.height, box.width) if sideways else (box.width, box.height) for box in boxes]
    longest = max((_width(blob.label, 10.5) for blob in blobs if blob.readers), default=0.0)
    rank_gap = max(46.0, longest + 26.0) if sideways else 46.0
    layout = arrange(sizes, lines, 22.0 if sideways else 28.0, rank_gap)
    names = ", ".join(map(_short, dict.fromkeys(assumed)))
    note = f"the size of the images in {names} is assumed" if assumed else ""
    return _Page(rankdir, layout, boxes, blobs, lines).text(net_message.name or "net", note)


def _number(phase: str | int) -> int:
    name = str(phase).upper()
    if name in PHASES:
        return PHASES[name]
    if name in map(str, PHASES.values()):
        return int(name)
    raise ModelError(unknown("phase", str(phase), (*PHASES, "ALL")))


def _layers(message: Any, phase: str | int | None, layer_types: Mapping[str, LayerType]) -> list[Layer]:
    """Return the layers of a message in the current format: those of one phase, or all."""
    messages = schema(layer_types)
    own = messages.message("NetParameter")
    own.ParseFromString(message.SerializeToString())
    location = Location(own.name or "net")
    net, places = upgrade_net(own, [], None, location, messages)
    if phase is None:
        for layer in net.layer:
            layer.ClearField("include")
            layer.ClearField("exclude")
    state = messages.message("NetState")
    state.MergeFrom(net.state)
    state.phase = 0 if phase is None else _number(phase)
    return list(define(NetFile(net, tuple(places), location), state, messages).layers)


def _boxes(layers: list[Layer], shapes: list[list[Any]]) -> tuple[list[Box], list[Blob]]:
    """Return a box for each layer, and the blobs between boxes. An in-place layer is a chip on the box
    below it, unless another layer reads the blob between them."""
    boxes: list[Box] = []
    blobs: list[Blob] = []
    current: dict[str, list[Blob]] = {}
    for layer, tops in zip(layers, shapes, strict=True):
        if layer.tops == layer.bottoms and len(layer.tops) == 1:
            on = current.get(layer.tops[0], [])
            # An earlier reader has seen the unchanged blob; the layer then has a box of its own.
            if on and not any(blob.readers for blob in on) and len({blob.box for blob in on}) == 1:
                boxes[on[0].box].chips.append(layer)
                continue
        number = len(boxes)
        boxes.append(Box(layer, layer.name, family(layer.type), summary(layer)))
        for bottom in dict.fromkeys(layer.bottoms):
            for blob in current.get(bottom, ()):
                blob.readers.append(number)
        for top, shape in zip(layer.tops, tops, strict=True):
            blob = Blob(number, _label(top, shape, layer.name))
            blobs.append(blob)
            # Of the layers of both phases, two may make the blob, such as two data layers.
            twins = [other for other in current.get(top, ()) if not other.readers]
            current[top] = [blob] if top in layer.bottoms else [*twins, blob]
    _add_outputs(boxes, current)
    return boxes, blobs


def _add_outputs(boxes: list[Box], current: dict[str, list[Blob]]) -> None:
    """Add a box for each blob that no layer reads, except those that come straight from the data."""
    for name, last in current.items():
        unread = [blob for blob in last if not blob.readers]
        if not unread or boxes[unread[0].box].family == "data":
            continue
        shape = unread[0].label.removeprefix(f"{name}  ")
        for blob in unread:
            blob.readers.append(len(boxes))
        boxes.append(Box(None, name, "output", [shape] if shape and shape != name else []))
        unread[0].label = ""


def _label(name: str, shape: Any, layer: str) -> str:
    extents = "×".join(map(str, shape)) if shape else ""
    return extents if name == layer else f"{_short(name)}  {extents}".strip()


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _measure(box: Box) -> None:
    rows = _chip_rows(box.chips)
    widths = [_width(_short(box.name), 13.5), *(_width(_short(text), 11) for text in box.text)]
    widths += [sum(_chip_width(chip) + 5 for chip in row) - 5 for row in rows]
    box.width = max(72.0, max(widths) + 2 * _PADDING)
    chips = len(rows) * _CHIP + (4 if rows else 0)
    box.height = 18 + _ROW * len(box.text) + chips + _PADDING


def _chip_rows(chips: list[Layer]) -> list[list[Layer]]:
    rows: list[list[Layer]] = []
    used = _WIDEST_CHIPS
    for chip in chips:
        width = _chip_width(chip) + 5
        if used + width > _WIDEST_CHIPS:
            rows.append([])
            used = 0.0
        rows[-1].append(chip)
        used += width
    return rows


def _chip_text(chip: Layer) -> str:
    # The first line of a summary is the type, the second its most important numbers.
    return _short(" ".join(summary(chip)[:2]))


def _chip_width(chip: Layer) -> float:
    return _width(_chip_text(chip), 10.5) + 14


def _width(text: str, size: float) -> float:
    """Estimate the width of a text in any common sans serif, a little generously."""
    units = 0.0
    for character in text:
        if character in "ijl.,:;'|!I ":
            units += 0.31
        elif character in 'ftr()[]/-"·':
            units += 0.38
        elif character in "mwMW@%":
            units += 0.9
        elif character.isupper():
            units += 0.71
        else:
            units += 0.585 if ord(character) < 0x1100 else 1.05
    return units * size


class _Page:
    """The parts of a layout as SVG, turned to its direction."""

    def __init__(
        self, rankdir: str, layout: Layout, boxes: list[Box], blobs: list[Blob], lines: list[Line]
    ) -> None:
        self._direction, self._layout = rankdir, layout
        self._boxes, self._blobs, self._lines = boxes, blobs, lines
        across, along = layout.breadth, layout.depth
        self._extent = (along, across) if rankdir == "LR" else (across, along)

    def text(self, name: str, note: str) -> str:
        """Return the whole picture."""
        used = [each for each in FAMILIES if any(self._of(box, each) for box in self._boxes)]
        legend, legend_width = _legend(used)
        title = _short(_legible(name))
        widest = max(self._extent[0], legend_width, _width(title, 21), _width(note, 12.5))
        head = 74.0 + (18.0 if note else 0.0)
        width, height = widest + 2 * _MARGIN, self._extent[1] + head + 2 * _MARGIN
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label={_attribute(name)}>',
            f"<style>{_STYLE}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0.8 L8 4 L0 7.2 z" fill="#93a0ad"/>'
            "</marker></defs>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            f'<text class="net" x="{_MARGIN:.0f}" y="{_MARGIN + 16:.0f}">{escape(title)}</text>',
            f'<g transform="translate({_MARGIN:.0f} {_MARGIN + 32:.0f})">{legend}</g>',
        ]
        if note:
            place = f'x="{_MARGIN:.0f}" y="{_MARGIN + 72:.0f}"'
            parts.append(f'<text class="note" {place}>{escape(_legible(note))}</text>')
        left = _MARGIN + (widest - self._extent[0]) / 2
        parts.append(f'<g transform="translate({left:.1f} {_MARGIN + head:.1f})">')
        routes = zip(self._lines, self._layout.routes, strict=True)
        parts += [self._line(route, self._blobs[line.bundle]) for line, route in routes]
        parts += self._labels()
        pairs = zip(self._boxes, self._layout.middles, strict=True)
        parts += [self._box(box, self._at(middle)) for box, middle in pairs]
        return "\n".join([*parts, "</g>", "</svg>", ""])

    @staticmethod
    def _of(box: Box, kind: str) -> bool:
        return kind in (box.family, *(family(chip.type) for chip in box.chips))

    def _at(self, point: Point) -> Point:
        across, along = point
        if self._direction == "LR":
            return along, across
        return across, self._layout.depth - along if self._direction == "BT" else along

    def _line(self, route: list[Point], blob: Blob) -> str:
        """Return a line through its points: straight along a rank, smoothly curved between ranks."""
        x, y = self._at(route[0])
        path = [f"M{x:.1f} {y:.1f}"]
        for (a, b), (c, d) in pairwise(route):
            if (a, b) == (c, d):
                continue
            x, y = self._at((c, d))
            if a == c:
                path.append(f"L{x:.1f} {y:.1f}")
            else:
                turn = (b + d) / 2
                (p, q), (r, s) = self._at((a, turn)), self._at((c, turn))
                path.append(f"C{p:.1f} {q:.1f} {r:.1f} {s:.1f} {x:.1f} {y:.1f}")
        drawn = f'<path class="line" marker-end="url(#tip)" d="{" ".join(path)}"'
        label = escape(_legible(blob.label))
        return f"{drawn}><title>{label}</title></path>" if label else f"{drawn}/>"

    def _labels(self) -> list[str]:
        """Return each blob's label, placed where its lines leave their box. One that has no room beside
        its neighbours is left out; each line has it as its tooltip."""
        parts = []
        starts: dict[int, dict[int, Point]] = {}
        for line, route in zip(self._lines, self._layout.routes, strict=True):
            if self._blobs[line.bundle].label:
                starts.setdefault(line.source, {})[line.bundle] = self._at(route[0])
        for of_box in starts.values():
            along = 1 if self._direction == "LR" else 0
            ordered = sorted(of_box.items(), key=lambda item: item[1][along])
            free = -math.inf
            for place, (number, (x, y)) in enumerate(ordered):
                label = _legible(self._blobs[number].label)
                wide, anchor = _width(label, 10.5), ""
                following = ordered[place + 1][1][along] if place + 1 < len(ordered) else math.inf
                if self._direction == "LR":
                    x, y, begins, ends = x + 5, y - 5, y, y + 12
                elif place == 0 and x + 5 + wide > following:
                    x, begins, ends, anchor = x - 5, x - wide, x + 3, ' text-anchor="end"'
                else:
                    x, begins, ends = x + 5, x + 5, x + 5 + wide
                    if ends > following:
                        continue
                if begins < free:
                    continue
                free = ends
                y += {"TB": 13, "BT": -6, "LR": 0}[self._direction]
                spot, words = f'x="{x:.1f}" y="{y:.1f}"{anchor}', escape(label)
                # Not every viewer knows paint-order, with which one text would be enough.
                parts += [f'<text class="{each}" {spot}>{words}</text>' for each in ("halo", "shape")]
        return parts

    def _box(self, box: Box, middle: Point) -> str:
        x, y = middle[0] - box.width / 2, middle[1] - box.height / 2
        fill, stroke = FAMILIES.get(box.family, ("#ffffff", "#b9c2cb"))
        parts = [
            f'<g transform="translate({x:.1f} {y:.1f})"><title>{escape(_whole(box))}</title>',
            f'<rect width="{box.width:.1f}" height="{box.height:.1f}" rx="8" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="1.3"/>',
            _centred("name", box.width / 2, 18, box.name),
        ]
        row = 18.0
        for text in box.text:
            row += _ROW
            parts.append(_centred("text", box.width / 2, row, text))
        row += 8
        for chips in _chip_rows(box.chips):
            place = (box.width - sum(_chip_width(chip) + 5 for chip in chips) + 5) / 2
            for chip in chips:
                width = _chip_width(chip)
                inner, edge = FAMILIES[family(chip.type)]
                parts.append(
                    f'<rect x="{place:.1f}" y="{row:.1f}" width="{width:.1f}" height="{_CHIP - 3:.0f}" '
                    f'rx="8.5" fill="{inner}" stroke="{edge}"/>'
                    + _centred("chip", place + width / 2, row + 12.5, _chip_text(chip))
                )
                place += width + 5
            row += _CHIP
        return "".join([*parts, "</g>"])


def _legend(families: list[str]) -> tuple[str, float]:
    parts, x = [], 0.0
    for each in families:
        fill, stroke = FAMILIES[each]
        parts.append(
            f'<rect x="{x:.1f}" y="0" width="13" height="13" rx="4" fill="{fill}" stroke="{stroke}"/>'
            f'<text class="note" x="{x + 19:.1f}" y="11">{each}</text>'
        )
        x += 19 + _width(each, 12) + 18
    return "".join(parts), x


def _centred(kind: str, x: float, y: float, text: str) -> str:
    words = escape(_short(_legible(text)))
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{words}</text>'


def _whole(box: Box) -> str:
    """Return everything that a box stands for, which is shown as its tooltip."""
    layers = [layer for layer in (box.layer, *box.chips) if layer is not None]
    said = [f"{layer.name}: {', '.join(summary(layer))}" for layer in layers] or [box.name]
    return _legible("\n".join(said))


def _legible(text: str) -> str:
    """Return a text without characters that are invalid in XML."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _attribute(text: str) -> str:
    return quoteattr(_legible(text))
