"""ONNX models of older versions, as exporters of 2017 and 2018 wrote them; embeddings; rows of zeros."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_models import X, agree, composed, model, random_array, read

from demitasse import DemitasseError, ModelError, Runtime


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with composed() as made:
        yield made


@pytest.mark.parametrize(
    ("operator", "b", "attributes", "expected"),
    [
        ("Add", random_array(4), {"axis": 1}, lambda x, b: x + b[:, None, None]),
        ("Sub", random_array(4, 6), {"axis": 1}, lambda x, b: x - b[:, :, None]),
        ("Mul", random_array(6, 5), {}, lambda x, b: x * b),
        ("Div", 2 + random_array(1), {"axis": -1}, lambda x, b: x / b),
        ("Greater", random_array(4), {"axis": 1}, lambda x, b: x > b[:, None, None]),
        ("Pow", np.float32([2]), {}, lambda x, b: x**b),
    ],
)
def test_an_operand_lies_along_the_axes_that_older_versions_name(
    runtime: Runtime,
    operator: str,
    b: np.ndarray,
    attributes: dict[str, int],
    expected: Any,
    tmp_path: Path,
) -> None:
    older = helper.make_node(operator, ["x", "b"], ["y"], broadcast=1, **attributes)
    made = model([older], {"b": b}, opset=6)
    agree(read(runtime, made, tmp_path).forward(x=X), {"y": np.float64(expected(X, b))}, 1e-6)
    with pytest.raises(
        ModelError, match=f"operator {operator}: attribute .* belongs to versions before 7"
    ):
        read(runtime, model([older], {"b": b}, opset=7), tmp_path)


def test_a_blob_lies_along_the_axes_that_older_versions_name(runtime: Runtime, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Mul", ["x", "m"], ["y"], broadcast=1, axis=0),
    ]
    expected = X * X.mean((2, 3))[:, :, None, None]
    agree(read(runtime, model(nodes, {}, opset=6), tmp_path).forward(x=X), {"y": expected}, 1e-6)
    nodes[1] = helper.make_node("Mul", ["x", "m"], ["y"], broadcast=1, axis=3)
    with pytest.raises(ModelError, match=r"axis 3: an operand of shape \(2, 4\) does not fit there in"):
        read(runtime, model(nodes, {}, opset=6), tmp_path)


def test_older_slopes_are_those_of_channels(runtime: Runtime, tmp_path: Path) -> None:
    slopes = np.float32([0.1, -0.2, 0.3, 0.4])
    node = helper.make_node("PRelu", ["x", "w"], ["y"])
    expected = np.where(X < 0, slopes[:, None, None] * X, X)
    net = read(runtime, model([node], {"w": slopes}, opset=6), tmp_path)
    agree(net.forward(x=X), {"y": expected}, 1e-6)
    with pytest.raises(ModelError, match=r"slopes of shape \(4,\)"):
        read(runtime, model([node], {"w": slopes}, opset=9), tmp_path)


def test_an_older_linear_layer_and_what_says_whose_memory_is_taken(
    runtime: Runtime, tmp_path: Path
) -> None:
    x, w, c = random_array(3, 6), random_array(6, 2), random_array(2)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "c"], ["t"], broadcast=1),
        helper.make_node("Relu", ["t"], ["y"], consumed_inputs=[0]),
    ]
    made = model(nodes, {"w": w, "c": c}, (3, 6), opset=5)
    agree(read(runtime, made, tmp_path).forward(x=x), {"y": np.maximum(x @ w + c, 0)}, 1e-6)
    with pytest.raises(ModelError, match="unknown attribute 'consumed_inputs'"):
        read(runtime, model(nodes[1:], {"t": x}, (3, 6), opset=6), tmp_path)


def test_rows_of_a_matrix_are_taken_by_numbers_and_learned(runtime: Runtime, tmp_path: Path) -> None:
    rows, x = random_array(7, 3), np.float32([[0, 6], [2, 2]])
    node = helper.make_node("Gather", ["rows", "x"], ["y"], name="embedding")
    net = read(runtime, model([node], {"rows": rows}, (2, 2)), tmp_path)
    agree(net.forward(x=x), {"y": rows[x.astype(int)]}, 0)
    assert net.params["embedding"][0].shape == (7, 3)
    with pytest.raises(DemitasseError, match=r"'embedding' .Gather.*7"):
        net.forward(x=x + 1)


@pytest.mark.parametrize("p", [1, 2])
def test_what_has_no_length_stays_zero(runtime: Runtime, p: int, tmp_path: Path) -> None:
    node = helper.make_node("LpNormalization", ["x"], ["y"], axis=0, p=p)
    x = np.float32([[3, 0, 1e-9], [4, 0, 0]])
    length = np.linalg.norm(x.astype(np.float64), p, axis=0)
    expected = x / np.where(length > 0, length, 1)
    agree(read(runtime, model([node], {}, (2, 3)), tmp_path).forward(x=x), {"y": expected}, 1e-6)
