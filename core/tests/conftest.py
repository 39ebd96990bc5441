"""Trainers of toy nets on one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from toy_packages import Install, installing

from demitasse import Layer, NetDefinition, Runtime, compose

Train = Callable[..., Any]


@pytest.fixture
def runtime(toy: ModuleType) -> Iterator[Callable[..., Runtime]]:
    """Yield ``runtime(*plugins, first=())``: the toys on one worker, with reference kernels after
    ``plugins``."""
    with ExitStack() as stack:

        def make(*plugins: Any, arrays: Any = None) -> Runtime:
            chosen = [*plugins, "reference", "training", toy.toy(arrays)]
            return stack.enter_context(compose(toy.machine(), chosen))

        yield make


@pytest.fixture
def train(toy: ModuleType, runtime: Callable[..., Runtime]) -> Train:
    """Return ``train(net, ...)``, which makes a trainer in float64; ``kernels`` are preferred plugins,
    ``solver`` fields of the solver."""

    def make(
        net: NetDefinition, *tests: NetDefinition, kernels: Any = (), solver: Any = None, **options: Any
    ) -> Any:
        made = runtime(*kernels, arrays=options.pop("arrays", None))
        record = toy.solver(net, *tests, **(solver or {}))
        return made.trainer(record, **{"precision": "f64", **options})

    return make


@pytest.fixture
def samples(toy: ModuleType) -> Layer:
    return toy.layer("samples", "Samples", "", "data label", batch=4)  # type: ignore[no-any-return]


@pytest.fixture
def agree(toy: ModuleType, train: Train) -> Callable[..., Any]:
    """Return ``agree(net, ...)``, which trains a net for some steps as planned, and again with every
    blob in memory of its own and only reference kernels. It expects the same losses and parameters, to
    the last bit unless ``kernels`` were given, and returns the trainer as planned."""

    def check(net: NetDefinition, *, kernels: Any = (), **options: Any) -> Any:
        planned = train(net, kernels=kernels, **options)
        plain = train(net, retain="all", **options)
        for _ in range(4):
            ours, theirs = planned.step(1).loss, plain.step(1).loss
            assert ours == theirs or (kernels and abs(ours - theirs) < 1e-12)
        for layer, arrays in plain.net.params.items():
            for ours, theirs in zip(planned.net.params[layer], arrays, strict=True):
                assert np.array_equal(ours, theirs) or (kernels and np.allclose(ours, theirs, 1e-11))
        return planned

    return check


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Yield ``install(name, ...)``, which puts a distribution with one plugin where Python finds it."""
    with installing(tmp_path, monkeypatch) as put:
        yield put
