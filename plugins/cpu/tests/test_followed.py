"""Convolutions and inner products followed by a function of their result, compared with formulas in
float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import WORDS, make_request, run

from demitasse import Request
from demitasse_cpu.kernels import candidates
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library, problem
from demitasse_reference.kernels import KERNELS

pytestmark = pytest.mark.skipif(library() is None, reason=f"oneDNN is not here: {problem()}")

Values = np.ndarray[Any, np.dtype[Any]]

FUNCTIONS: dict[str, tuple[str, dict[str, float], Callable[[Values], Values]]] = {
    "ReLU6": ("clip", {"least": 0.0, "most": 6.0}, lambda x: np.clip(x, 0, 6)),
    "both sides": ("clip", {"least": -1.5, "most": 0.25}, lambda x: np.clip(x, -1.5, 0.25)),
    "below": ("clip", {"least": -0.5, "most": math.inf}, lambda x: np.maximum(x, -0.5)),
    "above": ("clip", {"least": -math.inf, "most": 0.5}, lambda x: np.minimum(x, 0.5)),
    "gate": ("hard_sigmoid", {"scale": 0.2, "shift": 0.4}, lambda x: np.clip(0.2 * x + 0.4, 0, 1)),
    "hard swish": (
        "hard_swish",
        {"scale": 1 / 6, "shift": 0.5},
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    ),
}
PRODUCTS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "one tap": ("convolution", (2, 24, 9, 11), (40, 24, 1, 1), {}),
    "depthwise": ("convolution", (2, 32, 14, 13), (32, 1, 3, 3), {"pad": (1, 1), "groups": 32}),
    "depthwise, strided": (
        "convolution",
        (2, 32, 14, 13),
        (32, 1, 3, 3),
        {"pad": (1, 1), "stride": (2, 2), "groups": 32},
    ),
    "few channels": ("convolution", (2, 3, 20, 18), (16, 3, 3, 3), {"stride": (2, 2)}),
    "as Winograd's": ("convolution", (2, 16, 12, 12), (32, 16, 3, 3), {"pad": (1, 1)}),
    "a line": ("convolution", (2, 16, 30), (24, 16, 3), {"stride": (1,), "pad": (1,), "dilation": (1,)}),
    "a product": ("inner_product", (70, 48), (56, 48), {}),
}
TOLERANCE = {"f32": 2e-6, "bf16": 2.0**-7}
"""Relative to the product's largest number; in bf16, operands and result are rounded to eight bits."""


def asked(product: str, word: str, given: dict[str, Any], bias: bool) -> tuple[Request, list[Any]]:
    """Return the request that a plan makes for both operations, and operands."""
    kind, x, w, attributes = PRODUCTS[product]
    random = np.random.default_rng(4)
    operands: list[Any] = [random.normal(0, 1, shape).astype(np.float32) for shape in (x, w)]
    operands[1] *= 2 / math.sqrt(math.prod(w[1:]))
    operands.append(random.normal(0, 1, w[:1]).astype(np.float32) if bias else None)
    alone = make_request(kind, operands, attributes, "float32")
    operation = replace(alone.operation, name=f"{kind}_{word}")
    return replace(alone, operation=operation, attributes={**alone.attributes, **given}), operands


def product_of(request: Request, operands: Sequence[Any]) -> Values:
    """Return the product alone by the reference's definition, in float64."""
    kind = "inner_product" if request.operation.name.startswith("inner") else "convolution"
    wide = [None if each is None else each.astype(np.float64) for each in operands]
    own = {key: request.attributes[key] for key in WORDS[kind].attributes}
    made: Values = KERNELS[kind](*wide, **own)
    return made


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_kernel_does_the_product_and_the_function(
    product: str, function: str, precision: str
) -> None:
    word, given, formula = FUNCTIONS[function]
    if precision == "bf16" and not bfloat16_kernel(library()) and product != "a product":
        request, _ = asked(product, word, given, bias=True)
        assert not list(candidates(replace(request, precision=precision)))
        pytest.skip("oneDNN convolves no bfloat16 on this processor: functions are done apart")
    for bias in (True, False):
        request, operands = asked(product, word, given, bias)
        product_alone = product_of(request, operands)
        expected, size = formula(product_alone), float(np.abs(product_alone).max())
        offered = list(candidates(replace(request, precision=precision)))
        assert offered[0].kernel.startswith("oneDNN ")
        assert "loop" not in offered[0].kernel
        for candidate in offered:
            (found,) = run(candidate, request, operands)[len(operands) :]
            np.testing.assert_allclose(
                found, expected, rtol=0, atol=TOLERANCE[precision] * size, err_msg=candidate.kernel
            )


def test_what_is_quicker_for_the_product_alone_may_be_followed_by_a_loop() -> None:
    request, _ = asked("as Winograd's", "clip", {"least": 0.0, "most": 6.0}, bias=True)
    kernels = [candidate.kernel for candidate in candidates(request)]
    assert any("Winograd" in kernel and kernel.endswith("+numba loop") for kernel in kernels), kernels


@pytest.mark.parametrize("word", ["swish", "elu", "clip_backward", "no_such_function"])
def test_functions_that_onednn_would_be_slow_at_are_left_apart(word: str) -> None:
    request, _ = asked("one tap", "clip", {"least": 0.0, "most": 6.0}, bias=True)
    other = replace(request.operation, name=f"convolution_{word}")
    about = {**request.attributes, "beta": 1.0, "alpha": 1.0}
    assert not list(candidates(replace(request, operation=other, attributes=about)))


def test_what_is_in_float64_is_left_apart() -> None:
    request, _ = asked("one tap", "clip", {"least": 0.0, "most": 6.0}, bias=False)
    wide = [None if s is None else replace(s, dtype="float64") for s in request.inputs]
    made = tuple(replace(s, dtype="float64") for s in request.outputs if s is not None)
    assert not list(candidates(replace(request, inputs=tuple(wide), outputs=made)))
