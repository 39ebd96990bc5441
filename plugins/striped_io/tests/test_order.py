"""Each epoch has every sample once, whatever the order, the workers, and where a run was killed."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse import DataSpec
from demitasse_striped_io import shuffling
from demitasse_striped_io.order import FileOrder, Runs, ShuffledOrder
from demitasse_striped_io.shuffling import permutation
from demitasse_striped_io.source import Source

ORDERS = ("file", "sample", "block")


def bounds(size: int, block: int) -> np.ndarray:
    return np.minimum(np.arange(-(-size // block) + 1) * block, size)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 8), st.integers(1, 20), st.integers(0, 9))
@settings(max_examples=examples(100))
def test_an_epoch_in_block_order_has_every_sample_once(
    size: int, block: int, stripes: int, run: int, seed: int
) -> None:
    order = ShuffledOrder(size, seed, Runs(bounds(size, block), stripes, run))
    for epoch in (0, 3):
        assert sorted(order.numbers(epoch * size, size)) == list(range(size))
    order.close()


def test_orders_differ_from_epoch_to_epoch_and_by_seed() -> None:
    for runs in (None, Runs(bounds(200, 20), 4, 5)):
        one, other = ShuffledOrder(200, 1, runs), ShuffledOrder(200, 2, runs)
        first, second = one.numbers(0, 200), one.numbers(200, 200)
        assert (first != second).any() and (first != other.numbers(0, 200)).any()
        again = ShuffledOrder(200, 1, runs)
        assert (again.numbers(150, 100) == np.concatenate([first[150:], second[:50]])).all()
        for each in (one, other, again):
            each.close()


@pytest.mark.parametrize("runs", [None, Runs(bounds(200, 20), 4, 5)], ids=["sample", "block"])
def test_only_the_first_epoch_is_drawn_by_who_reads(
    runs: Runs | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, bool]] = []
    made = ShuffledOrder._made

    def noted(order: ShuffledOrder, epoch: int) -> np.ndarray:
        drawn.append((epoch, threading.current_thread() is threading.main_thread()))
        return made(order, epoch)

    monkeypatch.setattr(ShuffledOrder, "_made", noted)
    order = ShuffledOrder(200, 1, runs)
    for first in range(0, 1000, 40):
        order.numbers(first, 40)
        order.close()  # waits for the epoch that is being prepared
    assert drawn == [(0, True), *((epoch, False) for epoch in range(1, 6))]


def test_the_files_order_begins_again_after_the_last() -> None:
    assert FileOrder(5).numbers(3, 4).tolist() == [3, 4, 0, 1]


def test_runs_are_stretches_of_one_block_and_no_shorter_than_asked() -> None:
    runs = Runs(bounds(1000, 64), 8, 10)
    blocks = runs.first // 64
    assert ((runs.first + runs.length - 1) // 64 == blocks).all()
    assert (runs.length[blocks < 15] >= 10).all() and runs.length.sum() == 1000
    assert (runs.stripe == blocks % 8).all()


@pytest.mark.parametrize("processes", [4, 32, 64, 96])
def test_processes_are_on_a_stripe_at_once_no_more_than_the_papers_bound(processes: int) -> None:
    """swCaffe, V.B: N processes over S stripes are at most N / S x 2 on each."""
    stripes, run, block = 32, 16, 48
    size = stripes * 4 * block
    edges = bounds(size, block)
    order = ShuffledOrder(size, 7, Runs(edges, stripes, run))
    most = math.ceil(processes / stripes) * 2
    for shift in (0, 5):  # mini-batches that are runs, and mini-batches of parts of two
        for first in range(shift, 3 * size, processes * run):
            on: Counter[int] = Counter()
            for process in range(processes):
                numbers = order.numbers(first + process * run, run)
                touched = set((numbers // block % stripes).tolist())
                assert len(touched) <= 2
                on.update(touched)
            assert max(on.values()) <= most
    order.close()


@given(
    st.sampled_from(ORDERS),
    st.integers(1, 30),
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 7]), st.integers(0, 6)), min_size=1, max_size=5),
)
@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_killed_and_resumed_with_other_workers_the_very_next_sample_follows(
    made: Any, order: str, batch: int, runs: list[tuple[int, int]]
) -> None:
    """Each of ``runs`` has some workers for some iterations, and is killed with its read-ahead; the next
    continues at that iteration, as from a snapshot. Together they read what one worker would."""
    got: list[int] = []
    iteration = 0
    for number, (workers, iterations) in enumerate(runs):
        # Every other run prepares batches in buffers; the others read straight into the caller's.
        options = {"order": order, "io": "direct" if number % 2 else "page", "memory": 0}
        source = Source(made.path, DataSpec("", None, True, 5, options), {})
        cuts = [batch * w // workers for w in range(workers + 1)]
        streams = [
            (source.stream(iteration * batch + a, b - a, batch), np.zeros(b - a, np.int32))
            for a, b in pairwise(cuts)
            if b > a
        ]
        for _ in range(iterations):
            for stream, out in streams:
                stream.read({"label": out})
                got += out.tolist()
        iteration += iterations
        source.close()
    whole = Source(made.path, DataSpec("", None, True, 5, {"order": order}), {})
    assert got == made.columns["label"][whole.order.numbers(0, iteration * batch)].tolist()
    whole.close()
    for epoch in range(len(got) // 101):
        assert sorted(got[epoch * 101 : (epoch + 1) * 101]) == list(range(101))


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("order", ORDERS)
def test_workers_see_every_sample_of_an_epoch_once(
    made: Any, opened: Callable[..., Source], workers: int, order: str
) -> None:
    source = opened(made.path, shuffle=True, order=order)
    cuts = [101 * w // workers for w in range(workers + 1)]
    seen: list[int] = []
    for a, b in pairwise(cuts):
        out = {"data": np.zeros((b - a, 3, 16, 16), np.uint8), "label": np.zeros(b - a, np.int32)}
        stream = source.stream(a, b - a, 101)
        stream.read(out)
        stream.close()
        assert (out["data"] == made.columns["data"][out["label"]]).all()
        seen += out["label"].tolist()
    assert sorted(seen) == list(range(101))


def test_a_cursor_can_be_set(made: Any, opened: Callable[..., Source], tmp_path: Path) -> None:
    for options in ({}, {"io": "direct", "memory": 0}):
        source = opened(made.path, **options)
        stream = source.stream(0, 4, 4)
        out = {"label": np.zeros(4, np.int32)}
        stream.read(out)
        stream.cursor = 50
        stream.read(out)
        assert out["label"].tolist() == [50, 51, 52, 53] and stream.cursor == 54
        stream.close()


@given(st.integers(-(2**40), 2**63), st.integers(0, 2**59), st.integers(0, 400))
@settings(max_examples=examples(60))
def test_the_compiled_order_is_the_cores(seed: int, epoch: int, size: int) -> None:
    found, right = permutation(seed, epoch, size), demitasse.permutation(seed, epoch, size)
    assert found.dtype == right.dtype and (found == right).all()


def test_equal_keys_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(seed: int, high: int, epoch: int, last: int, out: np.ndarray) -> None:
        out[:] = np.arange(len(out))[::-1] // 100

    monkeypatch.setattr(shuffling, "_keys", drawn)
    right = np.argsort(np.arange(3000)[::-1] // 100, kind="stable")
    assert (permutation(1, 2, 3000) == right).all()


@pytest.mark.parametrize("order", ORDERS)
def test_a_source_tells_where_a_sample_of_its_order_is_from(
    made: Any, opened: Callable[..., Source], read: Callable[..., Any], order: str
) -> None:
    source = opened(made.path, shuffle=True, order=order)
    for first in (0, 77, 150):
        (record,) = read(source, first, 1)["label"]  # a sample's label is its number
        block = record // 6
        where = f"{made.path}: stripe {block % 4}, block {block}, sample {record}"
        assert source.origin(first) == where
