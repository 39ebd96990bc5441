"""Trainers of toys on workers that a parameter server joins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

from demitasse import Level, Machine, SyncSpec, compose

Train = Callable[..., Any]


@pytest.fixture
def train(toy: ModuleType, no_threads_left: None) -> Iterator[Train]:
    """``train(workers, net, solver={}, arrays=None, source=None, sync={}, **options)``: a trainer with
    reference kernels, in float64 unless it is said otherwise."""
    with ExitStack() as stack:

        def make(workers: int, net: Any = None, **options: Any) -> Any:
            solver, sync = options.pop("solver", {}), options.pop("sync", {})
            samples = options.pop("arrays", None), options.pop("source", None)
            tests = options.pop("tests", ())
            names = [*options.pop("plugins", ()), "parameter_server", "reference", "training"]
            level = Level("worker", workers, workers="threads", sync=SyncSpec("parameter_server", sync))
            machine = Machine("toys", (level,), fingerprint="any")
            runtime = stack.enter_context(compose(machine, [*names, "snapshots", toy.toy(*samples)]))
            record = toy.solver(net or toy.classifier(), *tests, **solver)
            trainer = runtime.trainer(record, **{"precision": "f64", **options})
            stack.callback(trainer.close)
            return trainer

        yield make
