"""Trainers of toy nets on accelerators that host_streams stands in for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

from demitasse import Level, Machine, MemorySpace, SyncSpec, compose

Train = Callable[..., Any]


def accelerators(
    count: int, sync: Mapping[str, Any], options: Mapping[str, Mapping[str, Any]] | None = None
) -> Machine:
    """Return a machine with ``count`` stand-ins, each with memory and streams of its own."""
    memory = (MemorySpace("host", at="accelerator:*"),)
    level = Level("gpu", count, workers="streams", memory=memory, sync=SyncSpec("cgdp", sync))
    return Machine("toys", (level,), fingerprint="any", options=options or {})


@pytest.fixture
def train(toy: ModuleType, no_threads_left: None) -> Iterator[Train]:
    """``train(replicas, net, solver={}, arrays=None, sync={}, **options)``: a trainer with reference
    kernels, in float64 unless stated otherwise."""
    with ExitStack() as stack:

        def make(replicas: int, net: Any = None, **options: Any) -> Any:
            solver, sync = options.pop("solver", {}), options.pop("sync", {})
            source, tests = options.pop("source", None), options.pop("tests", ())
            samples = toy.toy(options.pop("arrays", None), source)
            names = [*options.pop("plugins", ()), "cgdp", "host_streams", "reference", "training"]
            machine = options.pop("machine", None) or accelerators(replicas, sync)
            runtime = stack.enter_context(compose(machine, [*names, "snapshots", samples]))
            record = toy.solver(net or toy.classifier(), *tests, **solver)
            trainer = runtime.trainer(record, **{"precision": "f64", **options})
            stack.callback(trainer.close)
            return trainer

        yield make
