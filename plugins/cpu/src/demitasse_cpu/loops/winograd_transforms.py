"""Transforms of one tile for ``loops.winograd``, written in vectors.

All are numba intrinsics. They may therefore be imported by files that otherwise contain all numba
functions that their loops call. numba does not notice changes here, so a change that affects results
needs a change there.

A tile gives 4 x 4 results of three taps from 6 x 6 pixels, 2 x 2 from 4 x 4, or 4 x 4 of five taps from
8 x 8. The tuple ``form``, with as many members as a tile has pixels along an axis, says which; loops are
compiled for its type. An array of uint16 stores bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.vectors import Vectors


class _Form(NamedTuple):
    """A tile's taps and results along an axis. The points of interpolation are 0, infinity, plus and
    minus ``at``."""

    taps: int
    results: int
    at: Sequence[float]

    @property
    def pixels(self) -> int:
        return self.results + self.taps - 1

    @property
    def ones(self) -> Sequence[float]:
        """Factors that change nothing, at zero and at the points."""
        return [1.0] * (1 + len(self.at))


_FORMS = {
    4: _Form(3, 2, (1.0,)),
    6: _Form(3, 4, (0.5**0.5, 2.0**0.5)),
    8: _Form(5, 4, (0.5, 1.0, 2.0)),
}
"""The forms by the number of pixels along an axis. For six pixels, the points 1 and 2 of the paper made
errors two to five times as large. Measured against float64 with positive activations times random
weights and 64 to 512 channels, the root mean square error is 0.6 to 1.1e-6 of the results' own, and the
largest error 0.9 to 2.5e-6 of the largest result; a direct sum has 0.1 to 0.2e-6 and 0.2 to 0.3e-6. With
five taps and 32 to 128 channels, these are 1.8 to 3e-6 and 3.6 to 6.3e-6; ten other choices of points
were no better. For four pixels and 64 to 512 channels, they are 0.2 to 0.6e-6 and 0.2 to 0.8e-6."""

TAPS = tuple(_FORMS[i].taps if i in _FORMS else 0 for i in range(max(_FORMS) + 1))
RESULTS = tuple(_FORMS[i].results if i in _FORMS else 0 for i in range(max(_FORMS) + 1))
"""Results along an axis of a tile, by its number of pixels; zero if there is no such form."""

_Line = Sequence[Any]
_Transform = Callable[[Vectors, _Line], _Line]


def _polynomial(roots: Sequence[float]) -> list[float]:
    """Return the coefficients, the constant first, of the polynomial with these roots and leading
    coefficient 1."""
    coefficients = [1.0]
    for root in roots:
        longer = [0.0, *coefficients]
        coefficients = [x - root * y for x, y in zip(longer, [*coefficients, 0.0], strict=True)]
    return coefficients


def _others(points: Sequence[float], point: float) -> list[float]:
    """Return the squares of all points but one."""
    return [p * p for p in points if p != point]


def _over(points: Sequence[float]) -> list[float]:
    """Return the factors of G, and of G', at zero and at the points."""
    zero = 1 / prod(-p * p for p in points)
    return [zero, *(1 / (2 * p * p * prod(p * p - q for q in _others(points, p))) for p in points)]


def _of_image(v: Vectors, x: _Line, points: Sequence[float]) -> _Line:
    """Apply B' to a line."""
    squares = _polynomial([p * p for p in points])
    values = [v.sum(list(zip(squares, x[::2], strict=True)))]
    for p in points:
        factors = _polynomial(_others(points, p))
        even = v.sum(list(zip(factors, x[2::2], strict=True)))
        odd = v.sum(list(zip(factors, x[1:-1:2], strict=True)))
        values += [v.plus(even, p, odd), v.plus(even, -p, odd)]
    return (*values, v.sum(list(zip(squares, x[1::2], strict=True))))


def _to_image(v: Vectors, m: _Line, points: Sequence[float]) -> _Line:
    """Apply B to a line: the reverse of _of_image."""
    squares = _polynomial([p * p for p in points])
    parts = [_polynomial(_others(points, p)) for p in points]
    sums = [v.add(m[1 + 2 * i], m[2 + 2 * i]) for i in range(len(points))]
    differences = [v.scale(p, v.subtract(m[1 + 2 * i], m[2 + 2 * i])) for i, p in enumerate(points)]
    lines: list[Any] = []
    for k, square in enumerate(squares):
        even = [(square, m[0])]
        odd = [(square, m[-1])]
        if k > 0:
            even += [(factors[k - 1], x) for factors, x in zip(parts, sums, strict=True)]
        if k < len(points):
            odd += [(factors[k], x) for factors, x in zip(parts, differences, strict=True)]
        lines += [v.sum(even), v.sum(odd)]
    return lines


