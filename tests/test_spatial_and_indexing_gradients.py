"""Gradients of the layers with windows and of those that index, through trained nets: against central
differences in float64, and in less precision against those."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse

KERNELS = {"reference": ["onnx", "reference"], "cpu": ["cpu", "onnx", "reference"]}


@pytest.fixture(params=KERNELS)
def runtime(request: pytest.FixtureRequest) -> Iterator[demitasse.Runtime]:
    plugins = ["caffe", "datasets", "training", "snapshots", *KERNELS[request.param]]
    with demitasse.compose(plugins=plugins) as composed:
        yield composed


FILL = 'weight_filler { type: "gaussian" std: 0.5 } bias_filler { type: "gaussian" std: 0.5 }'
ABOVE = """
layer {
  name: "data" type: "Data" top: "data" top: "label" data_param { source: "given" batch_size: 3 }
}
layer {
  name: "before" type: "Convolution" bottom: "data" top: "before"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } }
}
layer { name: "kept" type: "ReLU" bottom: "before" top: "kept" }
"""
BELOW = """
layer {
  name: "after" type: "InnerProduct" bottom: "top" top: "after"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "after" bottom: "label" }
"""
GEOMETRY = "num_output: 4 kernel_size: 3"
ONE = {
    "Deconvolution": f"convolution_param {{ {GEOMETRY} group: 2 stride: 2 {FILL} }}",
    "Deconvolution dilated": f"convolution_param {{ {GEOMETRY} dilation: 2 pad: 1 {FILL} }}",
    "Convolution depthwise": f"convolution_param {{ {GEOMETRY} group: 4 pad: 1 {FILL} }}",
    "Convolution of rows": f"convolution_param {{ axis: 2 {GEOMETRY} {FILL} }}",
    "Convolution of volumes": f"convolution_param {{ axis: 0 num_output: 3 kernel_size: 2 {FILL} }}",
    "Convolution of points": f"convolution_param {{ axis: -1 {GEOMETRY} {FILL} }}",
    "Deconvolution of rows": f"convolution_param {{ axis: 2 {GEOMETRY} {FILL} }}",
    "Im2col": "convolution_param { kernel_size: 3 stride: 2 pad: 1 dilation: 2 }",
    "Pooling by chance": "pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }",
    "Pooling weighted": "phase: TEST pooling_param { pool: STOCHASTIC kernel_size: 3 stride: 2 }",
    "SPP": "spp_param { pyramid_height: 2 pool: MAX }",
    "SPP of averages": "spp_param { pyramid_height: 2 pool: AVE }",
    "Tile": "tile_param { axis: 2 tiles: 3 }",
    "Reshape": "reshape_param { shape { dim: 2 dim: -1 } axis: 1 num_axes: 2 }",
    "Flatten": "flatten_param { axis: 1 end_axis: 2 }",
    "BN": f"bn_param {{ {FILL.replace('weight', 'scale').replace('bias', 'shift')} }}",
    "Crop": 'bottom: "small" crop_param { axis: 2 offset: 1 offset: 2 }',
    "BatchReindex": 'bottom: "label"',
    "Filter": 'bottom: "label"',
}
SMALL = """
layer {
  name: "small" type: "Pooling" bottom: "kept" top: "small" pooling_param { kernel_size: 3 }
}
"""
SEVERAL = {
    "Slice": """
layer {
  name: "cut" type: "Slice" bottom: "kept" top: "a" top: "b" top: "c"
  slice_param { slice_point: 1 slice_point: 3 }
}
layer { name: "tanh" type: "ReLU" bottom: "b" top: "b" relu_param { negative_slope: 0.5 } }
layer { name: "join" type: "Concat" bottom: "a" bottom: "b" top: "top" }
layer { name: "none" type: "Silence" bottom: "c" }""",
    "Upsample": """
layer {
  name: "most" type: "Pooling" bottom: "kept" top: "most" top: "place"
  pooling_param { kernel_size: 2 stride: 2 }
}
layer { name: "between" type: "Convolution" bottom: "most" top: "between"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } } }
layer {
  name: "back" type: "Upsample" bottom: "between" bottom: "place" top: "top"
  upsample_param { pad_out_h: true }
}""",
    "Parameter": """
layer {
  name: "free" type: "Parameter" top: "free"
  parameter_param { shape { dim: 3 dim: 4 dim: 5 dim: 6 } }
}
layer { name: "sum" type: "Eltwise" bottom: "kept" bottom: "free" top: "top" }""",
    "Parameter reshaped": """
