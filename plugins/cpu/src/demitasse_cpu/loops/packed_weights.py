"""Inner products of a few samples with weights that are kept in 12 bits each, without loss.

With a few samples, a product takes as long as its weights take to come from memory. Of the 16 bits of a
bfloat16 number, the 8 bits of its exponent carry little information: nearly all of a few thousand
weights have one of the 15 exponents up to the largest one. A weight is therefore stored as a byte for
sign and fraction, and half a byte for its exponent. The few exceptions are listed beside them; if there
are many, weights are stored unchanged.

Weights are cut into panels of ``WIDE`` outputs, each with room for 16 bits a weight, and these into
blocks of ``INPUTS``, one after the other: pairs of inputs, with a pair's outputs in the order of
``pairs``. A block that begins with ``PACKED``, to which no number is rounded, instead has

- a line with PACKED and the number of exceptions; from byte 16 on, for each value of a half byte, the
  upper seven bits of the exponent, and from byte 32 on its lowest bit, both in the positions that they
  have in the bytes of a number;
- for each two pairs of inputs three lines: signs and fractions of the first and of the second, then half
  bytes;
- the exceptions, in whole lines: the position in the block, and the number.

Each quarter of a line of fractions has eight bytes of the first vector of outputs and eight of the
second. All code is in vectors of 64 bytes, for processors that have products of pairs of bfloat16.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.bfloat16 import BFloat, narrow, number, widen
from demitasse_cpu.loops.compiled import Array, compiled, inlined
from demitasse_cpu.loops.pairs import WIDE, tile_of_places

INPUTS = 256
"""The inputs of a block."""

COUNT = INPUTS * WIDE
"""The weights of a block."""

PACKED = 0xFFFF

LINE, UPPER, LOWEST = 64, 16, 32
OTHERS = LINE + COUNT // 2 * 3
MOST = (2 * COUNT - OTHERS) // 4

_AHEAD = 64
"""The number of lines by which data is prefetched ahead of its use."""

_LANES = 16
_I8, _I16, _I32, _I64, _F32 = *(ir.IntType(bits) for bits in (8, 16, 32, 64)), ir.FloatType()
_BYTES, _WORDS = ir.VectorType(_I8, 64), ir.VectorType(_I16, 32)
_SUMS, _PAIRS = ir.VectorType(_F32, _LANES), ir.VectorType(BFloat(), 2 * _LANES)


def _all(kind: Any, value: int) -> Any:
    return ir.Constant(kind, [value] * kind.count)


class _Code:
    """LLVM code for blocks while it is built."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._look_up = self._function("llvm.x86.avx512.pshuf.b.512", _BYTES, [_BYTES, _BYTES])
        self._dot = self._function("llvm.x86.avx512bf16.dpbf16ps.512", _SUMS, [_SUMS, _PAIRS, _PAIRS])

    def _function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        kind = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self.builder.module, kind, name)  # type: ignore[no-untyped-call]

    def load(self, pointer: Any, offset: Any, kind: Any, align: int = 1) -> Any:
        place = self.builder.gep(pointer, [offset])
        value = self.builder.load(self.builder.bitcast(place, kind.as_pointer()))
        value.align = align
        return value

    def everywhere(self, value: Any, lanes: int) -> Any:
        """Repeat a number, or a vector, ``lanes`` times."""
        if not isinstance(value.type, ir.VectorType):
            nothing = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
            value = self.builder.insert_element(nothing, value, _I32(0))
            mask = [0] * lanes
        else:
            mask = list(range(value.type.count)) * lanes
        kind = ir.VectorType(_I32, len(mask))
        return self.builder.shuffle_vector(value, value, ir.Constant(kind, mask))

    def table(self, block: Any, at: int) -> Any:
        """Return sixteen bytes of a block's first line, repeated in each quarter of a vector."""
        return self.everywhere(self.load(block, _I64(at), ir.VectorType(_I8, 16)), 4)

    def pair(self, lines: Any, which: int, upper: Any, lowest: Any) -> list[Any]:
        """Return the weights of the first or second pair of inputs in three lines, as two vectors of
        pairs of bfloat16."""
        builder = self.builder
        fractions = self.load(lines, _I64(which * LINE), _BYTES)
        halves = self.load(lines, _I64(2 * LINE + which * LINE // 2), ir.VectorType(_I8, 32))
        halves = builder.zext(halves, _WORDS)
        apart = builder.or_(halves, builder.shl(halves, _all(_WORDS, 4)))
        codes = builder.bitcast(builder.and_(apart, _all(_WORDS, 0x0F0F)), _BYTES)
        signs = builder.and_(fractions, _all(_BYTES, 0x80))
        fractions = builder.and_(fractions, _all(_BYTES, 0x7F))
        high = builder.or_(signs, builder.call(self._look_up, [upper, codes]))
        low = builder.or_(fractions, builder.call(self._look_up, [lowest, codes]))
        vectors = []
        for j in range(2):
            lanes = [
                16 * quarter + 8 * j + i // 2 + i % 2 * 64 for quarter in range(4) for i in range(16)
            ]
            mask = ir.Constant(ir.VectorType(_I32, 64), lanes)
            vectors.append(builder.bitcast(builder.shuffle_vector(low, high, mask), _PAIRS))
        return vectors

    def add_product(self, total: Any, x: Any, weights: Any) -> Any:
        return self.builder.call(self._dot, [total, x, weights])


def _sums_of_packed_typed(
    context: Any,
    form: Any,
    x: Any,
    x_at: Any,
    x_row: Any,
    kept: Any,
    kept_at: Any,
    sums: Any,
    fours: Any,
    more: Any,
) -> Any:
    """Build an intrinsic for sums[r, :32] (+)= x[r, :] * the block at ``kept_at``, over four inputs
    ``fours`` times. The tuple ``form`` has as many members as there are rows of x, which are ``x_row``
    apart. ``more`` adds to the sums in memory. Meanwhile, the data that follows is prefetched."""
    n = types.int64
    signature = types.void(form, x, n, n, kept, n, sums, n, n)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def data(position: int) -> Any:
            array = context.make_array(signature.args[position])(context, builder, args[position])
            return array.data

        code, out = _Code(builder), data(6)
        source, block = builder.gep(data(1), [args[2]]), builder.gep(data(4), [args[5]])
        rows = [builder.mul(args[3], _I64(r)) for r in range(form.count)]
        cells = [_I64(WIDE * r + j * _LANES) for r in range(form.count) for j in range(2)]
        upper, lowest = code.table(block, UPPER), code.table(block, LOWEST)
        byte = _I8.as_pointer()
        fetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        )
        entry = builder.block
        resumed, body, done = (builder.append_basic_block(name) for name in ("resumed", "pairs", "done"))
        builder.cbranch(builder.icmp_signed("!=", args[8], _I64(0)), resumed, body)
        builder.position_at_end(resumed)
        before = [code.load(out, cell, _SUMS, 4) for cell in cells]
        builder.branch(body)
        builder.position_at_end(body)
        t = builder.phi(_I64)
        totals = [builder.phi(_SUMS) for _ in cells]
        lines = builder.gep(block, [builder.add(_I64(LINE), builder.mul(t, _I64(3 * LINE)))])
        for i in range(3):
            line = builder.gep(lines, [_I64((_AHEAD + i) * LINE)])
            builder.call(fetch, [line, _I32(0), _I32(2), _I32(1)])
        after = totals
        for which in range(2):
            weights = code.pair(lines, which, upper, lowest)
            so_far, after = after, []
            for r, row in enumerate(rows):
                place = builder.add(row, builder.add(builder.mul(t, _I64(4)), _I64(2 * which)))
                pair = code.everywhere(code.load(source, place, _I32, 2), _LANES)
                for j in range(2):
                    given = so_far[2 * r + j], builder.bitcast(pair, _PAIRS), weights[j]
                    after.append(code.add_product(*given))
        following = builder.add(t, _I64(1))
        zero = ir.Constant(_SUMS, [0.0] * _LANES)
        t.add_incoming(_I64(0), entry)
        t.add_incoming(_I64(0), resumed)
        t.add_incoming(following, body)
        for total, old, new in zip(totals, before, after, strict=True):
            total.add_incoming(zero, entry)
            total.add_incoming(old, resumed)
            total.add_incoming(new, body)
        builder.cbranch(builder.icmp_signed("<", following, args[7]), body, done)
        builder.position_at_end(done)
        for cell, total in zip(cells, after, strict=True):
            place = builder.bitcast(builder.gep(out, [cell]), _SUMS.as_pointer())
            builder.store(total, place).align = 4
        return context.get_dummy_value()

    return signature, generate


_sums_of_packed: Any = intrinsic(_sums_of_packed_typed)


@compiled()
def products(
    form: Any,
    x: Array,
    kept: Array,
    words: Array,
    b: Array,
    y: Array,
    floor: float,
    inputs: int,
    outputs: int,
    rows: Array,
    sums: Array,
    begin: int,
    end: int,
) -> None:
    """Compute y = x w' + b, with nothing below ``floor``, for panels ``begin`` to ``end`` of outputs.
    ``words`` is ``kept`` as 16-bit numbers, ``rows`` says where each sample begins, and ``form`` is as
    long as there are samples."""
    lowest, samples = number(floor, y), len(form)
    blocks = (inputs + INPUTS - 1) // INPUTS
    for panel in range(begin, end):
        block = panel * blocks * COUNT  # in 16-bit numbers
        for k in range(blocks):
            start = k * INPUTS
            count = min(INPUTS, inputs - start)
            if words[block] != PACKED:
                tile_of_places(form, x, start, rows, 0, words, block, sums, 0, WIDE, count // 2, k)
                block += COUNT
                continue
            _sums_of_packed(form, x, start, inputs, kept, 2 * block, sums, count // 4, k)
            others = words[block + 1] & 0xFFFF
            block += OTHERS // 2
            for i in range(others):
                place, value = words[block + 2 * i], widen(words[block + 2 * i + 1])
                term = start + place // (2 * WIDE) * 2 + place % 2
                output = place % (2 * WIDE) // 2
                for r in range(samples):
                    sums[r * WIDE + output] += value * widen(x[r * inputs + term])
            block += lines_of(others) * LINE // 2
        first = panel * WIDE
        live = min(WIDE, outputs - first)
        for r in range(samples):
            near = sums[r * WIDE : r * WIDE + live]
            result = y[r * outputs + first : r * outputs + first + live]
            for i in range(live):
                value = near[i] + b[first + i] if b.size > 0 else near[i]
                result[i] = narrow(lowest if value < lowest else value, result)


@compiled()
def pack(
    w: Array, inputs: int, outputs: int, kept: Array, words: Array, room: Array, begin: int, end: int
) -> None:
    """Pack panels ``begin`` to ``end`` of plain weights into ``kept``. ``room`` holds one block."""
    blocks = (inputs + INPUTS - 1) // INPUTS
    for panel in range(begin, end):
        block = panel * blocks * COUNT
        for k in range(blocks):
            largest = _round_block(w, inputs, outputs, panel * WIDE, k * INPUTS, room)
            lowest = max(0, largest - 15)
            others = 0
            for i in range(COUNT):
                bits = room[i] & 0xFFFF
                others += ((bits >> 7) & 0xFF <= lowest) & (bits & 0x7FFF != 0)
            if others > MOST:
                kept_whole = words[block : block + COUNT]
                for i in range(COUNT):
                    kept_whole[i] = room[i]
                block += COUNT
            else:
                _pack_block(room, lowest, others, kept, words, block)
                block += OTHERS // 2 + lines_of(others) * LINE // 2


@inlined
def lines_of(others: int) -> int:
    """Return the number of lines that this many exceptions take."""
    return (others * 4 + LINE - 1) // LINE


@compiled()
def _round_block(w: Array, inputs: int, outputs: int, first: int, start: int, room: Array) -> int:
    """Round a block's weights to ``room``, in the order of a block, with zeros where there are none.
    Return the largest exponent."""
    largest = 0
    for i in range(COUNT):
        term, output = start + i // (2 * WIDE) * 2 + i % 2, first + i % (2 * WIDE) // 2
        if term < inputs and output < outputs:
            room[i] = narrow(w[output * inputs + term], room)
        else:
            room[i] = 0
        largest = max(largest, room[i] >> 7 & 0xFF)
    return largest


@compiled()
def _pack_block(room: Array, lowest: int, others: int, kept: Array, words: Array, block: int) -> None:
    """Pack a block's numbers. Those with exponents up to ``lowest`` are exceptions."""
    at = 2 * block
    kept[at : at + LINE] = 0
    words[block], words[block + 1] = PACKED, others
    for code in range(1, 16):
        exponent = lowest + code
        kept[at + UPPER + code], kept[at + LOWEST + code] = exponent >> 1, (exponent & 1) << 7
    found = block + OTHERS // 2
    for t in range(COUNT // LINE):
        lines, codes = at + LINE + t // 2 * 3 * LINE, 0
        for q in range(LINE):
            # Each quarter of a line has eight bytes of the first vector and eight of the second.
            i = LINE * t + q % 16 // 8 * 32 + q // 16 * 8 + q % 8
            bits = room[i] & 0xFFFF
            code = ((bits >> 7) & 0xFF) - lowest
            if bits & 0x7FFF == 0:
                code = 0
            elif code <= 0:
                words[found], words[found + 1] = i, room[i]
                found += 2
                bits, code = 0, 0
            kept[lines + t % 2 * LINE + q] = (bits >> 8 & 0x80) | (bits & 0x7F)
            if q % 2:
                kept[lines + 2 * LINE + t % 2 * LINE // 2 + q // 2] = codes | code << 4
            else:
                codes = code
