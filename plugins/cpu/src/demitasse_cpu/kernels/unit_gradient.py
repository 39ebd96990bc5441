"""The gradient of a convolution's weights, computed by the processor's matrix unit; see
loops.unit_gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels.layouts import NHWC_BF16
from demitasse_cpu.kernels.reorder import terms
from demitasse_cpu.kernels.requests import aligned, cut, flat, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.onednn.inner_product import has_matrix_unit
from demitasse_cpu.threads import divide

KERNEL = "matrix unit"

# As in loops.matrix_unit, which is not imported before a kernel is bound.
_ROWS, _TERMS, _WIDE = 16, 32, 32

_FEWEST = 8
"""The minimum number of channels and of outputs. With fewer, tiles would be mostly zeros. With fewer
channels, the channels of a window's row therefore count as those of one pixel. They also do so with more
channels if that fills tiles better: LeNet's second convolution, with 20 channels of 12 x 12 pixels
without padding, then has less than half as many products."""

_WORTH = 0.85
"""Windows' rows are used only if they need less than this share of the products, because more is copied
for them."""

_SUMS = 2**20
"""The bytes of sums that stay in the second cache together with what is summed."""

_STRETCH = 2**20
"""The bytes of rows and pairs that are worked on at a time."""

_LEAST, _MOST = 256, 4096
"""The minimum and maximum number of places in a stretch."""


class Line(NamedTuple):
    """``images`` of ``channels``, with ``x_image`` numbers each, and as many results of ``outputs``,
    with ``dy_image`` numbers each, in a line in which an image takes ``plane`` places. x has ``lines``,
    one for each remainder of the strides. Of the ``held`` places of a ``stretch``, taps read from
    ``before`` its first place to ``after`` its last. A ``block`` of outputs has one or two ``copies`` of
    rows, ``row`` numbers apart."""

    images: int
    channels: int
    outputs: int
    plane: int
    x_image: int
    dy_image: int
    lines: int
    copies: int
    before: int
    after: int
    stretch: int
    held: int
    block: int
    row: int


class Frame(NamedTuple):
    """Rows of ``line`` numbers that start at number ``left`` of longer rows of ``padded`` numbers."""

    line: int
    left: int
    padded: int


class _Along(NamedTuple):
    """One dimension: the ``extent`` of a plane, how many of the image's pixels are ``read``, and, for
    each tap, where its pixels begin modulo the stride and its distance from the result in places."""

    extent: int
    read: int
    stride: int
    remainders: Sequence[int]
    steps: Sequence[int]


@dataclass(frozen=True)
class _Way:
    """The line; whether taps read it by windows' rows, and what each reads; which part sums what; and
    the memory: first for the framed images, if there are any, then for each part."""

    line: Line
    windows: bool
    frame: Frame | None
    rows: _Along
    columns: _Along
    row_numbers: int
    pixel_numbers: int
    keeps: bool
    parts: Sequence[tuple[int, int, int, int]]
    sizes: Sequence[int]

    @property
    def kinds(self) -> list[tuple[int, int]]:
        """The remainders for which there is a line of x."""
        return sorted(set(product(self.rows.remainders, self.columns.remainders)))

    def tables(self, results: Sequence[int], numbers: int) -> tuple[Any, ...]:
        """Return where the rows and columns of a plane begin in an image of dy, and in x for each line,
        and the line and the shift of each tap."""
        import numpy as np

        rows, columns, kinds = self.rows, self.columns, self.kinds
        of_dy = (
            _begins(rows.extent, 0, 1, results[0], results[1] * numbers),
            _begins(columns.extent, 0, 1, results[1], numbers),
        )
        of_x = (
            [_begins(rows.extent, a, rows.stride, rows.read, self.row_numbers) for a, _ in kinds],
            [
                _begins(columns.extent, b, columns.stride, columns.read, self.pixel_numbers)
                for _, b in kinds
            ],
        )
        lines = [kinds.index(each) for each in product(rows.remainders, columns.remainders)]
        shifts = [a * columns.extent + b for a, b in product(rows.steps, columns.steps)]
        return *of_dy, *map(np.stack, of_x), np.array(lines), np.array(shifts)


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Yield the kernel for dw, in the layout of the plan, and db."""
    dy, x = map(spec, request.inputs)
    dw, db = spec(request.outputs[0]), (*request.outputs, None)[1]
    kinds = {operand.dtype for operand in (dy, x, dw, db) if operand is not None}
    groups = request.attributes["groups"]
    if len(x.shape) != 4 or kinds != {"float32"} or not prod(x.shape) * prod(dy.shape):
        return
    if dy.shape[1] // groups < _FEWEST or not has_matrix_unit(request):
        return
    way = _way(request, x.shape, dw.shape, dy.shape)
    if way is None:
        return
    framed = 0 if way.frame is None else 2 * x.shape[0] * way.line.x_image
    room = [framed, *(size for _ in way.parts for size in way.sizes)]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import elementwise
        from demitasse_cpu.loops import unit_gradient as loops
        from demitasse_cpu.loops.matrix_unit import words

        g, parts = way.line, way.parts
        first, *rooms = cut(workspace, "uint8", *room)
        given_dy, given_x = map(flat, sources)
        result, none = flat(targets[0]), np.zeros(0, np.float32)
        bias = none if db is None else flat(targets[1])
        of_output, *others = terms(dw.shape, dw.layout)
        stages: list[Work] = []
        if way.windows:
            of_tap, of_channel = others[1], _sums(others[2], others[0])
        else:
            of_channel, of_tap = others[0], _sums(*others[1:])
        if way.frame is not None:
            given = way.frame, given_x, first.view("uint16")
            stages.append(spread(loops.framed, given, x.shape[0] * x.shape[2], len(parts)))
            given_x = given[-1]
        if result.size != prod(dw.shape):
            stages.append(spread(elementwise.filled, (result, 0.0), result.size, len(parts)))
        tables, apart = way.tables(dy.shape[2:], dy.shape[1]), _pairs_apart(g, of_output, of_channel)
        for group in range(groups):
            outputs = slice(group * g.outputs, (group + 1) * g.outputs)
            mine, target = (of_output[outputs], of_channel, of_tap, apart), (result, bias[outputs])
            both = given_dy[group * g.outputs :], given_x[group * g.channels :]
            work = []
            for i, part in enumerate(parts):
                own = rooms[len(way.sizes) * i : len(way.sizes) * (i + 1)]
                memory = map(np.ndarray.view, own, ("int64", "uint16", "uint16", "float32"))
                scratch = words(), *memory, *target, int(way.keeps)
                work.append(ready(loops.gradient, g, *both, *tables, *mine, *scratch, *part))
            stages.append(at_once(work))
            if way.keeps:
                sums, tiles = rooms[len(way.sizes) - 1 :: len(way.sizes)], -(-g.outputs // _ROWS)
                stages.append(
                    spread(
                        loops.add_up,
                        (g, tuple(each.view("float32") for each in sums), *mine, *target),
                        tiles,
                        min(len(parts), tiles),
                    )
                )
        return in_order(stages)

    outward = (dw.layout, *[PLAIN] * (len(request.outputs) - 1))
    size = sum(map(aligned, room))
    yield Candidate(KERNEL, bind, (NHWC_BF16,) * 2, outward, workspace=size, in_place=False)


FACTORIES = {"convolution_backward_weights": backward_weights}


def _sums(outer: Any, inner: Any) -> Any:
    return (outer[:, None] + inner).ravel()


def _pairs_apart(g: Line, of_output: Any, of_channel: Any) -> int:
    """Return the distance, in pairs, between pairs of channels if outputs are adjacent in whole squares,
    or 0 for weights in another layout."""
    import numpy as np

    if g.outputs % _ROWS or g.channels % _WIDE:
        return 0
    squares, panels = of_output.reshape(-1, _ROWS), of_channel.reshape(-1, _WIDE)
    apart = int(panels[0, 2])
    beside = np.arange(_ROWS) * 2
    there = np.arange(_WIDE) // 2 * apart + np.arange(_WIDE) % 2
    fits = (squares - squares[:, :1] == beside).all() and (panels - panels[:, :1] == there).all()
    return apart // 2 if fits and apart % 2 == 0 else 0


class _Reading(NamedTuple):
    """How images are read: whether by windows' rows; what frames them, if anything; the numbers of an
    image, of a row and of a pixel; both dimensions; and how many numbers of a pixel a tap multiplies."""

    windows: bool
    frame: Frame | None
    image: int
    row: int
    pixel: int
    rows: _Along
    columns: _Along
    channels: int

    def products(self) -> int:
        """Return the number of products of tiles for 16 outputs of an image, times the terms of a
        product."""
        taps = len(self.rows.steps) * len(self.columns.steps)
        return self.rows.extent * self.columns.extent * taps * -(-self.channels // _ROWS)


def _by_pixels(request: Request, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> _Reading:
    """Return the way in which each tap multiplies the channels of a pixel."""
    stride, dilation, pad = _numbers(request)
    rows, columns = (
        _along(x[2 + d], y[2 + d], w[2 + d], stride[d], dilation[d], pad[d]) for d in (0, 1)
    )
    return _Reading(False, None, prod(x[1:]), x[1] * x[3], x[1], rows, columns, w[1])


def _by_windows(request: Request, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> _Reading:
    """Return the way in which each row of taps multiplies a row of a window, as if its numbers were
    channels. Rows are framed so that a row of results has no zeros after it."""
    stride, dilation, pad = _numbers(request)
    results, (height, width), channels = y[2:], x[2:], w[1]
    reached = (results[1] - 1) * stride[1] + w[3]
    padded = max(width + 2 * pad[1], reached)
    line = channels * padded
    framed = Frame(width * channels, pad[1] * channels, line) if padded > width else None
    rows = _along(height, results[0], w[2], stride[0], dilation[0], pad[0])
    columns = _along((results[1] - 1) * stride[1] + 1, results[1], 1, stride[1], 1, 0)
    return _Reading(True, framed, height * line, line, channels, rows, columns, channels * w[3])


def _numbers(request: Request) -> Sequence[tuple[int, ...]]:
    """Return strides, dilations and padding."""
    return [tuple(map(int, request.attributes[name])) for name in ("stride", "dilation", "pad")]


def _reading(request: Request, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> _Reading | None:
    """Return the better way of the two that serve, or None if neither does. It is the one with fewer
    products, but windows' rows, which are copied more often, must save enough of them."""
    windows = request.attributes["groups"] == 1 and request.attributes["dilation"][1] == 1 and w[3] > 1
    framed = _by_windows(request, x, w, y) if windows else None
    if w[1] < _FEWEST:
        return framed
    plain = _by_pixels(request, x, w, y)
    return framed if framed and framed.products() < _WORTH * plain.products() else plain


def _way(request: Request, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> _Way | None:
    """Return the way to compute a gradient, or None if the loops do not serve."""
    reading = _reading(request, x, w, y)
    if reading is None:
        return None
    windows, frame, x_image, line, pixel, rows, columns, channels = reading
    groups = request.attributes["groups"]
    outputs, plane, threads = w[0] // groups, rows.extent * columns.extent, request.place.threads
    shifts = [a * columns.extent + b for a, b in product(rows.steps, columns.steps)]
    before, after = max(0, -min(shifts)), max(0, *shifts)
    before += before % 2
    copies = 1 + any(shift % 2 for shift in shifts)
    lines = len(set(rows.remainders)) * len(set(columns.remainders))

    wide, panels, places = -(-channels // _WIDE) * _WIDE, -(-outputs // _WIDE), x[0] * plane
    room = 4 * (len(shifts) * wide + _ROWS) * _WIDE  # bytes of a panel's sums
    keeps = room * panels <= _SUMS
    shares = divide(panels, 1 if keeps else min(threads, panels))
    most = max(b - a for a, b in shares)
    place_bytes = 2 * (lines * wide + copies * _WIDE * (most if keeps else 1))
    stretch = max(_LEAST, min(_MOST, _STRETCH // place_bytes))
    if keeps:  # the same number for each thread
        count = -(-places // (stretch * threads)) * threads
    else:
        count = 1 if 2 * places <= 3 * stretch else -(-places // stretch)
    steps = -(-(-(-places // count) + copies - 1) // _TERMS)
    stretch = steps * _TERMS - (copies - 1)
    count = -(-places // stretch)
    alone = count == 1 and not keeps
    block = most if keeps or alone else max(1, min(most, _SUMS // room))
    if keeps:
        parts = [
            (0, outputs, a * stretch, min(b * stretch, places))
            for a, b in divide(count, min(threads, count))
        ]
    else:
        parts = [(a * _WIDE, min(b * _WIDE, outputs), 0, places) for a, b in shares]
    held = steps * _TERMS + before + after + 1
    held += held % 2
    row = _TERMS * (steps + 1 + steps % 2)  # an odd multiple, so that rows do not share cache sets
    sizes = [
        8 * held,
        2 * copies * _WIDE * block * row,
        2 * lines * wide * held,
        4 * _WIDE * _WIDE if alone else room * block,
    ]
    about = x[0], channels, outputs, plane, x_image, prod(y[1:]), lines, copies
    made = Line(*about, before, after, stretch, held, block * _WIDE, row)
    return _Way(made, windows, frame, rows, columns, line, pixel, keeps and len(parts) > 1, parts, sizes)


def _along(extent: int, results: int, taps: int, stride: int, dilation: int, pad: int) -> _Along:
    reach = [tap * dilation - pad for tap in range(taps)]
    steps = [each // stride for each in reach]
    there = max(-(-(extent - each % stride) // stride) for each in reach)
    size = max(there + max(0, -min(steps)), results + max(0, *steps), 1)
    return _Along(size, extent, stride, [each % stride for each in reach], steps)


def _begins(extent: int, first: int, stride: int, end: int, numbers: int) -> Any:
    """Return where each row, or each pixel of a row, with this many numbers begins, or -1 if there is
    none."""
    import numpy as np

    places = np.arange(extent, dtype=np.int64) * stride + first
    return np.where(places < end, places * numbers, -1)
