"""Nets as ONNX models: the same numbers by ONNX's own evaluator, by OpenCV, and by us again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_nets
from drawn_examples import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from onnx_models import (
    LAYERS,
    SHAPE,
    agree,
    composed,
    evaluated,
    exported,
    filled,
    in_opencv,
    model,
    small,
)
from real_files import DATA

from demitasse import DemitasseError, ModelError, Runtime

NETS = DATA / "prototxt"
NOT_IN_OPENCV = ("threshold",)
NOT_IN_ONNX = ("deconvolution in groups",)
"""What ONNX's evaluator (1.23) cannot compute; OpenCV can."""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_the_same_as_a_model(runtime: Runtime, name: str, tmp_path: Path) -> None:
    net = small(tmp_path, f'layer {{ name: "layer" bottom: "x" top: "y" {LAYERS[name]} }}')
    weights, inputs, expected = filled(runtime, net, tmp_path)
    path = exported(runtime, net, weights, inputs, tmp_path)
    if name not in NOT_IN_ONNX:
        agree(evaluated(path, inputs), expected, 1e-5)
    agree(runtime.net(path).forward(**inputs), expected, 1e-6)
    if name not in NOT_IN_OPENCV:
        agree(in_opencv(path, inputs), expected)


@pytest.mark.parametrize("operation", ["SUM", "PROD", "MAX", "SUM coeff: 1 coeff: -2 coeff: 0.5"])
def test_several_blobs_become_one_as_a_model(runtime: Runtime, operation: str, tmp_path: Path) -> None:
    net = small(
        tmp_path,
        small_nets.inputs(z=SHAPE),
        'layer { name: "a" type: "TanH" bottom: "x" top: "a" }',
        'layer { name: "e" type: "Eltwise" bottom: "x" bottom: "z" bottom: "a" top: "e" '
        f"eltwise_param {{ operation: {operation} }} }}",
        'layer { name: "c" type: "Concat" bottom: "e" bottom: "z" top: "c" concat_param { axis: 2 } }',
    )
    weights, inputs, expected = filled(runtime, net, tmp_path)
    path = exported(runtime, net, weights, inputs, tmp_path)
    agree(evaluated(path, inputs), expected, 1e-5)
    agree(runtime.net(path).forward(**inputs), expected, 1e-6)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4)])
@pytest.mark.parametrize("words", ["", "across_channels: true eps: 0.1", "normalize_variance: false"])
@pytest.mark.parametrize("opset", [17, 18])
def test_a_normalised_blob_is_normalised_in_a_model(
    runtime: Runtime, shape: tuple[int, ...], words: str, opset: int, tmp_path: Path
) -> None:
    net = tmp_path / "net.prototxt"
    layer = f'layer {{ name: "n" type: "MVN" bottom: "x" top: "y" mvn_param {{ {words} }} }}'
    net.write_text(small_nets.inputs(x=shape) + "\n" + layer)
    weights, inputs, expected = filled(runtime, net, tmp_path)
    path = exported(runtime, net, weights, inputs, tmp_path, opset=opset)
    agree(evaluated(path, inputs), expected, 1e-5)


