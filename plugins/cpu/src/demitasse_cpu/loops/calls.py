"""Calling compiled code from compiled code: rows of a table, each an address and its arguments.

A numba function takes its arguments flattened: an array as seven words, a named tuple as those of
its members. So any compiled loop can be called with nothing but its address, a row of 64-bit words
and a row of floating-point numbers; the calling convention (System V on x86-64, AAPCS64 on ARM)
passes the two kinds separately, and a callee does not see words beyond its own. A function of C
(a oneDNN primitive's execution) is called the same way.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse import compiled_callback
from demitasse_cpu.loops.compiled import Array, compiled

WIDTHS = (6, 16, 40, 80, 160)
"""How many words a call passes: the smallest of these that its arguments fit in."""

REALS = 8
"""Floating-point arguments that a call passes, all of them in registers."""

ONE, TEAM = 0, 1
"""What a row of a table is: a call, or parts that a team of threads calls."""

_I64, _I32, _F64 = ir.IntType(64), ir.IntType(32), ir.DoubleType()


def _at(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    place = builder.inttoptr(builder.add(address, _I64(offset)), kind.as_pointer())
    return builder.load(place)


def _calling(width: int) -> Any:
    """An intrinsic that calls a record: address, width, then the words, then the numbers."""

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
    """What a C function of no arguments returns: a thread's number, or that of its team."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [])
        return builder.sext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), []), _I64)

    return types.int64(types.int64), generate


def _tell_typed(context: Any, function: Any, value: Any) -> Any:
    """Give a number to a C function that returns nothing."""

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


@compiled()
def _call(record: int) -> Any:
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
    """One thread's part of a team's calls. A team: the addresses of omp_get_thread_num and
    omp_get_num_threads, a status, the number of calls, and their records."""
    threads, count = _ask(_word(team, 1)), _word(team, 3)
    for i in range(_ask(_word(team, 0)), count, threads):
        status = _call(_word(team, 4 + i))
        if status != 0:
            _set_word(team, 2, status)


@compiled()
def run(threads: int, settings: Array, table: Array, fork: int, share: int) -> int:
    """Do the rows of a table (kind, record or team, threads) in order; 0, or one more than the number
    of the row that failed. Meanwhile at most so many ``threads`` are OpenMP's for what this thread
    calls, as ``Team.using`` has it; ``settings`` are the addresses of what says and sets that."""
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
            if _call(table[i, 1]) != 0:
                return i + 1
        else:
            _set_word(table[i, 1], 2, 0)
            _fork(fork, share, table[i, 1], table[i, 2])
            if _word(table[i, 1], 2) != 0:
                return i + 1
    return 0
