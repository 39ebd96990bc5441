"""Convolution with 3 x 3 taps by Winograd's minimal filtering F(4 x 4, 3 x 3).

A tile of 4 x 4 results needs 6 x 6 values of a channel, and 36 products where the definition has 144:
``y = A' [(G w G') * (B' x B)] A`` (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks,
2015, section 4). Per position of the 36 the products are a matrix product, of tiles x channels and
channels x outputs. So a block of tiles is transformed (``v``), multiplied with the weights' panels
(``m``), and transformed back, all by one thread and near its caches. The gradient of the weights is
the same turned round: ``dw = G' [(A dy A') * (B' x B)] G``, summed over the tiles.

Images lie with their channels innermost, and vectors run along these. The interpolation points are 0,
+-NEAR, +-FAR and infinity; see the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.products import ROWS, lanes

NEAR, FAR = 0.5**0.5, 2.0**0.5
"""With 1 and 2, the points of the paper, errors were two to five times as large. Against float64, of
activations above zero times random weights, 64 to 512 channels: root mean square 0.6 to 1.1e-6 of the
results' own, at most 0.9 to 2.5e-6 of the largest; summed directly 0.1 to 0.2e-6 and 0.2 to 0.3e-6."""

POSITIONS = 36

LANES = lanes(4)
PANEL = (len(ROWS) - 1) * LANES
"""Channels that are multiplied together: as many vectors as a tile of sums can have."""

_SQUARE_ROWS = max(-(-PANEL // rows) * rows for rows in ROWS[1:])

SQUARE = POSITIONS * (_SQUARE_ROWS * PANEL + LANES)
"""Numbers in the transformed gradient of a panel of channels under a panel of outputs."""

PATCH = np.array([i * 4 * LANES for i in range(4)] + [i * LANES for i in range(4)])
"""Where the lines, and where the pixels in a line, of a tile of results in one vector lie."""

_DEPTH = 128
"""Terms that a tile of sums takes at a time: so many rows of a panel lie in the first cache."""

_BATCH = 8
"""Channels whose weights are put in order together."""


class Tiles(NamedTuple):
    """Where tiles lie in images of ``channels`` and results of ``outputs``, channels innermost.

    Tile t is tile row t // across, tile column t % across. The six lines of x that tile row r reads
    begin at ``rows[6 * r + i]``, and its pixels in a line at ``columns``; so do the four lines and
    pixels of y at ``result_rows`` and ``result_columns``. A negative one stands for zeros of x, and
    for what of y is not there. Neighbours lie ``down_step`` and ``across_step`` apart unless an edge
    is between them.
    """

    channels: int
    outputs: int
    across: int
    rows: Array
    columns: Array
    down_step: int
    across_step: int
    result_rows: Array
    result_columns: Array
    result_down_step: int
    result_across_step: int


class Lie(NamedTuple):
    """How transformed tiles lie: panel q of channels, position p, tile t begin at
    ``q * panel + p * position + t * row``."""

    panel: int
    position: int
    row: int


class Taps(NamedTuple):
    """Distances in w between channels and between outputs of the nine weights of a pair, and whether
    these are taken backwards, as for the gradient of the data."""

    channel_step: int
    output_step: int
    turned: bool


class _Vectors:
    """Arithmetic on vectors of float32 while LLVM code is built."""

    kind = ir.VectorType(ir.FloatType(), LANES)

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._multiply_add = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            builder.module,
            ir.FunctionType(self.kind, [self.kind] * 3),
            f"llvm.fmuladd.v{LANES}f32",
        )

    def index(self, value: int) -> Any:
        return ir.Constant(ir.IntType(64), value)

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
        return self.builder.select(exists, place, otherwise)

    def constant(self, value: float) -> Any:
        return ir.Constant(self.kind, [value] * LANES)

    def add(self, x: Any, y: Any) -> Any:
        return self.builder.fadd(x, y)

    def subtract(self, x: Any, y: Any) -> Any:
        return self.builder.fsub(x, y)

    def scale(self, factor: float, x: Any) -> Any:
        return self.builder.fmul(self.constant(factor), x)

    def plus(self, z: Any, factor: float, x: Any) -> Any:
        """z + factor * x, rounded once where the processor can."""
        return self.multiply_add(self.constant(factor), x, z)

    def multiply_add(self, x: Any, y: Any, z: Any) -> Any:
        return self.builder.call(self._multiply_add, [x, y, z])

    def splat(self, value: Any) -> Any:
        nothing = ir.Constant(self.kind, ir.Undefined)
        first = self.builder.insert_element(nothing, value, ir.IntType(32)(0))
        lanes_of_first = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, nothing, lanes_of_first)

    def place(self, pointer: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(pointer, [offset]), self.kind.as_pointer())

    def load(self, pointer: Any, offset: Any) -> Any:
        value = self.builder.load(self.place(pointer, offset))
        value.align = 4
        return value

    def fetch(self, pointer: Any, offset: Any, to_write: bool = False) -> None:
        """Have memory brought to the caches that will be read soon."""
        byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
            self.builder.module,
            ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        place = self.builder.bitcast(self.builder.gep(pointer, [offset]), byte)
        self.builder.call(prefetch, [place, flag(int(to_write)), flag(3), flag(1)])

    def store(self, value: Any, pointer: Any, offset: Any) -> None:
        self.builder.store(value, self.place(pointer, offset)).align = 4


