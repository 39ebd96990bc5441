"""The memory of each further worker: its activations and gradients, and another version of the
parameters only if the model needs one. Bytes are counted as they are allocated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bench import prototxt
from bench.nets import NETS

from demitasse import Level, Machine, SyncSpec, compose

Taken = Callable[..., tuple[int, Any]]

pytestmark = pytest.mark.timeout(300, method="thread")


class Counting:
    """The reference plugin's allocator, with the bytes that it has allocated and that still exist."""

    def __init__(self, allocator: Any) -> None:
        self._allocator, self.taken = allocator, 0

    def allocate(self, size: int) -> Any:
        made = self._allocator.allocate(size)
        self._count(size)
        weakref.finalize(made, self._count, -size)
        return made

    def _count(self, size: int) -> None:
        self.taken += size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)


@pytest.fixture
def taken(toy: ModuleType, no_threads_left: None) -> Taken:
    """``taken(workers, solver, model, *plugins, **options)``: the bytes that a trainer allocates for
    arrays, and the plan of a worker."""

    def take(workers: int, solver: Any, model: str, *plugins: Any, **options: Any) -> tuple[int, Any]:
        made = list[Counting]()

        def allocator(space: str, options: Mapping[str, Any]) -> Any:
            made.append(Counting(toy.installed("reference").allocator(space=space, options={})))
            return made[-1]

        counting = toy.plugin("counting", allocator=allocator)
        sync = SyncSpec("parameter_server", {"model": model})
        level = Level("worker", workers, workers="threads", sync=sync)
        names = [counting, "parameter_server", *plugins, "training", "reference"]
        with compose(Machine("toys", (level,), fingerprint="any"), names) as runtime:
            trainer = runtime.trainer(solver, **options)
            found = sum(each.taken for each in made), trainer.plan
            trainer.close()
        return found

    return take


def further(taken: Taken, workers: int, *about: Any, **options: Any) -> tuple[int, Any]:
    """Return the bytes that the last of so many workers adds, and its plan."""
    fewer, _ = taken(workers - 1, *about, **options)
    all_of_them, plan = taken(workers, *about, **options)
    return all_of_them - fewer, plan


def own(plan: Any) -> int:
    """A worker's activations, samples and gradients."""
    return int(plan.arena_bytes + plan.fixed_bytes + 4 * plan.trainable)


@pytest.mark.parametrize(("model", "versions"), [("bsp", 0), ("ssp", 1), ("asp", 1)])
def test_a_further_worker_takes_its_own_arrays_and_the_versions_that_the_model_needs(
    taken: Taken, toy: ModuleType, model: str, versions: int
) -> None:
    """A version of the parameters; the solver's state exists only once."""
    solver = toy.solver(toy.classifier(batch=16))
    extra, plan = further(taken, 4, solver, model, toy.toy(), scaling="weak")
    assert plan.trainable > 0
    assert extra == own(plan) + versions * 4 * plan.parameters


def test_a_third_worker_on_alexnet_takes_no_other_copy_of_its_weights(
    taken: Taken, tmp_path: Path
) -> None:
    """A single worker keeps no whole gradients, so the second worker would not show this."""
    net = NETS["alexnet"]()
    net.batch = 4
    zeros = {"data": np.zeros((12, *net.image), np.float32), "label": np.zeros(12, np.float32)}
    solver = prototxt.write(net, tmp_path)
    about = {"data": {"train": zeros}, "scaling": "weak"}
    extra, plan = further(taken, 3, solver, "bsp", "caffe", "datasets", **about)
    assert 4 * plan.parameters > 200 << 20
    assert own(plan) <= extra < own(plan) + (1 << 20)
