"""Caffemodels hold the layers with their parameters, as Caffe's own do: of a training, of pycaffe, of a
conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import demitasse_softcap.plugin as softcap
import numpy as np
import pytest
from google.protobuf import text_format
from toy import plugin

import demitasse
from demitasse_caffe import pycaffe
from demitasse_caffe.schema import schema
from demitasse_caffe.weights import read_caffemodel
from demitasse_cli.main import main

NET = """
name: "held"
layer { name: "data" type: "Data" top: "x" top: "label" include { phase: TRAIN }
  data_param { source: "given" batch_size: 4 } }
layer { name: "data" type: "Data" top: "x" top: "label" include { phase: TEST }
  data_param { source: "given" batch_size: 2 } }
layer { name: "conv" type: "Convolution" bottom: "x" top: "y" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 3 kernel_size: 2 weight_filler { type: "xavier" } } }
layer { name: "cap" type: "SoftCap" bottom: "y" top: "y" soft_cap_param { cap: 7.5 } }
layer { name: "ip" type: "InnerProduct" bottom: "y" top: "z" inner_product_param { num_output: 5
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "z" bottom: "label" top: "loss" loss_weight: 0.5 }
"""

SOFTCAP = plugin(
    "softcap",
    roles={"kernels": {"priority": 10, "spaces": ["host"]}},
    operations=softcap.operations,
    layer_types=softcap.layer_types,
    kernels=softcap.kernels,
)
"""A stranger's plugin, whose layer type declares what a file says of it."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    return tmp_path


def trained() -> Path:
    """A snapshot of one iteration."""
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 snapshot_prefix: "s" '
        "snapshot_format: BINARYPROTO"
    )
    samples = {"data": np.ones((4, 2, 3, 3), np.float32), "label": np.arange(4, dtype=np.float32)}
    plugins = ["reference", "caffe", "training", "datasets", "snapshots", SOFTCAP]
    with demitasse.compose(plugins=plugins) as runtime:
        runtime.trainer("solver.prototxt", data={"train": samples}).run()
    return Path("s_iter_1.caffemodel")


def held(path: Path | str) -> Any:
    """The message of a file, by a reader of its own, that takes the numbers out of it."""
    net = schema({"SoftCap": softcap.SoftCap()}).message("NetParameter")
    net.ParseFromString(Path(path).read_bytes())
    for layer in net.layer:
        layer.ClearField("blobs")
    return net


def written(text: str) -> Any:
    """The message of a net's text, by protobuf's own parser."""
    net = schema({"SoftCap": softcap.SoftCap()}).message("NetParameter")
    return text_format.Parse(text, net)


def test_a_snapshot_has_the_layers_of_the_training() -> None:
    net = written(NET)
    del net.layer[1]  # of phase TEST
    path = trained()
    assert held(path) == net
    assert {*read_caffemodel(path).parameters} == {"conv", "ip"}


def test_pycaffe_saves_the_layers_of_its_phase() -> None:
    Path("below.prototxt").write_text(
        'name: "below" layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 } } }'
        'layer { name: "p" type: "Power" bottom: "x" top: "p" power_param { scale: 3 } }'
        'layer { name: "q" type: "Silence" bottom: "x" include { phase: TRAIN } }'
    )
    net = written(Path("below.prototxt").read_text())
    del net.layer[2]
    pycaffe.Net("below.prototxt", pycaffe.TEST).save("below.caffemodel")
    assert held("below.caffemodel") == net  # though no layer has numbers


def test_an_older_caffemodel_is_brought_into_the_present_form_with_its_net() -> None:
    old = written(
        'name: "old" layers { name: "data" type: DATA top: "x" data_param { source: "db" } }'
        'layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" blobs_lr: 1 blobs_lr: 2'
        " inner_product_param { num_output: 2 } blobs { shape { dim: 2 dim: 1 } data: 5 data: 6 } }"
    )
    Path("old.caffemodel").write_bytes(old.SerializeToString())
    assert main(["convert", "old.caffemodel", "new.caffemodel"]) == 0
    assert held("new.caffemodel") == written(
        'name: "old" layer { name: "data" type: "Data" top: "x" data_param { source: "db" } }'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" param { lr_mult: 1 }'
        " param { lr_mult: 2 } inner_product_param { num_output: 2 } }"
    )
    assert read_caffemodel(Path("new.caffemodel")).parameters["ip"][0].tolist() == [[5], [6]]


def test_weights_of_no_known_net_have_names_and_numbers(folder: Path) -> None:
    with demitasse.compose() as runtime:
        runtime.write("bare.caffemodel", demitasse.Weights({"ip": [np.ones(3, np.float32)]}))
    assert held("bare.caffemodel") == written('layer { name: "ip" }')
