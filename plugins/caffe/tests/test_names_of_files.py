"""Caffe does not look at file names: nets, solvers and weights are recognised by their content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import ModelError, Weights

PLUGINS = ["caffe", "training", "datasets", "reference", "snapshots"]
NET = (
    'name: "n" input: "data" input_shape { dim: 2 dim: 3 }\n'
    'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" '
    "inner_product_param { num_output: 4 } }\n"
)


@pytest.mark.parametrize("name", ["deploy.pt", "deploy.prototext", "deploy.txt", "deploy", "tmpx81"])
def test_a_net_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(NET)
    with demitasse.compose(plugins=PLUGINS) as runtime:
        assert runtime.net(tmp_path / name).forward()["ip"].shape == (2, 4)


def test_so_may_weights_and_snapshots(tmp_path: Path) -> None:
    arrays = {"ip": [np.arange(12, dtype=np.float32).reshape(4, 3), np.ones(4, np.float32)]}
    (tmp_path / "net.prototxt").write_text(NET)
    with demitasse.compose(plugins=PLUGINS) as runtime:
        for suffix, plain in ((".caffemodel", "model.bin"), (".demitasse", "kept")):
            runtime.write(tmp_path / f"w{suffix}", Weights(arrays)).rename(tmp_path / plain)
            net = runtime.net(tmp_path / "net.prototxt", weights=tmp_path / plain)
            assert np.array_equal(net.params["ip"][0], arrays["ip"][0])


def test_a_mistake_in_one_is_named_as_in_any_other(tmp_path: Path) -> None:
    (tmp_path / "deploy.pt").write_text(NET.replace("num_output", "num_outputs"))
    told = r"deploy\.pt:2:.*num_outputs.*did you mean 'num_output'"
    with demitasse.compose(plugins=PLUGINS) as runtime, pytest.raises(ModelError, match=told):
        runtime.read(tmp_path / "deploy.pt").net("test")


@pytest.mark.parametrize("content", [b"hello, world", b"\x00\x01\x02" * 99, b""])
def test_what_is_nobodys_is_said_with_the_suffixes_that_are_known(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.doc").write_bytes(content)
    with demitasse.compose(plugins=PLUGINS) as runtime, pytest.raises(ModelError) as told:
        runtime.read(tmp_path / "x.doc")
    assert "no composed plugin can read this file" in str(told.value)
    assert ".prototxt" in str(told.value)
