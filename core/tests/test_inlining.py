"""Parts of loops are inlined as by numba, but without its copies of copies."""

from __future__ import annotations

import copy
import gc
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from demitasse import compiled_loop, load_numba
from demitasse_host import compiler
from demitasse_host.inlining import _once, _Together, quick_compiler

numba = pytest.importorskip("numba")
ir = pytest.importorskip("numba.core.ir")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled here was not kept by another run."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


@pytest.fixture
def inlining() -> ModuleType:
    """Return the module by which numba inlines; it must be left unchanged."""
    from numba.core import inline_closurecall

    assert inline_closurecall.copy is copy
    return inline_closurecall


def loop_of_parts() -> Callable[[int], int]:
    """Return a loop with a part within a part, of several blocks each, in two places."""
    part = load_numba().njit(inline="always")

    @part
    def inner(x: int, y: int) -> int:
        made = 0
        for i in range(x):
            if i % 3 == y:
                made += i
            elif i % 5 == y:
                made -= 2 * i
        return made

    @part
    def outer(x: int, y: int) -> int:
        return inner(x, y) if x > y else 3 * inner(y, x) + 1

    def loop(n: int) -> int:
        made = 0
        for i in range(n):
            made += outer(i, 2)
        return made + outer(n, 1)

    return loop


def copies_of_variables(compiling: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    count, as_ever = [0], ir.Var.__deepcopy__

    def counting(variable: Any, memo: Any) -> Any:
        count[0] += 1
        return as_ever(variable, memo)

    with monkeypatch.context() as patch:
        patch.setattr(ir.Var, "__deepcopy__", counting)
        compiling()
    return count[0]


def test_variables_of_a_part_are_copied_once_and_not_with_each_block(
    inlining: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, quick = numba.njit(loop_of_parts()), compiled_loop(loop_of_parts())
    by_numba = copies_of_variables(lambda: plain.compile((numba.int64,)), monkeypatch)
    by_us = copies_of_variables(lambda: quick.compile((numba.int64,)), monkeypatch)
    assert 0 < 4 * by_us < by_numba
    assert plain(40) == quick(40) == plain.py_func(40)
    assert inlining.copy is copy


def test_a_part_is_analysed_once_in_a_process(
    inlining: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysed, as_ever = list[str](), inlining.InlineWorker.run_untyped_passes

    def counting(worker: Any, part: Any, enable_ssa: bool = False) -> Any:
        analysed.append(part.__name__)
        return as_ever(worker, part, enable_ssa)

    monkeypatch.setattr(inlining.InlineWorker, "run_untyped_passes", counting)
    loop = loop_of_parts()
    numba.njit(loop).compile((numba.int64,))
    assert sorted(analysed) == ["inner"] * 4 + ["outer"] * 2
    analysed.clear()
    for kind in (numba.int64, numba.int32, numba.uint8):
        compiled_loop(loop).compile((kind,))  # type: ignore[attr-defined]
    assert sorted(analysed) == ["inner", "outer"]
    assert inlining.InlineWorker.run_untyped_passes is counting


def test_what_was_analysed_is_kept_for_as_long_as_the_part() -> None:
    def part() -> None:
        pass

    worker = SimpleNamespace(flags=SimpleNamespace(enable_ssa=True))
    kinds = list[bool]()

    def analyse(_: Any, part: Any, enable_ssa: bool) -> SimpleNamespace:
        kinds.append(enable_ssa)
        return SimpleNamespace(func_id=part, blocks=object())

    analysed = _once(analyse, lambda part: [part])
    assert _once(analysed, lambda part: [part]) is analysed
    first, second = analysed(worker, part), analysed(worker, part)
    assert first.blocks is second.blocks
    assert first.func_id == second.func_id == [part]
    assert first.func_id is not second.func_id  # numba makes names of it
    assert worker.flags.enable_ssa is False  # as numba leaves it
    assert analysed(worker, part, enable_ssa=True).blocks is not first.blocks
    assert kinds == [False, True]
    watched = weakref.ref(part)
    del part, first, second
    gc.collect()
    assert watched() is None


def test_the_machine_code_is_that_of_numbas_own_inlining() -> None:
    loop = loop_of_parts()
    for kind in (
        numba.int64,
        numba.float64,
    ):  # the second is made of the parts as analysed for the first
        by_numba = numba.njit(loop, nogil=True, error_model="numpy", no_cfunc_wrapper=True)
        expected = listing(by_numba, kind)
        assert len(expected) > 1000
        assert listing(compiled_loop(loop), kind) == expected


def listing(loop: Any, kind: Any) -> str:
    """Return the machine code of a loop without the numbers that numba gives to names."""
    loop.compile((kind,))
    (words,) = loop.inspect_asm().values()
    return re.sub(r"[\w.$]*(_ZN|NumbaEnv|\.const\.)[\w.$]+", "name", words)


def test_a_loop_that_cannot_be_compiled_leaves_numba_as_it_is(inlining: ModuleType) -> None:
    @compiled_loop
    def loop(x: int) -> int:
        return x + no_such_name  # type: ignore[name-defined, no-any-return]  # noqa: F821

    with pytest.raises(numba.TypingError, match="no_such_name"):
        loop(2)
    assert inlining.copy is copy


def test_a_numba_that_inlines_in_another_way_compiles_as_it_likes(
    inlining: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_compiler.cache_clear()
    try:
        monkeypatch.delattr(inlining, "copy")
        assert quick_compiler() is None
        monkeypatch.undo()
        monkeypatch.setattr(compiler, "quick_compiler", lambda: None)
        loop = compiled_loop(loop_of_parts())
        assert loop(40) == loop.py_func(40)  # type: ignore[attr-defined]
    finally:
        quick_compiler.cache_clear()


def test_copies_share_variables_within_a_part_and_none_with_the_next() -> None:
    scope = ir.Scope(None, ir.Loc("part.py", 1))
    variable = scope.define("x", scope.loc)
    blocks = [ir.Block(scope, scope.loc) for _ in range(2)]
    for block in blocks:
        block.append(ir.Jump(7, scope.loc))
    copies = _Together()
    first, second = [[copies.deepcopy(block) for block in blocks] for _ in range(2)]
    for made in (first, second):
        assert made[0].scope is made[1].scope is not scope
        assert made[0].scope.localvars.get("x") is not variable
    assert first[0].scope is not second[0].scope
    assert copies.deepcopy(second[1]) is second[1]  # for a copy that numba does not read
    second[1].scope = scope  # as numba does when the copy is part of the loop
    assert copies.deepcopy(second[1]) is not second[1]
    assert copies.deepcopy([1, 2]) == [1, 2]
    assert copies.copy is copy.copy
