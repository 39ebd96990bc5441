"""Compiled access to memory by address: words that ranks share, cache lines that they add, system calls.

All of these are compiler intrinsics, so they can be imported into the file whose loops call each other.
Addresses and words are int64. Atomic accesses are sequentially consistent.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from demitasse_allreduce.node.work import ADDED

LINE = 64
"""Bytes of a cache line, which a loop over vectors moves at a time."""

_TOGETHER = 8  # lines that are added at a time; one by one they took twice as long

_EXCHANGED = 4  # lines that are exchanged at a time: half of 16 registers of 32 bytes hold these

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_word_type, _nothing = types.int64, types.void
_HINTS = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}


def _pointer(builder: Any, address: Any, offset: Any, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, offset), kind.as_pointer())


def _place(builder: Any, args: Any) -> Any:
    """Return a pointer to word number ``args[1]`` after the address ``args[0]``."""
    return _pointer(builder, args[0], builder.mul(args[1], _I64(8)), _I64)


def _of_words(count: int, result: Any, generate: Callable[[Any, Any, Any], Any]) -> Any:
    """Return an intrinsic of ``count`` int64 arguments. ``generate(context, builder, args)`` returns its
    value."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = generate(context, builder, args)
        return context.get_dummy_value() if result is _nothing else value

    def one(context: Any, a: Any) -> Any:
        return result(_word_type), emit

    def two(context: Any, a: Any, b: Any) -> Any:
        return result(_word_type, _word_type), emit

    def three(context: Any, a: Any, b: Any, c: Any) -> Any:
        return result(_word_type, _word_type, _word_type), emit

    def four(context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        return result(*[_word_type] * 4), emit

    def six(context: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Any:
        return result(*[_word_type] * 6), emit

    def seven(context: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any) -> Any:
        return result(*[_word_type] * 7), emit

    def eight(context: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
        return result(*[_word_type] * 8), emit

    return intrinsic({1: one, 2: two, 3: three, 4: four, 6: six, 7: seven, 8: eight}[count])


def _get(context: Any, builder: Any, args: Any) -> Any:
    return builder.load(_place(builder, args))


def _put(context: Any, builder: Any, args: Any) -> Any:
    builder.store(args[2], _place(builder, args))


def _look(context: Any, builder: Any, args: Any) -> Any:
    return builder.load_atomic(_place(builder, args), "seq_cst", 8)


def _publish(context: Any, builder: Any, args: Any) -> Any:
    builder.atomic_rmw("xchg", _place(builder, args), args[2], "seq_cst")


def _fetch_add(context: Any, builder: Any, args: Any) -> Any:
    return builder.atomic_rmw("add", _place(builder, args), args[2], "seq_cst")


def _copy(context: Any, builder: Any, args: Any) -> Any:
    to, source = (builder.inttoptr(arg, _I8.as_pointer()) for arg in args[:2])
    cgutils.raw_memcpy(builder, to, source, args[2], 1)  # type: ignore[no-untyped-call]


def _call_none(context: Any, builder: Any, args: Any) -> Any:
    function = builder.inttoptr(args[0], ir.FunctionType(_I32, []).as_pointer())
    builder.call(function, [])


def _call_seven(context: Any, builder: Any, args: Any) -> Any:
    kind = ir.FunctionType(ir.VoidType(), [_I64] * 7)
    builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])


def _futex(context: Any, builder: Any, args: Any) -> Any:
    """``args``: the address of a row (address of syscall, number of the futex call), the word's
    address, and either, to wait, the expected value and a timespec's address, or, to wake all, -1 and
    anything."""
    syscall, number = (builder.load(_pointer(builder, args[0], _I64(8 * i), _I64)) for i in (0, 1))
    kind = ir.FunctionType(_I64, [_I64], var_arg=True)
    wakes = builder.icmp_signed("<", args[2], _I64(0))
    operation = builder.zext(wakes, _I64)
    value = builder.select(wakes, _I64(2**31 - 1), args[2])
    function = builder.inttoptr(syscall, kind.as_pointer())
    builder.call(function, [number, args[1], operation, value, args[3], _I64(0), _I64(0)])


def _pause(context: Any, builder: Any, args: Any) -> Any:
    """Tell the processor that this is a wait loop, if it has an instruction for this."""
    hint = _HINTS.get(platform.machine())
    if hint is not None:
        name, words = hint
        kind = ir.FunctionType(ir.VoidType(), [_I32] * len(words))
        function = builder.module.declare_intrinsic(name, (), kind)
        builder.call(function, [_I32(word) for word in words])


get = _of_words(2, _word_type, _get)
"""get(address, index): return a word."""
put = _of_words(3, _nothing, _put)
"""put(address, index, value): write a word."""
look = _of_words(2, _word_type, _look)
"""look(address, index): return a word that other ranks write."""
publish = _of_words(3, _nothing, _publish)
"""publish(address, index, value): write a word that other ranks read, after all earlier writes."""
fetch_add = _of_words(3, _word_type, _fetch_add)
"""fetch_add(address, index, amount): add to a word, and return what it was before."""
copy = _of_words(3, _nothing, _copy)
"""copy(to, source, bytes): copy memory that does not overlap."""
call = _of_words(1, _nothing, _call_none)
"""call(function): call a C function without arguments."""
call_seven = _of_words(8, _nothing, _call_seven)
"""call_seven(function, a, b, c, d, e, f, g): call a C function with seven words."""
futex = _of_words(4, _nothing, _futex)
"""futex(functions, address, value, timespec): wait while the word has the value; wake all waiters if the
value is -1."""
pause = _of_words(1, _nothing, _pause)


def _kind(number: int) -> Any:
    """Return the compiler's type for ``ADDED[number]``."""
    name = ADDED[number]
    if name[0] == "i":
        return ir.IntType(8 * int(name[1:]))
    return ir.FloatType() if name == "f4" else ir.DoubleType()


def _for_each(builder: Any, number: Any, generate: Callable[[Any, int, str], None]) -> None:
    """Emit code for every type of ``ADDED``, by ``generate(kind, bytes, add)``; at run time ``number``
    selects one."""
    after = builder.append_basic_block("added")
    choice = builder.switch(number, after)
    for i, name in enumerate(ADDED):
        block = builder.append_basic_block(name)
        choice.add_case(_I64(i), block)
        builder.position_at_end(block)
        generate(_kind(i), int(name[1:]), "fadd" if name[0] == "f" else "add")
        builder.branch(after)
    builder.position_at_end(after)


def _add_up(builder: Any, add: str, kind: Any, align: int, tables: Any, places: Any) -> None:
    """Emit code that sums the values at ``places(table, i)`` over all sources i, one sum for each place,
    and writes the sums to all targets. A pointer in a table is read once for all places."""
    sources, count, targets, stores = tables
    pointers = places(sources, _I64(0))
    totals = [cgutils.alloca_once(builder, kind) for _ in pointers]  # type: ignore[no-untyped-call]
    for total, pointer in zip(totals, pointers, strict=True):
        first = builder.load(pointer)
        first.align = align
        builder.store(first, total)
    with cgutils.for_range(builder, count, start=_I64(1)) as inner:
        for total, pointer in zip(totals, places(sources, inner.index), strict=True):
            more = builder.load(pointer)
            more.align = align
            builder.store(getattr(builder, add)(builder.load(total), more), total)
    values = [builder.load(total) for total in totals]
    with cgutils.for_range(builder, stores) as inner:
        for value, pointer in zip(values, places(targets, inner.index), strict=True):
            builder.store(value, pointer).align = align


def _adding(vectors: bool) -> Callable[[Any, Any, Any], None]:
    """Return a generator of code that adds vectors of one cache line each, several at a time, or one
    element."""

    def generate(context: Any, builder: Any, args: Any) -> None:
        def of(element: Any, size: int, add: str) -> None:
            kind = ir.VectorType(element, LINE // size) if vectors else element

            def some(offset: Any, lines: int) -> None:
                def places(table: Any, i: Any) -> list[Any]:
                    entry = _pointer(builder, table, builder.mul(i, _I64(8)), _I64)
                    start = builder.add(builder.load(entry), offset)
                    return [_pointer(builder, start, _I64(LINE * line), kind) for line in range(lines)]

                _add_up(builder, add, kind, size, args[:4], places)

            if not vectors:
                some(args[4], 1)
                return
            together = builder.udiv(args[5], _I64(_TOGETHER))
            with cgutils.for_range(builder, together) as loop:
                some(builder.add(args[4], builder.mul(loop.index, _I64(LINE * _TOGETHER))), _TOGETHER)
            with cgutils.for_range(
                builder, args[5], start=builder.mul(together, _I64(_TOGETHER))
            ) as loop:
                some(builder.add(args[4], builder.mul(loop.index, _I64(LINE))), 1)

        _for_each(builder, args[-1], of)

    return generate


def _exchange(context: Any, builder: Any, args: Any) -> None:
    """Emit code in which all that a round moves is read before any of it is written: as many lines as
    the registers hold."""
    kind = ir.VectorType(_I64, LINE // 8)

    def some(offset: Any, lines: int) -> None:
        to, stage, source = (
            [_pointer(builder, builder.add(arg, offset), _I64(LINE * i), kind) for i in range(lines)]
            for arg in args[:3]
        )
        values = [builder.load(pointer) for pointer in (*stage, *source)]
        for value in values:
            value.align = 1
        for value, pointer in zip(values, (*to, *stage), strict=True):
            builder.store(value, pointer).align = 1

    rounds = builder.udiv(args[3], _I64(_EXCHANGED))
    with cgutils.for_range(builder, rounds) as loop:
        some(builder.mul(loop.index, _I64(LINE * _EXCHANGED)), _EXCHANGED)
    with cgutils.for_range(builder, args[3], start=builder.mul(rounds, _I64(_EXCHANGED))) as loop:
        some(builder.mul(loop.index, _I64(LINE)), 1)


exchange_lines = _of_words(4, _nothing, _exchange)
"""exchange_lines(to, stage, source, lines): copy ``lines`` cache lines of ``stage`` to ``to``, and
those of ``source`` to ``stage``."""

add_lines = _of_words(7, _nothing, _adding(vectors=True))
"""add_lines(sources, count, targets, stores, at, lines, number): sum ``lines`` cache lines from byte
``at`` on over the ``count`` addresses in the table ``sources``, in their order, and write the sum at
the ``stores`` addresses in the table ``targets``. Elements are of the type ``ADDED[number]``."""

add_element = _of_words(6, _nothing, _adding(vectors=False))
"""add_element(sources, count, targets, stores, at, number): as ``add_lines``, for one element at byte
``at``."""
