"""Transforms of one tile and tiles of products for ``loops.winograd``, written in vectors.

All are parts of the compiler's own (intrinsics), so that they may be imported where loops with all
the numba functions that they call stand in one file; numba does not see a change here, so one that
changes results needs a change there too.

A tile gives 4 x 4 results: of three taps from 6 x 6 pixels, of five from 8 x 8. ``form``, a tuple of
as many numbers as there are taps, says which: loops are compiled for its type. Where an array is of
uint16 it stores bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.bfloat16 import narrowed_vector, widened_vector
from demitasse_cpu.loops.tiles import ROWS, lanes

_POINTS = {3: (0.5**0.5, 2.0**0.5), 5: (0.5, 1.0, 2.0)}
"""Interpolation is at 0, infinity, and plus and minus these, by the number of taps in a line. With three
taps and 1 and 2, the points of the paper, errors were two to five times as large. Against float64, of
activations above zero times random weights, 64 to 512 channels: root mean square 0.6 to 1.1e-6 of the
results' own, at most 0.9 to 2.5e-6 of the largest; summed directly 0.1 to 0.2e-6 and 0.2 to 0.3e-6.
With five taps, 32 to 128 channels: 1.8 to 3e-6 and 3.6 to 6.3e-6; ten other choices were no better."""

RESULTS = 4
"""In a line of a tile."""

LANES = lanes(4)

_I1, _I32, _I64, _F32 = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()


class _Vectors:
    """Arithmetic on vectors of float32 while LLVM code is built."""

    kind = ir.VectorType(_F32, LANES)
    mask = ir.VectorType(_I1, LANES)

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._multiply_add = self._function(f"llvm.fmuladd.v{LANES}f32", self.kind, [self.kind] * 3)

    def _function(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        kind = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self.builder.module, kind, name)  # type: ignore[no-untyped-call]

    def index(self, value: int) -> Any:
        return ir.Constant(_I64, value)

    def data(self, context: Any, signature: Any, args: Any, position: int) -> Any:
        """Where an array argument's numbers begin."""
        return context.make_array(signature.args[position])(context, self.builder, args[position]).data

    def offset(self, place: Sequence[Any], i: int, j: int) -> Any:
        """i down and j across from a place: an offset and the distances down and across."""
        at, down, across = place
        row = self.builder.add(at, self.builder.mul(down, self.index(i)))
        return self.builder.add(row, self.builder.mul(across, self.index(j)))

    def places(self, context: Any, signature: Any, args: Any, position: int, count: int) -> list[Any]:
        """Consecutive numbers of a table: the argument at ``position``, from the next one on."""
        table = self.data(context, signature, args, position)
        at = [self.builder.add(args[position + 1], self.index(i)) for i in range(count)]
        return [self.builder.load(self.builder.gep(table, [place])) for place in at]

    def there(self, pointer: Any, row: Any, column: Any, otherwise: Any) -> Any:
        """Where a row and a column meet, or ``otherwise`` if one of them is negative."""
        place = self.builder.gep(pointer, [self.builder.add(row, column)])
        exists = self.builder.icmp_signed(">=", self.builder.or_(row, column), self.index(0))
        return self.builder.select(exists, place, self.builder.bitcast(otherwise, place.type))

    def constant(self, value: float) -> Any:
        return ir.Constant(self.kind, [value] * LANES)

    def add(self, x: Any, y: Any) -> Any:
        return self.builder.fadd(x, y)

    def subtract(self, x: Any, y: Any) -> Any:
        return self.builder.fsub(x, y)

    def scale(self, factor: float, x: Any) -> Any:
        return x if factor == 1 else self.builder.fmul(self.constant(factor), x)

    def plus(self, z: Any, factor: float, x: Any) -> Any:
        """z + factor * x, rounded once where the processor can."""
        return self.add(z, x) if factor == 1 else self.multiply_add(self.constant(factor), x, z)

    def sum(self, terms: Sequence[tuple[float, Any]]) -> Any:
        """Of factors times vectors, those without a factor first."""
        (factor, x), *others = sorted(terms, key=lambda term: term[0] != 1)
        total = self.scale(factor, x)
        for factor, x in others:
            total = self.plus(total, factor, x)
        return total

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        return self.builder.call(self._multiply_add, [x, y, z])

    def splat(self, value: Any) -> Any:
        nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
        first = self.builder.insert_element(nothing, value, _I32(0))
        lanes_of_first = ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, nothing, lanes_of_first)

    def first(self, count: Any) -> Any:
        """The mask of as many lanes."""
        numbers = ir.Constant(ir.VectorType(_I32, LANES), list(range(LANES)))
        return self.builder.icmp_signed("<", numbers, self.splat(self.builder.trunc(count, _I32)))

    def load(
        self, pointer: Any, offset: Any, stored: Any = types.float32, mask: Any | None = None
    ) -> Any:
        """A vector as it is ``stored``; zeros in the lanes that a mask leaves out, which may lie
        behind an array's end."""
        kind, align, name = self._kind(stored)
        place = self.builder.bitcast(self.builder.gep(pointer, [offset]), kind.as_pointer())
        if mask is None:
            value = self.builder.load(place)
            value.align = align
        else:
            load = self._function(
                f"llvm.masked.load.{name}.p0", kind, [place.type, _I32, self.mask, kind]
            )
            value = self.builder.call(load, [place, _I32(align), mask, ir.Constant(kind, None)])
        return widened_vector(self.builder, value, stored)

    def store(
        self,
        value: Any,
        pointer: Any,
        offset: Any,
        stored: Any = types.float32,
        mask: Any | None = None,
    ) -> None:
        kind, align, name = self._kind(stored)
        place = self.builder.bitcast(self.builder.gep(pointer, [offset]), kind.as_pointer())
        kept = narrowed_vector(self.builder, value, stored)
        if mask is None:
            self.builder.store(kept, place).align = align
        else:
            store = self._function(
                f"llvm.masked.store.{name}.p0", ir.VoidType(), [kind, place.type, _I32, self.mask]
            )
            self.builder.call(store, [kept, place, _I32(align), mask])

    def _kind(self, stored: Any) -> tuple[Any, int, str]:
        """The vector type of numbers in memory, their alignment and the type's name in LLVM's."""
        if stored == types.uint16:
            return ir.VectorType(ir.IntType(16), LANES), 2, f"v{LANES}i16"
        return self.kind, 4, f"v{LANES}f32"

    def fetch(self, pointer: Any, offset: Any, to_write: bool = False) -> None:
        """Have memory brought to the caches that will be read soon."""
        byte = ir.IntType(8).as_pointer()
        prefetch = self._function("llvm.prefetch.p0", ir.VoidType(), [byte, _I32, _I32, _I32])
        place = self.builder.bitcast(self.builder.gep(pointer, [offset]), byte)
        self.builder.call(prefetch, [place, _I32(int(to_write)), _I32(3), _I32(1)])


