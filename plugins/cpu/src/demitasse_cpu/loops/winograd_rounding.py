"""Rounds float32 to 16-bit integers and pairs of them for ``loops.winograd_integers``, in vectors.

As in ``winograd_transforms``, these are numba intrinsics: a change here that affects results needs a
change in the loops that use them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_cpu.loops.vectors import LANES, Vectors

_I32, _N = ir.IntType(32), types.int64
_WORDS = ir.VectorType(_I32, LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)

_ONES = 1.5 * 2.0**23
"""Adding a float32 number up to 2^21 to this rounds it to an integer, which is then in the low bits."""


def _all_of(number: int) -> Any:
    return ir.Constant(_WORDS, [number] * LANES)


def _larger(builder: Any, most: Any, value: Any) -> Any:
    """Return the larger of magnitudes as bits, so that NaN is the largest."""
    return _larger_bits(builder, builder.and_(builder.bitcast(value, _WORDS), _all_of(0x7FFFFFFF)), most)


def _larger_bits(builder: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.icmp_unsigned(">", a, b), a, b)


def _rounded(v: Vectors, value: Any, scale: Any) -> Any:
    """Return the bits of value * scale + _ONES."""
    return v.builder.bitcast(v.multiply_add(value, scale, v.constant(_ONES)), _WORDS)


def _loop(builder: Any, count: Any, body: Callable[[Any], None]) -> None:
    with cgutils.for_range(builder, count) as loop:
        body(loop.index)


def _largest_lanes(builder: Any, vectors: Sequence[Any]) -> Any:
    """Return the largest lane of each of LANES vectors, as the lanes of one vector. The halves of two
    vectors are compared first, then the quarters of what is left of four, and so on."""
    while len(vectors) > 1:
        lanes, half = len(vectors), len(vectors) // 2
        runs = [(which * LANES + k * lanes) for k in range(LANES // lanes) for which in (0, 1)]
        near = [start + lane for start in runs for lane in range(half)]
        far = [lane + half for lane in near]
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [_of_two(builder, pair, near, far) for pair in pairs]
    return vectors[0]


def _of_two(builder: Any, pair: Sequence[Any], near: Sequence[int], far: Sequence[int]) -> Any:
    both = [builder.shuffle_vector(*pair, ir.Constant(_WORDS, list(lanes))) for lanes in (near, far)]
    return _larger_bits(builder, *both)


def _largest(context: Any, form: Any, x: Any, at: Any, step: Any, vectors: Any, y: Any) -> Any:
    """At each position of a tile, ``step`` apart, find the largest magnitude of ``vectors`` contiguous
    vectors, or NaN. y has room for whole vectors of positions."""
    positions = form.count**2

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder)
        source = builder.gep(v.data(context, signature, args, 1), [args[2]])
        target = v.data(context, signature, args, 5)
        for first in range(0, positions, LANES):
            count = min(LANES, positions - first)
            lines = [builder.mul(args[3], v.index(first + i)) for i in range(count)]
            most = [cgutils.alloca_once_value(builder, _all_of(0)) for _ in lines]  # type: ignore[no-untyped-call]
            for each in most:
                builder.store(_all_of(0), each)

            def body(i: Any, most: Any = most, lines: Any = lines) -> None:
                offset = builder.mul(i, v.index(LANES))
                for each, line in zip(most, lines, strict=True):
                    value = v.load(source, builder.add(line, offset))
                    builder.store(_larger(builder, builder.load(each), value), each)

            _loop(builder, args[4], body)
            found = [builder.load(each) for each in most] + [_all_of(0)] * (LANES - count)
            v.store(builder.bitcast(_largest_lanes(builder, found), v.kind), target, v.index(first))
        return context.get_dummy_value()

    return types.void(form, x, _N, _N, _N, y), generate


def _round_line(
    context: Any, x: Any, at: Any, vectors: Any, scale: Any, pairs: Any, pairs_at: Any
) -> Any:
    """Multiply ``vectors`` contiguous vectors by ``scale`` and round them to integers, two of which are
    a pair."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder)
        source = builder.gep(v.data(context, signature, args, 0), [args[1]])
        target = builder.gep(v.data(context, signature, args, 4), [args[5]])
        factor = v.splat(args[3])

        def body(i: Any) -> None:
            value = v.load(source, builder.mul(i, v.index(LANES)))
            there = builder.gep(target, [builder.mul(i, v.index(LANES // 2))])
            halves = builder.trunc(_rounded(v, value, factor), _HALVES)
            builder.store(halves, builder.bitcast(there, _HALVES.as_pointer())).align = 2

        _loop(builder, args[2], body)
        return context.get_dummy_value()

    return types.void(x, _N, _N, types.float32, pairs, _N), generate


def _extents(context: Any, x: Any, at: Any, step: Any, count: Any, sums: Any, largest: Any) -> Any:
    """In each lane of ``count`` vectors that are ``step`` apart, compute the sum of the magnitudes and
    the largest one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder)
        source = builder.gep(v.data(context, signature, args, 0), [args[1]])
        most = cgutils.alloca_once_value(builder, _all_of(0))  # type: ignore[no-untyped-call]
        total = cgutils.alloca_once_value(builder, v.constant(0.0))  # type: ignore[no-untyped-call]

        def body(i: Any) -> None:
            value = v.load(source, builder.mul(i, args[2]))
            absolute = builder.and_(builder.bitcast(value, _WORDS), _all_of(0x7FFFFFFF))
            builder.store(v.add(builder.load(total), builder.bitcast(absolute, v.kind)), total)
            builder.store(_larger(builder, builder.load(most), value), most)

        _loop(builder, args[3], body)
        for position, variable in ((4, total), (5, most)):
            value = builder.bitcast(builder.load(variable), v.kind)
            v.store(value, v.data(context, signature, args, position), v.index(0))
        return context.get_dummy_value()

    return types.void(x, _N, _N, _N, sums, largest), generate


def _round_pairs(
    context: Any,
    x: Any,
    at: Any,
    step: Any,
    count: Any,
    scales: Any,
    pairs: Any,
    pairs_at: Any,
    pairs_step: Any,
) -> Any:
    """Multiply ``count`` vectors that are ``step`` apart by ``scales`` and round them to integers. The
    first and the second make pairs, the third and the fourth, and so on; an odd last one is paired with
    zeros."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        v = Vectors(builder)
        source = builder.gep(v.data(context, signature, args, 0), [args[1]])
        target = builder.gep(v.data(context, signature, args, 5), [args[6]])
        factors = v.load(v.data(context, signature, args, 4), v.index(0))
        low, high = _all_of(0xFFFF), _all_of(16)

        def put(i: Any, upper: Any) -> None:
            first = _rounded(
                v, v.load(source, builder.mul(builder.mul(i, v.index(2)), args[2])), factors
            )
            pair = builder.and_(first, low)
            if upper is not None:
                pair = builder.or_(pair, builder.shl(upper, high))
            there = builder.gep(target, [builder.mul(i, args[7])])
            builder.store(pair, builder.bitcast(there, _WORDS.as_pointer())).align = 4

        def body(i: Any) -> None:
            second = builder.add(builder.mul(i, v.index(2)), v.index(1))
            put(i, _rounded(v, v.load(source, builder.mul(second, args[2])), factors))

        whole = builder.lshr(args[3], v.index(1))
        _loop(builder, whole, body)
        odd = builder.trunc(builder.and_(args[3], v.index(1)), ir.IntType(1))
        with builder.if_then(odd):
            put(whole, None)
        return context.get_dummy_value()

    return types.void(x, _N, _N, _N, scales, pairs, _N, _N), generate


largest: Any = intrinsic(_largest)
round_line: Any = intrinsic(_round_line)
extents: Any = intrinsic(_extents)
round_pairs: Any = intrinsic(_round_pairs)
