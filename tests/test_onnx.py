"""Nets as ONNX models and back: the same numbers by ONNX's own evaluator, by OpenCV, and by us."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import demitasse
from demitasse import DemitasseError, ModelError, Runtime, Weights

ROOT = Path(__file__).parents[1]
NETS = Path(os.environ.get("DEMITASSE_SHARED", ROOT.parent / "shared")) / "data" / "prototxt"
FUZZED = int(os.environ.get("DEMITASSE_FUZZ", "400"))

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


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with demitasse.compose(
        plugins=["onnx", "caffe", "training", "cpu", "reference", "snapshots"]
    ) as made:
        yield made


def evaluated(path: Path, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs by ONNX's evaluator."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    names = [value.name for value in model.graph.output]
    return dict(
        zip(names, ReferenceEvaluator(model, new_ops=[LRN]).run(None, dict(inputs)), strict=True)
    )


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
INPUT = (
    'layer {{ name: "in" type: "Input" top: "{0}" '
    "input_param {{ shape {{ dim: 2 dim: 4 dim: 9 dim: 7 }} }} }}"
)
NOT_READ = ("threshold", "tiles", "sum over space")
NOT_IN_OPENCV = ("threshold",)
NOT_IN_ONNX = ("deconvolution in groups",)
"""What ONNX's evaluator (1.23) cannot compute; OpenCV can."""


def small(folder: Path, *layers: str) -> Path:
    path = folder / "net.prototxt"
    path.write_text("\n".join([INPUT.format("x"), *layers]))
    return path


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_the_same_as_a_model(runtime: Runtime, name: str, tmp_path: Path) -> None:
    net = small(tmp_path, f'layer {{ name: "layer" bottom: "x" top: "y" {LAYERS[name]} }}')
    weights, inputs, expected = filled(runtime, net, tmp_path)
    path = exported(runtime, net, weights, inputs, tmp_path)
    if name not in NOT_IN_ONNX:
        agree(evaluated(path, inputs), expected, 1e-5)
    if name not in NOT_READ:
        agree(runtime.net(path).forward(**inputs), expected, 1e-6)
    if name not in NOT_IN_OPENCV:
        agree(in_opencv(path, inputs), expected)


@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX", "SUM coeff: 1 coeff: -2 coeff: 0.5"])
def test_several_blobs_become_one_as_a_model(runtime: Runtime, operation: str, tmp_path: Path) -> None:
    net = small(
        tmp_path,
        INPUT.format("z").replace('"in"', '"in2"'),
        'layer { name: "a" type: "TanH" bottom: "x" top: "a" }',
        'layer { name: "e" type: "Eltwise" bottom: "x" bottom: "z" bottom: "a" top: "e" '
        f"eltwise_param {{ operation: {operation} }} }}",
        'layer { name: "c" type: "Concat" bottom: "e" bottom: "z" top: "c" concat_param { axis: 2 } }',
    )
    weights, inputs, expected = filled(runtime, net, tmp_path)
    path = exported(runtime, net, weights, inputs, tmp_path)
    agree(evaluated(path, inputs), expected, 1e-5)
    agree(runtime.net(path).forward(**inputs), expected, 1e-6)


@pytest.mark.parametrize("opset", [13, 15, 17, 19, 22])
def test_every_version_that_is_written_computes_the_same(
    runtime: Runtime, opset: int, tmp_path: Path
) -> None:
    lines = [
        f'layer {{ name: "l{number}" bottom: "{bottom}" top: "t{number}" {LAYERS[name]} }}'
        for number, (bottom, name) in enumerate(
            [("x", "normalisation within"), ("t0", "scale"), ("t1", "inner product")]
        )
    ]
    net = small(tmp_path, *lines, 'layer { name: "p" type: "Softmax" bottom: "t2" top: "p" }')
    weights, inputs, expected = filled(runtime, net, tmp_path)
    agree(
        evaluated(exported(runtime, net, weights, inputs, tmp_path, opset=opset), inputs), expected, 1e-5
    )


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["MAX", "AVE"]),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 2),
    st.sampled_from(["CEIL", "FLOOR"]),
)
def test_windows_that_are_rounded_up_and_padding_that_counts_are_written_exactly(
    runtime: Runtime,
    tmp_path_factory: pytest.TempPathFactory,
    pool: str,
    extents: tuple[int, int],
    kernel: int,
    stride: int,
    pad: int,
    rounding: str,
) -> None:
    assume(pad < kernel and min(extents) + 2 * pad >= kernel)
    folder = tmp_path_factory.mktemp("pool")
    net = folder / "net.prototxt"
    net.write_text(
        f'layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: 2 '
        f"dim: {extents[0]} dim: {extents[1]} }} }} }}\n"
        f'layer {{ name: "p" type: "Pooling" bottom: "x" top: "y" pooling_param {{ pool: {pool} '
        f"kernel_size: {kernel} stride: {stride} pad: {pad} round_mode: {rounding} }} }}"
    )
    weights, inputs, expected = filled(runtime, net, folder)
    path = exported(runtime, net, weights, inputs, folder)
    agree(evaluated(path, inputs), expected, 1e-6)
    agree(runtime.net(path).forward(**inputs), expected, 1e-6)


