"""Batch normalisation of channels that are innermost, in float32 or stored as bfloat16, written in
vectors. These are the loops of ``batch_normalization`` under the same names, with the same results
except for the smallest numbers.

The channels' parameters along a line, and the sums, are read once for several lines. One line at a time,
each vector of a line would read five others, and a core that has its lines in a near cache would wait
for those (one core of a Zen 5, bfloat16: 7 to 12 numbers a nanosecond, and 12 to 29 this way).
Meanwhile, the memory that is read next is prefetched. No more lines than that are taken at a time,
because memory and the last cache are fastest when read nearly in order (two cores of a Zen 4, sums of
26 MB: 34 GB/s over 16 lines, 45 over four).

A result that the caches lose before it is read may be written past them. Otherwise, a cache line that is
written is read first.

The length of a line is a multiple of ``STEP``. After the last whole group of lines, the loops over
single lines do the rest. numba keeps compiled copies of those here, so touch this file if you change
``batch_normalization``. Those loops keep denormal numbers, which the instruction that rounds to bfloat16
flushes to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops import batch_normalization as by_line
from demitasse_cpu.loops.batch_normalization import fold
from demitasse_cpu.loops.bfloat16 import number
from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.tiles import MANY_REGISTERS
from demitasse_cpu.loops.vectors import I64, LANES, WRITES_PAST, Vectors

STEP = 64
"""The length of a line is a multiple of this, whatever the processor's vectors."""

_ROWS = 4  # lines for which the channels' parameters, and sums, are read once
_SIDE_BY_SIDE = 2 if MANY_REGISTERS else 1  # vectors of a line
_LINE_OF_CACHE = 64  # bytes
_SUMMED = 16  # bytes of a column of the lines for which sums are read once
_FOLD = 16  # lines summed in float32, as in the loops over single lines

_Expression = Callable[[Vectors, Sequence[Any], Sequence[Any], Sequence[Any]], Any]
"""Takes vectors of the tensors, of the channels' parameters, and of numbers; returns the result, or the
two terms of sums."""


