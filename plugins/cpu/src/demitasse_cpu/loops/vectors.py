"""Arithmetic on vectors of float32 while LLVM code is built, for loops that are written in vectors.

An array of uint16 stores bfloat16.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from demitasse_cpu.loops.bfloat16 import narrowed_vector, widened_vector
from demitasse_cpu.loops.processor import FEATURES
from demitasse_cpu.loops.tiles import lanes

LANES = lanes(4)

WRITES_PAST = "sse" in FEATURES
"""Whether vectors can be written past the caches."""

_I1, _I32, _F32 = ir.IntType(1), ir.IntType(32), ir.FloatType()
I64 = ir.IntType(64)
"""The type of offsets and counts."""


class Vectors:
    """Builds LLVM code for arithmetic on vectors of float32."""

    kind = ir.VectorType(_F32, LANES)
    mask = ir.VectorType(_I1, LANES)

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self._multiply_add = self._function(f"llvm.fmuladd.v{LANES}f32", self.kind, [self.kind] * 3)

    def _function(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        kind = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self.builder.module, kind, name)  # type: ignore[no-untyped-call]

    def index(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def data(self, context: Any, signature: Any, args: Any, position: int) -> Any:
        """Return where an array argument's numbers begin."""
        return context.make_array(signature.args[position])(context, self.builder, args[position]).data

    def as_written(self, branch: Any) -> None:
        """Prevent the loop that ends with this branch from being unrolled. A tile whose sums fill the
        registers would then spill them to memory, and took two and a half times as long."""
        module = self.builder.module
        hint = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
        # Such a node refers to itself first, which operands passed to a module cannot do.
        loop = ir.MDValue(module, [], str(len(module.metadata)))
        loop.operands = (loop, hint)
        branch.set_metadata("llvm.loop", loop)

    def offset(self, place: Sequence[Any], i: int, j: int) -> Any:
        """Return the offset of row i and column j from a place, which is an offset and the distances
        down and across."""
        at, down, across = place
        row = self.builder.add(at, self.builder.mul(down, self.index(i)))
        return self.builder.add(row, self.builder.mul(across, self.index(j)))

    def places(self, context: Any, signature: Any, args: Any, position: int, count: int) -> list[Any]:
        """Return consecutive numbers of a table, the argument at ``position``; the next argument is the
        first index."""
        table = self.data(context, signature, args, position)
        at = [self.builder.add(args[position + 1], self.index(i)) for i in range(count)]
        return [self.builder.load(self.builder.gep(table, [place])) for place in at]

    def there(self, pointer: Any, row: Any, column: Any, otherwise: Any) -> Any:
        """Return where a row and a column meet, or ``otherwise`` if one of them is negative."""
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
        """Return z + factor * x, rounded once if the processor can."""
        return self.add(z, x) if factor == 1 else self.multiply_add(self.constant(factor), x, z)

    def sum(self, terms: Sequence[tuple[float, Any]]) -> Any:
        """Return the sum of factors times vectors, those with factor 1 first."""
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
        """Return the mask of the first ``count`` lanes."""
        numbers = ir.Constant(ir.VectorType(_I32, LANES), list(range(LANES)))
        return self.builder.icmp_signed("<", numbers, self.splat(self.builder.trunc(count, _I32)))

    def load(
        self, pointer: Any, offset: Any, stored: Any = types.float32, mask: Any | None = None
    ) -> Any:
        """Load a vector as it is ``stored``. Lanes that a mask leaves out are zeros, and may be beyond
        an array's end."""
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
        past: bool = False,
    ) -> None:
        """Store a vector. ``past`` writes it past the caches, if the memory is that of a whole vector;
        this is for data that nobody reads before the caches have lost it. Other threads see it only
        after ``settle``."""
        kind, align, name = self._kind(stored)
        place = self.builder.bitcast(self.builder.gep(pointer, [offset]), kind.as_pointer())
        kept = narrowed_vector(self.builder, value, stored)
        if past:
            self._store_past(kept, place, align)
        elif mask is None:
            self.builder.store(kept, place).align = align
        else:
            store = self._function(
                f"llvm.masked.store.{name}.p0", ir.VoidType(), [kind, place.type, _I32, self.mask]
            )
            self.builder.call(store, [kept, place, _I32(align), mask])

    def _store_past(self, kept: Any, place: Any, itemsize: int) -> None:
        kind = ir.VectorType(_I32, LANES * itemsize // 4)
        bits = self.builder.bitcast(kept, kind)
        # LLVM sees through the cast, and has no such stores of the processor's own bfloat16.
        bits = self.builder.asm(ir.FunctionType(kind, [kind]), "", "=x,0", [bits], False)
        written = self.builder.store(bits, self.builder.bitcast(place, kind.as_pointer()))
        written.align = LANES * itemsize
        written.set_metadata("nontemporal", self.builder.module.add_metadata([_I32(1)]))

    def settle(self) -> None:
        """Make what was written past the caches visible to other threads."""
        self.builder.call(self._function("llvm.x86.sse.sfence", ir.VoidType(), []), [])

    def _kind(self, stored: Any) -> tuple[Any, int, str]:
        """Return the vector type of numbers in memory, their alignment, and LLVM's name of the type."""
        if stored == types.uint16:
            return ir.VectorType(ir.IntType(16), LANES), 2, f"v{LANES}i16"
        return self.kind, 4, f"v{LANES}f32"

    def fetch(self, pointer: Any, offset: Any, to_write: bool = False, near: bool = True) -> None:
        """Prefetch memory that will be read soon. If that is not ``near`` in time, prefetch only to the
        far caches, so that the first one keeps what it has."""
        byte = ir.IntType(8).as_pointer()
        prefetch = self._function("llvm.prefetch.p0", ir.VoidType(), [byte, _I32, _I32, _I32])
        place = self.builder.bitcast(self.builder.gep(pointer, [offset]), byte)
        self.builder.call(prefetch, [place, _I32(int(to_write)), _I32(3 if near else 1), _I32(1)])