REAL = {
    "LeNet": "BVLC+caffe/examples/mnist/lenet.prototxt",
    "CIFAR-10 quick": "BVLC+caffe/examples/cifar10/cifar10_quick.prototxt",
    "CIFAR-10 full": "BVLC+caffe/examples/cifar10/cifar10_full.prototxt",
    "SqueezeNet": "DeepScale+SqueezeNet/SqueezeNet_v1.1/deploy.prototxt",
}
LARGE = {
    "MobileNet": "shicai+MobileNet-Caffe/mobilenet_deploy.prototxt",
    "ResNet-18": "HolmesShuan+ResNet-18-Caffemodel-on-ImageNet/deploy.prototxt",
    "AlexNet": "BVLC+caffe/models/bvlc_alexnet/deploy.prototxt",
    "CaffeNet": "BVLC+caffe/models/bvlc_reference_caffenet/deploy.prototxt",
    "GoogLeNet": "BVLC+caffe/models/bvlc_googlenet/deploy.prototxt",
    "ResNet-50": "KaimingHe+deep-residual-networks/prototxt/ResNet-50-deploy.prototxt",
    "MobileNet 2": "shicai+MobileNet-Caffe/mobilenet_v2_deploy.prototxt",
    "FCN-8s": "shelhamer+fcn.berkeleyvision.org/voc-fcn8s/deploy.prototxt",
}


@pytest.mark.skipif(not NETS.is_dir(), reason=f"no real Caffe files under {NETS}")
@pytest.mark.parametrize(
    "name", [*REAL, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]
)
def test_a_real_net_gives_the_same_in_opencv_and_when_it_is_read_back(
    runtime: Runtime, name: str, tmp_path: Path
) -> None:
    net = NETS / (REAL | LARGE)[name]
    weights, inputs, expected = filled(runtime, net, tmp_path)
    path = exported(runtime, net, weights, inputs, tmp_path)
    onnx.checker.check_model(str(path), full_check=True)
    agree(in_opencv(path, inputs), expected)
    agree(runtime.net(path).forward(**inputs), expected)
    if name in ("LeNet", "CIFAR-10 quick", "CIFAR-10 full"):
        agree(evaluated(path, inputs), expected)


# What others write.


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Arrays,
    shape: Sequence[Any] = (2, 4, 6, 5),
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
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
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return runtime.net(path)


