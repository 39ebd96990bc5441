"""LeNet learns MNIST with workers that never wait for each other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demitasse import Level, Machine, SyncSpec, compose

ROOT = Path(__file__).parents[3]
MNIST = Path(os.environ.get("DEMITASSE_SHARED", ROOT.parent / "shared")) / "data/mnist"


@pytest.mark.slow
@pytest.mark.timeout(3000, method="thread")
@pytest.mark.skipif(not MNIST.is_dir(), reason=f"no MNIST in {MNIST}")
@pytest.mark.parametrize("workers", [2, 4])
def test_asynchronous_workers_reach_98_5_percent(workers: int, no_threads_left: None) -> None:
    sources = {"mnist": "train-images-idx3-ubyte.gz", "mnist_test": "t10k-images-idx3-ubyte.gz"}
    overrides = {f"layer.{name}.data_param.source": str(MNIST / file) for name, file in sources.items()}
    sync = SyncSpec("parameter_server", {"model": "asp"})
    level = Level("worker", workers, workers="threads", cores=1, sync=sync)
    plugins = ("parameter_server", "caffe", "training", "datasets", "cpu", "reference")
    with compose(Machine("test", (level,), fingerprint="any"), plugins) as runtime:
        solver = ROOT / "examples/mnist/lenet_solver.prototxt"
        trainer = runtime.trainer(solver, overrides=overrides)
        trainer.step(3000)
        accuracy = trainer.test()["accuracy"]
        trainer.close()
    assert accuracy >= 0.985
