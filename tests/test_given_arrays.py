"""Arrays that a net or trainer is given in place of files, beside layers that make up their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import demitasse

DATA = """
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "given" batch_size: 2 } }
"""
NOISE = """
layer { name: "noise" type: "DummyData" top: "noise" top: "more" dummy_data_param {
  shape { dim: 2 dim: 3 } data_filler { type: "uniform" min: 5 max: 6 }
  data_filler { type: "uniform" min: 7 max: 8 } } }
"""
LOSS = """
layer { name: "sum" type: "Eltwise" bottom: "data" bottom: "noise" bottom: "more" top: "sum" }
layer { name: "fc" type: "InnerProduct" bottom: "sum" top: "fc" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""


@pytest.fixture
def runtime() -> Iterator[demitasse.Runtime]:
    with demitasse.compose(plugins=["-tuning"]) as composed:
        yield composed


@pytest.mark.parametrize("text", [DATA + NOISE, NOISE + DATA], ids=["before", "behind"])
def test_what_a_layer_makes_up_is_not_looked_for_in_given_arrays(
    runtime: demitasse.Runtime, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(f'name: "n" {text} {LOSS}')
    given = {"data": np.full((4, 3), 100.0), "label": np.zeros(4)}
    for phase in ("train", "test"):
        net = runtime.net(path, phase=phase, data={phase: given}, retain="all")
        net.forward()
        blobs = {name: np.array(blob.data) for name, blob in net.blobs.items()}
        assert (blobs["data"] == 100).all()
        for name, low in (("noise", 5), ("more", 7)):
            assert (blobs[name] >= low).all() and (blobs[name] < low + 1).all()
        assert np.allclose(blobs["sum"], blobs["data"] + blobs["noise"] + blobs["more"])
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2'
    )
    with runtime.trainer(tmp_path / "solver.prototxt", data={"train": given}) as trainer:
        assert trainer.step(2).iteration == 2


def test_a_filler_that_cannot_fill_a_parameter_is_told_with_its_line(
    runtime: demitasse.Runtime, tmp_path: Path
) -> None:
    path = tmp_path / "net.prototxt"
    text = (DATA + NOISE + LOSS).replace(
        "num_output: 3", 'num_output: 3 weight_filler { type: "bilinear" }'
    )
    path.write_text(text)
    given = {"data": np.zeros((4, 3)), "label": np.zeros(4)}
    said = r"net\.prototxt:9: layer 'fc' .*filler bilinear is for square kernels .*, not for \(3, 3\)"
    with pytest.raises(demitasse.ModelError, match=said):
        runtime.net(path, data={"test": given})
