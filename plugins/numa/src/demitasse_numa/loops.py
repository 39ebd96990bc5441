"""Compiled loops, which release the GIL, by which domains wait for siblings, add or copy, and tell them.

A walk is a table of rows (kind, flag to wait for, source, target, elements, flag to set). Sources and
targets are addresses in bytes; flags are numbers, or -1 for none. Rows are done in order, and a walk can
be resumed at the row where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import carray as numba_carray  # type: ignore[attr-defined]
from numba import types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from demitasse import compiled_loop

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

cgutils: Any = untyped_cgutils
pointer_to: Any = types.CPointer
carray: Any = numba_carray

ADD, COPY, NOTHING = 0, 1, 2
LINE = 8
"""Words from one flag to the next, so that each has a cache line of its own."""

SPINS, YIELDS, NAP = 2000, 20, 50
"""A wait polls SPINS times (tens of microseconds), then yields the processor YIELDS times, then sleeps
NAP microseconds between polls. If there are more threads than processors, waiting threads therefore do
not keep others from working."""


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return cgutils.gep(builder, array.data, arguments[1])


def _look_typed(context: Any, flags: Any, index: Any) -> Any:
    """Read a flag. Everything that was written before it was set is visible afterwards."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_address(context, builder, signature, arguments), "acquire", 8)

    return types.int64(flags, types.int64), generate


def _tell_typed(context: Any, flags: Any, index: Any, value: Any) -> Any:
    """Set a flag, after all earlier writes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _address(context, builder, signature, arguments)
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(flags, types.int64, types.int64), generate


def _numbers_typed(context: Any, address: Any, like: Any) -> Any:
    """Convert an address to a pointer to elements of ``like``'s type."""
    pointer = pointer_to(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, like), generate


def _call_typed(name: str) -> Callable[..., Any]:
    def typed(context: Any, argument: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32)])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(function, [builder.trunc(arguments[0], ir.IntType(32))])

        return types.int32(types.int64), generate

    return typed


_look: Any = intrinsic(_look_typed)
_tell: Any = intrinsic(_tell_typed)
_numbers: Any = intrinsic(_numbers_typed)
_nap: Any = intrinsic(_call_typed("usleep"))
_pass: Any = intrinsic(_call_typed("sched_yield"))


@compiled_loop
def wait(flags: Array, flag: int, value: int, patience: int) -> bool:
    """Return whether a flag reached ``value`` within about ``patience`` microseconds."""
    for _ in range(SPINS):
        if _look(flags, flag * LINE) >= value:
            return True
    for _ in range(YIELDS):
        if _look(flags, flag * LINE) >= value:
            return True
        _pass(0)
    for _ in range(0, patience, NAP):
        if _look(flags, flag * LINE) >= value:
            return True
        _nap(NAP)
    return False


@compiled_loop
def walk(table: Array, row: int, flags: Array, value: int, patience: int, like: Array) -> int:
    """Do a table's rows from ``row`` on, for numbers of ``like``'s type. Returns the row at which
    ``patience`` (microseconds) ran out, or the number of rows."""
    while row < table.shape[0]:
        kind, before, after = table[row, 0], table[row, 1], table[row, 5]
        source, target, count = table[row, 2], table[row, 3], table[row, 4]
        if before >= 0 and not wait(flags, before, value, patience):
            return row
        if kind == ADD:
            x, y = (
                carray(_numbers(source, like), count),
                carray(_numbers(target, like), count),
            )
            for i in range(count):
                y[i] += x[i]
        elif kind == COPY:
            x, y = (
                carray(_numbers(source, like), count),
                carray(_numbers(target, like), count),
            )
            for i in range(count):
                y[i] = x[i]
        if after >= 0:
            _tell(flags, after * LINE, value)
        row += 1
    return row
