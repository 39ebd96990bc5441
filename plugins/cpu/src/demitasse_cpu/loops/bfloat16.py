"""Converts between numbers as they are stored and as loops compute with them. bfloat16 is the upper half
of a float32. Arrays of it are uint16, and loops compute in float32: every load widens, every store
rounds.

The functions are numba intrinsics, so that loops over them become vector code: a shift to widen, and
some integer operations to round to nearest. Loops that are written in vectors round with the processor's
instruction if it has one (AVX512-BF16). That instruction, like oneDNN, flushes denormal numbers to zero.
It is not used in other loops because LLVM considers it expensive and would choose narrower vectors. A
uint16 array always means bfloat16 here. Loops that only move bits do not use these functions.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse_cpu.loops.processor import FEATURES

_I16, _I32, _F32 = ir.IntType(16), ir.IntType(32), ir.FloatType()

_ROUNDS = {"avx512bf16", "avx512vl"} <= FEATURES
"""Whether the processor has an instruction that rounds to bfloat16."""


class BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's own type bfloat, for which llvmlite has no name."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash(BFloat)


def computed(stored: Any) -> Any:
    """Return the type (of numba's) in which to compute with numbers stored as ``stored``."""
    return types.float32 if stored == types.uint16 else stored


def _widened(builder: Any, value: Any, stored: Any) -> Any:
    if stored != types.uint16:
        return value
    return builder.bitcast(builder.shl(builder.zext(value, _I32), _I32(16)), _F32)


def _narrowed(builder: Any, wide: Any, stored: Any) -> Any:
    if stored != types.uint16:
        return wide
    bits = builder.bitcast(wide, _I32)
    odd = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
    rounded = builder.lshr(builder.add(builder.add(bits, _I32(0x7FFF)), odd), _I32(16))
    # Rounding could carry a NaN's last bits over into an infinity or a zero.
    missing = builder.fcmp_unordered("uno", wide, wide)
    return builder.trunc(builder.select(missing, _I32(0x7FC0), rounded), _I16)


def widened_vector(builder: Any, value: Any, stored: Any) -> Any:
    """Widen a vector, for loops that are written in vectors."""
    if stored != types.uint16:
        return value
    wide = ir.VectorType(_I32, value.type.count)
    shifted = builder.shl(builder.zext(value, wide), ir.Constant(wide, [16] * wide.count))
    return builder.bitcast(shifted, ir.VectorType(_F32, wide.count))


def narrowed_vector(builder: Any, wide: Any, stored: Any) -> Any:
    if stored != types.uint16:
        return wide
    count = wide.type.count
    words, halves = ir.VectorType(_I32, count), ir.VectorType(_I16, count)
    if _ROUNDS:
        return builder.bitcast(builder.fptrunc(wide, ir.VectorType(BFloat(), count)), halves)

    def all_of(number: int) -> Any:
        return ir.Constant(words, [number] * count)

    bits = builder.bitcast(wide, words)
    odd = builder.and_(builder.lshr(bits, all_of(16)), all_of(1))
    rounded = builder.lshr(builder.add(builder.add(bits, all_of(0x7FFF)), odd), all_of(16))
    missing = builder.fcmp_unordered("uno", wide, wide)
    return builder.trunc(builder.select(missing, all_of(0x7FC0), rounded), halves)


def _widen_typed(context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _widened(builder, args[0], signature.args[0])

    return computed(value)(value), generate


def _narrow_typed(context: Any, value: Any, like: Any) -> Any:
    stored = like.dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = context.cast(builder, args[0], signature.args[0], computed(stored))
        return _narrowed(builder, wide, stored)

    return stored(value, like), generate


def _number_typed(context: Any, value: Any, like: Any) -> Any:
    wanted = computed(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.cast(builder, args[0], signature.args[0], wanted)

    return wanted(value, like), generate


def _place(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


def _scope(builder: Any) -> Any:
    """Return the name of what ``put`` writes, for the compiler's alias analysis."""
    domain = builder.module.add_metadata(["demitasse"])
    return builder.module.add_metadata([builder.module.add_metadata(["put", domain])])


def _got_typed(context: Any, x: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        loaded = builder.load(_place(context, builder, signature, args))
        loaded.set_metadata("noalias", _scope(builder))
        return _widened(builder, loaded, signature.args[0].dtype)

    return computed(x.dtype)(x, types.int64), generate


def _put_typed(context: Any, y: Any, i: Any, value: Any) -> Any:
    stored = y.dtype

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = context.cast(builder, args[2], signature.args[2], computed(stored))
        kept = builder.store(_narrowed(builder, wide, stored), _place(context, builder, signature, args))
        kept.set_metadata("alias.scope", _scope(builder))
        return context.get_dummy_value()

    return types.void(y, types.int64, value), generate


def _prefetch_typed(context: Any, x: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        place = builder.bitcast(_place(context, builder, signature, args), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(function, [place, _I32(0), _I32(2), _I32(1)])  # to read, from L2, data
        return context.get_dummy_value()

    return types.void(x, types.int64), generate


widen: Any = intrinsic(_widen_typed)
"""``widen(x[i])``: a stored number in the type in which loops compute."""

narrow: Any = intrinsic(_narrow_typed)
"""``narrow(value, y)``: a number in the type that array y stores, rounded to nearest, ties to even."""

number: Any = intrinsic(_number_typed)
"""``number(value, x)``: a constant in the type in which loops over x compute."""

got: Any = intrinsic(_got_typed)
"""``got(x, i)``: widen(x[i]) of a flat array, for i >= 0, with the promise that nothing which ``put``
writes in the same loop overlaps x. The compiler then needs no slices to see that i is not negative, and
no overlap checks. It generates at most eight of those, and does not vectorise a loop that would need
more, or whose result is in an operand's memory. Both promises hold only if a loop does all of its reads
in this way, and before any condition: the promise is lost for what is read in a branch."""

put: Any = intrinsic(_put_typed)
"""``put(y, i, value)``: y[i] = narrow(value, y), with the same promise."""

prefetch: Any = intrinsic(_prefetch_typed)
"""``prefetch(x, i)``: fetch the cache line of x[i] ahead of its use."""