def _values(v: Vectors, c: _Line, points: Sequence[float], over: Sequence[float]) -> _Line:
    """Return the values at all points of a polynomial with the coefficients ``c``. With factors this
    applies G to a line of weights, without factors A to a line of results."""
    values = [v.scale(over[0], c[0])]
    for p, factor in zip(points, over[1:], strict=True):
        even = v.sum([(factor * p**i, x) for i, x in enumerate(c) if i % 2 == 0])
        odd = v.sum([(p ** (i - 1), x) for i, x in enumerate(c) if i % 2])
        values += [v.plus(even, factor * p, odd), v.plus(even, -factor * p, odd)]
    return (*values, c[-1])


def _moments(v: Vectors, m: _Line, count: int, points: Sequence[float], over: Sequence[float]) -> _Line:
    """Apply the transpose of ``_values`` to a line with a number for each point: with factors G',
    without factors A'."""
    pairs = [(m[i], m[i + 1]) for i in range(1, len(m) - 1, 2)]
    parts = [v.add(*pair) for pair in pairs], [v.subtract(*pair) for pair in pairs]
    lines = []
    for i in range(count):
        factors = [factor * p**i for p, factor in zip(points, over[1:], strict=True)]
        terms = list(zip(factors, parts[i % 2], strict=True))
        if i == 0:
            terms.append((over[0], m[0]))
        if i == count - 1:
            terms.append((1.0, m[-1]))
        lines.append(v.sum(terms))
    return lines


def _image(form: _Form) -> tuple[_Transform, int]:
    return partial(_of_image, points=form.at), form.pixels


def _result(form: _Form) -> tuple[_Transform, int]:
    return partial(_values, points=form.at, over=form.ones), form.results


def _finished(form: _Form) -> tuple[_Transform, int]:
    line = partial(_moments, count=form.results, points=form.at, over=form.ones)
    return line, form.pixels


def _spread(form: _Form) -> tuple[_Transform, int]:
    return partial(_to_image, points=form.at), form.pixels


def _weights(form: _Form) -> tuple[_Transform, int]:
    return partial(_values, points=form.at, over=_over(form.at)), form.taps


def _weight_gradient(form: _Form) -> tuple[_Transform, int]:
    line = partial(_moments, count=form.taps, points=form.at, over=_over(form.at))
    return line, form.pixels


_Kind = Callable[[_Form], tuple[_Transform, int]]


def _transform(kind: _Kind, ahead: bool = False, adding: bool = False) -> Any:
    """Return an intrinsic that transforms the columns, then the rows, of as many vectors as the ``kind``
    takes. The arrays are each followed by the offset of the first vector and the distances down and
    across. ``ahead`` meanwhile prefetches the columns of x that the next tile has beyond these: a tile
    of 64 channels from memory took 600 ns, and 250 ns if the tile before had prefetched it. ``adding``
    adds to what y holds."""
    n = types.int64

    def typed(
        context: Any,
        form: Any,
        x: Any,
        at: Any,
        down: Any,
        across: Any,
        y: Any,
        y_at: Any,
        y_down: Any,
        y_across: Any,
    ) -> Any:
        line, extent = kind(_FORMS[form.count])
        following = RESULTS[form.count] if ahead else 0

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            source, target = (v.data(context, signature, args, i) for i in (1, 5))
            for j in range(extent, extent + following):
                for i in range(extent):
                    v.fetch(source, v.offset(args[2:5], i, j))
            columns = [
                line(v, [v.load(source, v.offset(args[2:5], i, j), x.dtype) for i in range(extent)])
                for j in range(extent)
            ]
            for i in range(len(columns[0])):
                for j, value in enumerate(line(v, [column[i] for column in columns])):
                    place = v.offset(args[6:9], i, j)
                    v.store(v.add(v.load(target, place), value) if adding else value, target, place)
            return context.get_dummy_value()

        return types.void(form, x, n, n, n, y, n, n, n), generate

    return intrinsic(typed)