def random_array(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


X = random_array(2, 4, 6, 5)
W = random_array(4, 2, 3, 3)
NODES: dict[str, tuple[str, dict[str, Any], dict[str, np.ndarray]]] = {
    "Conv, padded by itself": (
        "Conv",
        {"auto_pad": "SAME_UPPER", "group": 2},
        {"w": W, "b": random_array(4)},
    ),
    "ConvTranspose": (
        "ConvTranspose",
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]},
        {"w": W, "b": random_array(2)},
    ),
    "MaxPool, rounded up": ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}, {}),
    "AveragePool, padding not counted": (
        "AveragePool",
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
        {},
    ),
    "AveragePool, padding counted": (
        "AveragePool",
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {},
    ),
    "GlobalMaxPool": ("GlobalMaxPool", {}, {}),
    "ReduceMean": ("ReduceMean", {"axes": [2, 3], "keepdims": 0}, {}),
    "BatchNormalization": (
        "BatchNormalization",
        {"epsilon": 0.01},
        {n: np.abs(random_array(4)) + 0.1 for n in ("scale", "bias", "mean", "variance")},
    ),
    "PRelu": ("PRelu", {}, {"slope": random_array(4, 1, 1)}),
    "LeakyRelu": ("LeakyRelu", {"alpha": -0.3}, {}),
    "Clip": ("Clip", {}, {"least": np.float32(-0.5), "most": np.float32(0.7)}),
    "MatMul": ("MatMul", {}, {"w": random_array(5, 3)}),
    "Add, by channel": ("Add", {}, {"b": random_array(4, 1, 1)}),
    "Add, by the inner axes": ("Add", {}, {"b": random_array(6, 5)}),
    "Mul, one number": ("Mul", {}, {"w": np.float32(3)}),
    "Div, by row": ("Div", {}, {"w": np.abs(random_array(6, 1)) + 1}),
    "Sub": ("Sub", {}, {"b": random_array(1, 4, 1, 1)}),
    "Pow": ("Pow", {}, {"p": np.float32(2)}),
    "Softmax": ("Softmax", {}, {}),
    "LogSoftmax": ("LogSoftmax", {"axis": 1}, {}),
    "Flatten": ("Flatten", {"axis": 2}, {}),
    "Reshape": ("Reshape", {}, {"shape": np.array([0, -1, 5])}),
    "Unsqueeze": ("Unsqueeze", {}, {"axes": np.array([0, -1])}),
    "Slice": ("Slice", {}, {"s": np.array([1, -4]), "e": np.array([3, 2**60]), "a": np.array([1, 2])}),
    "Neg": ("Neg", {}, {}),
    "Softplus": ("Softplus", {}, {}),
    "Identity": ("Identity", {}, {}),
}


@pytest.mark.parametrize("name", NODES)
def test_an_operator_computes_what_its_own_evaluator_says(
    runtime: Runtime, name: str, tmp_path: Path
) -> None:
    operator, attributes, constants = NODES[name]
    node = helper.make_node(operator, ["x", *constants], ["y"], **attributes)
    made = model([node], constants)
    expected = ReferenceEvaluator(made).run(None, {"x": X})[0]
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": np.asarray(expected)}, 1e-5)


def test_a_linear_layer_is_read_in_all_its_forms(runtime: Runtime, tmp_path: Path) -> None:
    x, w, c = random_array(3, 6), random_array(6, 2), random_array(2)
    for transposed, bias in itertools.product([False, True], [c, c[None], np.float32(2)]):
        node = helper.make_node(
            "Gemm", ["x", "w", "c"], ["y"], name="fc", transB=int(transposed), alpha=0.5, beta=2.0
        )
        made = model([node], {"w": w.T.copy() if transposed else w, "c": bias}, (3, 6))
        net = read(runtime, made, tmp_path)
        agree(net.forward(x=x), {"y": 0.5 * x @ w + 2 * bias}, 1e-5)
        assert [array.shape for array in net.params["fc"]] == [(2, 6) if transposed else (6, 2), (2,)]


def test_an_older_softmax_runs_over_all_axes_from_its_own_on(runtime: Runtime, tmp_path: Path) -> None:
    made = model([helper.make_node("Softmax", ["x"], ["y"])], {}, opset=11)
    raised = np.exp(X.reshape(2, -1) - X.reshape(2, -1).max(1, keepdims=True))
    expected = (raised / raised.sum(1, keepdims=True)).reshape(X.shape)
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": expected}, 1e-6)


def test_a_gate_by_channel_multiplies_what_it_came_from(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"]),
        helper.make_node("Sigmoid", ["mean"], ["gate"]),
        helper.make_node("Mul", ["gate", "x"], ["y"]),
    ]
    made = model(nodes, {}, outputs=("y", "gate"))
    gate = 1 / (1 + np.exp(-X.mean((2, 3), keepdims=True)))
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": gate * X, "gate": gate}, 1e-6)


def test_an_open_batch_is_whatever_is_given(runtime: Runtime, tmp_path: Path) -> None:
    net = read(runtime, model([helper.make_node("Relu", ["x"], ["y"])], {}, ("N", 4)), tmp_path)
    assert net.graph.inputs["x"].shape == (1, 4)
    assert net.forward(x=np.ones((7, 4)))["y"].shape == (7, 4)
    path = tmp_path / "model.onnx"
    assert runtime.net(path, overrides={"input.x": "3,4"}).graph.inputs["x"].shape == (3, 4)


