"""Convolutions in groups of few channels, with as many outputs as inputs and channels innermost. A
vector holds the channels of several groups, of one, or of a part of one. One after the other, each
channel of a pixel is spread over the lanes of its group, where it is multiplied by the weights of all
outputs at once.

Spreading and multiplying are written in vectors (intrinsics). ``form`` has as many members as a group
has channels; loops are compiled for each count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.bfloat16 import got
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.tiles import MANY_REGISTERS
from demitasse_cpu.loops.vectors import I64, LANES, Vectors

_SPREAD, _ALONE, _FEW = 12 if MANY_REGISTERS else 6, 8, 4
"""Pixels of a tile whose sums and vectors are in registers; of a tile whose channels are loaded one by
one, as many as a processor with sixteen general registers can address; and of a short tile."""

_SUMS = 24 if MANY_REGISTERS else 12
"""Vectors of sums of the gradient that are in registers at once, for at least one tap."""

_BAND = 12
"""Lines whose ends are computed together, while their inputs are near."""


class Groups(NamedTuple):
    """Images of x and results of y, and how windows move. Each pair is (rows, columns)."""

    form: tuple[int, ...]
    image: tuple[int, int]
    result: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    channels: int


def _spread(v: Vectors, source: Any, at: Any, width: int, stored: Any) -> Callable[[int], Any]:
    """Return a function that spreads one channel of each group, by its number, over that group's lanes.
    If a vector has only one group, numbers are loaded one by one, which costs no more than loading them
    as a vector."""
    builder = v.builder
    if width >= LANES:

        def alone(channel: int) -> Any:
            place = builder.gep(source, [builder.add(at, I64(channel))])
            return v.splat(_widened(builder, builder.load(place), stored))

        return alone
    value = v.load(source, at, stored)

    def spread(channel: int) -> Any:
        lanes = [lane - lane % width + channel for lane in range(LANES)]
        nothing = ir.Constant(value.type, ir.Undefined)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), lanes)
        return builder.shuffle_vector(value, nothing, mask)

    return spread


def _widened(builder: Any, value: Any, stored: Any) -> Any:
    """Return a number as float32."""
    if stored != types.uint16:
        return value
    word = ir.IntType(32)
    return builder.bitcast(builder.shl(builder.zext(value, word), word(16)), ir.FloatType())


def _counting(
    builder: Any, count: Any, sums: list[Any], step: Callable[[Any, list[Any]], list[Any]]
) -> Any:
    """Build a loop over ``count`` (at least 1) that carries sums with the given initial values."""
    entry = builder.block
    body, done = builder.append_basic_block("terms"), builder.append_basic_block("summed")
    builder.branch(body)
    builder.position_at_end(body)
    number = builder.phi(I64)
    carried = [builder.phi(total.type) for total in sums]
    after = step(number, carried)
    following = builder.add(number, I64(1))
    number.add_incoming(I64(0), entry)
    number.add_incoming(following, builder.block)
    for phi, first, last in zip(carried, sums, after, strict=True):
        phi.add_incoming(first, entry)
        phi.add_incoming(last, builder.block)
    Vectors(builder).as_written(builder.cbranch(builder.icmp_signed("<", following, count), body, done))
    builder.position_at_end(done)
    return after


def _tile(pixels: int) -> Any:
    """Return an intrinsic for one vector of ``pixels`` results (0: as many as the registers hold),
    ``step`` apart in x and ``out_step`` in y. For each of ``count`` taps, ``table`` has its distances
    from a pixel and from the vector's first weight."""

    def typed(
        context: Any,
        form: Any,
        x: Any,
        at: Any,
        step: Any,
        table: Any,
        count: Any,
        packed: Any,
        weights: Any,
        bias: Any,
        first: Any,
        floor: Any,
        y: Any,
        to: Any,
        out_step: Any,
    ) -> Any:
        n = types.int64
        signature = types.void(form, x, n, n, table, n, packed, n, bias, n, types.float32, y, n, n)
        width = form.count
        many = pixels or (_ALONE if width >= LANES else _SPREAD)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            source, places, panel, biases, target = (
                v.data(context, signature, args, i) for i in (1, 4, 6, 8, 11)
            )
            begin = v.load(biases, args[9])

            def tap(number: Any, sums: list[Any]) -> list[Any]:
                entry = builder.mul(number, I64(2))
                far, mine = (
                    builder.load(builder.gep(places, [builder.add(entry, I64(i))])) for i in (0, 1)
                )
                place = builder.add(args[2], far)
                seen = [
                    _spread(v, source, builder.add(place, builder.mul(args[3], I64(p))), width, x.dtype)
                    for p in range(many)
                ]
                there = builder.add(args[7], mine)
                for channel in range(width):
                    w = v.load(panel, builder.add(there, I64(channel * LANES)))
                    sums = [
                        v.multiply_add(one(channel), w, total)
                        for one, total in zip(seen, sums, strict=True)
                    ]
                return sums

            sums = _counting(builder, args[5], [begin] * many, tap)
            lowest = v.splat(args[10])
            for p, total in enumerate(sums):
                total = builder.select(builder.fcmp_ordered("<", total, lowest), lowest, total)
                v.store(total, target, builder.add(args[12], builder.mul(args[13], I64(p))), y.dtype)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _sums_of(taps: int) -> Any:
    """Return an intrinsic that adds products to ``sums``: those of ``count`` pixels of dy, ``step``
    apart, with the pixels of x that ``taps`` taps of the table meet (0: as many as the registers hold
    sums of)."""

    def typed(
        context: Any,
        form: Any,
        dy: Any,
        at: Any,
        step: Any,
        x: Any,
        seen_at: Any,
        seen_step: Any,
        table: Any,
        entry: Any,
        count: Any,
        sums: Any,
        to: Any,
    ) -> Any:
        n = types.int64
        signature = types.void(form, dy, n, n, x, n, n, table, n, n, sums, n)
        width = form.count
        many = taps or max(1, _SUMS // width)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            slopes, source, places, target = (v.data(context, signature, args, i) for i in (1, 4, 7, 10))

            def entry_of(tap: int, i: int) -> Any:
                at = builder.add(builder.mul(args[8], I64(2)), I64(2 * tap + i))
                return builder.load(builder.gep(places, [at]))

            far = [builder.add(args[5], entry_of(tap, 0)) for tap in range(many)]
            mine = [builder.add(args[11], entry_of(tap, 1)) for tap in range(many)]

            def pixel(number: Any, totals: list[Any]) -> list[Any]:
                d = v.load(slopes, builder.add(args[2], builder.mul(number, args[3])), dy.dtype)
                across, made = builder.mul(number, args[6]), []
                for tap in range(many):
                    one = _spread(v, source, builder.add(far[tap], across), width, x.dtype)
                    made += [v.multiply_add(one(i), d, totals[tap * width + i]) for i in range(width)]
                return made

            nothing = [v.constant(0.0)] * (many * width)
            for number, total in enumerate(_counting(builder, args[9], nothing, pixel)):
                tap, i = divmod(number, width)
                place = builder.add(mine[tap], builder.mul(I64(i), args[3]))
                v.store(v.add(v.load(target, place), total), target, place)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


_tile_wide, _tile_few, _tile_one = _tile(0), _tile(_FEW), _tile(1)
_sums_many, _sums_one = _sums_of(0), _sums_of(1)


@compiled()
def clear(numbers: Array) -> None:
    """Fill with zeros."""
    numbers[:] = 0


@compiled()
def pack(w: Array, packed: Array, channels: int, width: int, taps: int, turned: bool) -> None:
    """Copy plain weights (channels, width, taps) to vectors of outputs, one for each tap and channel of
    a group. ``turned`` is for the gradient of the data, in which outputs are the channels and the taps
    run backwards."""
    for vector in range(channels // LANES):
        for tap in range(taps):
            for channel in range(width):
                to = ((vector * taps + tap) * width + channel) * LANES
                for lane in range(LANES):
                    out = vector * LANES + lane
                    if turned:
                        source = (out - out % width + channel) * width + out % width
                        packed[to + lane] = w[source * taps + taps - 1 - tap]
                    else:
                        packed[to + lane] = w[(out * width + channel) * taps + tap]


@inlined
def _group_of(lane: int, width: int) -> int:
    """Return the first channel of the groups that the vector starting at a channel holds, or is a part
    of."""
    return lane - lane % max(width, LANES)


@inlined
def _inside(before: int, size: int, stride: int, count: int) -> tuple[int, int]:
    """Return the range of results for which the pixel that is ``before`` a window's first one (behind it
    if negative) lies in an image of ``size`` pixels."""
    begin = (before + stride - 1) // stride if before > 0 else 0
    end = (size - 1 + before) // stride + 1 if size - 1 + before >= 0 else 0
    return min(begin, count), max(min(end, count), min(begin, count))


@inlined
def _taps_of(g: Any, row: int, column: int, table: Array) -> int:
    """Fill the table with the taps of a result that lie in the image, and return their number."""
    count, width = 0, len(g.form)
    for i in range(g.kernel[0]):
        if not 0 <= row * g.stride[0] - g.pad[0] + i * g.dilation[0] < g.image[0]:
            continue
        for j in range(g.kernel[1]):
            if 0 <= column * g.stride[1] - g.pad[1] + j * g.dilation[1] < g.image[1]:
                far = i * g.dilation[0] * g.image[1] + j * g.dilation[1]
                table[2 * count] = far * g.channels
                table[2 * count + 1] = (i * g.kernel[1] + j) * width * LANES
                count += 1
    return count


@compiled()
def _strip(
    g: Any,
    x: Array,
    packed: Array,
    bias: Array,
    floor: float,
    y: Array,
    table: Array,
    line: int,
    column: int,
    pixels: int,
    downwards: bool,
) -> None:
    """Compute ``pixels`` results side by side or, if ``downwards``, below each other, from a line and
    column on. All of their windows have the same taps in an image."""
    channels, width = g.channels, len(g.form)
    wide = _ALONE if width >= LANES else _SPREAD
    image, row = line // g.result[0], line % g.result[0]
    count = _taps_of(g, row, column, table)
    down = image * g.image[0] + row * g.stride[0] - g.pad[0]
    first = (down * g.image[1] + column * g.stride[1] - g.pad[1]) * channels
    step, out = g.stride[1] * channels, channels
    if downwards:
        step, out = g.stride[0] * g.image[1] * channels, g.result[1] * channels
    for lane in range(0, channels, LANES):
        weights = lane * g.kernel[0] * g.kernel[1] * width
        at = first + _group_of(lane, width)
        to, done = (line * g.result[1] + column) * channels + lane, 0
        # A tile that ends with the last result repeats some of them, which is faster than doing the rest
        # one by one.
        while pixels >= wide and done < pixels:
            n = min(done, pixels - wide)
            about = count, packed, weights, bias, lane, floor, y, to + n * out, out
            _tile_wide(g.form, x, at + n * step, step, table, *about)
            done = n + wide
        while pixels >= _FEW and done < pixels:
            n = min(done, pixels - _FEW)
            about = count, packed, weights, bias, lane, floor, y, to + n * out, out
            _tile_few(g.form, x, at + n * step, step, table, *about)
            done = n + _FEW
        for n in range(done, pixels):
            about = count, packed, weights, bias, lane, floor, y, to + n * out, out
            _tile_one(g.form, x, at + n * step, step, table, *about)


@inlined
def _alike(g: Any, axis: int) -> tuple[int, int]:
    """Return the range of results along an axis whose windows are entirely in an image; it may be
    empty."""
    begin, _ = _inside(g.pad[axis], g.image[axis], g.stride[axis], g.result[axis])
    before = g.pad[axis] - (g.kernel[axis] - 1) * g.dilation[axis]
    _, end = _inside(before, g.image[axis], g.stride[axis], g.result[axis])
    return begin, max(begin, end)


@compiled()
def correlate(
    g: Any,
    x: Array,
    packed: Array,
    bias: Array,
    floor: float,
    y: Array,
    table: Array,
    begin: int,
    end: int,
) -> None:
    """Compute lines ``begin`` to ``end`` of y, with nothing below ``floor``. The table has room for all
    taps; each result must have one in the image. The middle of a line is computed at once, the ends for
    several lines."""
    upper, lower = _alike(g, 0)
    left, right = _alike(g, 1)
    for band in range(begin, end, _BAND):
        stop = min(end, band + _BAND)
        if left < right:
            for line in range(band, stop):
                _strip(g, x, packed, bias, floor, y, table, line, left, right - left, False)
        line = band
        while line < stop:
            row = line % g.result[0]
            lines = max(1, min(stop - line, lower - row)) if row >= upper else 1
            for column in range(g.result[1]):
                if not left <= column < right:
                    _strip(g, x, packed, bias, floor, y, table, line, column, lines, True)
            line += lines


@compiled()
def gradient(
    g: Any, dy: Array, x: Array, sums: Array, biases: Array, table: Array, begin: int, end: int
) -> None:
    """Add up the contributions of lines ``begin`` to ``end`` of dy to the weights (taps, width,
    channels) and, if ``biases`` has room, to the biases. A line's sums are added to the others' as a
    whole, so that numbers of similar size are added. The table has room for four numbers for each
    tap."""
    channels, width, columns = g.channels, len(g.form), g.result[1]
    taps, step, many = g.kernel[0] * g.kernel[1], g.stride[1] * channels, max(1, _SUMS // width)
    ranges = table[2 * taps :]
    sums[:] = 0
    biases[:] = 0
    for line in range(begin, end):
        image, row = line // g.result[0], line % g.result[0]
        slopes = line * columns * channels
        if biases.size > 0:
            for column in range(columns):
                of_pixel = dy[slopes + column * channels : slopes + (column + 1) * channels]
                for c in range(channels):
                    biases[c] += got(of_pixel, c)
        down = image * g.image[0] + row * g.stride[0] - g.pad[0]
        base = (down * g.image[1] - g.pad[1]) * channels
        count, left, right = 0, 0, columns
        for i in range(g.kernel[0]):
            if not 0 <= row * g.stride[0] - g.pad[0] + i * g.dilation[0] < g.image[0]:
                continue
            for j in range(g.kernel[1]):
                low, high = _inside(g.pad[1] - j * g.dilation[1], g.image[1], g.stride[1], columns)
                far = i * g.dilation[0] * g.image[1] + j * g.dilation[1]
                table[2 * count] = far * channels
                table[2 * count + 1] = (i * g.kernel[1] + j) * width * channels
                ranges[2 * count], ranges[2 * count + 1] = low, high
                left, right, count = max(left, low), min(right, high), count + 1
        if right <= left:
            left = right = 0
        for lane in range(0, channels, LANES):
            done = count if right == left else 0
            near = _group_of(lane, width)
            mine, seen = slopes + left * channels + lane, base + left * step + near
            while count - done >= many:
                _sums_many(
                    g.form, dy, mine, channels, x, seen, step, table, done, right - left, sums, lane
                )
                done += many
            while done < count:
                _sums_one(
                    g.form, dy, mine, channels, x, seen, step, table, done, right - left, sums, lane
                )
                done += 1
            for tap in range(count):
                low, high = ranges[2 * tap], ranges[2 * tap + 1]
                for start, stop in ((low, min(high, left)), (max(low, right), high)):
                    if start < stop:
                        mine = slopes + start * channels + lane
                        seen = base + start * step + near
                        _sums_one(
                            g.form,
                            dy,
                            mine,
                            channels,
                            x,
                            seen,
                            step,
                            table,
                            tap,
                            stop - start,
                            sums,
                            lane,
                        )


@compiled()
def add_up(
    sums: Array, biases: Array, dw: Array, db: Array, channels: int, width: int, taps: int
) -> None:
    """Add up the sums of all parts, as (channels, width, taps), and those of the biases."""
    for out in range(channels):
        for channel in range(width):
            for tap in range(taps):
                total = dw.dtype.type(0)
                for part in range(sums.shape[0]):
                    total += sums[part, (tap * width + channel) * channels + out]
                dw[(out * width + channel) * taps + tap] = total
        if db.size > 0:
            total = db.dtype.type(0)
            for part in range(biases.shape[0]):
                total += biases[part, out]
            db[out] = total