def _transform_edge(kind: _Kind, masked: bool) -> Any:
    """Like _transform, but two tables say where the rows and columns of x are: ``rows`` from ``r`` on
    and ``columns`` from ``c`` on. Those with a negative place are zero, like the vector ``zeros``. If
    ``masked``, only ``live`` lanes exist."""
    n = types.int64

    def typed(
        context: Any,
        form: Any,
        x: Any,
        at: Any,
        live: Any,
        rows: Any,
        r: Any,
        columns: Any,
        c: Any,
        y: Any,
        y_at: Any,
        y_down: Any,
        y_across: Any,
        zeros: Any,
    ) -> Any:
        line, extent = kind(_FORMS[form.count])

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            source, target, zeros = (v.data(context, signature, args, i) for i in (1, 8, 12))
            source = builder.gep(source, [args[2]])
            mask = v.first(args[3]) if masked else None
            rows = v.places(context, signature, args, 4, extent)
            places = v.places(context, signature, args, 6, extent)
            columns = [
                line(
                    v,
                    [
                        v.load(v.there(source, row, place, zeros), v.index(0), x.dtype, mask)
                        for row in rows
                    ],
                )
                for place in places
            ]
            for i in range(len(columns[0])):
                for j, value in enumerate(line(v, [column[i] for column in columns])):
                    v.store(value, target, v.offset(args[9:12], i, j))
            return context.get_dummy_value()

        return types.void(form, x, n, n, rows, n, columns, n, y, n, n, n, zeros), generate

    return intrinsic(typed)


IMAGE, RESULT = _transform(_image, True), _transform(_result, True)
IMAGE_EDGE, RESULT_EDGE = _transform_edge(_image, False), _transform_edge(_result, False)
IMAGE_PART, RESULT_PART = _transform_edge(_image, True), _transform_edge(_result, True)
WEIGHTS, WEIGHT_GRADIENT = _transform(_weights), _transform(_weight_gradient)
SPREAD = _transform(_spread, adding=True)


def _total(masked: bool) -> Any:
    """Return an intrinsic that adds the sum of a tile of results to a vector of y. Their places are as
    in _transform_edge."""
    n = types.int64

    def typed(
        context: Any,
        form: Any,
        x: Any,
        at: Any,
        live: Any,
        rows: Any,
        r: Any,
        columns: Any,
        c: Any,
        y: Any,
        y_at: Any,
        zeros: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            source, target, zeros = (v.data(context, signature, args, i) for i in (1, 8, 10))
            source = builder.gep(source, [args[2]])
            mask = v.first(args[3]) if masked else None
            rows = v.places(context, signature, args, 4, RESULTS[form.count])
            places = v.places(context, signature, args, 6, RESULTS[form.count])
            values = [
                v.load(v.there(source, row, place, zeros), v.index(0), x.dtype, mask)
                for row in rows
                for place in places
            ]
            while len(values) > 1:
                values = [v.add(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
            v.store(v.add(v.load(target, args[9]), values[0]), target, args[9])
            return context.get_dummy_value()

        return types.void(form, x, n, n, rows, n, columns, n, y, n, zeros), generate

    return intrinsic(typed)


TOTAL, TOTAL_PART = _total(False), _total(True)


def _finish(masked: bool) -> Any:
    """Return an intrinsic that writes a tile of results, A' m A plus the bias and nothing below
    ``floor``, to where two tables say; what has a negative place goes to ``nowhere``. The next tile is
    ``following`` numbers further. If ``masked``, only ``live`` lanes are written."""
    n = types.int64

    def typed(
        context: Any,
        form: Any,
        m: Any,
        at: Any,
        step: Any,
        bias: Any,
        first: Any,
        floor: Any,
        y: Any,
        y_at: Any,
        live: Any,
        rows: Any,
        r: Any,
        columns: Any,
        c: Any,
        nowhere: Any,
        following: Any,
    ) -> Any:
        signature = types.void(
            form, m, n, n, bias, n, types.float64, y, n, n, rows, n, columns, n, nowhere, n
        )
        line, points = _finished(_FORMS[form.count])
        results = RESULTS[form.count]

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = Vectors(builder)
            source, biases, target, nowhere = (
                v.data(context, signature, args, i) for i in (1, 4, 7, 14)
            )
            target = builder.gep(target, [args[8]])
            mask = v.first(args[9]) if masked else None
            rows, places = (v.places(context, signature, args, i, results) for i in (10, 12))
            offset = v.load(biases, args[5])
            lowest = v.splat(builder.fptrunc(args[6], ir.FloatType()))
            columns = []
            for j in range(points):
                at = [v.offset((args[2], args[3], args[3]), points * i, j) for i in range(points)]
                columns.append(line(v, [v.load(source, place) for place in at]))
            for row in rows:
                for place in places:
                    there = builder.add(builder.add(row, place), args[15])
                    v.fetch(target, there, to_write=True)
            for i, row in enumerate(rows):
                values = line(v, [column[i] for column in columns])
                for place, value in zip(places, values, strict=True):
                    value = v.add(value, offset)
                    # This comparison passes NaN on.
                    value = builder.select(builder.fcmp_ordered(">", lowest, value), lowest, value)
                    v.store(value, v.there(target, row, place, nowhere), v.index(0), y.dtype, mask)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


FINISH, FINISH_PART = _finish(False), _finish(True)