@pytest.mark.parametrize(("axis", "points"), [(1, (1,)), (-1, (2, 3)), (1, ())])
def test_a_blob_that_is_cut_into_several_is_cut_in_a_model(
    runtime: Runtime, axis: int, points: tuple[int, ...], tmp_path: Path
) -> None:
    tops = [f"t{number}" for number in range(len(points) + 1 if points else 2)]
    net = small(
        tmp_path,
        'layer { name: "s" type: "Slice" bottom: "x" '
        + " ".join(f'top: "{top}"' for top in tops)
        + f" slice_param {{ axis: {axis} "
        + " ".join(f"slice_point: {point}" for point in points)
        + " } }",
        'layer { name: "a" type: "TanH" bottom: "t0" top: "a" }',
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


@settings(max_examples=examples(60))
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


def opened(folder: Path, *nodes: onnx.NodeProto, **constants: np.ndarray) -> Path:
    """A model of any number of samples, in a file."""
    path = folder / "first.onnx"
    onnx.save(model(nodes, constants, ("samples", 4, 6, 5)), path)
    return path


def test_a_net_of_any_number_of_samples_is_written_as_one(runtime: Runtime, tmp_path: Path) -> None:
    node, draw = onnx.helper.make_node, np.random.default_rng(5)
    first = opened(
        tmp_path,
        node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        node("Slice", ["c", "start", "end", "axis"], ["cut"]),
        node("ReduceMean", ["c"], ["gate"], axes=[2, 3]),
        node("ReduceSum", ["c", "axis"], ["sums"]),
        node("Mul", ["cut", "gate"], ["gated"]),
        node("Transpose", ["gated"], ["turned"], perm=[2, 3, 0, 1]),
        node("Transpose", ["turned"], ["back"], perm=[2, 3, 0, 1]),
        node("Reshape", ["back", "halves"], ["h"]),
        node("Add", ["h", "sums"], ["added"]),
        node("Flatten", ["added"], ["f"]),
        node("Gemm", ["f", "v"], ["g"]),
        node("LogSoftmax", ["g"], ["y"]),
        w=draw.normal(size=(2, 4, 3, 3)).astype(np.float32),
        v=draw.normal(scale=0.05, size=(18, 5)).astype(np.float32),
        start=np.array([1]),
        end=np.array([4]),
        axis=np.array([2]),
        halves=np.array([0, 2, 3, 3]),
    )
    second = runtime.program("export_onnx", first, tmp_path / "second.onnx")
    written = onnx.load(second)
    assert "Flatten" in [each.op_type for each in written.graph.node]
    for value in (*written.graph.input, *written.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "samples"
    net = runtime.net(second)
    for count in (1, 4, 3):
        x = draw.normal(size=(count, 4, 6, 5)).astype(np.float32)
        expected = dict(
            zip(["y"], ReferenceEvaluator(onnx.load(first)).run(None, {"x": x}), strict=True)
        )
        assert expected["y"].shape == (count, 5)
        agree(evaluated(second, {"x": x}), expected, 1e-5)
        agree(net.forward(x=x), expected, 1e-5)


@pytest.mark.parametrize("shape", [[4, 6, 5], [4, 1, 30]])
def test_a_net_that_counts_its_samples_is_written_for_so_many(
    runtime: Runtime, shape: list[int], tmp_path: Path
) -> None:
    """The samples' axis is taken away, or moved and then lost."""
    node = onnx.helper.make_node
    first = opened(
        tmp_path,
        node("Transpose", ["x"], ["turned"], perm=[1, 0, 2, 3]),
        node("Reshape", ["turned", "shape"], ["y"]),
        shape=np.array(shape),
    )
    second = runtime.program("export_onnx", first, tmp_path / "second.onnx")
    assert onnx.load(second).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1
    with pytest.raises(DemitasseError, match="cannot view"):
        runtime.net(second).forward(x=np.zeros((2, 4, 6, 5), np.float32))
    given_ = {"input_shapes": {"x": (3, 4, 6, 5)}}
    first = opened(tmp_path, node("Relu", ["x"], ["y"]))
    third = runtime.program("export_onnx", first, tmp_path / "third.onnx", **given_)
    assert onnx.load(third).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3


def test_an_exported_net_keeps_the_names_of_its_layers(runtime: Runtime, tmp_path: Path) -> None:
    net = small(tmp_path, f'layer {{ name: "fc" bottom: "x" top: "y" {LAYERS["inner product"]} }}')
    weights, inputs, _ = filled(runtime, net, tmp_path)
    assert weights is not None
    path = exported(runtime, net, weights, inputs, tmp_path)
    ours, theirs = (runtime.read(each).weights().parameters for each in (weights, path))
    for mine, other in zip(ours["fc"], theirs["fc"], strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_model_of_more_bytes_than_protobuf_has_room_for_is_refused(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = small(tmp_path, f'layer {{ name: "fc" bottom: "x" top: "y" {LAYERS["inner product"]} }}')
    size = runtime.program("export_onnx", net, tmp_path / "a.onnx").stat().st_size
    monkeypatch.setattr("demitasse_onnx.export.LARGEST_FILE", size)
    runtime.program("export_onnx", net, tmp_path / "b.onnx")
    monkeypatch.setattr("demitasse_onnx.export.LARGEST_FILE", size - 1)
    with pytest.raises(
        ModelError, match=f"too large for one file: {size:,} bytes, at most {size - 1:,}"
    ):
        runtime.program("export_onnx", net, tmp_path / "c.onnx")
    assert not (tmp_path / "c.onnx").exists()


def test_what_onnx_has_no_words_for_is_not_exported(runtime: Runtime, tmp_path: Path) -> None:
    net = small(
        tmp_path,
        'layer { name: "s" type: "Im2col" bottom: "x" top: "y" convolution_param { kernel_size: 3 } }',
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


@pytest.mark.parametrize("opset", [13, 17, 18, 22])
def test_what_other_frameworks_nets_need_is_written_too(
    runtime: Runtime, opset: int, tmp_path: Path
) -> None:
    """Read, written and read by ONNX's own evaluator, which is asked of the first file too."""
    draw = np.random.default_rng(4)
    x = draw.normal(size=(2, 4, 6, 5)).astype(np.float32)
    constants = {
        "scales": np.array([1, 1, 2, 1.5], np.float32),
        "pads": np.array([0, 0, 1, 0, 0, 0, 2, 1]),
        "index": np.array([2, 0, 2]),
        "w": draw.normal(size=5).astype(np.float32),
    }
    nodes = [
        onnx.helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 3, 1]),
        onnx.helper.make_node("Resize", ["x", "", "scales"], ["large"], mode="linear"),
        onnx.helper.make_node("Gather", ["x", "index"], ["rows"], axis=1),
        onnx.helper.make_node("Pad", ["x", "pads"], ["wide"]),
        onnx.helper.make_node("HardSigmoid", ["x"], ["gate"]),
        onnx.helper.make_node("HardSwish", ["x"], ["hard"]),
        onnx.helper.make_node("Gelu", ["x"], ["soft"]),
        onnx.helper.make_node("Erf", ["x"], ["erf"]),
        onnx.helper.make_node("LayerNormalization", ["x", "w"], ["level"]),
        onnx.helper.make_node("Cos", ["x"], ["cosine"]),
        onnx.helper.make_node("Round", ["x"], ["whole"]),
        onnx.helper.make_node("Floor", ["x"], ["below"]),
    ]
    names = ("turned", "large", "rows", "wide", "gate", "hard", "soft", "erf", "level")
    names += ("cosine", "whole", "below")
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [info("x", onnx.TensorProto.FLOAT, x.shape)],
        [info(name, onnx.TensorProto.FLOAT, [None] * 4) for name in names],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    versions = [onnx.helper.make_opsetid("", 20)]
    first = tmp_path / "first.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=versions, ir_version=9), first)
    second = runtime.program("export_onnx", first, tmp_path / "second.onnx", opset=opset)
    agree(evaluated(second, {"x": x}), evaluated(first, {"x": x}), 1e-5)


def test_numbers_without_axes_stay_so_in_a_model(runtime: Runtime, tmp_path: Path) -> None:
    """ONNX's checker compares shapes; and outputs that are constant keep their names."""
    nodes = [
        onnx.helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        onnx.helper.make_node("Mul", ["sum", "two"], ["y"]),
        onnx.helper.make_node("Size", ["x"], ["count"]),
        onnx.helper.make_node("Neg", ["two"], ["less"]),
    ]
    first = tmp_path / "first.onnx"
    made = model(nodes, {"two": np.float32(2)}, (2, 3), ("y", "count", "less"))
    made.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(made, first)
    second = runtime.program("export_onnx", first, tmp_path / "second.onnx")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for found in (evaluated(second, {"x": x}), runtime.net(second).forward(x=x)):
        assert {name: (array.shape, float(array)) for name, array in found.items()} == {
            "y": ((), 30.0),
            "count": ((), 6.0),
            "less": ((), -2.0),
        }


def test_an_embedding_is_written_with_numbers_that_are_whole(runtime: Runtime, tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(size=(7, 3)).astype(np.float32)
    index = np.array([[6, 0, 2], [2, 2, 5]])
    made = model([onnx.helper.make_node("Gather", ["w", "x"], ["y"])], {"w": rows}, index.shape)
    made.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    first = tmp_path / "first.onnx"
    onnx.save(made, first)
    second = runtime.program("export_onnx", first, tmp_path / "second.onnx")
    real = {"x": index.astype(np.float32)}
    assert np.array_equal(evaluated(second, real)["y"], rows[index])
    assert np.array_equal(runtime.net(second).forward(**real)["y"], rows[index])
