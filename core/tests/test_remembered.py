"""What numba works out once instead of many times is what it works out by itself."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import compiled_loop, load_numba
from demitasse_host import remembered

numba = pytest.importorskip("numba")
load_numba()
types: Any = pytest.importorskip("numba.core.types")
functions: Any = pytest.importorskip("numba.core.types.functions")
llvm: Any = pytest.importorskip("llvmlite.ir")

ROWS = types.Array(types.float32, 2, "C")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled here was not kept by another run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", str(tmp_path_factory.mktemp("loops")))
        yield


def scaled(rows: Any, by: float) -> float:
    total = 0.0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            if rows[i, j] > 0 and i % 3 != 1:
                rows[i, j] *= by
            total += rows[i, j] * rows[i, j] + min(i, j)
    return total


def by_numba(loop: Callable[..., Any]) -> Any:
    """Return a loop compiled with the options of ``compiled_loop``, by numba alone."""
    return numba.njit(loop, nogil=True, error_model="numpy", no_cfunc_wrapper=True)


def test_three_methods_of_numba_are_replaced_and_put_back() -> None:
    before = [getattr(owner, name) for owner, name, _ in remembered._swaps()]
    assert len(before) == 3
    with pytest.raises(ZeroDivisionError), remembered.remembering():
        for (owner, name, ours), theirs in zip(remembered._swaps(), before, strict=True):
            assert getattr(owner, name) is ours is not theirs
        raise ZeroDivisionError
    assert [getattr(owner, name) for owner, name, _ in remembered._swaps()] == before


def test_the_machine_code_is_that_of_numba_alone() -> None:
    theirs, ours = by_numba(scaled), compiled_loop(scaled)
    expected = listing(theirs)
    assert len(expected) > 1000
    assert listing(ours) == expected


def listing(loop: Any) -> str:
    """Return the machine code of a loop without the numbers that numba gives to names."""
    loop.compile((ROWS, types.float32))
    (words,) = loop.inspect_asm().values()
    return re.sub(r"[\w.$]*(_ZN|NumbaEnv|\.const\.)[\w.$]+", "name", words)


def test_a_signature_is_asked_for_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, as_ever = list[Any](), functions._ResolutionFailures

    def counting(context: Any, function: Any, args: Any, kws: Any, depth: int) -> Any:
        if function.typing_key in (operator.getitem, operator.mul, operator.gt, operator.mod):
            asked.append((function.typing_key, args))
        return as_ever(context, function, args, kws, depth=depth)

    monkeypatch.setattr(functions, "_ResolutionFailures", counting)
    by_numba(scaled).compile((ROWS, types.float32))
    assert len(asked) >= 2 * len(set(asked)) > 0
    compiled_loop(scaled).compile((ROWS, types.float32))  # type: ignore[attr-defined]
    asked.clear()
    compiled_loop(scaled).compile((ROWS, types.float32))  # type: ignore[attr-defined]
    assert not asked


NUMBERS = st.sampled_from(
    [
        types.float32,
        types.float64,
        types.int64,
        types.uint16,
        types.boolean,
        types.literal(3),
        types.complex64,
        types.unicode_type,
        types.none,
    ]
)
ARRAYS = st.builds(
    types.Array, st.sampled_from([types.float32, types.uint16]), st.integers(1, 3), st.just("C")
)
INDICES = st.one_of(
    NUMBERS,
    st.just(types.slice2_type),
    st.builds(types.UniTuple, st.just(types.int64), st.integers(1, 3)),
)
OPERATORS = st.sampled_from(
    [operator.add, operator.mod, operator.truediv, operator.eq, operator.and_, min]
)


@given(
    st.one_of(
        st.tuples(OPERATORS, NUMBERS, NUMBERS),
        st.tuples(st.just(operator.getitem), ARRAYS, INDICES),
        st.tuples(st.just(operator.add), ARRAYS, ARRAYS),
        st.tuples(st.just(operator.setitem), ARRAYS, INDICES, NUMBERS),
    )
)
def test_signatures_are_those_of_numba_the_second_time_too(asked: tuple[Any, ...]) -> None:
    expected, first, second = answer(asked), *answers(asked)
    assert first == second == expected


def answers(asked: tuple[Any, ...]) -> list[str]:
    with remembered.remembering():
        return [answer(asked), answer(asked)]


def answer(asked: tuple[Any, ...]) -> str:
    """Return a signature of numba as text, with what implements it, or that there is none."""
    from numba.core.registry import cpu_target

    context = cpu_target.typing_context
    context.refresh()
    function = context.resolve_value_type(asked[0])
    try:
        signature = function.get_call_type(context, asked[1:], {})
    except (numba.TypingError, NotImplementedError):
        return "none"
    return f"{signature} by {function.get_impl_key(signature)}"


@pytest.mark.parametrize(
    ("key", "by", "args", "named", "times"),
    [
        (operator.add, operator.add, (types.int64, ROWS), {}, 1),
        (min, min, (types.int64, types.literal(2)), {}, 1),
        (operator.add, object(), (types.int64, ROWS), {}, 2),  # by what was compiled to answer
        (operator.add, operator.add, (types.int64, types.unicode_type), {}, 2),
        (operator.add, operator.add, (types.int64,), {"other": types.int64}, 2),
        (pytest.importorskip, pytest.importorskip, (types.int64,), {}, 2),
    ],
)
def test_only_what_follows_from_the_types_is_remembered(
    key: Any, by: Any, args: Any, named: Any, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()

    def ask(function: Any, context: Any, args: Any, kws: Any) -> tuple[Any, int]:
        asked.append(args)
        return args, len(asked)

    monkeypatch.setattr(functions.BaseFunction, "get_call_type", ask)
    _, _, ours = remembered._signatures()
    function = SimpleNamespace(typing_key=key, get_impl_key=lambda signature: by)
    assert [ours(function, "a context", args, named) for _ in range(2)] == [(args, 1), (args, times)]
    assert ours(function, "another context", args, named) == (args, times + 1)
    another = SimpleNamespace(typing_key=key, get_impl_key=lambda signature: by)  # of more templates
    assert ours(another, "a context", args, named) == (args, times + 2)


def test_variables_that_are_live_at_a_block_are_found_when_they_are_read() -> None:
    from numba.core.compiler import run_frontend

    expected = run_frontend(scaled)
    with remembered.remembering():
        found = run_frontend(scaled)
        assert not found.block_entry_vars
        copied = found.copy()
    assert not copied.block_entry_vars
    entries = [found.get_block_entry_vars(block) for block in found.blocks.values()]
    assert entries == [expected.get_block_entry_vars(block) for block in expected.blocks.values()]
    assert max(map(len, entries)) >= 4
    with pytest.raises(KeyError):
        found.get_block_entry_vars("no block")
    lifetimes = found.variable_lifetime.livemap, expected.variable_lifetime.livemap
    assert lifetimes[0] == lifetimes[1]


@pytest.mark.filterwarnings("ignore:Code running in object mode")
def test_what_reads_lifetimes_between_passes_compiles_as_ever() -> None:
    from numba import literal_unroll
    from numba.core.compiler import run_frontend

    def unrolled(x: int) -> float:
        total = 0.0
        for each in literal_unroll((1, 2.5, 3)):
            if x > each:
                total += each
        return total

    def generated(x: int) -> Any:
        for i in range(x):
            yield i * x
            x -= 1

    def by_python(x: int) -> Any:
        text = 0
        with numba.objmode(text="int64"):
            text = int(str(x) * 2)
        return text + x

    with remembered.remembering():
        for each in (unrolled, generated, by_python):
            assert run_frontend(each).block_entry_vars
    assert compiled_loop(unrolled)(3) == 3.5
    assert list(compiled_loop(generated)(4)) == list(generated(4))
    assert compiled_loop(by_python)(12) == 1212 + 12


def test_sizes_of_types_are_those_of_llvm() -> None:
    from numba.core.registry import cpu_target

    target = cpu_target.target_context.target_data
    byte, word = llvm.IntType(8), llvm.IntType(64)
    context = llvm.Context()
    kinds = [byte, word, llvm.DoubleType(), byte.as_pointer(), llvm.ArrayType(word, 5)]
    kinds += [
        llvm.LiteralStructType([byte, word, byte]),
        llvm.LiteralStructType([byte, byte], packed=True),
    ]
    expected = [kind.get_abi_size(target) for kind in kinds]
    assert expected == [1, 8, 8, 8, 40, 24, 2]
    named = list[int]()
    with remembered.remembering():
        for _ in range(2):
            assert [kind.get_abi_size(target) for kind in kinds] == expected
        for members in ([byte], [word, word]):
            context = llvm.Context()
            kind = context.get_identified_type("pair")  # called alike, and of two sizes
            kind.set_body(*members)
            named.append(kind.get_abi_size(target, context))
    assert named == [1, 16]


def another_run(self: Any, emit_dels: bool = False, extend_lifetimes: bool = False) -> None:
    self.func_ir.sorted()


def another_type(self: Any, context: Any, args: Any, kws: Any, preferred: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("owner", "name", "other", "left"),
    [
        ("numba.core.types.functions", "BaseFunction", None, ["run", "get_abi_size"]),
        ("numba.core.postproc", "PostProcessor", another_run, ["get_call_type", "get_abi_size"]),
        ("numba.core.types.functions", "BaseFunction", another_type, ["run", "get_abi_size"]),
    ],
)
def test_another_numba_is_left_as_it_is(
    owner: str, name: str, other: Any, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = f"{owner}.{name}"
    if other is None:
        monkeypatch.delattr(changed)
    else:
        monkeypatch.setattr(f"{changed}.{'run' if other is another_run else 'get_call_type'}", other)
    remembered._swaps.cache_clear()
    try:
        assert [name for _, name, _ in remembered._swaps()] == left
    finally:
        monkeypatch.undo()
        remembered._swaps.cache_clear()
