"""The plugin's interface: entry point, manifest, hooks, cheap import."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import demitasse
from demitasse import ModelError, hookspecs
from demitasse_onnx.plugin import model_reader
from demitasse_onnx.words import WORDS


def test_the_entry_point_loads_and_implements_the_roles_of_the_manifest() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="onnx")
    module = point.load()
    (manifest,) = [found for found in demitasse.discover() if found.name == "onnx"]
    assert manifest.problem == ""
    hooks = {name for name in vars(hookspecs) if hasattr(getattr(module, name, None), "demitasse_impl")}
    assert hooks == set(manifest.roles) == {"layer_types", "model_reader", "operations", "programs"}


def test_composing_needs_no_onnx() -> None:
    program = (
        "import sys, demitasse\n"
        "demitasse.compose(plugins=['onnx', 'reference']).close()\n"
        "print([m for m in ('onnx', 'google.protobuf') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("data", [b"", b"not a model", bytes(range(256)) * 40, b"\x08\x07"])
def test_what_is_no_model_is_said_to_be_none(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"net\.onnx: is not an ONNX model"):
        model_reader(path=path, layer_types={})


def test_what_stands_in_a_models_place_is_told(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(ModelError, match=r"net\.onnx: is not an ONNX model.*it is a Git LFS pointer"):
        model_reader(path, {})


def test_every_word_that_is_written_is_one_of_the_vocabulary() -> None:
    with demitasse.compose(plugins=["onnx", "caffe", "reference"]) as runtime:
        assert set(WORDS) <= set(runtime.vocabulary)


def test_a_net_is_converted_by_the_program_that_the_manifest_names(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 4 } } }\n'
        'layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y" '
        "inner_product_param { num_output: 2 } }"
    )
    (manifest,) = [found for found in demitasse.discover() if found.name == "onnx"]
    program = manifest.roles["programs"]["converts"][".onnx"]
    with demitasse.compose(plugins=["onnx", "caffe", "training", "reference"]) as runtime:
        done = runtime.program(program, net, tmp_path / "net.onnx")
        assert runtime.net(tmp_path / "net.onnx").graph.outputs["y"].shape == (1, 2)
    assert done["kind"] == "net"
    assert done["notes"] == ["no weights were given: the model has those that the net's fillers draw"]
