"""The tree of domains: sums beside NumPy's in float64, the same bits, and no sibling left waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import (
    Bucket,
    CompositionError,
    DescriptionError,
    FlatMemory,
    Group,
    Level,
    Machine,
    Span,
    SyncSpec,
    Team,
    compose,
)
from demitasse_numa.gradient_sync import DomainTree
from demitasse_numa.tree import Tree, parts


@given(size=st.integers(1, 40), arity=st.integers(1, 9), root=st.integers(0, 39))
def test_a_tree_reaches_every_domain_once(size: int, arity: int, root: int) -> None:
    tree = Tree(size, arity, root % size)
    children = [child for each in range(size) for child in tree.children(each)]
    assert sorted([*children, tree.root]) == list(range(size))
    assert all(tree.parent(child) == each for each in range(size) for child in tree.children(each))
    assert all(len(tree.children(each)) <= arity for each in range(size))
    for each in range(size):  # everybody's way up ends at the root
        place: int | None = each
        for _ in range(size):
            above = tree.parent(place) if place is not None else None
            if above is None:
                break
            place = above
        assert place == tree.root


@given(start=st.integers(0, 500), length=st.integers(0, 60_000), size=st.integers(1, 9))
def test_parts_are_the_span_each_element_once(start: int, length: int, size: int) -> None:
    made = parts(Span(start, start + length), size, spread=True)
    assert len(made) == size
    assert [i for part in made for i in (part.start, part.stop) if part][:1] in ([start], [])
    assert sum(map(len, made)) == length
    held = [part for part in made if part]
    assert all(a.stop == b.start for a, b in pairwise(held))
    if length >= size * 1024:
        assert max(map(len, made)) - min(map(len, made)) <= 32


class Siblings:
    """Workers with random gradients; ``step`` reduces, takes the sum as the update, and distributes."""

    def __init__(
        self, size: int, length: int, dtype: str, spans: Sequence[Span], **options: Any
    ) -> None:
        self.team = Team(size)
        self.memory = [FlatMemory(np.zeros(length, dtype), np.zeros(length, dtype)) for _ in range(size)]
        self.team.memory = self.memory
        self.syncs = [DomainTree(Group(("numa",), i, self.team, dtype, options)) for i in range(size)]
        for sync, memory in zip(self.syncs, self.memory, strict=True):
            sync.bind(memory)
        self.buckets = [Bucket(i, span, ("layer",)) for i, span in enumerate(spans)]
        self.works = [
            [
                (sync.reduce(b, b.span), sync.owned(b.span), sync.distribute(b, b.span))
                for b in self.buckets
            ]
            for sync in self.syncs
        ]

    def run(self, task: Callable[[int], None]) -> list[BaseException | None]:
        with ThreadPoolExecutor(len(self.syncs)) as pool:
            return [f.exception(60) for f in [pool.submit(task, i) for i in range(len(self.syncs))]]

    def chain(self, worker: int) -> None:
        mine = self.memory[worker]
        for reduce, owned, distribute in self.works[worker]:
            if reduce is not None:
                reduce()
            mine.parameters[owned.start : owned.stop] = mine.gradients[owned.start : owned.stop]
            if distribute is not None:
                distribute()

    def step(self, seed: int) -> Any:
        random = np.random.default_rng(seed)
        for each in self.memory:
            each.gradients[...] = random.normal(size=len(each.gradients))
        wanted = np.sum([m.gradients for m in self.memory], axis=0, dtype=np.float64)
        assert self.run(self.chain) == [None] * len(self.syncs)
        return wanted


@settings(max_examples=examples(15))
@given(
    size=st.integers(1, 9),
    arity=st.integers(1, 4),
    spread=st.booleans(),
    double=st.booleans(),
    lengths=st.lists(st.integers(1, 12_000), min_size=1, max_size=3),
)
def test_sums_are_numpys_and_all_siblings_have_them(
    size: int, arity: int, spread: bool, double: bool, lengths: list[int]
) -> None:
    edges = np.cumsum([0, *lengths]).tolist()
    spans = [Span(a, b) for a, b in pairwise(edges)]
    root, dtype = "spread" if spread else "first", "float64" if double else "float32"
    siblings = Siblings(size, edges[-1], dtype, spans, arity=arity, root=root)
    for seed in range(3):
        wanted = siblings.step(seed)
        for memory in siblings.memory:
            np.testing.assert_allclose(memory.parameters, wanted, rtol=0, atol=1e-14 if double else 1e-5)
            assert memory.parameters.tobytes() == siblings.memory[0].parameters.tobytes()


def test_every_run_gives_the_same_bits() -> None:
    spans = [Span(0, 9000), Span(9000, 9001)]
    first = Siblings(5, 9001, "float32", spans)
    second = Siblings(5, 9001, "float32", spans)
    for seed in range(5):
        first.step(seed)
        second.step(seed)
        assert first.memory[0].parameters.tobytes() == second.memory[4].parameters.tobytes()


def test_each_domain_owns_a_part_or_the_first_owns_all() -> None:
    span = Span(100, 100 + 8192)
    spread = Siblings(4, 9000, "float32", [span])
    assert [len(sync.owned(span)) for sync in spread.syncs] == [2048] * 4
    first = Siblings(4, 9000, "float32", [span], root="first")
    assert [len(sync.owned(span)) for sync in first.syncs] == [8192, 0, 0, 0]
    assert [len(sync.owned(Span(0, 100))) for sync in spread.syncs] == [100, 0, 0, 0]
    told = [each.syncs[0].notes for each in (spread, first)]
    assert told == [
        ("4 domains add along a tree of arity 2, each the root of an equal part",),
        ("4 domains add along a tree of arity 2, the first the root of all",),
    ]
    assert not Siblings(1, 10, "float32", [Span(0, 10)]).syncs[0].notes


def test_totals_of_all_domains_are_everybodys() -> None:
    siblings = Siblings(3, 10, "float32", [Span(0, 10)])
    mine = [np.array([1.0, 10.0]) * (i + 1) for i in range(3)]
    total = [np.zeros(2) for _ in range(3)]
    works = [sync.total(m, t) for sync, m, t in zip(siblings.syncs, mine, total, strict=True)]
    for turn in range(4):
        assert siblings.run(lambda i: works[i]()) == [None] * 3  # type: ignore[misc]
        assert [t.tolist() for t in total] == [[6 + 3 * turn, 60 + 3 * turn]] * 3
        for each in mine:
            each += 1


@pytest.mark.parametrize("culprit", [0, 1, 3])
@pytest.mark.parametrize("root", ["spread", "first"])
def test_when_one_fails_all_wake_and_the_next_step_is_right(culprit: int, root: str) -> None:
    siblings = Siblings(4, 20_000, "float32", [Span(0, 9000), Span(9000, 20_000)], root=root)
    siblings.step(1)

    def fail(worker: int) -> None:
        if worker == culprit:
            for work in siblings.works[worker][0][::2]:
                assert work is not None
                work()  # the first bucket only
            siblings.team.barrier.abort()
            raise ArithmeticError("not a number")
        siblings.chain(worker)

    errors = siblings.run(fail)
    assert isinstance(errors[culprit], ArithmeticError)
    others = [error for i, error in enumerate(errors) if i != culprit]
    assert all(isinstance(error, threading.BrokenBarrierError) for error in others)
    siblings.team.barrier.reset()
    siblings.team.failures += 1
    for seed in (2, 3):
        wanted = siblings.step(seed)
        for memory in siblings.memory:
            np.testing.assert_allclose(memory.parameters, wanted, rtol=0, atol=1e-5)


def test_a_domain_that_failed_behind_all_others_waits_for_them_in_the_next_step() -> None:
    """It has received fewer copies than the others have given."""
    siblings = Siblings(2, 20_000, "float32", [Span(0, 20_000)], root="first")
    siblings.step(1)
    ((reduce, _, _),) = siblings.works[1]
    assert reduce is not None
    assert siblings.run(lambda i: siblings.chain(0) if i == 0 else reduce()) == [None, None]
    siblings.team.failures += 1
    with ThreadPoolExecutor(1) as pool:
        for memory in siblings.memory:
            memory.gradients[...] = 1.0
        late = pool.submit(siblings.chain, 1)
        assert isinstance(_soon(late), TimeoutError), "it has not waited for the first one's update"
        siblings.chain(0)
        assert late.exception(60) is None
    assert (siblings.memory[1].parameters == 2.0).all()


def _soon(future: Future[None]) -> BaseException | None:
    """Return a future's error, or a TimeoutError if it is not done within 0.1 s."""
    try:
        return future.exception(0.1)
    except TimeoutError as error:
        return error