_Line = Sequence[Any]
_Transform = Callable[[_Vectors, _Line], _Line]


def _polynomial(roots: Sequence[float]) -> list[float]:
    """The coefficients, the constant first, of what is zero at the roots and grows like a power."""
    coefficients = [1.0]
    for root in roots:
        longer = [0.0, *coefficients]
        coefficients = [x - root * y for x, y in zip(longer, [*coefficients, 0.0], strict=True)]
    return coefficients


def _others(points: Sequence[float], point: float) -> list[float]:
    """The squares of the points but one."""
    return [p * p for p in points if p != point]


def _over(points: Sequence[float]) -> list[float]:
    """Factors of G, and of G', at zero and at the points."""
    zero = 1 / prod(-p * p for p in points)
    return [zero, *(1 / (2 * p * p * prod(p * p - q for q in _others(points, p))) for p in points)]


def _of_image(v: _Vectors, x: _Line, points: Sequence[float]) -> _Line:
    """B' of a line."""
    squares = _polynomial([p * p for p in points])
    values = [v.sum(list(zip(squares, x[::2], strict=True)))]
    for p in points:
        factors = _polynomial(_others(points, p))
        even = v.sum(list(zip(factors, x[2::2], strict=True)))
        odd = v.sum(list(zip(factors, x[1:-1:2], strict=True)))
        values += [v.plus(even, p, odd), v.plus(even, -p, odd)]
    return (*values, v.sum(list(zip(squares, x[1::2], strict=True))))


