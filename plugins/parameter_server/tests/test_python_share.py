"""What Python itself does in an iteration, while other threads wait for the interpreter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from bench import prototxt
from bench.nets import NETS

from demitasse import Level, Machine, SyncSpec, compose

PLUGINS = ["parameter_server", "caffe", "datasets", "training", "cpu", "reference", "system"]

MOST = 200
"""The most calls of functions, Python's and libraries', by a worker in an iteration of LeNet. It makes
some 130, of which those that compute release the GIL."""

pytestmark = pytest.mark.timeout(300, method="thread")


@contextmanager
def counted() -> Iterator[dict[int, int]]:
    """Count calls by thread, for threads that begin inside."""
    calls: dict[int, int] = {}

    def count(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            thread = threading.get_ident()
            calls[thread] = calls.get(thread, 0) + 1

    threading.setprofile(count)
    try:
        yield calls
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]


def calls_in_an_iteration(workers: int, batch: int, folder: Path) -> int:
    """Return the most calls that a worker makes, with ``batch`` samples in all."""
    net = NETS["lenet"]()
    net.batch = batch
    random = np.random.default_rng(1)
    samples = {
        "data": random.random((batch, *net.image), np.float32),
        "label": np.zeros(batch, np.float32),
    }
    solver = prototxt.write(net, folder / f"{workers} {batch}")
    level = Level("worker", workers, workers="threads", cores=1, sync=SyncSpec("parameter_server"))
    found = list[dict[int, int]]()
    with counted() as calls, compose(Machine("test", (level,), fingerprint="any"), PLUGINS) as runtime:
        trainer = runtime.trainer(solver, data={"train": samples})
        for iterations in (3, 1, 11):  # bind and compile; then count ten more
            trainer.step(iterations)
            found.append(dict(calls))
        theirs = [t.ident for t in threading.enumerate() if t.name.startswith("demitasse-worker")]
        trainer.close()
    _, first, last = found
    assert len(theirs) == workers
    return max(last[each] - first[each] for each in theirs if each is not None) // 10


def test_it_does_not_grow_with_the_samples_or_the_workers(tmp_path: Path, no_threads_left: None) -> None:
    few = fewest_calls(2, 8, tmp_path)
    assert 0 < few <= MOST
    for workers, batch in ((2, 64), (4, 64)):
        assert fewest_calls(workers, batch, tmp_path) <= few + few // 10


def fewest_calls(workers: int, batch: int, folder: Path) -> int:
    """Return the lower count of two runs: a worker that waits for a processor that other tests use
    polls some more times."""
    return min(calls_in_an_iteration(workers, batch, folder) for _ in range(2))
