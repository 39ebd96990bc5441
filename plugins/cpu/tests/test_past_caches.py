"""Normalisations and scales whose results are larger than what the caches keep are written past them,
with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest

from demitasse import PLAIN, Candidate, Layout, Request
from demitasse_cpu.kernels import batch_normalization as kernels
from demitasse_cpu.kernels import channels
from demitasse_cpu.loops import line_vectors
from demitasse_cpu.loops.vectors import WRITES_PAST

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = replace(NHWC, stored="bfloat16")
SHAPE = (3, 48, 11, 13)  # lines of 576, not all in groups of four, the last one short
SHAPED = {
    "batch_norm": 1,
    "batch_norm_sum_relu": 2,
    "batch_norm_backward": 2,
    "batch_norm_inference": 1,
    "scale_relu": 1,
}
Ask = Callable[..., Request]


def operands(name: str) -> list[Any]:
    """Return images, and the channels' parameters."""
    random = np.random.default_rng(5)

    def images() -> Any:
        return random.standard_normal(SHAPE).astype(np.float32)

    def numbers() -> Any:
        return random.uniform(0.5, 2, SHAPE[1]).astype(np.float32)

    one = np.ones(1, np.float32)
    return {
        "batch_norm": [images(), numbers(), numbers(), one, numbers(), numbers()],
        "batch_norm_sum_relu": [images(), numbers(), numbers(), one, numbers(), numbers(), images()],
        "batch_norm_backward": [images(), images(), *(numbers() for _ in range(4))],
        "batch_norm_inference": [images(), numbers(), numbers(), one, numbers(), numbers()],
        "scale_relu": [images(), numbers(), numbers()],
    }[name]


def placed(values: Any, off: int = 0) -> Any:
    """Return a copy that starts ``off`` bytes after the start of a cache line."""
    room = np.zeros(values.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + off
    copy = room[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def computed(request: Request, inputs: Sequence[Any], off: int = 0, in_place: bool = False) -> list[Any]:
    """Return all outputs as they are in memory."""
    (candidate,) = kernels.FACTORIES[request.operation.name](request)
    given = [placed(layout.pack(x)) for layout, x in zip(candidate.input_layouts, inputs, strict=True)]
    outputs = [placed(each, off) for each in rubbish(request, candidate)]
    if in_place:
        assert candidate.in_place
        outputs[0] = given[0]
    candidate.bind(given, outputs, placed(np.full(candidate.workspace, 255, np.uint8)))()
    return outputs


def rubbish(request: Request, candidate: Candidate) -> list[Any]:
    layouts = candidate.output_layouts
    specs = [
        replace(spec, layout=layout)
        for spec, layout in zip(request.outputs, layouts, strict=True)
        if spec is not None
    ]
    return [np.full(spec.physical, 77, spec.array_type) for spec in specs]


def asked(requested: Ask, name: str, layout: Layout) -> tuple[Request, list[Any]]:
    inputs, precision = operands(name), "f32" if layout is NHWC else "bf16"
    layouts = [layout if x.ndim == 4 else PLAIN for x in inputs]
    return requested(name, inputs, {}, 3, (), layouts, precision), inputs


@pytest.fixture
def past(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Treat all results as larger than what the caches keep; the list says whether each was written past
    them."""
    told = list[bool]()
    real = channels.is_lost

    def is_lost(*arguments: Any) -> bool:
        told.append(real(*arguments))
        return told[-1]

    monkeypatch.setattr(channels, "_LOST", (0, 0))
    monkeypatch.setattr(channels, "is_lost", is_lost)
    return told


@pytest.mark.parametrize("layout", [NHWC, NHWC_BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("name", SHAPED)
def test_the_bits_are_those_of_a_result_that_is_kept(
    requested: Ask, past: list[bool], monkeypatch: pytest.MonkeyPatch, name: str, layout: Layout
) -> None:
    request, inputs = asked(requested, name, layout)
    found = computed(request, inputs)
    monkeypatch.setattr(channels, "_LOST", (1 << 40, 0))
    kept = computed(request, inputs)
    assert past == [True, False]
    for one, other in zip(found, kept, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", SHAPED)
def test_a_result_beside_the_lines_of_caches_is_kept(
    requested: Ask, past: list[bool], name: str
) -> None:
    request, inputs = asked(requested, name, NHWC)
    beside, at = computed(request, inputs, off=4), computed(request, inputs)
    assert past == [False, True]
    np.testing.assert_array_equal(beside[0], at[0])


def test_a_result_in_the_place_of_what_it_is_made_of_is_kept(requested: Ask, past: list[bool]) -> None:
    request, inputs = asked(requested, "batch_norm", NHWC)
    own, other = computed(request, inputs, in_place=True), computed(request, inputs)
    assert past == [False, True]
    np.testing.assert_array_equal(own[0], other[0])


def test_more_threads_have_more_caches() -> None:
    mib = 1 << 18
    result, source = placed(np.zeros(72 * mib, np.float32)), placed(np.zeros(1, np.float32))
    assert [channels.is_lost(result, [source], threads) for threads in (1, 3, 4)] == [True, True, False]
    assert not channels.is_lost(result[: 47 * mib], [source], 1)


@pytest.mark.skipif(not WRITES_PAST, reason="this processor has no stores past its caches")
def test_it_is_done_by_stores_past_the_caches_and_a_fence(requested: Ask, past: list[bool]) -> None:
    computed(*asked(requested, "scale_relu", NHWC))
    assert past == [True]
    anew = numba.njit(line_vectors.line_scaled.py_func)  # numba keeps no listing of cached functions
    anew.compile(line_vectors.line_scaled.signatures[0])
    (code,) = anew.inspect_asm().values()
    assert "movntps" in code
    assert "sfence" in code
