"""Runtimes of the toys, which are closed when the test ends and leave no thread behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from joined_threads import Member, Room, Sum

from demitasse import GradientSync, Level, Machine, Runtime, SyncSpec, compose

MakeRuntime = Callable[..., Runtime]
Params = dict[str, list[np.ndarray]]


@pytest.fixture
def runtime(toy: ModuleType, no_threads_left: None) -> Iterator[MakeRuntime]:
    """``runtime(*counts)``: reference kernels on one worker, or on nodes and threads. ``plugins`` are
    added in front; ``arrays`` or ``source`` provide the samples."""
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
    """The largest difference of any two parameters: 0.0 means that the bits are the same."""

    def largest(ours: Params, theirs: Params) -> float:
        assert ours.keys() == theirs.keys()
        pairs = [(a, b) for layer in ours for a, b in zip(ours[layer], theirs[layer], strict=True)]
        if all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs):
            return 0.0
        return max(float(np.abs(a - b).max()) for a, b in pairs)

    return largest


@pytest.fixture
def failing(toy: ModuleType) -> Callable[..., Any]:
    """``failing(worker, at, error)``: samples whose stream raises at one read of one worker."""
    return toy.spoilt  # type: ignore[no-any-return]


@pytest.fixture
def deployed(toy: ModuleType) -> Any:
    """A classifier of images that the caller provides."""
    return toy.net(
        toy.layer("data", "Input", "", "data", shape=(4, 1, 6, 6)),
        toy.layer("hidden", "InnerProduct", "data", "hidden", outputs=7),
        toy.layer("active", "ReLU", "hidden", "hidden"),
        toy.layer("scores", "InnerProduct", "hidden", "scores", outputs=3),
        toy.layer("probability", "Softmax", "scores", "probability"),
        phase="test",
    )


@pytest.fixture
def together(toy: ModuleType, no_threads_left: None) -> Iterator[Callable[..., list[Any]]]:
    """``together(size, job, sync=..., threads=..., source=...)``: what ``job(runtime, rank)`` returns in
    each process, which may have several workers; ``source(rank)`` makes its samples."""

    def run(
        size: int,
        job: Callable[[Any, int], Any],
        sync: type[GradientSync] = Sum,
        threads: int = 1,
        source: Any = None,
    ) -> list[Any]:
        room = Room(size)
        inner = Level("thread", threads, workers="threads", sync=SyncSpec("reference"))
        level = Level("process", size, workers="mpi", sync=SyncSpec("joined"))
        levels = (Level("machine"), level, *([inner] if threads > 1 else []))
        described = Machine("joined", levels, fingerprint="any")

        def process(rank: int) -> Any:
            joined = toy.plugin(
                "joined",
                processes=lambda machine, options: Member(room, rank),
                gradient_sync=lambda group: sync(group),  # noqa: PLW0108  hooks are functions
            )
            samples = toy.toy(None, source and source(rank))
            with compose(described, ["reference", "training", "snapshots", samples, joined]) as made:
                return job(made, rank)

        with ThreadPoolExecutor(size) as pool:
            futures = [pool.submit(process, rank) for rank in range(size)]
            return [future.exception() or future.result() for future in futures]

    yield run