def _values(v: _Vectors, c: _Line, points: Sequence[float], over: Sequence[float]) -> _Line:
    """The values of a polynomial at all points, by its coefficients: with factors G of a line of
    weights, without A of a line of results."""
    values = [v.scale(over[0], c[0])]
    for p, factor in zip(points, over[1:], strict=True):
        even = v.sum([(factor * p**i, x) for i, x in enumerate(c) if i % 2 == 0])
        odd = v.sum([(p ** (i - 1), x) for i, x in enumerate(c) if i % 2])
        values += [v.plus(even, factor * p, odd), v.plus(even, -factor * p, odd)]
    return (*values, c[-1])


def _moments(v: _Vectors, m: _Line, count: int, points: Sequence[float], over: Sequence[float]) -> _Line:
    """The same turned round: of a line of as many as the points, with factors G' and without A'."""
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


def _image(taps: int) -> tuple[_Transform, int]:
    return partial(_of_image, points=_POINTS[taps]), RESULTS + taps - 1


def _result(taps: int) -> tuple[_Transform, int]:
    points = _POINTS[taps]
    return partial(_values, points=points, over=[1.0] * (1 + len(points))), RESULTS


def _finished(taps: int) -> tuple[_Transform, int]:
    points = _POINTS[taps]
    line = partial(_moments, count=RESULTS, points=points, over=[1.0] * (1 + len(points)))
    return line, RESULTS + taps - 1


def _weights(taps: int) -> tuple[_Transform, int]:
    points = _POINTS[taps]
    return partial(_values, points=points, over=_over(points)), taps


def _weight_gradient(taps: int) -> tuple[_Transform, int]:
    points = _POINTS[taps]
    return partial(_moments, count=taps, points=points, over=_over(points)), RESULTS + taps - 1


def _transform(kind: Callable[[int], tuple[_Transform, int]], ahead: bool = False) -> Any:
    """Transform the columns, then the rows, of as many vectors as the ``kind`` has. The arrays each
    have the offset of the first vector, then the distances down and across. ``ahead``: meanwhile the
    columns of x that the next tile has beside these are brought near. A tile of 64 channels from
    memory took 600 ns, and 250 when the tile before had asked for it."""
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
        line, extent = kind(form.count)
        following = RESULTS if ahead else 0

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = _Vectors(builder)
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
                    v.store(value, target, v.offset(args[6:9], i, j))
            return context.get_dummy_value()

        return types.void(form, x, n, n, n, y, n, n, n), generate

    return intrinsic(typed)


def _transform_edge(kind: Callable[[int], tuple[_Transform, int]], masked: bool) -> Any:
    """_transform where the rows and columns of x lie where two tables say, ``rows`` from ``r`` on and
    ``columns`` from ``c`` on; those with a negative place are zero, as are ``zeros``, one vector. If
    ``masked``, only ``live`` lanes are there."""
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
        line, extent = kind(form.count)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = _Vectors(builder)
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


def _finish(masked: bool) -> Any:
    """A tile of results, A' m A plus the bias and nothing below ``floor``, to where two tables say;
    what has a negative place goes to ``nowhere``. The next tile is ``following`` numbers on. If
    ``masked``, only ``live`` lanes are written."""
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
        line, points = _finished(form.count)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = _Vectors(builder)
            source, biases, target, nowhere = (
                v.data(context, signature, args, i) for i in (1, 4, 7, 14)
            )
            target = builder.gep(target, [args[8]])
            mask = v.first(args[9]) if masked else None
            rows, places = (v.places(context, signature, args, i, RESULTS) for i in (10, 12))
            offset = v.load(biases, args[5])
            lowest = v.splat(builder.fptrunc(args[6], _F32))
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
                    # The comparison that lets a value which is no number pass.
                    value = builder.select(builder.fcmp_ordered(">", lowest, value), lowest, value)
                    v.store(value, v.there(target, row, place, nowhere), v.index(0), y.dtype, mask)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


FINISH, FINISH_PART = _finish(False), _finish(True)