class _Arguments:
    """The arguments of an intrinsic while its code is built: tensors, the channels' parameters, and
    numbers."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.vectors, self._context, self._builder = Vectors(builder), context, builder
        self._signature, self._args = signature, args

    def arrays(self, position: int) -> tuple[list[Any], list[Any]]:
        """Return the data of the arrays in a tuple, and the types that they store."""
        kinds = list(self._signature.args[position])
        members = cgutils.unpack_tuple(self._builder, self._args[position], len(kinds))  # type: ignore[no-untyped-call]
        data = [
            self._context.make_array(kind)(self._context, self._builder, member).data
            for kind, member in zip(kinds, members, strict=True)
        ]
        return data, [kind.dtype for kind in kinds]

    def splats(self, position: int) -> list[Any]:
        """Return the numbers in a tuple, each in all lanes."""
        count = len(self._signature.args[position])
        numbers = cgutils.unpack_tuple(self._builder, self._args[position], count)  # type: ignore[no-untyped-call]
        return [self.vectors.splat(each) for each in numbers]


def _mapping(expression: _Expression, past: bool = False) -> Any:
    """Return an intrinsic for ``target = expression`` over _ROWS lines from ``at`` on, written ``past``
    the caches or not."""
    past = past and WRITES_PAST

    def typed(
        context: Any, tensors: Any, target: Any, channels: Any, numbers: Any, at: Any, width: Any
    ) -> Any:
        signature = types.void(tensors, target, channels, numbers, types.int64, types.int64)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = _Arguments(context, builder, signature, args)
            v, splats = given.vectors, given.splats(3)
            (sources, kinds), (along, _) = given.arrays(0), given.arrays(2)
            result, kept = v.data(context, signature, args, 1), signature.args[1].dtype
            at, width = args[4:]
            ahead = builder.mul(width, I64(_ROWS))
            step = I64(_SIDE_BY_SIDE * LANES)
            with cgutils.for_range_slice(builder, I64(0), width, step, I64) as (i, _):
                places = [builder.add(i, I64(j * LANES)) for j in range(_SIDE_BY_SIDE)]
                constants = [[v.load(line, place) for line in along] for place in places]
                for r in range(_ROWS):
                    row = builder.add(at, builder.mul(width, I64(r)))
                    for source, kind in zip(sources, kinds, strict=True):
                        for place in places[:: _share_a_line(kind)]:
                            v.fetch(source, builder.add(builder.add(row, ahead), place))
                    for place, mine in zip(places, constants, strict=True):
                        cell = builder.add(row, place)
                        terms = [
                            v.load(source, cell, kind)
                            for source, kind in zip(sources, kinds, strict=True)
                        ]
                        v.store(expression(v, terms, mine, splats), result, cell, kept, past=past)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _summing(expression: _Expression) -> Any:
    """Return an intrinsic that adds the two terms of lines from ``at`` on to ``first`` and ``second``,
    in each lane. It takes as many lines as have _SUMMED bytes in a column."""

    def typed(
        context: Any,
        tensors: Any,
        channels: Any,
        numbers: Any,
        first: Any,
        second: Any,
        at: Any,
        width: Any,
    ) -> Any:
        n = types.int64
        signature = types.void(tensors, channels, numbers, first, second, n, n)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            given = _Arguments(context, builder, signature, args)
            v, splats = given.vectors, given.splats(2)
            (sources, kinds), (along, _) = given.arrays(0), given.arrays(1)
            near = [v.data(context, signature, args, position) for position in (3, 4)]
            at, width = args[5:]
            rows = _SUMMED // (kinds[0].bitwidth // 8)
            ahead = builder.mul(width, I64(rows))
            step = I64(_SIDE_BY_SIDE * LANES)
            with cgutils.for_range_slice(builder, I64(0), width, step, I64) as (i, _):
                places = [builder.add(i, I64(j * LANES)) for j in range(_SIDE_BY_SIDE)]
                constants = [[v.load(line, place) for line in along] for place in places]
                sums = [[v.load(each, place) for each in near] for place in places]
                for r in range(rows):
                    row = builder.add(at, builder.mul(width, I64(r)))
                    for source, kind in zip(sources, kinds, strict=True):
                        for place in places[:: _share_a_line(kind)]:
                            v.fetch(source, builder.add(builder.add(row, ahead), place))
                    for j, (place, mine) in enumerate(zip(places, constants, strict=True)):
                        cell = builder.add(row, place)
                        terms = [
                            v.load(source, cell, kind)
                            for source, kind in zip(sources, kinds, strict=True)
                        ]
                        sums[j] = list(expression(v, terms, mine, [*splats, *sums[j]]))
                for place, totals in zip(places, sums, strict=True):
                    for pointer, total in zip(near, totals, strict=True):
                        v.store(total, pointer, place)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


def _settling() -> Any:
    """Return an intrinsic that makes numbers written past the caches visible to other threads."""

    def typed(context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            if WRITES_PAST:
                Vectors(builder).settle()
            return context.get_dummy_value()

        return types.void(), generate

    return intrinsic(typed)


def _share_a_line(kind: Any) -> int:
    """Return how many vectors of numbers stored as ``kind`` a cache line holds."""
    return max(1, int(_LINE_OF_CACHE // (LANES * kind.bitwidth // 8)))


def _normal(v: Vectors, x: Any, channels: Sequence[Any]) -> tuple[Any, Any]:
    """Return x without the centre, and its normalised value."""
    centre, slope, level = channels[:3]
    off = v.subtract(x, centre)
    return off, v.multiply_add(off, slope, level)


def _at_least(v: Vectors, least: Any, value: Any) -> Any:
    return v.builder.select(v.builder.fcmp_ordered("<", value, least), least, value)


def _at_most(v: Vectors, most: Any, value: Any) -> Any:
    return v.builder.select(v.builder.fcmp_ordered(">", value, most), most, value)


def _arrived(v: Vectors, dy: Any, value: Any, least: Any, most: Any) -> Any:
    """Return dy where the result was more than ``least`` and less than ``most``, else 0."""
    low, high = v.builder.fcmp_ordered("<=", value, least), v.builder.fcmp_ordered(">=", value, most)
    return v.builder.select(v.builder.or_(low, high), v.constant(0.0), dy)


def _normalised(v: Vectors, tensors: Any, channels: Any, numbers: Any) -> Any:
    least, most = numbers
    return _at_least(v, least, _at_most(v, most, _normal(v, tensors[0], channels)[1]))


def _normalised_sum(v: Vectors, tensors: Any, channels: Any, numbers: Any) -> Any:
    value = _at_least(v, numbers[0], _normal(v, tensors[0], channels)[1])
    return _at_least(v, numbers[1], v.add(value, tensors[1]))


def _normalised_backward(v: Vectors, tensors: Any, channels: Any, numbers: Any) -> Any:
    (dy, x), (_, slope, _, offset, tilt) = tensors, channels
    off, value = _normal(v, x, channels)
    arrived = _arrived(v, dy, value, *numbers)
    level = v.multiply_add(slope, arrived, v.builder.fneg(offset))
    return v.multiply_add(v.builder.fneg(tilt), off, level)


def _scaled(v: Vectors, tensors: Any, channels: Any, numbers: Any) -> Any:
    return _at_least(v, numbers[0], v.multiply_add(tensors[0], *channels))


def _moments(v: Vectors, tensors: Any, channels: Any, numbers: Any) -> Any:
    total, squares = numbers
    off = v.subtract(tensors[0], channels[0])
    return v.add(total, off), v.multiply_add(off, off, squares)


def _arriving(v: Vectors, tensors: Any, channels: Any, numbers: Any) -> Any:
    least, most, total, products = numbers
    off, value = _normal(v, tensors[1], channels)
    arrived = _arrived(v, tensors[0], value, least, most)
    return v.add(total, arrived), v.multiply_add(arrived, off, products)


_normalise, _normalise_past = _mapping(_normalised), _mapping(_normalised, past=True)
_normalise_sum, _normalise_sum_past = _mapping(_normalised_sum), _mapping(_normalised_sum, past=True)
_normalise_backward = _mapping(_normalised_backward)
_normalise_backward_past = _mapping(_normalised_backward, past=True)
_scale, _scale_past = _mapping(_scaled), _mapping(_scaled, past=True)
_settled = _settling()
_sum_moments, _sum_arriving = _summing(_moments), _summing(_arriving)


@compiled()
def line_moments(
    x: Array,
    shift: Array,
    near: Array,
    near_squares: Array,
    sums: Array,
    squares: Array,
    width: int,
    begin: int,
    end: int,
) -> None:
    rows = _SUMMED // x.itemsize
    whole = begin + max(0, min(end, x.size // width) - begin) // rows * rows
    by_line.line_moments(x, shift, near, near_squares, sums, squares, width, whole, end)
    for line in range(begin, whole, rows):
        _sum_moments((x,), (shift,), (), near, near_squares, line * width, width)
        if (line - begin) % _FOLD == _FOLD - rows or line == whole - rows:
            fold(near, sums, width)
            fold(near_squares, squares, width)


@compiled()
def line_arriving(
    dy: Array,
    x: Array,
    centre: Array,
    slope: Array,
    level: Array,
    least: float,
    most: float,
    near: Array,
    near_products: Array,
    sums: Array,
    products: Array,
    width: int,
    begin: int,
    end: int,
) -> None:
    rows = _SUMMED // x.itemsize
    whole = begin + max(0, min(end, x.size // width) - begin) // rows * rows
    lanes = near, near_products, sums, products
    by_line.line_arriving(dy, x, centre, slope, level, least, most, *lanes, width, whole, end)
    along, limits = (centre, slope, level), (number(least, x), number(most, x))
    for line in range(begin, whole, rows):
        _sum_arriving((dy, x), along, limits, near, near_products, line * width, width)
        if (line - begin) % _FOLD == _FOLD - rows or line == whole - rows:
            fold(near, sums, width)
            fold(near_products, products, width)


@compiled()
def line_normalised(
    x: Array,
    y: Array,
    centre: Array,
    slope: Array,
    level: Array,
    least: float,
    most: float,
    past: bool,
    width: int,
    begin: int,
    end: int,
) -> None:
    along, limits = (centre, slope, level), (number(least, x), number(most, x))
    line = begin
    while line + _ROWS <= min(end, x.size // width):
        if past:
            _normalise_past((x,), y, along, limits, line * width, width)
        else:
            _normalise((x,), y, along, limits, line * width, width)
        line += _ROWS
    if past:
        _settled()
    by_line.line_normalised(x, y, centre, slope, level, least, most, width, line, end)


@compiled()
def line_normalised_sum(
    x: Array,
    other: Array,
    y: Array,
    centre: Array,
    slope: Array,
    level: Array,
    least: float,
    least_sum: float,
    past: bool,
    width: int,
    begin: int,
    end: int,
) -> None:
    along, floors = (centre, slope, level), (number(least, x), number(least_sum, x))
    line = begin
    while line + _ROWS <= min(end, x.size // width):
        if past:
            _normalise_sum_past((x, other), y, along, floors, line * width, width)
        else:
            _normalise_sum((x, other), y, along, floors, line * width, width)
        line += _ROWS
    if past:
        _settled()
    by_line.line_normalised_sum(x, other, y, centre, slope, level, least, least_sum, width, line, end)


@compiled()
def line_normalised_backward(
    dy: Array,
    x: Array,
    dx: Array,
    centre: Array,
    slope: Array,
    level: Array,
    offset: Array,
    tilt: Array,
    least: float,
    most: float,
    past: bool,
    width: int,
    begin: int,
    end: int,
) -> None:
    along = (centre, slope, level, offset, tilt)
    limits = (number(least, x), number(most, x))
    line = begin
    while line + _ROWS <= min(end, x.size // width):
        if past:
            _normalise_backward_past((dy, x), dx, along, limits, line * width, width)
        else:
            _normalise_backward((dy, x), dx, along, limits, line * width, width)
        line += _ROWS
    if past:
        _settled()
    by_line.line_normalised_backward(
        dy, x, dx, centre, slope, level, offset, tilt, least, most, width, line, end
    )


@compiled()
def line_scaled(
    x: Array, y: Array, w: Array, b: Array, least: float, past: bool, width: int, begin: int, end: int
) -> None:
    line = begin
    while line + _ROWS <= min(end, x.size // width):
        if past:
            _scale_past((x,), y, (w, b), (number(least, x),), line * width, width)
        else:
            _scale((x,), y, (w, b), (number(least, x),), line * width, width)
        line += _ROWS
    if past:
        _settled()
    by_line.line_scaled(x, y, w, b, least, width, line, end)
