"""What siblings do together, compiled and without the GIL: meet at a gate, sum slices of gradients.

A gate is some words, each in a cache line of its own: how many have come in all, the number of the round
that the last one of each ends, when that one came, and for each sibling whether it may begin. Who waits
looks for a while where each sibling has a processor of its own, and then sleeps in the kernel until the
round ends (a futex on Linux, naps elsewhere): threads without a processor keep none from those who work.
"""

from __future__ import annotations

import platform
import sys
import time
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as _code
from numba.extending import intrinsic

from demitasse import compiled_loop, load_numba
from demitasse_parameter_server.board import LEFT, SINCE, SUMMED, WAITED

numba = load_numba()

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

cgutils: Any = _code
carray: Any = vars(numba)["carray"]

LINE = 8
"""Words from one word of a gate to the next."""

CAME, ROUND, LAST, TURNS = 0, LINE, 2 * LINE, 3 * LINE

SPIN = 300_000
"""Nanoseconds of looking at a gate before sleeping, where each sibling has a processor. Workers of LeNet
come some 100 us apart, and whoever sleeps is 50 us late."""

LOOKS = 100
"""Looks between looks at the clock."""

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


def _word(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return cgutils.gep(builder, array.data, arguments[1])


def _look_typed(context: Any, gate: Any, word: Any) -> Any:
    """A word; what was written before it was set is seen after it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_word(context, builder, signature, arguments), "acquire", 8)

    return types.int64(gate, types.int64), generate


def _add_typed(context: Any, gate: Any, word: Any, amount: Any) -> Any:
    """Add to a word, after all that was written before; what it was."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _word(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(gate, types.int64, types.int64), generate


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


def _now_typed(context: Any) -> Any:
    """Nanoseconds of the system's clock that is never set back."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pair = cgutils.alloca_once(builder, ir.ArrayType(_I64, 2))
        zero, one = ir.Constant(_I32, 0), ir.Constant(_I32, 1)
        kind = ir.FunctionType(_I32, [_I32, ir.PointerType(_I64)])
        function = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        seconds, rest = (builder.gep(pair, [zero, word]) for word in (zero, one))
        builder.call(function, [ir.Constant(_I32, clock), seconds])
        whole = builder.mul(builder.load(seconds), ir.Constant(_I64, 1_000_000_000))
        return builder.add(whole, builder.load(rest))

    clock = int(getattr(time, "CLOCK_MONOTONIC", 1))
    return types.int64(), generate


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
_now: Any = intrinsic(_now_typed)
_elements: Any = intrinsic(_elements_typed)


@compiled_loop
def _left(gate: Array, spent: Array) -> int:
    """Account for a wait that is over."""
    last = max(gate[LAST], spent[SINCE])
    spent[WAITED] += last - spent[SINCE]
    spent[LEFT] += max(0, _now() - last)
    return -1


@compiled_loop
def stay(gate: Array, ended: int, patience: int, spent: Array) -> int:
    """Wait until more than ``ended`` rounds have ended: -1 then, ``ended`` when patience is."""
    if FUTEX >= 0:
        if _look(gate, ROUND) == ended:
            _futex(gate, ROUND, _WAIT, ended & 0xFFFFFFFF, patience)
    else:
        for _ in range(0, patience, NAP):
            if _look(gate, ROUND) != ended:
                break
            _nap(NAP)
    return _left(gate, spent) if _look(gate, ROUND) != ended else ended


@compiled_loop
def wait(gate: Array, ended: int, spin: int, patience: int, spent: Array) -> int:
    """Wait until more than ``ended`` rounds have ended: -1 then, or ``ended`` after about ``patience``
    microseconds, to be waited for with ``stay``. ``spin``: for how many nanoseconds to look before
    sleeping."""
    since = _now()
    while spin > 0 and _now() < since + spin:
        for _ in range(LOOKS):
            if _look(gate, ROUND) != ended:
                return _left(gate, spent)
    return stay(gate, ended, patience, spent)


@compiled_loop
def come(gate: Array, size: int, spin: int, patience: int, spent: Array) -> int:
    """Come to a gate, and ``wait`` there for ``size`` siblings: -1 when all have come, else the number
    of the round that is still open; at once where patience is 0."""
    spent[SINCE] = _now()
    ended = _look(gate, ROUND)
    if (_add(gate, CAME, 1) + 1) % size == 0:
        gate[LAST] = _now()
        _add(gate, ROUND, 1)
        if FUTEX >= 0:
            _futex(gate, ROUND, _WAKE, _ALL, 0)
        return -1
    return wait(gate, ended, spin, patience, spent) if patience > 0 else ended


@compiled_loop
def add_up(addresses: Array, target: int, count: int, room: Array) -> None:
    """The sum of ``count`` elements at each of the addresses, added in their order (the same bits in
    every run), to the address ``target``, which may be one of them. ``room`` has BLOCK elements."""
    size = room.itemsize
    for begin in range(0, count, BLOCK):
        n = min(BLOCK, count - begin)
        result = carray(_elements(target + begin * size, room), n)
        if addresses.size == 2 and (target == addresses[0] or target == addresses[1]):
            # Read by the name that it is written by: else the compiler sees two that overlap, and
            # makes no vectors of them (67 us instead of 20 for LeNet's).
            other = addresses[1] if target == addresses[0] else addresses[0]
            part = carray(_elements(other + begin * size, room), n)
            for i in range(n):
                result[i] += part[i]
            continue
        first = carray(_elements(addresses[0] + begin * size, room), n)
        total = room[:n]
        for i in range(n):
            total[i] = first[i]
        for sibling in range(1, addresses.size):
            part = carray(_elements(addresses[sibling] + begin * size, room), n)
            for i in range(n):
                total[i] += part[i]
        for i in range(n):
            result[i] = total[i]


@compiled_loop
def timed_sum(spent: Array, addresses: Array, target: int, count: int, room: Array) -> None:
    """``add_up``, with its time."""
    start = _now()
    add_up(addresses, target, count, room)
    spent[SUMMED] += _now() - start


@compiled_loop
def come_and_add(
    gate: Array,
    size: int,
    spin: int,
    patience: int,
    spent: Array,
    addresses: Array,
    target: int,
    count: int,
    room: Array,
) -> int:
    """``come``, and ``add_up`` when all have: between the two nobody waits for the interpreter."""
    ended = come(gate, size, spin, patience, spent)
    if ended < 0:
        timed_sum(spent, addresses, target, count, room)
    return ended


@compiled_loop
def wait_and_add(
    gate: Array,
    ended: int,
    spin: int,
    patience: int,
    spent: Array,
    addresses: Array,
    target: int,
    count: int,
    room: Array,
) -> int:
    """``wait``, and ``add_up`` when all have come."""
    ended = wait(gate, ended, spin, patience, spent)
    if ended < 0:
        timed_sum(spent, addresses, target, count, room)
    return ended


@compiled_loop
def give_turn(gate: Array, sibling: int) -> None:
    """Let a sibling begin."""
    word = TURNS + sibling * LINE
    _add(gate, word, 1)
    if FUTEX >= 0:
        _futex(gate, word, _WAKE, 1, 0)


@compiled_loop
def take_turn(gate: Array, sibling: int, patience: int) -> bool:
    """Begin if one's turn comes within ``patience`` microseconds, and whether it has."""
    word = TURNS + sibling * LINE
    if FUTEX >= 0:
        if _look(gate, word) == 0:
            _futex(gate, word, _WAIT, 0, patience)
    else:
        for _ in range(0, patience, NAP):
            if _look(gate, word) > 0:
                break
            _nap(NAP)
    if _look(gate, word) > 0:
        _add(gate, word, -1)
        return True
    return False
