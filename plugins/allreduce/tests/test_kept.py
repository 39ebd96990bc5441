"""A sample that one rank cannot read ends all ranks, and what they have trained until then is saved,
once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import compose

NET = """
name: "pictures"
layer { name: "pictures" type: "ImageData" top: "data" top: "label"
  transform_param { scale: 0.0039 } image_data_param { source: "LIST" batch_size: 10 } }
layer { name: "hidden" type: "InnerProduct" bottom: "data" top: "hidden"
  inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "score" type: "InnerProduct" bottom: "hidden" top: "score"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""

SOLVER = """
net: "NET" base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" display: 0 max_iter: 100
snapshot_prefix: "PREFIX"
"""

PROGRAM = """
import json
from pathlib import Path
from demitasse import DemitasseError, Level, Machine, MemorySpace, SyncSpec, compose

sync, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
levels = (
    Level("process", 2, workers="mpi", sync=SyncSpec("allreduce", sync)),
    Level("node", memory=(MemorySpace("host"),), cores=1),
)
with compose(Machine("processes", levels, fingerprint="any")) as runtime:
    trainer = runtime.trainer(folder / "solver.prototxt", precision="f64")
    try:
        trainer.run()
    except DemitasseError as error:
        (folder / f"{rank}.json").write_text(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of which number 37 is damaged; the second of two ranks reads it in iteration 3."""
    numbers = np.random.default_rng(5)
    for name in range(50):
        pixels = numbers.integers(0, 256, (8, 8, 3), dtype=np.uint8).tobytes()
        (tmp_path / f"{name}.ppm").write_bytes(b"P6 8 8 255\n" + pixels)
    (tmp_path / "37.ppm").write_bytes(b"P6 8 8 255\n torn")
    (tmp_path / "list.txt").write_text("".join(f"{i}.ppm {i % 5}\n" for i in range(50)))
    (tmp_path / "net.prototxt").write_text(NET.replace("LIST", str(tmp_path / "list.txt")))
    solver = SOLVER.replace("NET", str(tmp_path / "net.prototxt"))
    (tmp_path / "solver.prototxt").write_text(solver.replace("PREFIX", str(tmp_path / "kept" / "out")))
    return tmp_path


@pytest.mark.parametrize(
    "sync",
    [
        {},
        pytest.param({"stage": "overlap", "shared": False}, marks=pytest.mark.slow),
        {"stage": "SC-OB"},  # here one rank has not waited for broadcasts that the root has begun
        pytest.param({"stage": "naive"}, marks=pytest.mark.slow),
        pytest.param({"stage": "SC-B"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_what_was_trained_before_a_torn_picture_is_kept(
    folder: Path, mpiexec: Callable[..., str], sync: dict[str, Any]
) -> None:
    mpiexec(2, PROGRAM, json.dumps(sync), str(folder), fails=None)
    kept = folder / "kept" / "out_iter_3.demitasse"
    assert [*kept.parent.glob("*.demitasse")] == [kept]
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    assert [kind for kind, _ in told] == ["WorkerError", "DataError"]
    for _, words in told:
        assert "37.ppm" in words and f"; iteration 3 is saved in {kept}" in words
    assert told[0][1].startswith("rank 1 of 2 (host ")
    with compose() as runtime:
        alone = runtime.trainer(folder / "solver.prototxt", precision="f64")
        alone.step(3)
        saved = runtime.read(kept).weights()
        expected = runtime.read(alone.snapshot(folder / "alone")).weights()
    for name, arrays in expected.parameters.items():
        for array, ours in zip(arrays, saved.parameters[name], strict=True):
            assert np.allclose(ours, array, rtol=0, atol=1e-12)
    assert saved.record["cursors"] == expected.record["cursors"]
    for word, layers in expected.state.items():
        for name, arrays in layers.items():
            for array, ours in zip(arrays, saved.state[word][name], strict=True):
                assert np.allclose(ours, array, rtol=0, atol=1e-12) and np.asarray(array).any()