def test_weights_are_served_by_the_names_of_their_nodes(runtime: Runtime, tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv1", group=2)
    read(runtime, model([node], {"w": W, "b": random_array(4)}), tmp_path)
    arrays = runtime.read(tmp_path / "model.onnx").weights().parameters["conv1"]
    np.testing.assert_array_equal(arrays[0], W)
    np.testing.assert_array_equal(arrays[1], random_array(4))


def test_an_exported_net_keeps_the_names_of_its_layers(runtime: Runtime, tmp_path: Path) -> None:
    net = small(tmp_path, f'layer {{ name: "fc" bottom: "x" top: "y" {LAYERS["inner product"]} }}')
    weights, inputs, _ = filled(runtime, net, tmp_path)
    assert weights is not None
    path = exported(runtime, net, weights, inputs, tmp_path)
    ours, theirs = (runtime.read(each).weights().parameters for each in (weights, path))
    for mine, other in zip(ours["fc"], theirs["fc"], strict=True):
        np.testing.assert_array_equal(mine, other)


def test_the_weights_of_a_model_can_be_trained(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], name="fc", transB=1),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    net = read(runtime, model(nodes, {"w": random_array(5, 6)}, (4, 6)), tmp_path)
    assert [parameter.trainable for parameter in net.graph.parameters] == [True]


# Mistakes.


@pytest.mark.parametrize(
    ("nodes", "constants", "said"),
    [
        (
            [("LSTM", ["x"], ["y"], {})],
            {},
            r"node 0 'n0' \(LSTM\): unknown operator 'LSTM'.*valid: Abs, Add",
        ),
        ([("Relux", ["x"], ["y"], {})], {}, "unknown operator 'Relux'; did you mean 'Relu'"),
        ([("Relu", ["z"], ["y"], {})], {}, "unknown input 'z'"),
        ([("Relu", ["x"], ["x"], {}), ("Relu", ["x"], ["y"], {})], {}, "'x' has been made before"),
        ([("Relu", ["x"], ["t"], {})], {}, "unknown output 'y'|no output"),
        (
            [("Conv", ["x", "w"], ["y"], {"strid": [1, 1]})],
            {"w": W},
            "unknown attribute 'strid'; did you mean",
        ),
        ([("Conv", ["x", "w"], ["y"], {"group": 2, "pads": [0, 0, 1, 1]})], {"w": W}, "only equal ones"),
        ([("Conv", ["x", "x"], ["y"], {})], {}, "its weights .input 1. must be constants"),
        ([("MaxPool", ["x"], ["y"], {"kernel_shape": [2, 2], "dilations": [2, 2]})], {}, "dilations"),
        ([("Transpose", ["x"], ["y"], {"perm": [0, 2, 3, 1]})], {}, "moves the numbers"),
        (
            [("Pad", ["x", "p"], ["y"], {})],
            {"p": np.array([0, 0, 1, 1] * 2)},
            "pads a blob that another",
        ),
        ([("Reshape", ["x", "s"], ["y"], {})], {"s": np.array([-1, 7])}, "do not divide by 7"),
        ([("Constant", [], ["y"], {"value_string": "a"})], {}, "no value"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_node_and_what_is_supported(
    runtime: Runtime,
    nodes: list[tuple[str, list[str], list[str], dict[str, Any]]],
    constants: Arrays,
    said: str,
    tmp_path: Path,
) -> None:
    made = [
        helper.make_node(operator, inputs, outputs, name=f"n{number}", **attributes)
        for number, (operator, inputs, outputs, attributes) in enumerate(nodes)
    ]
    with pytest.raises(ModelError, match=said) as error:
        read(runtime, model(made, constants), tmp_path)
    assert "model.onnx" in str(error.value)


def test_a_word_that_nobody_brings_is_named_with_who_would(tmp_path: Path) -> None:
    made = model([helper.make_node("Sigmoid", ["x"], ["y"], name="s")], {})
    with (
        demitasse.compose(plugins=["onnx", "training", "reference"]) as bare,
        pytest.raises(
            ModelError, match="'sigmoid', which no composed plugin defines; 'caffe' brings it"
        ),
    ):
        read(bare, made, tmp_path)


@pytest.mark.parametrize("location", ["../outside.bin", "/etc/hostname", "link.bin", ".", ""])
def test_data_outside_of_the_models_folder_is_not_read(
    runtime: Runtime, location: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    made = model([helper.make_node("Conv", ["x", "w"], ["y"], group=2)], {"w": W})
    _outsource(made.graph.initializer[0], location)
    with pytest.raises(ModelError, match="is not in the model's folder"):
        read(runtime, made, folder)


def test_data_beside_the_model_is_read(runtime: Runtime, tmp_path: Path) -> None:
    made = model([helper.make_node("Conv", ["x", "w"], ["y"], group=2)], {"w": W})
    expected = ReferenceEvaluator(made).run(None, {"x": X})[0]
    _outsource(made.graph.initializer[0], "weights.bin", offset=8)
    (tmp_path / "weights.bin").write_bytes(bytes(8) + W.tobytes())
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": np.asarray(expected)}, 1e-6)
    (tmp_path / "weights.bin").write_bytes(W.tobytes())
    with pytest.raises(ModelError, match="needs 288 bytes"):
        read(runtime, made, tmp_path)


def _outsource(tensor: onnx.TensorProto, location: str, offset: int = 0) -> None:
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset))):
        tensor.external_data.add(key=key, value=value)


def test_a_size_that_no_machine_holds_is_refused_before_memory_is_taken(
    runtime: Runtime, tmp_path: Path
) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    with pytest.raises(ModelError, match="is not of 1 to"):
        read(runtime, model([node], {}, (2**40, 2**20)), tmp_path)
    tensor = onnx.TensorProto(
        name="w", dims=[2**40, 2**20], data_type=TensorProto.FLOAT, raw_data=b"1234"
    )
    made = model([helper.make_node("Add", ["x", "w"], ["y"])], {})
    made.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match="4 bytes of float32 numbers do not make the shape"):
        read(runtime, made, tmp_path)
    doubled = [helper.make_node("Concat", [f"c{n}", f"c{n}"], [f"c{n + 1}"], axis=0) for n in range(60)]
    with pytest.raises(ModelError, match="makes a constant of more than"):
        read(
            runtime, model([*doubled, helper.make_node("Add", ["x", "c60"], ["y"])], {"c0": X}), tmp_path
        )


