"""Gradients of convolutions of one tap that skip pixels, compared with NumPy's products in float64."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import Candidate, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import strided
from demitasse_cpu.onednn.library import library

ROUNDING = {"f32": 2.0**-22, "bf16": 2.0**-8}

pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN cannot be loaded here")


def request_for(
    name: str, operands: Sequence[tuple[int, ...]], results: Sequence[tuple[int, ...]], **about: Any
) -> Request:
    """Return a request for plain float32 operands; ``about`` are attributes, threads and precision."""
    threads, precision = about.pop("threads", 2), about.pop("precision", "f32")
    attributes = {**VOCABULARY[name].attributes, **about}
    inputs, outputs = (tuple(TensorSpec(s, "float32") for s in side) for side in (operands, results))
    return Request(
        VOCABULARY[name], inputs, outputs, attributes, Place("test", threads=threads), precision
    )


def computed(candidate: Candidate, request: Request, operands: Sequence[Any]) -> list[Any]:
    """Return what the kernel computes in memory full of garbage, called twice."""
    sources = [
        layout.pack(x).copy() for layout, x in zip(candidate.input_layouts, operands, strict=True)
    ]
    targets = []
    for layout, spec in zip(candidate.output_layouts, request.outputs, strict=True):
        assert spec is not None
        shape = layout.physical(spec.shape)
        targets.append(
            np.full(shape, 0xFFFF, np.uint16) if layout.stored else np.full(shape, np.nan, np.float32)
        )
    room = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    work = candidate.bind(sources, targets, room[start : start + candidate.workspace])
    work()
    work()
    return [
        layout.unpack(target, spec.shape)
        for layout, target, spec in zip(candidate.output_layouts, targets, request.outputs, strict=True)
        if spec is not None
    ]


def stored(candidate: Candidate, operands: Sequence[Any]) -> list[Any]:
    """Return the operands as the kernel receives them, in float64."""
    return [
        layout.unpack(layout.pack(x), x.shape).astype(np.float64)
        for layout, x in zip(candidate.input_layouts, operands, strict=True)
    ]


@settings(max_examples=examples(30))
@given(
    images=st.integers(1, 3),
    channels=st.sampled_from([32, 50, 97]),
    outputs=st.sampled_from([3, 20, 64]),
    result=st.tuples(st.integers(1, 5), st.integers(2, 5)),
    stride=st.sampled_from([(2, 2), (2, 1), (1, 2), (3, 2)]),
    beyond=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    biased=st.booleans(),
    precision=st.sampled_from(["f32", "bf16"]),
    threads=st.integers(1, 3),
)
def test_pixels_are_gathered_and_put_back(
    images: int,
    channels: int,
    outputs: int,
    result: tuple[int, int],
    stride: tuple[int, int],
    beyond: tuple[int, int],
    biased: bool,
    precision: str,
    threads: int,
) -> None:
    extents = [
        (r - 1) * s + 1 + min(more, s - 1) for r, s, more in zip(result, stride, beyond, strict=True)
    ]
    random = np.random.default_rng(channels)
    x = random.standard_normal((images, channels, *extents)).astype(np.float32)
    w = random.standard_normal((outputs, channels, 1, 1)).astype(np.float32)
    dy = random.standard_normal((images, outputs, *result)).astype(np.float32)
    about: dict[str, Any] = {"stride": stride, "threads": threads, "precision": precision}
    # Sums in float32 of numbers of about one; what is stored as bfloat16 is rounded after that.
    bound = 8 * ROUNDING["f32"] * max(outputs, prod(dy.shape) / outputs)

    request = request_for(
        "convolution_backward_data", [dy.shape, w.shape], [x.shape], shape=x.shape, **about
    )
    found = list(strided.backward_data(request))
    assert found or precision == "bf16"
    for candidate in found:
        dy64, w64 = stored(candidate, [dy, w])
        expected = np.zeros(x.shape)
        put = np.einsum("noyx,oc->ncyx", dy64, w64[:, :, 0, 0])
        expected[:, :, :: stride[0], :: stride[1]][:, :, : result[0], : result[1]] = put
        (dx,) = computed(candidate, request, [dy, w])
        np.testing.assert_allclose(dx, expected, rtol=ROUNDING[precision], atol=bound)
        assert not dx[expected == 0].any()

    shapes = [w.shape, (outputs,)][: 1 + biased]
    request = request_for(
        "convolution_backward_weights", [dy.shape, x.shape], shapes, shape=w.shape, **about
    )
    found = list(strided.backward_weights(request))
    assert found or precision == "bf16"  # for which oneDNN has no product on some processors
    for candidate in found:
        dy64, x64 = stored(candidate, [dy, x])
        met = x64[:, :, :: stride[0], :: stride[1]][:, :, : result[0], : result[1]]
        dw, *db = computed(candidate, request, [dy, x])
        expected = np.einsum("noyx,ncyx->oc", dy64, met)[:, :, None, None]
        np.testing.assert_allclose(dw, expected, atol=bound)
        if db:
            np.testing.assert_allclose(db[0], dy64.sum((0, 2, 3)), atol=bound)


@pytest.mark.parametrize(
    ("taps", "attributes"),
    [
        (1, {"stride": (1, 1)}),
        (1, {"stride": (2, 2), "pad": (1, 1)}),
        (1, {"stride": (2, 2), "groups": 2}),
        (3, {"stride": (2, 2)}),
    ],
)
def test_other_convolutions_are_left_to_others(taps: int, attributes: dict[str, Any]) -> None:
    channels = 64 // attributes.get("groups", 1)
    x, w, dy = (2, 64, 8, 8), (64, channels, taps, taps), (2, 64, 4, 4)
    data = request_for("convolution_backward_data", [dy, w], [x], shape=x, **attributes)
    weights = request_for("convolution_backward_weights", [dy, x], [w], shape=w, **attributes)
    assert not list(strided.backward_data(data))
    assert not list(strided.backward_weights(weights))
