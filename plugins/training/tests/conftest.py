"""Runtimes of toys that are closed when the test ends, and that leave no thread behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import Runtime, compose

MakeRuntime = Callable[..., Runtime]
Params = dict[str, list[np.ndarray]]


@pytest.fixture
def runtime(toy: ModuleType, no_threads_left: None) -> Iterator[MakeRuntime]:
    """``runtime(*counts)``: reference kernels on one worker, or on nodes and threads; ``plugins`` are
    added in front, ``arrays`` or ``source`` are the samples."""
    with ExitStack() as stack:

        def make(*counts: int, plugins: Any = (), arrays: Any = None, source: Any = None) -> Runtime:
            names = [*plugins, "reference", "training", "snapshots", toy.toy(arrays, source)]
            return stack.enter_context(compose(toy.machine(*counts), names))

        yield make


@pytest.fixture
def train(toy: ModuleType, runtime: MakeRuntime) -> Callable[..., Any]:
    """``train(net, *counts, solver={}, ...)``: a trainer in float64."""

    def make(net: Any = None, *counts: int, solver: Any = None, **options: Any) -> Any:
        made = runtime(*counts, **{k: options.pop(k) for k in ("arrays", "source") if k in options})
        record = toy.solver(net or toy.classifier(), **(solver or {}))
        return made.trainer(record, **{"precision": "f64", **options})

    return make


@pytest.fixture(scope="session")
def copied() -> Callable[[Any], Params]:
    """Copies of all parameters of a trainer or net."""
    return lambda of: {k: [a.copy() for a in v] for k, v in of.params.items()}


@pytest.fixture(scope="session")
def differ() -> Callable[[Params, Params], float]:
    """The largest difference of any two parameters: 0.0 means the same bits."""

    def largest(ours: Params, theirs: Params) -> float:
        assert ours.keys() == theirs.keys()
        pairs = [(a, b) for layer in ours for a, b in zip(ours[layer], theirs[layer], strict=True)]
        if all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs):
            return 0.0
        return max(float(np.abs(a - b).max()) for a, b in pairs)

    return largest


@pytest.fixture
def failing(toy: ModuleType) -> Callable[..., Any]:
    """``failing(worker, at, error)``: samples whose stream of one worker raises at a read."""
    return toy.spoilt  # type: ignore[no-any-return]


@pytest.fixture
def deployed(toy: ModuleType) -> Any:
    """A classifier of images that are given by hand."""
    return toy.net(
        toy.layer("data", "Input", "", "data", shape=(4, 1, 6, 6)),
        toy.layer("hidden", "InnerProduct", "data", "hidden", outputs=7),
        toy.layer("active", "ReLU", "hidden", "hidden"),
        toy.layer("scores", "InnerProduct", "hidden", "scores", outputs=3),
        toy.layer("probability", "Softmax", "scores", "probability"),
        phase="test",
    )
