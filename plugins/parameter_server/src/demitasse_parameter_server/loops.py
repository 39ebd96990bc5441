"""What siblings do together, compiled and without the GIL: meet at a gate, sum slices of gradients.

A gate is some words, each in a cache line of its own: how many have come in all, and the number of the
round that the last one of each ends. Who waits looks for some microseconds where each sibling has a
processor of its own, and then sleeps in the kernel until the round ends (a futex on Linux, naps
elsewhere): threads without a processor keep none from those who work.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as _code
from numba.extending import intrinsic

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Loop = TypeVar("Loop", bound=Callable[..., Any])

cgutils: Any = _code
carray: Any = vars(numba)["carray"]

LINE = 8
"""Words from one word of a gate to the next."""

CAME, ROUND = 0, LINE
WORDS = 2 * LINE

SPINS = 2000
"""Looks at a gate before sleeping, some tens of microseconds, where nobody needs the processor."""

NAP = 50
"""Microseconds between looks where the system has no futex."""

BLOCK = 2048
"""Elements that are summed over all siblings before the next: they stay in the first-level cache."""

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
FUTEX = (
    _FUTEX.get(platform.machine(), -1) if sys.platform == "linux" and sys.byteorder == "little" else -1
)
"""The number of the system call, or -1 where there is none."""

_WAIT, _WAKE, _ALL = 128, 129, 2**31 - 1  # of this process alone
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def compiled(loop: Loop) -> Loop:
    """Compile without the GIL, kept on disk where that can be written."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(loop)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(**options)(loop)  # type: ignore[no-any-return]


def _word(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return cgutils.gep(builder, array.data, arguments[1])


def _look_typed(context: Any, gate: Any, word: Any) -> Any:
    """A word; what was written before it was set is seen after it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_word(context, builder, signature, arguments), "acquire", 8)

    return types.int64(gate, types.int64), generate


def _add_typed(context: Any, gate: Any, word: Any) -> Any:
    """Add 1 to a word, after all that was written before; what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _word(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, ir.Constant(_I64, 1), "seq_cst")

    return types.int64(gate, types.int64), generate


def _futex_typed(context: Any, gate: Any, word: Any, what: Any, value: Any, patience: Any) -> Any:
    """The system call on a word's lower half: sleep while it is ``value``, at most ``patience``
    microseconds, or wake ``value`` sleepers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _word(context, builder, signature, arguments)
        time = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        million = ir.Constant(_I64, 1_000_000)
        zero, one = ir.Constant(_I32, 0), ir.Constant(_I32, 1)
        builder.store(builder.sdiv(arguments[4], million), builder.gep(time, [zero, zero]))
        rest = builder.mul(builder.srem(arguments[4], million), ir.Constant(_I64, 1000))
        builder.store(rest, builder.gep(time, [zero, one]))
        call = ir.FunctionType(_I64, [_I64], var_arg=True)
        function = cgutils.get_or_insert_function(builder.module, call, "syscall")
        numbers = [builder.ptrtoint(place, _I64), arguments[2], arguments[3]]
        last = [builder.ptrtoint(time, _I64), ir.Constant(_I64, 0), ir.Constant(_I64, 0)]
        return builder.call(function, [ir.Constant(_I64, FUTEX), *numbers, *last])

    return types.int64(gate, types.int64, types.int64, types.int64, types.int64), generate


def _nap_typed(context: Any, microseconds: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "usleep")
        return builder.call(function, [builder.trunc(arguments[0], _I32)])

    return types.int32(types.int64), generate


def _elements_typed(context: Any, address: Any, like: Any) -> Any:
    """The address as a pointer to elements of ``like``'s type."""
    pointer: Any = vars(types)["CPointer"](like.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, like), generate


_look: Any = intrinsic(_look_typed)
_add: Any = intrinsic(_add_typed)
_futex: Any = intrinsic(_futex_typed)
_nap: Any = intrinsic(_nap_typed)
_elements: Any = intrinsic(_elements_typed)


@compiled
def come(gate: Array, size: int, spins: int, patience: int) -> int:
    """Come to a gate and wait there for ``size`` siblings: -1 when all have come, or after about
    ``patience`` microseconds the round that is still open, to be waited for with ``stay``."""
    ended = _look(gate, ROUND)
    if (_add(gate, CAME) + 1) % size == 0:
        _add(gate, ROUND)
        if FUTEX >= 0:
            _futex(gate, ROUND, _WAKE, _ALL, 0)
        return -1
    for _ in range(spins):
        if _look(gate, ROUND) != ended:
            return -1
    return stay(gate, ended, patience)


@compiled
def stay(gate: Array, ended: int, patience: int) -> int:
    """Wait until more than ``ended`` rounds have ended: -1 then, ``ended`` when patience is."""
    if FUTEX >= 0:
        if _look(gate, ROUND) == ended:
            _futex(gate, ROUND, _WAIT, ended & 0xFFFFFFFF, patience)
    else:
        for _ in range(0, patience, NAP):
            if _look(gate, ROUND) != ended:
                return -1
            _nap(NAP)
    return -1 if _look(gate, ROUND) != ended else ended


@compiled
def add_up(addresses: Array, target: int, count: int, room: Array) -> None:
    """The sum of ``count`` elements at each of the addresses, added in their order (the same bits in
    every run), to the address ``target``, which may be one of them. ``room`` has BLOCK elements."""
    size = room.itemsize
    for begin in range(0, count, BLOCK):
        n = min(BLOCK, count - begin)
        result = carray(_elements(target + begin * size, room), n)
        first = carray(_elements(addresses[0] + begin * size, room), n)
        if addresses.size == 2:
            second = carray(_elements(addresses[1] + begin * size, room), n)
            for i in range(n):
                result[i] = first[i] + second[i]
            continue
        total = room[:n]
        for i in range(n):
            total[i] = first[i]
        for sibling in range(1, addresses.size):
            part = carray(_elements(addresses[sibling] + begin * size, room), n)
            for i in range(n):
                total[i] += part[i]
        for i in range(n):
            result[i] = total[i]
