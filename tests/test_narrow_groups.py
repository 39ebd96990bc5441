"""Convolutions in groups of few channels: every kernel that the cpu plugin offers for them, against the
reference in float64, and where its own is offered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from convolution_checks import BLOCKED, NHWC, check_convolution
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import PLAIN, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY, Shape
from demitasse_cpu.kernels import narrow_groups


@st.composite
def convolutions(draw: st.DrawFn, widths: Sequence[int] = (4, 8)) -> dict[str, Any]:
    """Of 16 or 32 channels, also where windows meet one side of an image, both, or miss it at times."""
    width, kernel = draw(st.sampled_from(widths)), draw(st.tuples(*[st.integers(1, 4)] * 2))
    channels = draw(st.sampled_from([16, 32]))
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 3)]))
    pad = draw(st.tuples(*[st.integers(0, 4)] * 2))
    spare = draw(st.tuples(st.integers(0, 6), st.integers(0, 17)))
    image = tuple((k - 1) * d + 1 + s for k, d, s in zip(kernel, dilation, spare, strict=True))
    stride = draw(st.tuples(*[st.sampled_from([1, 1, 2, 3])] * 2))
    return {
        "seed": draw(st.integers(0, 99)),
        "x": (draw(st.integers(1, 3)), channels, *image),
        "w": (channels, width, *kernel),
        "attributes": {
            "groups": channels // width,
            "stride": stride,
            "pad": pad,
            "dilation": dilation,
        },
    }


@pytest.mark.parametrize(
    ("precision", "widths"),
    [
        ("f32", (4, 8)),
        ("bf16", (8,)),
        pytest.param("bf16", (4,), marks=pytest.mark.slow),  # 20 s of compiling
    ],
)
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(data=st.data(), arriving=st.sampled_from([PLAIN, NHWC, BLOCKED]))
def test_any_geometry(
    precision: str, widths: tuple[int, ...], data: st.DataObject, arriving: Layout
) -> None:
    if precision == "bf16":
        arriving = replace(arriving, stored="bfloat16")
    check_convolution(data.draw(convolutions(widths)), precision, arriving)


@pytest.mark.parametrize(
    ("channels", "groups", "precision"),
    [
        (128, 32, "f32"),
        (32, 4, "f32"),
        (32, 4, "bf16"),
        pytest.param(128, 32, "bf16", marks=pytest.mark.slow),  # as above
    ],
)
def test_the_groups_of_resnext_are_served(channels: int, groups: int, precision: str) -> None:
    case = {
        "seed": 1,
        "x": (2, channels, 13, 29),
        "w": (channels, channels // groups, 3, 3),
        "attributes": {"groups": groups, "stride": (1, 1), "pad": (1, 1), "dilation": (1, 1)},
    }
    assert narrow_groups.KERNEL in check_convolution(case, precision, NHWC)


def served(x: Shape, w: Shape, **given: Any) -> set[str]:
    """The passes of a convolution for which the kernel is offered."""
    attributes = {"groups": x[1] // w[1], "stride": (1, 1), "pad": (1, 1), "dilation": (1, 1), **given}
    word = VOCABULARY["convolution"]
    complete = {**word.attributes, **attributes}
    (y,) = word.shapes({"x": x, "w": w, "b": None}, complete)
    passes = {
        "convolution": ([x, w], y),
        "convolution_backward_data": ([y, w], x),
        "convolution_backward_weights": ([y, x], w),
    }
    found = set()
    for name, (operands, result) in passes.items():
        made = tuple(TensorSpec(shape, "float32") for shape in operands)
        about = complete if name == "convolution" else {**complete, "shape": result}
        outputs = (TensorSpec(result, "float32"),)
        request = Request(VOCABULARY[name], made, outputs, about, Place("test"), "f32")
        if list(narrow_groups.FACTORIES[name](request)):
            found.add(name.removeprefix("convolution_"))
    return found


def test_what_is_served() -> None:
    image = (2, 32, 9, 9)
    assert served(image, (32, 4, 3, 3)) == {"convolution", "backward_data", "backward_weights"}
    assert served(image, (32, 4, 3, 3), stride=(2, 2)) == {"convolution", "backward_weights"}


@pytest.mark.parametrize(
    ("x", "w", "pad"),
    [
        ((2, 32, 9, 9), (32, 16, 3, 3), (1, 1)),  # more channels than a vector of the narrowest has
        ((2, 32, 9, 9), (64, 4, 3, 3), (1, 1)),  # more outputs than inputs
        ((2, 12, 9, 9), (12, 4, 3, 3), (1, 1)),  # no whole vectors
        ((2, 48, 9, 9), (48, 3, 3, 3), (1, 1)),  # groups that do not divide one
        ((2, 32, 9, 9), (32, 2, 3, 3), (1, 1)),  # of two channels, which no known net has
        ((2, 32, 9, 9), (32, 4, 3, 3), (4, 1)),  # results that see no pixel
    ],
)
def test_others_are_not(x: Shape, w: Shape, pad: tuple[int, int]) -> None:
    assert not served(x, w, pad=pad)
