"""The command ``test`` on nets whose samples are those of a layer in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from demitasse_cli.main import main

CLASSES = """
import numpy as np

class Samples:
    def setup(self, bottom, top):
        self.number = 0
        top[0].reshape(4, 3)
        top[1].reshape(4)
    def reshape(self, bottom, top):
        pass
    def forward(self, bottom, top):
        top[0].data[...] = np.eye(3)[[0, 1, 2, self.number % 3]]
        top[1].data[...] = [0, 1, 2, 0]
        self.number += 1
    def backward(self, top, propagate_down, bottom):
        pass
"""
NET = """
layer { name: "samples" type: "Python" top: "data" top: "label"
  python_param { module: "samples_for_test" layer: "Samples" } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "diagonal" } } }
layer { name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy"
  include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("samples_for_test.py").write_text(CLASSES)
    Path("net.prototxt").write_text(NET)
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0 lr_policy: "fixed" max_iter: 1 test_iter: 3 test_interval: 9 '
        'snapshot_prefix: "s"'
    )
    assert run("train", "solver.prototxt", "--quiet") == 0


def run(command: str, *arguments: str) -> int:
    return main([command, *arguments, "--plugins", "+python_layer"])


WEIGHTS = ("--weights", "s_iter_1.caffemodel")


@pytest.mark.parametrize("given", [("solver.prototxt",), ("net.prototxt", "--iterations", "3")])
def test_a_net_is_scored_on_as_many_batches_as_are_asked_for(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three of four are right in each, and the fourth in one of three."""
    assert run("test", *given, *WEIGHTS, "--json", "test.json") == 0
    assert "(3 batches, " in capsys.readouterr().out
    result = json.loads(Path("test.json").read_text())
    assert result["scores"]["accuracy"] == pytest.approx((0.75 * 2 + 1) / 3)
    assert result["iterations"] == 3


def test_how_many_batches_has_to_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("test", "net.prototxt", *WEIGHTS) == 2
    told = "layer 'samples' does not say how many samples it has; give --iterations"
    assert told in capsys.readouterr().err
    inputs = 'type: "Input" input_param { shape { dim: 4 dim: 3 } shape { dim: 4 } }'
    Path("net.prototxt").write_text(NET.replace('type: "Python"', inputs))
    assert run("test", "net.prototxt", *WEIGHTS) == 2
    assert "the net has no data to score" in capsys.readouterr().err