layer { name: "free" type: "Parameter" top: "free" parameter_param { shape { dim: 60 dim: 6 } } }
layer {
  name: "shape" type: "Reshape" bottom: "free" top: "shaped"
  reshape_param { shape { dim: 3 dim: 4 dim: 5 dim: 6 } }
}
layer { name: "sum" type: "Eltwise" bottom: "kept" bottom: "shaped" top: "top" }""",
    "Embed": f"""
layer {{
  name: "rows" type: "Embed" bottom: "label" top: "rows"
  embed_param {{ input_dim: 3 num_output: 4 {FILL} }}
}}
layer {{ name: "mean" type: "Pooling" bottom: "kept" top: "mean" pooling_param {{
  pool: AVE global_pooling: true }} }}
layer {{ name: "flat" type: "Flatten" bottom: "mean" top: "flat" }}
layer {{ name: "sum" type: "Eltwise" bottom: "flat" bottom: "rows" top: "top" }}""",
}
NETS = {
    name: ABOVE
    + (SMALL if name == "Crop" else "")
    + f'layer {{ name: "it" type: "{name.split()[0]}" bottom: "kept" top: "top" {fields} }}'
    + BELOW
    for name, fields in ONE.items()
} | {name: ABOVE + layers + BELOW for name, layers in SEVERAL.items()}


def trainer(
    runtime: demitasse.Runtime, folder: Path, text: str, rate: float, precision: str = "f64"
) -> Any:
    random = np.random.default_rng(7)
    samples = {"data": random.normal(size=(3, 2, 5, 6)), "label": np.array([2, 0, 1])}
    (folder / "net.prototxt").write_text(text)
    (folder / "solver.prototxt").write_text(
        f'net: "net.prototxt" base_lr: {rate} lr_policy: "fixed" max_iter: 1 random_seed: 5'
    )
    return runtime.trainer(folder / "solver.prototxt", precision=precision, data={"train": samples})


@pytest.mark.parametrize("name", NETS)
def test_the_gradient_is_the_slope_of_the_loss(
    runtime: demitasse.Runtime, tmp_path: Path, name: str
) -> None:
    """With a rate of 1 and no momentum, a step moves each parameter by its gradient."""
    moving = trainer(runtime, tmp_path, NETS[name], rate=1.0)
    standing = trainer(runtime, tmp_path, NETS[name], rate=0.0)
    before = {k: [a.copy() for a in v] for k, v in moving.net.params.items()}
    moving.step()
    for layer, arrays in standing.net.params.items():
        for number, array in enumerate(arrays):
            gradient = (before[layer][number] - moving.net.params[layer][number]).reshape(-1)
            for i in np.random.default_rng(3).permutation(array.size)[:4]:
                slope = difference(standing, array, np.unravel_index(i, array.shape))
                assert gradient[i] == pytest.approx(slope, rel=1e-5, abs=2e-9), (layer, number, i)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("name", NETS)
def test_gradients_in_less_precision_point_the_same_way(
    tmp_path: Path, name: str, precision: str
) -> None:
    """In the layouts and kernels of such plans; which element chance takes may hang on the last bit."""
    plugins = ["caffe", "datasets", "training", "snapshots", *KERNELS["cpu"]]
    steps = []
    with demitasse.compose(plugins=plugins) as runtime:
        for each in ("f64", precision):
            it = trainer(runtime, tmp_path, NETS[name], 1.0, each)
            before = {k: [a.astype(np.float64) for a in v] for k, v in it.net.params.items()}
            loss = it.step().loss
            moved = [a - b for k, v in it.net.params.items() for a, b in zip(v, before[k], strict=True)]
            steps.append((loss, np.concatenate([part.ravel() for part in moved])))
    (loss, exact), (rough_loss, rough) = steps
    within = 1e-5 if precision == "f32" else 0.05
    assert rough_loss == pytest.approx(loss, rel=within)
    likeness = (exact @ rough) / np.sqrt((exact @ exact) * (rough @ rough))
    assert likeness > 1 - (1e-6 if precision == "f32" else 0.02)


def difference(trainer: Any, array: np.ndarray, where: tuple[np.intp, ...], step: float = 1e-6) -> float:
    """The slope of the loss in one parameter. The iteration is set back, so that chance is the same."""
    kept, losses = array[where], []
    for change in (step, -step):
        array[where] = kept + change
        trainer.iteration = 0
        losses.append(trainer.step().loss)
    array[where] = kept
    return (losses[0] - losses[1]) / (2 * step)
