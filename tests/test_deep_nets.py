"""Nets of more layers than Python has frames for a recursion."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from demitasse import compose

LAYERS = 1100
"""As deep as ResNet-1001, and deeper than Python's limit of 1,000 frames."""

SCALE, RATE = 1.001, 0.1
DATA = """
layer { name: "d" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 1 dim: 1 } shape { dim: 1 dim: 1 }
  data_filler { type: "constant" value: 0.5 } data_filler { type: "constant" value: 0.25 } } }
layer { name: "w" type: "InnerProduct" bottom: "x" top: "b0" inner_product_param {
  num_output: 1 bias_term: false weight_filler { type: "constant" value: 0.125 } } }
"""
SOLVER = f"""
net: "net.prototxt" base_lr: {RATE} lr_policy: "fixed" momentum: 0 max_iter: 1
snapshot_after_train: false
"""


@pytest.mark.parametrize("kind", ["chain", "shortcuts"])
def test_a_net_of_many_layers_learns_what_its_formula_does(
    tmp_path: Path, kind: str, no_threads_left: None
) -> None:
    """y = w x s^n; each layer multiplies by s, or adds what it multiplies by s - 1."""
    assert sys.getrecursionlimit() < LAYERS
    text = [DATA]
    for n in range(LAYERS):
        scale = SCALE if kind == "chain" else SCALE - 1
        top = f"b{n + 1}" if kind == "chain" else f"p{n}"
        power = f"power_param {{ scale: {scale:.3f} }}"
        text.append(f'layer {{ name: "p{n}" type: "Power" bottom: "b{n}" top: "{top}" {power} }}')
        if kind == "shortcuts":
            ends = f'bottom: "b{n}" bottom: "p{n}" top: "b{n + 1}"'
            text.append(f'layer {{ name: "s{n}" type: "Eltwise" {ends} }}')
    loss = f'layer {{ name: "l" type: "EuclideanLoss" bottom: "b{LAYERS}" bottom: "t" top: "l" }}'
    (tmp_path / "net.prototxt").write_text("\n".join([*text, loss]))
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    with compose(hw="auto", plugins=["caffe", "datasets", "reference", "training"]) as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt", precision="f64")
        result = trainer.step()
        learned = trainer.net.params["w"][0].item()
    slope = 0.5 * SCALE**LAYERS
    difference = 0.125 * slope - 0.25
    np.testing.assert_allclose(result.loss, difference**2 / 2, rtol=1e-10)
    np.testing.assert_allclose(learned, 0.125 - RATE * difference * slope, rtol=1e-10)