_Line = Sequence[Any]
_N2, _F2 = NEAR * NEAR, FAR * FAR
_OVER_ZERO = 1 / (_N2 * _F2)
_OVER_NEAR, _OVER_FAR = 1 / (2 * _N2 * (_N2 - _F2)), 1 / (2 * _F2 * (_F2 - _N2))


def _of_image(v: _Vectors, x: _Line) -> _Line:
    """B' of a line of six."""
    near, near_odd = v.plus(x[4], -_F2, x[2]), v.plus(x[3], -_F2, x[1])
    far, far_odd = v.plus(x[4], -_N2, x[2]), v.plus(x[3], -_N2, x[1])
    return (
        v.plus(v.plus(x[4], -_N2 - _F2, x[2]), _N2 * _F2, x[0]),
        v.plus(near, NEAR, near_odd),
        v.plus(near, -NEAR, near_odd),
        v.plus(far, FAR, far_odd),
        v.plus(far, -FAR, far_odd),
        v.plus(v.plus(x[5], -_N2 - _F2, x[3]), _N2 * _F2, x[1]),
    )


def _of_weights(v: _Vectors, w: _Line) -> _Line:
    """G of a line of three."""
    near = v.plus(v.scale(_OVER_NEAR, w[0]), _N2 * _OVER_NEAR, w[2])
    far = v.plus(v.scale(_OVER_FAR, w[0]), _F2 * _OVER_FAR, w[2])
    return (
        v.scale(_OVER_ZERO, w[0]),
        v.plus(near, NEAR * _OVER_NEAR, w[1]),
        v.plus(near, -NEAR * _OVER_NEAR, w[1]),
        v.plus(far, FAR * _OVER_FAR, w[1]),
        v.plus(far, -FAR * _OVER_FAR, w[1]),
        w[2],
    )


def _to_result(v: _Vectors, m: _Line) -> _Line:
    """A' of a line of six."""
    near, near_odd = v.add(m[1], m[2]), v.subtract(m[1], m[2])
    far, far_odd = v.add(m[3], m[4]), v.subtract(m[3], m[4])
    return (
        v.add(m[0], v.add(near, far)),
        v.plus(v.scale(NEAR, near_odd), FAR, far_odd),
        v.plus(v.scale(_N2, near), _F2, far),
        v.plus(v.plus(m[5], NEAR * _N2, near_odd), FAR * _F2, far_odd),
    )


def _of_result(v: _Vectors, y: _Line) -> _Line:
    """A of a line of four."""
    near, near_odd = v.plus(y[0], _N2, y[2]), v.plus(v.scale(NEAR, y[1]), NEAR * _N2, y[3])
    far, far_odd = v.plus(y[0], _F2, y[2]), v.plus(v.scale(FAR, y[1]), FAR * _F2, y[3])
    return (
        y[0],
        v.add(near, near_odd),
        v.subtract(near, near_odd),
        v.add(far, far_odd),
        v.subtract(far, far_odd),
        y[3],
    )


