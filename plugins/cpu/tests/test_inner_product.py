"""Inner products compared with NumPy's in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import aligned, make_request, run
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import Request, TensorSpec
from demitasse_cpu.kernels import candidates
from demitasse_cpu.onednn.library import library, problem

Compute = Callable[..., list[Any]]
TOLERANCE = {"float32": 1e-5, "float64": 1e-13}


def check(
    compute: Compute, dtype: str, samples: int, inputs: int, outputs: int, transpose: bool
) -> None:
    random = np.random.default_rng(5)
    x, w, b, dy = (
        random.standard_normal(shape).astype(dtype)
        for shape in ((samples, inputs), (outputs, inputs), (outputs,), (samples, outputs))
    )
    attributes = {"transpose": transpose}
    stored = np.ascontiguousarray(w.T) if transpose else w
    x64, w64, dy64 = (a.astype(np.float64) for a in (x, w, dy))
    dw = dy64.T @ x64
    expected = [x64 @ w64.T + b, x64 @ w64.T, dy64 @ w64, dw.T if transpose else dw, dy64.sum(0)]
    found = [
        *compute("inner_product", [x, stored, b], attributes),
        *compute("inner_product", [x, stored, None], attributes),
        *compute("inner_product_backward_data", [dy, stored], {**attributes, "shape": x.shape}),
        *compute("inner_product_backward_weights", [dy, x], {**attributes, "shape": stored.shape}),
    ]
    for ours, theirs in zip(found, expected, strict=True):
        bound = TOLERANCE[dtype] * max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=bound)


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(["float32", "float64"]),
    samples=st.integers(1, 70),
    inputs=st.integers(1, 90),
    outputs=st.integers(1, 130),
    transpose=st.booleans(),
)
def test_any_shape(
    compute: Compute, dtype: str, samples: int, inputs: int, outputs: int, transpose: bool
) -> None:
    check(compute, dtype, samples, inputs, outputs, transpose)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("sizes", [(3, 600, 1100), (1100, 300, 10), (300, 97, 333)])
def test_several_blocks_of_each_extent(
    compute: Compute, sizes: tuple[int, int, int], transpose: bool, dtype: str
) -> None:
    check(compute, dtype, *sizes, transpose)


def test_axes_before_and_behind_are_flattened(compute: Compute) -> None:
    random = np.random.default_rng(6)
    x, w = random.standard_normal((2, 3, 4, 5)), random.standard_normal((7, 20))
    (y,) = compute("inner_product", [x, w, None], {"axis": 2})
    np.testing.assert_allclose(y, x.reshape(2, 3, 20) @ w.T, atol=1e-12)


def test_bias_gradient_may_be_absent(compute: Compute) -> None:
    dy, x = np.ones((4, 3)), np.ones((4, 2))
    dw, nothing = compute("inner_product_backward_weights", [dy, x], {"shape": (3, 2)}, absent=[1])
    assert nothing is None
    assert np.array_equal(dw, np.full((3, 2), 4.0))


needs_onednn = pytest.mark.skipif(library() is None, reason=f"oneDNN is not here: {problem()}")


def passes(
    samples: int, inputs: int, outputs: int, precision: str
) -> list[tuple[Request, list[Any], list[Any]]]:
    """Return the three passes of a product with weights (inputs, outputs): requests, operands, and the
    expected results from NumPy in float64."""
    random = np.random.default_rng(6)
    x, w, b, dy = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((samples, inputs), (inputs, outputs), (outputs,), (samples, outputs))
    )
    x64, w64, dy64 = (a.astype(np.float64) for a in (x, w, dy))
    cases: list[tuple[str, list[Any], dict[str, Any], list[Any]]] = [
        ("inner_product", [x, w, b], {}, [x64 @ w64 + b]),
        ("inner_product_backward_data", [dy, w], {"shape": x.shape}, [dy64 @ w64.T]),
        (
            "inner_product_backward_weights",
            [dy, x],
            {"shape": w.shape},
            [x64.T @ dy64, dy64.sum(0)],
        ),
    ]
    made = []
    for name, operands, about, expected in cases:
        request = make_request(name, operands, {"transpose": True, **about}, "float32")
        made.append((replace(request, precision=precision), operands, expected))
    return made


def is_near(found: Any, expected: Any, precision: str) -> bool:
    """In bf16, operands and result are rounded to eight bits."""
    within = 2.0**-7 if precision == "bf16" else 1e-5
    return bool(np.abs(found - expected).max() <= within * np.abs(expected).max())


@needs_onednn
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("sizes", [(3, 17, 5), (70, 96, 131), (130, 64, 256)])
def test_transposed_weights_are_onednns_too(sizes: tuple[int, int, int], precision: str) -> None:
    for request, operands, expected in passes(*sizes, precision):
        offered = list(candidates(request))
        assert offered[0].kernel.startswith("oneDNN "), request.operation.name
        for candidate in offered:
            found = run(candidate, request, operands)[len(operands) :]
            for ours, theirs in zip(found, expected, strict=True):
                assert is_near(ours, theirs, precision), (request.operation.name, candidate.kernel)


@needs_onednn
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_large_transposed_weights_gradient_is_made_in_bands(precision: str) -> None:
    request, operands, (expected, total) = passes(8, 4096, 4096, precision)[-1]
    banded = [candidate for candidate in candidates(request) if candidate.parts > 1]
    assert banded
    for candidate in banded:
        assert candidate.bind_part is not None
        sources = [lies.pack(x) for lies, x in zip(candidate.input_layouts, operands, strict=True)]
        lying = candidate.output_layouts[0]
        dw = aligned(TensorSpec(expected.shape, "float32", lying), 77)
        db = aligned(TensorSpec(total.shape, "float32"), 77)
        workspace = aligned(TensorSpec((candidate.workspace,), "uint8"), 255)
        for number, stretch in enumerate(np.split(dw.reshape(-1), candidate.parts)):
            candidate.bind_part(number, sources, [stretch, db], workspace)()
        assert is_near(lying.unpack(dw, expected.shape), expected, precision), candidate.kernel
        assert is_near(db, total, precision), candidate.kernel