def test_totals_are_right_after_a_failure_between_two_domains_counts() -> None:
    """One sibling has continued when the other, still at the barrier, learns of the failure."""
    siblings, total = Siblings(2, 10, "float32", [Span(0, 10)]), [np.zeros(1), np.zeros(1)]
    meets: list[Callable[[], None]] = []

    def wait() -> None:
        meets.pop()()

    siblings.team.barrier = cast(threading.Barrier, SimpleNamespace(wait=wait))
    works = [sync.total(np.array([10.0**i]), total[i]) for i, sync in enumerate(siblings.syncs)]
    first, second = filter(None, works)

    def broken() -> None:
        second()
        raise threading.BrokenBarrierError

    def nothing() -> None:
        """Do nothing: all siblings have come."""

    meets = [nothing, broken]
    with pytest.raises(threading.BrokenBarrierError):
        first()
    siblings.team.failures += 1
    for _ in range(3):
        meets = [nothing, second]
        first()
        assert total == [11.0, 11.0]


def test_options_and_siblings_that_cannot_be_are_named() -> None:
    team = Team(2)
    with pytest.raises(DescriptionError, match=r"level 'numa': sync: unknown option 'arty'.*'arity'"):
        DomainTree(Group(("numa",), 0, team, "float32", {"arty": 3}))
    with pytest.raises(DescriptionError, match="arity = 0"):
        DomainTree(Group(("numa",), 0, team, "float32", {"arity": 0}))
    with pytest.raises(DescriptionError, match="unknown root 'frist'"):
        DomainTree(Group(("numa",), 0, team, "float32", {"root": "frist"}))
    with pytest.raises(CompositionError, match="other processes"):
        DomainTree(Group(("node", "numa"), 0, None, "float32", {}, remote=True))


