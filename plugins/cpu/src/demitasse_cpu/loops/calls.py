"""Calls compiled code from compiled code. Rows of a table each hold an address and its arguments.

A numba function takes its arguments flattened: an array as seven words, a named tuple as those of its
members. Any compiled loop can therefore be called given only its address, a row of 64-bit words and a
row of floating-point numbers. The calling convention (System V on x86-64, AAPCS64 on ARM) passes the two
kinds separately, and a callee does not see words beyond its own. A C function (the execution of a oneDNN
primitive) is called in the same way.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse import compiled_callback
from demitasse_cpu.loops.compiled import Array, compiled

WIDTHS = (6, 16, 40, 80, 160)
"""The numbers of words that a call can pass. It uses the smallest that its arguments fit in."""

REALS = 8
"""The number of floating-point arguments that a call passes, all in registers."""

ONE, TEAM = 0, 1
"""The kinds of rows in a table: a single call, or parts that a team of threads calls."""

_I64, _I32, _F64 = ir.IntType(64), ir.IntType(32), ir.DoubleType()


def _at(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    place = builder.inttoptr(builder.add(address, _I64(offset)), kind.as_pointer())
    return builder.load(place)


def _calling(width: int) -> Any:
    """Return an intrinsic that calls a record, which holds an address, a width, the words, and the
    numbers."""

    def typed(context: Any, record: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(_I32, [_I64] * width + [_F64] * REALS)
            function = _at(builder, args[0], 0, kind.as_pointer())
            words = [_at(builder, args[0], 16 + 8 * i, _I64) for i in range(width)]
            reals = [_at(builder, args[0], 16 + 8 * (width + i), _F64) for i in range(REALS)]
            return builder.call(function, words + reals)

        return types.int32(types.int64), generate

    return intrinsic(typed)


_CALL_6, _CALL_16, _CALL_40, _CALL_80, _CALL_160 = map(_calling, WIDTHS)


def _fork_typed(context: Any, fork: Any, share: Any, team: Any, threads: Any) -> Any:
    """Have a team of OpenMP's threads call ``share(team)``, and wait for them (GOMP_parallel)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        threads = builder.trunc(args[3], _I32)
        kind = ir.FunctionType(ir.VoidType(), [_I64, _I64, _I32, _I32])
        function = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(function, [args[1], args[2], threads, _I32(0)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64), generate


def _ask_typed(context: Any, function: Any) -> Any:
    """Call a C function without arguments and return its result, such as a thread's number or its team's
    size."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), []), _I64)

    return types.int64(types.int64), generate


def _tell_typed(context: Any, function: Any, value: Any) -> Any:
    """Call a C function that takes a number and returns nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I32])
        function = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(function, [builder.trunc(args[1], _I32)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _word_typed(context: Any, address: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.add(args[0], builder.mul(args[1], _I64(8)))
        return builder.load(builder.inttoptr(place, _I64.as_pointer()))

    return types.int64(types.int64, types.int64), generate


def _set_word_typed(context: Any, address: Any, index: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.add(args[0], builder.mul(args[1], _I64(8)))
        builder.store(args[2], builder.inttoptr(place, _I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


_fork: Any = intrinsic(_fork_typed)
_ask: Any = intrinsic(_ask_typed)
_tell: Any = intrinsic(_tell_typed)
_word: Any = intrinsic(_word_typed)
_set_word: Any = intrinsic(_set_word_typed)


@compiled(from_python=True)
def call(record: int) -> Any:
    """Call a record; return 0, or another number if what was called failed."""
    width = _word(record, 1)
    if width == WIDTHS[0]:
        return _CALL_6(record)
    if width == WIDTHS[1]:
        return _CALL_16(record)
    if width == WIDTHS[2]:
        return _CALL_40(record)
    if width == WIDTHS[3]:
        return _CALL_80(record)
    return _CALL_160(record)


@compiled_callback(types.void(types.int64))
def share(team: int) -> None:
    """Run one thread's share of a team's calls. A team consists of the addresses of omp_get_thread_num
    and omp_get_num_threads, a status, the number of calls, and their records."""
    threads, count = _ask(_word(team, 1)), _word(team, 3)
    for i in range(_ask(_word(team, 0)), count, threads):
        status = call(_word(team, 4 + i))
        if status != 0:
            _set_word(team, 2, status)


@compiled(from_python=True)
def run(threads: int, settings: Array, table: Array, fork: int, share: int) -> int:
    """Run the rows of a table (kind, record or team, threads) in order. Return 0, or the number of the
    row that failed plus one. Meanwhile, what this thread calls uses at most ``threads`` OpenMP threads,
    as in ``Team.using``. ``settings`` are the addresses of the functions that get and set that
    number."""
    before, varies = _ask(settings[0]), _ask(settings[1])
    _tell(settings[3], 0)
    _tell(settings[2], threads)
    failed = _run(table, fork, share)
    _tell(settings[2], before)
    _tell(settings[3], varies)
    return failed


@compiled()
def _run(table: Array, fork: int, share: int) -> int:
    for i in range(table.shape[0]):
        if table[i, 0] == ONE:
            if call(table[i, 1]) != 0:
                return i + 1
        else:
            _set_word(table[i, 1], 2, 0)
            _fork(fork, share, table[i, 1], table[i, 2])
            if _word(table[i, 1], 2) != 0:
                return i + 1
    return 0
