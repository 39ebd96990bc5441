"""Trainers of toy nets on one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

from demitasse import NetDefinition, Runtime, compose

Train = Callable[..., Any]


@pytest.fixture
def runtime(toy: ModuleType) -> Iterator[Callable[..., Runtime]]:
    """``runtime(*plugins, first=())``: the toys on one worker, with reference kernels behind
    ``plugins``."""
    with ExitStack() as stack:

        def make(*plugins: Any, arrays: Any = None) -> Runtime:
            chosen = [*plugins, "reference", "training", toy.toy(arrays)]
            return stack.enter_context(compose(toy.machine(), chosen))

        yield make


@pytest.fixture
def train(toy: ModuleType, runtime: Callable[..., Runtime]) -> Train:
    """``train(net, ...)``: a trainer in float64; ``kernels`` are plugins to be preferred, ``solver``
    fields of the solver."""

    def make(
        net: NetDefinition, *tests: NetDefinition, kernels: Any = (), solver: Any = None, **options: Any
    ) -> Any:
        made = runtime(*kernels, arrays=options.pop("arrays", None))
        record = toy.solver(net, *tests, **(solver or {}))
        return made.trainer(record, **{"precision": "f64", **options})

    return make
