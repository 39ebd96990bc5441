"""What siblings do together, compiled and without the GIL: meeting at a gate, and summing slices of
gradients.

A gate consists of words that each have a cache line of their own: how many siblings have come in all,
how many rounds have ended (the last sibling to come ends a round), when that sibling came, and for each
sibling whether it may begin. If each sibling has a processor of its own, a waiting sibling first polls
for a while. Then it sleeps in the kernel until the round ends (by a futex on Linux, by naps elsewhere),
so that waiting threads do not take processors from working ones.
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
"""Nanoseconds of polling a gate before sleeping, if each sibling has a processor. Workers of LeNet come
some 100 us apart, and a worker that sleeps wakes up 50 us late."""

LOOKS = 100
"""Polls between two looks at the clock."""

NAP = 50
"""Microseconds between polls if the system has no futex."""

BLOCK = 2048
"""Elements that are summed over all siblings before the next ones, so that they stay in the L1 cache."""

_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
FUTEX = (
    _FUTEX.get(platform.machine(), -1) if sys.platform == "linux" and sys.byteorder == "little" else -1
)
"""The number of the futex system call, or -1 if there is none."""

_WAIT, _WAKE, _ALL = 128, 129, 2**31 - 1  # private futexes, of this process only
_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _word(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return cgutils.gep(builder, array.data, arguments[1])


def _look_typed(context: Any, gate: Any, word: Any) -> Any:
    """Read a word. Everything that was written before it was set is visible afterwards."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_word(context, builder, signature, arguments), "acquire", 8)

    return types.int64(gate, types.int64), generate


def _add_typed(context: Any, gate: Any, word: Any, amount: Any) -> Any:
    """Add to a word, after all earlier writes, and return what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _word(context, builder, signature, arguments)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(gate, types.int64, types.int64), generate


def _futex_typed(context: Any, gate: Any, word: Any, what: Any, value: Any, patience: Any) -> Any:
    """Make the system call on a word's lower half: sleep while it is ``value``, for at most ``patience``
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
    """Return the nanoseconds of the system's monotonic clock."""

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
    """Convert an address to a pointer to elements of ``like``'s type."""
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
    """Record the times of a wait that is over, and return -1."""
    last = max(gate[LAST], spent[SINCE])
    spent[WAITED] += last - spent[SINCE]
    spent[LEFT] += max(0, _now() - last)
    return -1


@compiled_loop
def stay(gate: Array, ended: int, patience: int, spent: Array) -> int:
    """Wait, without polling first, until more than ``ended`` rounds have ended. Returns -1 then, or
    ``ended`` after about ``patience`` microseconds."""
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
    """Wait until more than ``ended`` rounds have ended. Returns -1 then, or ``ended`` after about
    ``patience`` microseconds; ``stay`` continues the wait. ``spin``: for how many nanoseconds to poll
    before sleeping."""
    since = _now()
    while spin > 0 and _now() < since + spin:
        for _ in range(LOOKS):
            if _look(gate, ROUND) != ended:
                return _left(gate, spent)
    return stay(gate, ended, patience, spent)


@compiled_loop
def come(gate: Array, size: int, spin: int, patience: int, spent: Array) -> int:
    """Come to a gate, and ``wait`` there for ``size`` siblings. Returns -1 if all have come, else the
    number of the round that is still open; without waiting if ``patience`` is 0."""
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
    """Sum ``count`` elements over all addresses, in their order (the same bits in every run), and write
    the sum to the address ``target``, which may be one of these. ``room`` has space for BLOCK
    elements."""
    size = room.itemsize
    for begin in range(0, count, BLOCK):
        n = min(BLOCK, count - begin)
        result = carray(_elements(target + begin * size, room), n)
        if addresses.size == 2 and (target == addresses[0] or target == addresses[1]):
            # Read and write the target through one name. With two names the compiler assumes that they
            # may overlap, and does not vectorise (67 us instead of 20 for LeNet's gradients).
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
    """Call ``add_up``, and record its time."""
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
    """``come``, and ``add_up`` if all have come, without waiting for the interpreter between the two."""
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
    """``wait``, and ``add_up`` if all have come."""
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
    """Wait up to ``patience`` microseconds for a sibling's turn to begin; return whether it has come."""
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