def _tile(rows: int, vectors: int) -> Any:
    """c[r, v] (+)= sum over t of a[r, t] * b[t, v]: c has ``c_row`` between rows, a ``a_row`` between
    rows and ``a_step`` between terms, b ``b_step``; ``more`` adds to what c holds."""

    def products(module: Any, kind: Any, name: str) -> Any:
        function = ir.Function(module, kind, name)
        function.linkage = "internal"
        # Amid a loop's other code 8 rows of 3 vectors reached 165 GFLOP/s on one core, and 250 as a
        # function of its own; the others reach that anyway.
        function.attributes.add("noinline" if vectors == 3 else "alwaysinline")
        builder = ir.IRBuilder(function.append_basic_block())
        v, index = _Vectors(builder), _I64
        source, panel, out, a_row, a_step, b_step, c_row, count, more = function.args
        cells = [(r, j) for r in range(rows) for j in range(vectors)]
        row = [builder.gep(source, [builder.mul(a_row, index(r))]) for r in range(rows)]
        place = {(r, j): builder.add(builder.mul(c_row, index(r)), index(j * LANES)) for r, j in cells}

        entry = builder.block
        resumed = builder.append_basic_block("resumed")
        body = builder.append_basic_block("terms")
        done = builder.append_basic_block("done")
        builder.cbranch(builder.icmp_signed("!=", more, index(0)), resumed, body)
        builder.position_at_end(resumed)
        before = [v.load(out, place[cell]) for cell in cells]
        # The next tile's come from a far cache where weights are many: for gradients of 256 x 256
        # channels two cores took 28 ms so, and 32 to 36 without.
        tile = builder.mul(c_row, index(rows))
        for cell in cells:
            v.fetch(out, builder.add(place[cell], tile), to_write=True)
        builder.branch(body)

        builder.position_at_end(body)
        t, at, b_at = builder.phi(index), builder.phi(index), builder.phi(index)
        sums = [builder.phi(v.kind) for _ in cells]
        channel = [v.load(panel, builder.add(b_at, index(j * LANES))) for j in range(vectors)]
        after = []
        for r in range(rows):
            value = v.splat(builder.load(builder.gep(row[r], [at])))
            for j in range(vectors):
                after.append(v.multiply_add(value, channel[j], sums[r * vectors + j]))
        following = builder.add(t, index(1))
        for phi, step in ((t, index(1)), (at, a_step), (b_at, b_step)):
            new = following if phi is t else builder.add(phi, step)
            phi.add_incoming(index(0), entry)
            phi.add_incoming(index(0), resumed)
            phi.add_incoming(new, body)
        for total, old, new in zip(sums, before, after, strict=True):
            total.add_incoming(v.constant(0.0), entry)
            total.add_incoming(old, resumed)
            total.add_incoming(new, body)
        builder.cbranch(builder.icmp_signed("<", following, count), body, done)

        builder.position_at_end(done)
        for cell, total in zip(cells, after, strict=True):
            v.store(total, out, place[cell])
        builder.ret_void()
        return function

    def typed(
        context: Any,
        a: Any,
        a_at: Any,
        a_row: Any,
        a_step: Any,
        b: Any,
        b_at: Any,
        b_step: Any,
        c: Any,
        c_at: Any,
        c_row: Any,
        count: Any,
        more: Any,
    ) -> Any:
        n = types.int64
        signature = types.void(a, n, n, n, b, n, n, c, n, n, n, n)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = _Vectors(builder)
            data = [v.data(context, signature, args, i) for i in (0, 4, 7)]
            starts = [builder.gep(x, [args[i]]) for x, i in zip(data, (1, 5, 8), strict=True)]
            given = [*starts, *(args[i] for i in (2, 3, 6, 9, 10, 11))]
            kind = ir.FunctionType(ir.VoidType(), [value.type for value in given])
            name = f"winograd_tile_{rows}_{vectors}"
            function = builder.module.globals.get(name) or products(builder.module, kind, name)
            builder.call(function, given)
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


TILE_1, TILE_2 = _tile(ROWS[1], 1), _tile(ROWS[2], 2)
TILE_3, TILE_4 = (_tile(ROWS[3], 3), _tile(ROWS[4], 4)) if len(ROWS) > 3 else (TILE_1, TILE_1)
