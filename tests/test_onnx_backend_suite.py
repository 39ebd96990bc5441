"""ONNX's own tests of those who read its models, as the package onnx brings them: models that nobody
here wrote, with inputs and the outputs that they have to give."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import numpy_helper
from onnx_models import composed

import demitasse
from demitasse import DemitasseError, Runtime

DATA = Path(onnx.backend.test.__file__).parent / "data"
Case = tuple[str, onnx.ModelProto, Sequence[np.ndarray], Sequence[np.ndarray]]

REFUSED: Mapping[str, Mapping[str, str]] = {
    "pytorch-converted": {},
    "pytorch-operator": {"test_operator_pow": "its exponent must be one constant number"},
    "simple": {
        "test_gradient_of_.*": "unknown operator 'ai.onnx.preview.training.Gradient'",
        "test_sequence_model.*": "operator '(Sequence|SplitTo).*' is not supported",
        "test_strnorm_.*": "elements of type STRING",
    },
}
"""What is not read of the folders, and what is said of it."""

MODULES = (
    *("and_", "argmax", "batch_normalization", "concat", "conv", "convinteger", "convtranspose"),
    *("cumsum", "div", "einsum", "gatherelements", "gathernd", "gemm", "globalmaxpool", "gru"),
    *("hardswish", "instance_normalization", "logsoftmax", "lrn", "lstm", "matmul", "matmulinteger"),
    *("pad", "prelu"),
    *("reduce_log_sum_exp", "reduceprod", "resize", "round", "scatternd", "shrink", "slice", "split"),
    *("transpose", "where", "xor", "swiglu"),
)
"""Tests of single operators: those that take no second to be made."""

OPERATORS_REFUSED = {
    "test_batchnorm_.*_training_mode": "has 3 outputs that are used",
    "test_einsum_batch_diagonal": "a letter twice in one term",
    "test_einsum_.*bfloat16": "elements of type bfloat16",
    "test_gru_batchwise|test_lstm_batchwise": "layout 0",
    "test_lstm_with_peepholes": "peepholes",
    "test_reduce_.*_empty_set.*": "does not have 1 to",
    "test_resize_downsample_scales_.*_align_corners": "",  # its last corner is beyond the last element
    "test_resize_tf_crop_and_resize.*": "unknown coordinate_transformation_mode 'tf_crop_and_resize'",
    "test_resize_.*not_(larger|smaller)": "keep_aspect_ratio_policy other than stretch",
    "test_scatternd_(add|max|min|multiply).*": "reduction '.*' is not supported",
    "test_slice_start_out_of_bounds": "leaves nothing of axis 1",
    "test_split_zero_size_splits.*": "does not have 1 to",
}


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with demitasse.compose(plugins=["onnx", "caffe", "training", "reference"]) as made:
        yield made


def names_of(model: onnx.ModelProto) -> list[str]:
    """The inputs that are given."""
    held = {tensor.name for tensor in model.graph.initializer}
    return [value.name for value in model.graph.input if value.name not in held]


def frozen(model: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> Case:
    """The model as exporters write it: what is read behind the first real input is constant."""
    names = names_of(model)
    real = [name for name, array in zip(names, arrays, strict=True) if array.dtype.kind == "f"]
    kept = (real or names)[:1]
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for name, array in zip(names, arrays, strict=True):
        if name not in kept:
            made.graph.initializer.append(numpy_helper.from_array(array, name))
    first = [value for value in made.graph.input if value.name in kept]
    del made.graph.input[:]
    made.graph.input.extend(first)
    return "frozen", made, [arrays[names.index(name)] for name in kept], ()


def difference(runtime: Runtime, case: Case, wanted: Sequence[np.ndarray], folder: Path) -> str:
    """What is wrong with the outputs of a model; "" where nothing is."""
    _, model, arrays, _ = case
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        with runtime.net(path, precision="f64") as net:
            found = net.forward(**dict(zip(names_of(model), arrays, strict=True)))
    except DemitasseError as error:
        assert "\n" not in str(error)
        assert "model.onnx" in str(error)
        return str(error)
    for value, expected in zip(model.graph.output, wanted, strict=True):
        array = found[value.name]
        if array.shape != expected.shape:
            return f"{value.name} has the shape {array.shape}, not {expected.shape}"
        exact = np.asarray(expected, np.float64)
        if not np.allclose(array, exact, rtol=1e-3, atol=1e-6, equal_nan=True):
            return f"{value.name} is {np.abs(array - exact).max()} away"
    return ""


def unlike(
    runtime: Runtime, cases: Iterable[Case], refused: Mapping[str, str], folder: Path
) -> tuple[int, list[str]]:
    """How many cases agree, and what is said of those that neither do nor ought to be refused so."""
    agreed, told = 0, []
    for case in cases:
        name, model, arrays, wanted = case
        wrong = difference(runtime, case, wanted, folder)
        if wrong:
            wrong = difference(runtime, frozen(model, arrays), wanted, folder)
        said = next((text for pattern, text in refused.items() if re.fullmatch(pattern, name)), None)
        agreed += not wrong
        if (wrong != "") != (said is not None) or (said and not re.search(said, wrong)):
            told.append(f"{name}: {wrong or 'is read'}")
    return agreed, told


def tensors(folder: Path, kind: str, values: Iterable[Any]) -> list[np.ndarray]:
    arrays = []
    for number, value in enumerate(values):
        data = (folder / f"{kind}_{number}.pb").read_bytes()
        whole = value.type.HasField("tensor_type")
        tensor = onnx.TensorProto.FromString(data) if whole else onnx.TensorProto()
        arrays.append(numpy_helper.to_array(tensor) if whole else np.zeros(()))
    return arrays


def of_files(kind: str) -> Iterator[Case]:
    for path in sorted((DATA / kind).glob("test_*/model.onnx")):
        model = onnx.load(path)
        folder = path.parent / "test_data_set_0"
        given = [value for value in model.graph.input if value.name in names_of(model)]
        inputs, outputs = tensors(folder, "input", given), tensors(folder, "output", model.graph.output)
        yield path.parent.name, model, inputs, outputs


def of_operators() -> Iterator[Case]:
    node = pytest.importorskip("onnx.backend.test.case.node", reason="this onnx makes no tests")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = [f"{node.__name__}.{name}" for name in MODULES]
        makers = [importlib.import_module(name) for name in names if importlib.util.find_spec(name)]
    operators = {name for maker in makers for name in vars(maker) if name[0].isupper()}
    for case in node._NodeTestCases:
        model = case.model
        if len(model.graph.node) == 1 and model.graph.node[0].op_type in operators:
            yield case.name, model, *case.data_sets[0]


@pytest.mark.parametrize(
    ("kind", "least"), [("pytorch-converted", 80), ("pytorch-operator", 30), ("simple", 7)]
)
def test_models_of_the_suite_give_what_they_have_to(
    runtime: Runtime, kind: str, least: int, tmp_path: Path
) -> None:
    if not (DATA / kind).is_dir():
        pytest.skip(f"this onnx has no models {kind}")
    agreed, told = unlike(runtime, of_files(kind), REFUSED[kind], tmp_path)
    assert not told
    assert agreed >= least


def test_operators_of_the_suite_give_what_they_have_to(runtime: Runtime, tmp_path: Path) -> None:
    agreed, told = unlike(runtime, of_operators(), OPERATORS_REFUSED, tmp_path)
    assert not told
    assert agreed >= 150


def test_a_whole_net_of_the_suite_gives_what_it_has_to() -> None:
    """DenseNet-121 with its statistics and scales, its weights being all alike: each normalisation has a
    scale of its own, and another behind it."""
    path = DATA / "light" / "light_densenet121.onnx"
    if not path.is_file():
        pytest.skip("this onnx has no models light")
    x = (np.arange(3 * 224 * 224) / (3 * 224 * 224)).reshape(1, 3, 224, 224).astype(np.float32)
    tensor = path.with_name("light_densenet121_output_0.pb").read_bytes()
    expected = numpy_helper.to_array(onnx.TensorProto.FromString(tensor))
    with composed() as runtime, runtime.net(path) as net:
        found = net.forward(data_0=x)["fc6_1"]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
