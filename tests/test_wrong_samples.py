"""What is wrong with samples is told with the layer that met it."""

from __future__ import annotations

from pathlib import Path

import pytest

import demitasse

NET = """
layer { name: "made" type: "DummyData" top: "x" top: "label" dummy_data_param {
  shape { dim: 2 dim: 3 } shape { dim: 2 }
  data_filler { type: "constant" value: 1 } data_filler { type: "constant" value: 7 } } }
layer { name: "scores" type: "InnerProduct" bottom: "x" top: "scores"
  inner_product_param { num_output: 5 } }
layer { name: "objective" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""


@pytest.mark.parametrize("kernels", ["cpu", "reference"])
def test_a_label_that_is_no_class_is_told_with_its_layer(tmp_path: Path, kernels: str) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(NET)
    with demitasse.compose(plugins=["caffe", kernels, "reference", "datasets", "training"]) as runtime:
        made = runtime.net(net)
        with pytest.raises(demitasse.DataError, match=r"^layer 'objective': label 7 of sample 0 "):
            made.forward()
