"""Measurements: what they count, and where their results go."""

from __future__ import annotations

import time

import numpy as np
import pytest

from demitasse import Level, MemorySpace, Quantity
from demitasse_system import measure


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "SECONDS", 0.02)


def test_the_outermost_level_gets_bandwidth_and_peak() -> None:
    host = MemorySpace("host", Quantity(2.0**28, "B", "measured"))
    inner = Level("numa", 2)
    node, unchanged = measure.measure([Level("node", cores=2, memory=(host,)), inner])
    assert unchanged is inner
    assert node.memory[0].capacity == host.capacity
    for found, unit in ((node.memory[0].bandwidth, "B/s"), (node.peak, "FLOP/s")):
        assert found is not None
        assert (found.unit, found.source) == (unit, "measured")
        assert found.value > 1e8


def test_a_level_without_memory_gets_a_peak_only() -> None:
    (node,) = measure.measure([Level("node")])
    assert node.memory == ()
    assert node.peak is not None


def test_the_product_counts_two_operations_a_multiplication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measure, "_best", lambda work: work() is None or 0.5)
    assert measure.product(100) == 2 * 100**3 / 0.5


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_triad_reaches_every_element_whatever_the_threads(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    arrays: list[np.ndarray] = []
    empty = np.empty

    def kept(count: int) -> np.ndarray:
        arrays.append(empty(count))
        return arrays[-1]

    monkeypatch.setattr(np, "empty", kept)
    monkeypatch.setattr(measure, "_best", lambda work: bool(work()) and 2.0)
    rate = measure.triad(threads, 8000)
    a, b, c = arrays
    assert np.array_equal(a, b + 3.0 * c)
    assert (a == 7).all()
    assert rate == 5 * a.nbytes / 2.0


def test_each_is_repeated_for_its_seconds_and_the_best_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that advances only while there is work."""
    now, takes = 0.0, iter([0.4, 0.1, 0.3, 0.4, 0.2])

    def work() -> None:
        nonlocal now
        now += next(takes)

    monkeypatch.setattr(measure, "SECONDS", 1.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert measure._best(work) == pytest.approx(0.1)
    assert now == pytest.approx(1.2), "one that ends after the seconds is the last"
    assert next(takes) == 0.2
