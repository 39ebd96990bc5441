"""Nets written as ONNX models, and who computes them besides us: ONNX's own evaluator, and OpenCV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from small_nets import inputs

import demitasse
from demitasse import Runtime, Weights

Arrays = Mapping[str, np.ndarray]


class LRN(OpRun):
    """ONNX's formula; its own evaluator (1.23) visits as many channels as there are samples."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        alpha: float = 1e-4,
        beta: float = 0.75,
        bias: float = 1.0,
        size: int = 1,
    ) -> tuple[np.ndarray]:
        squares = np.pad(np.square(x), ((0, 0), (size // 2, size // 2), (0, 0), (0, 0)))
        sums = sum(squares[:, shift : shift + x.shape[1]] for shift in range(size))
        return ((x / (bias + alpha / size * sums) ** beta).astype(x.dtype),)


def composed() -> Runtime:
    """The plugins that read, compute and write models."""
    plugins = ["onnx", "caffe", "datasets", "training", "cpu", "reference", "snapshots"]
    return demitasse.compose(plugins=plugins)


def evaluated(path: Path, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs by ONNX's evaluator."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    names = [value.name for value in model.graph.output]
    return dict(
        zip(names, ReferenceEvaluator(model, new_ops=[LRN]).run(None, dict(inputs)), strict=True)
    )


def reference_outputs(made: onnx.ModelProto, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a model that was not written to a file, by ONNX's evaluator."""
    names = [value.name for value in made.graph.output]
    return dict(zip(names, ReferenceEvaluator(made).run(None, inputs), strict=True))


def in_opencv(path: Path, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs by OpenCV's reader."""
    net = cv2.dnn.readNetFromONNX(str(path))
    for name, array in inputs.items():
        net.setInput(array, name)
    names = [value.name for value in onnx.load(path).graph.output]
    return dict(zip(names, net.forward(names), strict=True))


def agree(found: Arrays, expected: Arrays, tolerance: float = 1e-4) -> None:
    assert set(found) == set(expected)
    for name, array in expected.items():
        scale = float(np.abs(array).max()) + 1e-12
        np.testing.assert_allclose(
            found[name].reshape(array.shape) / scale, array / scale, atol=tolerance
        )


def filled(
    runtime: Runtime, net: Path, folder: Path
) -> tuple[Path | None, dict[str, np.ndarray], Arrays]:
    """Random weights for a net in a file (where it has some), random inputs of one sample, and the
    outputs that they make."""
    draw = np.random.default_rng(7)
    made = runtime.net(net)
    weights: dict[str, list[np.ndarray]] = {}
    for layer, arrays in made.params.items():
        statistics = len(arrays) == 3 and arrays[2].shape == (1,)
        for index, array in enumerate(arrays):
            spread = np.sqrt(2 / max(1, np.prod(array.shape[1:]))) if array.ndim > 1 else 0.2
            value = draw.normal(scale=spread, size=array.shape)
            if statistics and index:
                value = draw.uniform(0.5, 1.5, array.shape)
            weights.setdefault(layer, []).append(value.astype(np.float32))
    path = runtime.write(folder / "weights.demitasse", Weights(weights)) if weights else None
    shapes = {name: (1, *tensor.shape[1:]) for name, tensor in made.graph.inputs.items()}
    inputs = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return path, inputs, runtime.net(net, weights=path).forward(**inputs)


def exported(
    runtime: Runtime, net: Path, weights: Path | None, inputs: Arrays, folder: Path, **options: Any
) -> Path:
    shapes = {name: array.shape for name, array in inputs.items()}
    given_ = {"weights": weights, "input_shapes": shapes, **options}
    path: Path = runtime.program("export_onnx", net, folder / "exported.onnx", **given_)
    return path


LAYERS = {
    "convolution in groups": 'type: "Convolution" convolution_param { num_output: 4 kernel_size: 3 '
    "group: 2 stride: 2 pad: 1 dilation: 2 }",
    "deconvolution": 'type: "Deconvolution" convolution_param { num_output: 6 kernel_size: 4 stride: 2 '
    "pad: 1 }",
    "deconvolution in groups": 'type: "Deconvolution" convolution_param { num_output: 6 kernel_size: 4 '
    "stride: 2 pad: 1 group: 2 }",
    "inner product": 'type: "InnerProduct" inner_product_param { num_output: 5 }',
    "inner product over the last axis": 'type: "InnerProduct" inner_product_param { num_output: 5 '
    "axis: -1 transpose: true bias_term: false }",
    "rectifier": 'type: "ReLU" relu_param { negative_slope: 0.1 }',
    "a slope for each channel": 'type: "PReLU"',
    "exponential unit": 'type: "ELU" elu_param { alpha: 0.7 }',
    "sigmoid": 'type: "Sigmoid"',
    "hyperbolic tangent": 'type: "TanH"',
    "absolute value": 'type: "AbsVal"',
    "softplus": 'type: "BNLL"',
    "power": 'type: "Power" power_param { power: 2 scale: 0.5 shift: 1 }',
    "an affine map": 'type: "Power" power_param { scale: 0.5 shift: 1 }',
    "exponential": 'type: "Exp" exp_param { base: 2 scale: 0.5 shift: 1 }',
    "threshold": 'type: "Threshold" threshold_param { threshold: 0.3 }',
    "softmax of channels": 'type: "Softmax"',
    "softmax of rows": 'type: "Softmax" softmax_param { axis: 2 }',
    "normalisation across": 'type: "LRN" lrn_param { local_size: 3 alpha: 0.3 beta: 0.6 k: 2 }',
    "normalisation within": 'type: "LRN" lrn_param { local_size: 3 alpha: 0.3 '
    "norm_region: WITHIN_CHANNEL }",
    "batch normalisation": 'type: "BatchNorm" batch_norm_param { eps: 0.01 }',
    "scale": 'type: "Scale" scale_param { bias_term: true }',
    "scale of rows": 'type: "Scale" scale_param { axis: 2 num_axes: 1 }',
    "bias": 'type: "Bias"',
    "global average": 'type: "Pooling" pooling_param { pool: AVE global_pooling: true }',
    "global maximum": 'type: "Pooling" pooling_param { pool: MAX global_pooling: true }',
    "flatten": 'type: "Flatten" flatten_param { axis: 2 }',
    "reshape": 'type: "Reshape" reshape_param { shape { dim: 0 dim: -1 dim: 7 } }',
    "dropout": 'type: "Dropout"',
    "tiles": 'type: "Tile" tile_param { axis: 1 tiles: 3 }',
    "sum over space": 'type: "Reduction" reduction_param { axis: 2 operation: SUMSQ coeff: 0.5 }',
}

SHAPE = (2, 4, 9, 7)


def small(folder: Path, *layers: str) -> Path:
    path = folder / "net.prototxt"
    path.write_text("\n".join([inputs(x=SHAPE), *layers]))
    return path


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Arrays,
    shape: Sequence[Any] = (2, 4, 6, 5),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of nodes that read the input ``x`` and constants."""
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    versions = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


def read(runtime: Runtime, made: onnx.ModelProto, folder: Path) -> Any:
    """The net of a model that is written to a folder."""
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return runtime.net(path)


def random_array(*shape: int) -> np.ndarray:
    """Normal numbers, the same each time."""
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


X = random_array(2, 4, 6, 5)
W = random_array(4, 2, 3, 3)
