"""BSP: any number of workers train like one, with one copy of the parameters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import Group, Level, Machine, Span, Team, compose
from demitasse_parameter_server.bulk import BulkServer, slices
from demitasse_parameter_server.loops import BLOCK, add_up
from demitasse_parameter_server.options import Options

Train = Callable[..., Any]
COUNTS = (2, 3, 5, 8)

# A busy machine may stop this process for seconds.
SLOWLY = settings(suppress_health_check=[HealthCheck.too_slow])

pytestmark = pytest.mark.timeout(300, method="thread")


def losses(trainer: Any, iterations: int) -> list[float]:
    return [trainer.step(1).loss for _ in range(iterations)]


def of(trainer: Any, name: str) -> list[np.ndarray]:
    """Return each worker's array of that name."""
    return [array for _, kind, array in trainer.arrays() if kind == name]


@pytest.fixture(scope="module")
def right(toy: ModuleType) -> list[float]:
    """The losses of one worker."""
    level = Level("worker", 1, workers="threads")
    plugins = ["reference", "training", toy.toy()]
    with compose(Machine("toys", (level,), fingerprint="any"), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64")
        return losses(trainer, 100)


@pytest.mark.parametrize(
    ("workers", "iterations"),
    [
        (3, 100),
        *((workers, 25) for workers in COUNTS if workers != 3),
        *(pytest.param(workers, 100, marks=pytest.mark.slow) for workers in COUNTS if workers != 3),
    ],
)
def test_a_hundred_losses_in_float64_are_those_of_one(
    train: Train, right: list[float], workers: int, iterations: int
) -> None:
    """With dropout, a batch that the workers do not divide, and shared weights. For numbers of workers
    other than three the first losses are enough; the slow tests compare all."""
    found = losses(train(workers), iterations)
    np.testing.assert_allclose(found, right[:iterations], rtol=0, atol=1e-10)


@pytest.mark.parametrize("workers", COUNTS)
def test_ten_losses_in_float32_are_those_of_one(train: Train, right: list[float], workers: int) -> None:
    found = losses(train(workers, precision="f32"), 10)
    np.testing.assert_allclose(found, right[:10], rtol=0, atol=1e-5)


def test_two_runs_have_the_same_bits(train: Train) -> None:
    """Whichever worker comes last at whichever gate: so many iterations of three workers include all
    orders."""
    first, second = train(3, precision="f32"), train(3, precision="f32")
    assert losses(first, 60) == losses(second, 60)
    assert of(first, "parameters")[0].tobytes() == of(second, "parameters")[0].tobytes()


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 30])
def test_buckets_of_any_size_train_alike(train: Train, right: list[float], bucket_bytes: int) -> None:
    found = losses(train(3, sync={"bucket_bytes": bucket_bytes}), 5)
    np.testing.assert_allclose(found, right[:5], rtol=0, atol=1e-12)


def test_the_first_workers_gradient_memory_holds_the_sum(train: Train) -> None:
    trainer, alone = train(3), train(1, solver={"snapshot_gradients": True})
    trainer.step(1)
    alone.step(1)
    sums, *others = of(trainer, "gradients")
    (gradients,) = of(alone, "gradients")
    np.testing.assert_allclose(sums, gradients, rtol=0, atol=1e-12)
    assert all(np.abs(other - gradients).max() > 1e-3 for other in others)


def test_parameters_and_state_are_one_copy_and_gradients_each_workers_own(train: Train) -> None:
    trainer = train(4)
    for name, shared in (("parameters", True), ("history", True), ("gradients", False)):
        first, *others = of(trainer, name)
        assert len(others) == 3
        assert [np.shares_memory(first, other) for other in others] == [shared] * 3


def test_it_nests_in_a_server_and_in_another_plugins_level(
    toy: ModuleType, right: list[float], no_threads_left: None
) -> None:
    for outer in ("parameter_server", "reference"):
        machine = toy.machine(2, 3, sync=(outer, "parameter_server"))
        names = ["parameter_server", "reference", "training", toy.toy()]
        with compose(machine, names) as runtime:
            trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64")
            np.testing.assert_allclose(losses(trainer, 20), right[:20], rtol=0, atol=1e-10)
            trainer.close()


def test_numbers_are_added_up_again_and_again_whoever_is_late() -> None:
    """Nothing else makes siblings wait for each other in between."""
    team, rounds = Team(5), 60
    servers = [BulkServer(Group(("worker",), i, team, "float64", {}), team, Options()) for i in range(5)]
    seen: list[list[float]] = [[] for _ in servers]

    def add(index: int) -> None:
        mine, total = np.zeros(1), np.zeros(1)
        work = servers[index].total(mine, total)
        assert work is not None
        for number in range(rounds):
            mine[0] = number * (index + 1)
            work()
            seen[index].append(float(total[0]))

    threads = [threading.Thread(target=add, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[15.0 * number for number in range(rounds)]] * 5


def test_numbers_are_added_up_after_a_failure_between_two_siblings_counts() -> None:
    """One sibling has continued from the gate when the other, which still waits there, learns of the
    failure."""
    team = Team(2)
    servers = [BulkServer(Group(("worker",), i, team, "float64", {}), team, Options()) for i in (0, 1)]
    totals, fails = [np.zeros(1), np.zeros(1)], True
    board = servers[0].board

    def check() -> None:
        second()  # the last to come: all are there
        if fails:
            raise threading.BrokenBarrierError

    board.check = check  # type: ignore[method-assign]
    first, second = (
        work
        for i, server in enumerate(servers)
        if (work := server.total(np.array([10.0**i]), totals[i])) is not None
    )
    with pytest.raises(threading.BrokenBarrierError):
        first()
    team.failures, fails = 1, False
    for _ in range(3):
        for server, total in zip(servers, totals, strict=True):
            server.begun()
            total[...] = 0
        first()
        assert totals == [11.0, 11.0]


@SLOWLY
@given(st.integers(0, 100), st.integers(0, 500), st.integers(1, 30), st.sampled_from([2, 4, 8]))
def test_slices_follow_each_other_and_are_cut_between_cache_lines(
    start: int, length: int, count: int, item: int
) -> None:
    whole = Span(start, start + length)
    parts = slices(whole, count, item)
    assert [i for part in parts for i in range(part.start, part.stop)] == list(
        range(start, start + length)
    )
    assert all((p.start - start) * item % 64 == 0 for p in parts if p)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 2 * 64 // item


@SLOWLY
@given(
    st.sampled_from([1, 7, BLOCK - 1, BLOCK, 2 * BLOCK + 5]),
    st.integers(1, 6),
    st.integers(0, 5),
    st.sampled_from([np.float32, np.float64]),
)
def test_sums_are_made_in_the_order_of_workers(count: int, workers: int, into: int, kind: Any) -> None:
    random = np.random.default_rng(count)
    arrays = [random.normal(size=count).astype(kind) for _ in range(workers)]
    right = arrays[0].copy()
    for array in arrays[1:]:
        right += array
    target = arrays[into % workers]
    addresses = np.array([array.ctypes.data for array in arrays], np.int64)
    add_up(addresses, target.ctypes.data, count, np.empty(BLOCK, kind))
    assert target.tobytes() == right.tobytes()