def _to_weights(v: _Vectors, u: _Line) -> _Line:
    """G' of a line of six."""
    near, near_odd = v.add(u[1], u[2]), v.subtract(u[1], u[2])
    far, far_odd = v.add(u[3], u[4]), v.subtract(u[3], u[4])
    first = v.plus(v.scale(_OVER_NEAR, near), _OVER_FAR, far)
    return (
        v.plus(first, _OVER_ZERO, u[0]),
        v.plus(v.scale(NEAR * _OVER_NEAR, near_odd), FAR * _OVER_FAR, far_odd),
        v.plus(v.plus(u[5], _N2 * _OVER_NEAR, near), _F2 * _OVER_FAR, far),
    )


def _transform(line: Callable[[_Vectors, _Line], _Line], extent: int, ahead: int = 0) -> Any:
    """Apply ``line`` to the columns, then to the rows of ``extent`` x ``extent`` vectors. The arrays
    each have the offset of the first vector, then the distances down and across. Meanwhile the
    ``ahead`` columns of x that follow are brought near: a tile of 64 channels from memory took 600 ns,
    and 250 when the tile before had asked for it."""
    n = types.int64

    def typed(
        context: Any,
        x: Any,
        at: Any,
        down: Any,
        across: Any,
        y: Any,
        y_at: Any,
        y_down: Any,
        y_across: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = _Vectors(builder)
            source, target = (v.data(context, signature, args, i) for i in (0, 4))
            for j in range(extent, extent + ahead):
                for i in range(extent):
                    v.fetch(source, v.offset(args[1:4], i, j))
            columns = [
                line(v, [v.load(source, v.offset(args[1:4], i, j)) for i in range(extent)])
                for j in range(extent)
            ]
            for i in range(len(columns[0])):
                for j, value in enumerate(line(v, [column[i] for column in columns])):
                    v.store(value, target, v.offset(args[5:8], i, j))
            return context.get_dummy_value()

        return types.void(x, n, n, n, y, n, n, n), generate

    return intrinsic(typed)


def _transform_edge(line: Callable[[_Vectors, _Line], _Line], extent: int) -> Any:
    """_transform where the rows and columns of x lie where two tables say, ``rows`` from ``r`` on and
    ``columns`` from ``c`` on; those with a negative place are zero, as are ``zeros``, one vector."""
    n = types.int64

    def typed(
        context: Any,
        x: Any,
        at: Any,
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
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            v = _Vectors(builder)
            source, target, zeros = (v.data(context, signature, args, i) for i in (0, 6, 10))
            source = builder.gep(source, [args[1]])
            rows = v.places(context, signature, args, 2, extent)
            places = v.places(context, signature, args, 4, extent)
            columns = [
                line(v, [v.load(v.there(source, row, place, zeros), v.index(0)) for row in rows])
                for place in places
            ]
            for i in range(len(columns[0])):
                for j, value in enumerate(line(v, [column[i] for column in columns])):
                    v.store(value, target, v.offset(args[7:10], i, j))
            return context.get_dummy_value()

        return types.void(x, n, rows, n, columns, n, y, n, n, n, zeros), generate

    return intrinsic(typed)


_IMAGE, _IMAGE_EDGE = _transform(_of_image, 6, 4), _transform_edge(_of_image, 6)
_RESULT, _RESULT_EDGE = _transform(_of_result, 4, 4), _transform_edge(_of_result, 4)
_WEIGHTS, _WEIGHT_GRADIENT = _transform(_of_weights, 3), _transform(_to_weights, 6)


def _finish_typed(
    context: Any,
    m: Any,
    at: Any,
    step: Any,
    bias: Any,
    first: Any,
    floor: Any,
    y: Any,
    y_at: Any,
    rows: Any,
    r: Any,
    columns: Any,
    c: Any,
    nowhere: Any,
    following: Any,
) -> Any:
    """A tile of results, A' m A plus the bias and nothing below ``floor``, to where two tables say;
    what has a negative place goes to ``nowhere``. The next tile is ``following`` numbers on."""
    n = types.int64
    signature = types.void(m, n, n, bias, n, types.float64, y, n, rows, n, columns, n, nowhere, n)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = _Vectors(builder)
        source, biases, target, nowhere = (v.data(context, signature, args, i) for i in (0, 3, 6, 12))
        target = builder.gep(target, [args[7]])
        rows, places = (v.places(context, signature, args, i, 4) for i in (8, 10))
        offset = v.load(biases, args[4])
        lowest = v.splat(builder.fptrunc(args[5], ir.FloatType()))
        columns = []
        for j in range(6):
            at = [v.offset((args[1], args[2], args[2]), 6 * i, j) for i in range(6)]
            columns.append(_to_result(v, [v.load(source, place) for place in at]))
        for row in rows:
            for place in places:
                there = builder.add(builder.add(row, place), args[13])
                v.fetch(target, there, to_write=True)
        for i, row in enumerate(rows):
            line = _to_result(v, [column[i] for column in columns])
            for place, value in zip(places, line, strict=True):
                value = v.add(value, offset)
                # The comparison that lets a value which is no number pass.
                value = builder.select(builder.fcmp_ordered(">", lowest, value), lowest, value)
                v.store(value, v.there(target, row, place, nowhere), v.index(0))
        return context.get_dummy_value()

    return signature, generate


_FINISH: Any = intrinsic(_finish_typed)


def _tile(rows: int, vectors: int) -> Any:
    """c[r, v] (+)= sum over t of a[r, t] * b[t, v]: c has ``c_row`` between rows, a ``a_row`` between
    rows and ``a_step`` between terms, b ``b_step``; ``more`` adds to what c holds."""

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
            v, index = _Vectors(builder), ir.IntType(64)
            source, panel, out = (v.data(context, signature, args, i) for i in (0, 4, 7))
            cells = [(r, j) for r in range(rows) for j in range(vectors)]
            row = []
            for r in range(rows):
                at = builder.add(args[1], builder.mul(args[2], index(r)))
                row.append(builder.gep(source, [at]))
            panel = builder.gep(panel, [args[5]])
            place = {}
            for r, j in cells:
                at = builder.add(args[8], builder.mul(args[9], index(r)))
                place[r, j] = builder.add(at, index(j * LANES))

            entry = builder.block
            resumed = builder.append_basic_block("resumed")
            body = builder.append_basic_block("terms")
            done = builder.append_basic_block("done")
            builder.cbranch(builder.icmp_signed("!=", args[11], index(0)), resumed, body)
            builder.position_at_end(resumed)
            before = [v.load(out, place[cell]) for cell in cells]
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
            for phi, step in ((t, index(1)), (at, args[3]), (b_at, args[6])):
                new = following if phi is t else builder.add(phi, step)
                phi.add_incoming(index(0), entry)
                phi.add_incoming(index(0), resumed)
                phi.add_incoming(new, body)
            for total, old, new in zip(sums, before, after, strict=True):
                total.add_incoming(v.constant(0.0), entry)
                total.add_incoming(old, resumed)
                total.add_incoming(new, body)
            builder.cbranch(builder.icmp_signed("<", following, args[10]), body, done)

            builder.position_at_end(done)
            for cell, total in zip(cells, after, strict=True):
                v.store(total, out, place[cell])
            return context.get_dummy_value()

        return signature, generate

    return intrinsic(typed)


_TILE_1, _TILE_2 = _tile(ROWS[1], 1), _tile(ROWS[2], 2)
_TILE_3, _TILE_4 = (_tile(ROWS[3], 3), _tile(ROWS[4], 4)) if len(ROWS) > 3 else (_TILE_1, _TILE_1)


@inlined
def _multiply(
    a: Array,
    a_at: int,
    a_row: int,
    a_step: int,
    b: Array,
    b_at: int,
    b_step: int,
    c: Array,
    c_at: int,
    c_row: int,
    rows: int,
    count: int,
    more: int,
    vectors: int,
) -> None:
    """The sums of ``rows`` rows over ``count`` terms, tile by tile, while a part of b that the first
    cache holds is used by all rows. Rows that the last tile has beyond ``rows`` are rubbish."""
    for start in range(0, count, _DEPTH):
        n = min(_DEPTH, count - start)
        from_a, from_b, adding = a_at + start * a_step, b_at + start * b_step, more + start
        for m in range(0, rows, ROWS[vectors]):
            at, out = from_a + m * a_row, c_at + m * c_row
            if vectors == 1:
                _TILE_1(a, at, a_row, a_step, b, from_b, b_step, c, out, c_row, n, adding)
            elif vectors == 2:
                _TILE_2(a, at, a_row, a_step, b, from_b, b_step, c, out, c_row, n, adding)
            elif vectors == 3:
                _TILE_3(a, at, a_row, a_step, b, from_b, b_step, c, out, c_row, n, adding)
            else:
                _TILE_4(a, at, a_row, a_step, b, from_b, b_step, c, out, c_row, n, adding)


@inlined
def _vectors(channels: int, panel: int) -> int:
    return min(PANEL // LANES, (channels - panel * PANEL + LANES - 1) // LANES)


@inlined
def _is_whole(table: Array, first: int, count: int, step: int) -> bool:
    """Whether the lines from first on are there, and a step apart."""
    whole: bool = table[first] >= 0
    for i in range(1, count):
        whole &= table[first + i] - table[first] == i * step
    return whole


@inlined
def _gather(
    x: Array,
    at: int,
    rows: Array,
    r: int,
    columns: Array,
    c: int,
    extent: int,
    live: int,
    patch: Array,
) -> None:
    """Fewer channels than a vector has, of a tile, behind the zeros of ``patch``."""
    patch[LANES : (1 + extent * extent) * LANES] = 0
    for i in range(extent):
        for j in range(extent):
            if rows[r + i] >= 0 and columns[c + j] >= 0:
                start = at + rows[r + i] + columns[c + j]
                source = x[start : start + live]
                target = patch[(1 + i * extent + j) * LANES : (2 + i * extent + j) * LANES]
                for lane in range(live):
                    target[lane] = source[lane]


@inlined
def _transform_images(g: Any, x: Array, v: Array, lie: Any, patch: Array, begin: int, end: int) -> None:
    """B' x B of tiles ``begin`` to ``end``. ``patch`` has a vector of zeros, then room for a tile of
    channels that do not fill a vector."""
    down, across = g.down_step, g.across_step
    out_down = 6 * lie.position
    whole = g.channels // LANES * LANES
    patch[:LANES] = 0
    for tile in range(begin, end):
        r, k = 6 * (tile // g.across), 6 * (tile % g.across)
        out = (tile - begin) * lie.row
        if _is_whole(g.rows, r, 6, down) and _is_whole(g.columns, k, 6, across):
            at = g.rows[r] + g.columns[k]
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                _IMAGE(x, at + c, down, across, v, to, out_down, lie.position)
        else:
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                _IMAGE_EDGE(x, c, g.rows, r, g.columns, k, v, to, out_down, lie.position, patch)
        if whole < g.channels:
            to = out + whole // PANEL * lie.panel + whole % PANEL
            _gather(x, whole, g.rows, r, g.columns, k, 6, g.channels - whole, patch)
            _IMAGE(patch, LANES, 6 * LANES, LANES, v, to, out_down, lie.position)


@inlined
def _transform_results(
    g: Any, dy: Array, d: Array, lie: Any, sums: Array, patch: Array, begin: int, end: int
) -> None:
    """A dy A' of tiles ``begin`` to ``end``, and what they add to ``sums`` of the outputs."""
    down, across = g.result_down_step, g.result_across_step
    out_down = 6 * lie.position
    whole = g.outputs // LANES * LANES
    patch[:LANES] = 0
    rows, columns = g.result_rows, g.result_columns
    for tile in range(begin, end):
        r, k = 4 * (tile // g.across), 4 * (tile % g.across)
        out = (tile - begin) * lie.row
        if _is_whole(rows, r, 4, down) and _is_whole(columns, k, 4, across):
            at = rows[r] + columns[k]
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                _RESULT(dy, at + c, down, across, d, to, out_down, lie.position)
        else:
            for c in range(0, whole, LANES):
                to = out + c // PANEL * lie.panel + c % PANEL
                _RESULT_EDGE(dy, c, rows, r, columns, k, d, to, out_down, lie.position, patch)
        if whole < g.outputs:
            to = out + whole // PANEL * lie.panel + whole % PANEL
            _gather(dy, whole, rows, r, columns, k, 4, g.outputs - whole, patch)
            _RESULT(patch, LANES, 4 * LANES, LANES, d, to, out_down, lie.position)
        total = sums[: g.outputs]
        for i in range(4):
            for j in range(4):
                if rows[r + i] >= 0 and columns[k + j] >= 0:
                    start = rows[r + i] + columns[k + j]
                    part = dy[start : start + g.outputs]
                    for c in range(g.outputs):
                        total[c] += part[c]


@inlined
def _transform_weights(g: Any, w: Array, taps: Any, u: Array, at: int, panel: int, patch: Array) -> None:
    """G w G' of a panel of outputs: position, channel, output."""
    width = _vectors(g.outputs, panel) * LANES
    # Without the spare vector a position is often a power of two: its 36 stores then share a set of
    # the cache (512 x 512 weights: 3.7 ms, and 1.0 so).
    position = g.channels * width + LANES
    for j in range(0, width, LANES):
        first = panel * PANEL + j
        live = min(g.outputs - first, LANES)
        patch[: 9 * _BATCH * LANES] = 0
        for batch in range(0, g.channels, _BATCH):
            # Several channels at once: what was just stored number by number cannot be loaded as a
            # vector without waiting for the first cache.
            count = min(_BATCH, g.channels - batch)
            for lane in range(live):
                for c in range(count):
                    start = (batch + c) * taps.channel_step + (first + lane) * taps.output_step
                    nine = w[start : start + 9]
                    for i in range(9):
                        patch[(9 * c + (8 - i if taps.turned else i)) * LANES + lane] = nine[i]
            for c in range(count):
                to = at + (batch + c) * width + j
                _WEIGHTS(patch, 9 * c * LANES, 3 * LANES, LANES, u, to, 6 * position, position)


@inlined
def _products(
    g: Any,
    v: Array,
    v_at: int,
    lie: Any,
    u: Array,
    u_at: int,
    m: Array,
    m_position: int,
    panel: int,
    tiles: int,
) -> None:
    """Per position the products of a block of tiles with a panel of weights."""
    vectors = _vectors(g.outputs, panel)
    width = vectors * LANES
    for p in range(POSITIONS):
        a, b, c = v_at + p * lie.position, u_at + p * (g.channels * width + LANES), p * m_position
        _multiply(v, a, lie.row, 1, u, b, width, m, c, width, tiles, g.channels, 0, vectors)


@inlined
def _finish(
    g: Any,
    m: Array,
    m_position: int,
    bias: Array,
    floor: float,
    y: Array,
    panel: int,
    patch: Array,
    begin: int,
    end: int,
) -> None:
    """The results of tiles ``begin`` to ``end`` in a panel of outputs."""
    rows, columns = g.result_rows, g.result_columns
    first = panel * PANEL
    width = _vectors(g.outputs, panel) * LANES
    for tile in range(begin, end):
        r, c = 4 * (tile // g.across), 4 * (tile % g.across)
        for k in range(first, first + width, LANES):
            at = (tile - begin) * width + k - first
            live = g.outputs - k
            if live >= LANES:
                _FINISH(
                    m,
                    at,
                    m_position,
                    bias,
                    k,
                    floor,
                    y,
                    k,
                    rows,
                    r,
                    columns,
                    c,
                    patch,
                    4 * g.result_across_step,
                )
                continue
            _FINISH(m, at, m_position, bias, k, floor, patch, LANES, PATCH, 0, PATCH, 4, patch, 0)
            for i in range(4):
                for j in range(4):
                    if rows[r + i] >= 0 and columns[c + j] >= 0:
                        place = rows[r + i] + columns[c + j] + k
                        target = y[place : place + live]
                        part = patch[(1 + 4 * i + j) * LANES : (2 + 4 * i + j) * LANES]
                        for lane in range(live):
                            target[lane] = part[lane]


@compiled()
def spread_bias(b: Array, biases: Array, outputs: int, padded: int) -> None:
    """The biases (an empty array for none) of each group, padded to whole vectors."""
    biases[:] = 0
    for k in range(b.size):
        biases[k // outputs * padded + k % outputs] = b[k]


@compiled()
def weights(g: Any, w: Array, taps: Any, u: Array, patch: Array, begin: int, end: int) -> None:
    """The transformed weights of panels ``begin`` to ``end``."""
    for panel in range(begin, end):
        at = panel * POSITIONS * (g.channels * PANEL + LANES)
        _transform_weights(g, w, taps, u, at, panel, patch)


@compiled()
def images(g: Any, x: Array, v: Array, lie: Any, patch: Array, begin: int, end: int) -> None:
    """The transformed tiles ``begin`` to ``end`` of v."""
    _transform_images(g, x, v[begin * lie.row :], lie, patch, begin, end)


@compiled()
def by_tiles(
    g: Any,
    x: Array,
    u: Array,
    bias: Array,
    floor: float,
    y: Array,
    v: Array,
    lie: Any,
    m: Array,
    patch: Array,
    block: int,
    begin: int,
    end: int,
) -> None:
    """The results of tiles ``begin`` to ``end``, a block at a time through all panels."""
    panels = (g.outputs + PANEL - 1) // PANEL
    position = block * PANEL + LANES
    for start in range(begin, end, block):
        stop = min(start + block, end)
        _transform_images(g, x, v, lie, patch, start, stop)
        for panel in range(panels):
            at = panel * POSITIONS * (g.channels * PANEL + LANES)
            _products(g, v, 0, lie, u, at, m, position, panel, stop - start)
            _finish(g, m, position, bias, floor, y, panel, patch, start, stop)


@compiled()
def by_panels(
    g: Any,
    w: Array,
    taps: Any,
    bias: Array,
    floor: float,
    y: Array,
    v: Array,
    lie: Any,
    u: Array,
    m: Array,
    patch: Array,
    block: int,
    tiles: int,
    begin: int,
    end: int,
) -> None:
    """The results of all ``tiles``, whose transforms v has, in panels ``begin`` to ``end``: for few
    tiles with many weights, which are transformed and used up panel by panel."""
    position = block * PANEL + LANES
    for panel in range(begin, end):
        _transform_weights(g, w, taps, u, 0, panel, patch)
        for start in range(0, tiles, block):
            stop = min(start + block, tiles)
            _products(g, v, start * lie.row, lie, u, 0, m, position, panel, stop - start)
            _finish(g, m, position, bias, floor, y, panel, patch, start, stop)


@inlined
def _accumulate(
    g: Any,
    v: Array,
    v_lie: Any,
    d: Array,
    d_lie: Any,
    du: Array,
    at: int,
    square: int,
    tiles: int,
    more: int,
) -> None:
    """What tiles give to a square of a panel of channels and a panel of outputs."""
    panels = (g.channels + PANEL - 1) // PANEL
    of_channels, of_outputs = square % panels, square // panels
    rows = min(PANEL, g.channels - of_channels * PANEL)
    vectors = _vectors(g.outputs, of_outputs)
    width = vectors * LANES
    for p in range(POSITIONS):
        a = of_channels * v_lie.panel + p * v_lie.position
        b = of_outputs * d_lie.panel + p * d_lie.position
        c = at + p * (_SQUARE_ROWS * width + LANES)
        _multiply(v, a, 1, v_lie.row, d, b, d_lie.row, du, c, width, rows, tiles, more, vectors)


@inlined
def _weight_gradient(g: Any, du: Array, at: int, dw: Array, square: int, patch: Array) -> None:
    """G' du G of a square."""
    panels = (g.channels + PANEL - 1) // PANEL
    first_channel, first = square % panels * PANEL, square // panels * PANEL
    channels = min(PANEL, g.channels - first_channel)
    width = _vectors(g.outputs, square // panels) * LANES
    position = _SQUARE_ROWS * width + LANES
    for j in range(0, width, LANES):
        live = min(g.outputs - first - j, LANES)
        for batch in range(0, channels, _BATCH):
            count = min(_BATCH, channels - batch)
            for c in range(count):
                source, to = at + (batch + c) * width + j, 9 * c * LANES
                _WEIGHT_GRADIENT(du, source, 6 * position, position, patch, to, 3 * LANES, LANES)
            for lane in range(live):
                start = ((first + j + lane) * g.channels + first_channel + batch) * 9
                nines = dw[start : start + 9 * count]
                for i in range(9 * count):
                    nines[i] = patch[i * LANES + lane]


@compiled()
def gradient_by_tiles(
    g: Any,
    x: Array,
    dy: Array,
    v: Array,
    v_lie: Any,
    d: Array,
    d_lie: Any,
    du: Array,
    sums: Array,
    patch: Array,
    block: int,
    begin: int,
    end: int,
) -> None:
    """What tiles ``begin`` to ``end`` give to all squares, and to the ``sums`` of the outputs."""
    panels = (g.channels + PANEL - 1) // PANEL
    squares = panels * ((g.outputs + PANEL - 1) // PANEL)
    sums[:] = 0
    for start in range(begin, end, block):
        stop = min(start + block, end)
        _transform_images(g, x, v, v_lie, patch, start, stop)
        _transform_results(g, dy, d, d_lie, sums, patch, start, stop)
        for square in range(squares):
            at, more = square * SQUARE, start - begin
            _accumulate(g, v, v_lie, d, d_lie, du, at, square, stop - start, more)


@compiled()
def add_up(
    g: Any, du: Array, parts: int, part: int, dw: Array, patch: Array, begin: int, end: int
) -> None:
    """The gradients of squares ``begin`` to ``end`` from those of ``parts``, ``part`` numbers each."""
    for square in range(begin, end):
        total = du[square * SQUARE : (square + 1) * SQUARE]
        for other in range(1, parts):
            start = other * part + square * SQUARE
            more = du[start : start + SQUARE]
            for i in range(SQUARE):
                total[i] += more[i]
        _weight_gradient(g, du, square * SQUARE, dw, square, patch)


@compiled()
def gradient_tiles(
    g: Any,
    x: Array,
    dy: Array,
    v: Array,
    v_lie: Any,
    d: Array,
    d_lie: Any,
    sums: Array,
    patch: Array,
    begin: int,
    end: int,
) -> None:
    """The transforms of tiles ``begin`` to ``end`` of both, and the sums of the outputs in these."""
    sums[:] = 0
    _transform_images(g, x, v[begin * v_lie.row :], v_lie, patch, begin, end)
    _transform_results(g, dy, d[begin * d_lie.row :], d_lie, sums, patch, begin, end)


@compiled()
def gradient_by_squares(
    g: Any,
    v: Array,
    v_lie: Any,
    d: Array,
    d_lie: Any,
    du: Array,
    dw: Array,
    patch: Array,
    tiles: int,
    begin: int,
    end: int,
) -> None:
    """The gradients of squares ``begin`` to ``end`` from all ``tiles``: for few tiles with many
    weights, of which each square is summed in the second cache."""
    for square in range(begin, end):
        _accumulate(g, v, v_lie, d, d_lie, du, 0, square, tiles, 0)
        _weight_gradient(g, du, 0, dw, square, patch)


@compiled()
def bias_gradient(sums: Array, parts: int, db: Array) -> None:
    """The sum of what each of the parts summed."""
    part = sums.size // parts
    for k in range(db.size):
        total = sums[k]
        for other in range(1, parts):
            total += sums[other * part + k]
        db[k] = total