def test_one_domain_has_no_work() -> None:
    alone = Siblings(1, 100, "float32", [Span(0, 100)])
    assert alone.works == [[(None, Span(0, 100), None)]]


@pytest.mark.parametrize("counts", [(3,), (2, 2)], ids=str)
@pytest.mark.parametrize("root", ["spread", "first"])
def test_a_snapshot_has_the_solver_s_state_of_all_domains(
    toy: ModuleType, tmp_path: Path, counts: tuple[int, ...], root: str
) -> None:
    """Each domain has the momentum of what it updates; a single worker that continues needs all of
    it."""
    levels = [
        Level(f"level{i}", count, workers="threads", sync=SyncSpec("numa", {"root": root}))
        for i, count in enumerate(counts)
    ]
    domains = Machine("toys", tuple(levels), fingerprint="any")
    names = ["numa", "reference", "training", "snapshots"]
    net = toy.net(  # large enough to be cut in parts
        toy.layer("samples", "Samples", "", "data label", batch=12),
        toy.layer("wide", "InnerProduct", "data", "wide", outputs=200),
        toy.layer("scores", "InnerProduct", "wide", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )

    def parameters(machine: Machine, iterations: int, **options: Any) -> list[np.ndarray]:
        with compose(machine, [*names, toy.toy()]) as runtime:
            trainer = runtime.trainer(toy.solver(net), precision="f64", **options)
            trainer.step(iterations)
            trainer.snapshot(tmp_path / str(trainer.iteration))
            return [array.copy() for arrays in trainer.net.params.values() for array in arrays]

    right = parameters(toy.machine(), 6)
    parameters(domains, 3)
    found = parameters(toy.machine(), 3, resume=tmp_path / "3_iter_3.demitasse")
    for array, ours in zip(right, found, strict=True):
        np.testing.assert_allclose(ours, array, rtol=0, atol=1e-12)