def test_what_onnx_has_no_words_for_is_not_exported(runtime: Runtime, tmp_path: Path) -> None:
    net = small(
        tmp_path,
        'layer { name: "s" type: "MVN" bottom: "x" top: "y" mvn_param { across_channels: true } }',
    )
    with pytest.raises(ModelError, match=r"layer 's': operation '\w+' has no form in ONNX here"):
        runtime.program("export_onnx", net, tmp_path / "s.onnx")
    net = small(
        tmp_path,
        'layer { name: "p" type: "Pooling" bottom: "x" top: "y" top: "place" '
        "pooling_param { kernel_size: 2 } }",
    )
    with pytest.raises(ModelError, match="its second result"):
        runtime.program("export_onnx", net, tmp_path / "p.onnx")
    assert not list(tmp_path.glob("*.onnx"))
    with pytest.raises(ModelError, match="valid: 13 to 22"):
        runtime.program("export_onnx", net, tmp_path / "p.onnx", opset=9)


def test_damaged_models_are_errors_of_ours_and_nothing_else(runtime: Runtime, tmp_path: Path) -> None:
    """DEMITASSE_FUZZ says how many; 10,000 take a minute and a half."""
    names = ("convolution in groups", "batch normalisation", "normalisation across", "inner product")
    net = small(
        tmp_path,
        *(
            f'layer {{ name: "l{number}" bottom: "{"x" if number == 0 else f"t{number - 1}"}" '
            f'top: "t{number}" {LAYERS[name]} }}'
            for number, name in enumerate(names)
        ),
    )
    weights, inputs, _ = filled(runtime, net, tmp_path)
    whole = exported(runtime, net, weights, inputs, tmp_path).read_bytes()
    path, draw = tmp_path / "damaged.onnx", random.Random(5)
    refused = 0
    for _ in range(FUZZED):
        path.write_bytes(damaged(whole, draw))
        try:
            reader = runtime.read(path)
            reader.weights()
            runtime.net(path).close()
        except DemitasseError:
            refused += 1
    assert FUZZED / 4 < refused < FUZZED


def damaged(whole: bytes, draw: random.Random) -> bytes:
    data = bytearray(whole)
    for _ in range(draw.choice([1, 1, 2, 4])):
        place, kind = draw.randrange(len(data)), draw.random()
        if kind < 0.6:
            data[place] = draw.randrange(256)
        elif kind < 0.75:
            del data[place : place + draw.choice([1, 2, 30])]
        elif kind < 0.9:
            data[place:place] = draw.randbytes(draw.choice([1, 2, 5]))
        else:
            data = data[: place + 1]
    return bytes(data)
