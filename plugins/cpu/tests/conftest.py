"""Requests as a plan makes them, and the results that a kernel leaves in its buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
from fused_words import shapes, word

from demitasse import PLAIN, Candidate, Layout, Place, Request, TensorSpec, Work
from demitasse_cpu.kernels import FACTORIES

Bound = tuple[Work, list[Any], list[Any]]

_BEHIND = 4096
"""The bytes after a kernel's workspace that belong to others."""


def make_request(
    name: str,
    inputs: Sequence[Any],
    attributes: dict[str, Any],
    threads: int,
    absent: Sequence[int],
    layouts: Sequence[Layout] = (),
    precision: str = "f32",
) -> Request:
    """Return a request with all outputs except the optional ones at the ``absent`` positions. The first
    inputs have ``layouts``, the others are plain. The name may be that of a fused operation."""
    operation = word(name)
    complete = {**operation.attributes, **attributes}
    made = operation.shapes(shapes(operation, inputs), complete)
    kinds = list(operation.outputs)
    kinds += kinds[-1:] * (len(made) - len(kinds))
    real = next(x.dtype.name for x in inputs if x is not None)
    real = real if real.startswith("float") else "float32"
    outputs = [
        TensorSpec(tuple(shape), real if kind.dtype in (None, "real") else str(kind.dtype))
        for shape, kind in zip(made, kinds, strict=True)
    ]
    return Request(
        operation,
        tuple(
            None if x is None else TensorSpec(x.shape, x.dtype.name, layout)
            for x, layout in zip_longest(inputs, layouts, fillvalue=PLAIN)
        ),
        tuple(None if i in absent else spec for i, spec in enumerate(outputs)),
        complete,
        Place("test", threads=threads),
        precision,
    )


def offered(request: Request) -> list[Candidate]:
    """Return the compiled loops, the preferred one first. oneDNN's kernels have tests of their own."""
    return [*FACTORIES[request.operation.name](request)]


def bind(name: str, inputs: Sequence[Any], *arguments: Any, **options: Any) -> Bound:
    """Do the same as ``bind_checked``, without its check."""
    return bind_checked(name, inputs, *arguments, **options)[0]


def bind_checked(
    name: str,
    inputs: Sequence[Any],
    attributes: dict[str, Any] | None = None,
    threads: int = 2,
    absent: Sequence[int] = (),
    in_place: bool = False,
) -> tuple[Bound, Callable[[], None]]:
    """Return a bound kernel with copies of the inputs, and with outputs and a workspace full of garbage,
    because nothing may depend on what was there; and a check that nothing was written after the
    workspace. ``in_place`` gives the first output the memory of the first input."""
    request = make_request(name, inputs, attributes or {}, threads, absent)
    candidate = offered(request)[0]
    given: list[Any] = [None if x is None else x.copy() for x in inputs]
    outputs: list[Any] = [None if s is None else np.full(s.shape, 77, s.dtype) for s in request.outputs]
    if in_place:
        assert candidate.in_place
        assert request.operation.aliases
        assert outputs[0] is not None
        outputs[0] = given[0].reshape(outputs[0].shape)
    room, check = workspace_of(candidate)
    return (candidate.bind(given, outputs, room), given, outputs), check


def workspace_of(candidate: Candidate) -> tuple[Any, Callable[[], None]]:
    """Return a kernel's workspace, full of garbage, or None if it needs none; and a check that what
    follows it is unchanged."""
    size = candidate.workspace
    whole = np.full(size + 64 + _BEHIND, 255, np.uint8)
    start = -whole.ctypes.data % 64

    def check() -> None:
        assert (whole[start + size :] == 255).all(), f"{candidate.kernel} writes behind its workspace"

    return whole[start : start + size] if size else None, check


def compute_lying(request: Request, inputs: Sequence[Any]) -> list[Any]:
    """Return the logical outputs that this plugin's own kernel computes from logical inputs in the
    layouts that it requests, as they are stored there. If there are several kernels, check that all of
    them compute nearly the same."""
    first, *others = [computed_by(candidate, request, inputs) for candidate in offered(request)]
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-5)
    return first


def computed_by(candidate: Candidate, request: Request, inputs: Sequence[Any]) -> list[Any]:
    """Return what one kernel computes from logical inputs."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    given = candidate.output_layouts or (PLAIN,) * len(request.outputs)
    sources = [layout.pack(x).copy() for layout, x in zip(taken, inputs, strict=True)]
    targets: list[Any] = []
    for layout, spec in zip(given, request.outputs, strict=True):
        lying = None if spec is None else replace(spec, layout=layout)
        targets.append(None if lying is None else np.full(lying.physical, 77, lying.array_type))
    room, check = workspace_of(candidate)
    candidate.bind(sources, targets, room)()
    check()
    return [
        None if spec is None else layout.unpack(target, spec.shape)
        for layout, spec, target in zip(given, request.outputs, targets, strict=True)
    ]


@pytest.fixture
def lying() -> Callable[..., tuple[Request, list[Any]]]:
    """Computes in given layouts and a precision; returns the request and logical outputs."""

    def call(
        name: str,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        layouts: Sequence[Layout],
        precision: str = "f32",
        threads: int = 2,
        absent: Sequence[int] = (),
    ) -> tuple[Request, list[Any]]:
        request = make_request(name, inputs, attributes, threads, absent, layouts, precision)
        return request, compute_lying(request, inputs)

    return call


@pytest.fixture
def requested() -> Callable[..., Request]:
    return make_request


@pytest.fixture
def bound() -> Callable[..., Bound]:
    return bind


@pytest.fixture
def asked() -> Callable[..., tuple[Request, Candidate]]:
    """Returns the request for an operation, and its first candidate."""

    def call(
        name: str, inputs: Sequence[Any], attributes: dict[str, Any], threads: int = 2
    ) -> tuple[Request, Candidate]:
        request = make_request(name, inputs, attributes, threads, ())
        candidate = offered(request)[0]
        return request, candidate

    return call


@pytest.fixture
def compute() -> Callable[..., list[Any]]:
    """Calls a kernel twice, as a second step does, and returns the outputs. If the operation has none,
    calls it once and returns the inputs."""

    def call(name: str, inputs: Sequence[Any], *arguments: Any, **options: Any) -> list[Any]:
        request = make_request(name, inputs, *[*arguments, {}][:1], 2, options.get("absent", ()))
        candidate, *others = offered(request)
        if {*candidate.input_layouts, *candidate.output_layouts} - {PLAIN}:
            return compute_lying(request, inputs)
        (work, given, outputs), check = bind_checked(name, inputs, *arguments, **options)
        work()
        check()
        if not outputs:
            return given
        if not options.get("in_place"):
            work()
        for other in others:
            for mine, theirs in zip(outputs, computed_by(other, request, inputs), strict=True):
                np.testing.assert_allclose(theirs, mine, rtol=1e-5, atol=1e-5)
        return outputs

    return call


def sample_requests(dtype: str) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Return inputs and attributes for every operation, large enough to be divided among threads."""
    random = np.random.default_rng(3)

    def real(*shape: int) -> Any:
        return random.standard_normal(shape).astype(dtype)

    def convolution(*inputs: Any, **more: Any) -> tuple[list[Any], dict[str, Any]]:
        return list(inputs), {"pad": (1, 1), "groups": 2, **more}

    images, blob = (16, 16, 16, 16), (32, 16, 16, 16)
    counters = [np.array([7], np.uint64), np.array([64], np.uint64)]
    drawn = {"seed": 5, "stream": 2}
    windows = {"kernel": (3, 3), "stride": (2, 2)}
    pooled, scores, label = (32, 16, 8, 8), (500, 100), random.integers(0, 100, 500)
    window = {"size": 3, "alpha": 0.1}
    x, w, dy = real(*images), real(20, 8, 3, 3), real(16, 20, 16, 16)
    matrices = {"x": real(64, 300), "w": real(200, 300), "dy": real(64, 200)}
    scale = np.abs(real(*blob)) + 1
    kept = [real(16), np.abs(real(16)), np.abs(real(1)) + 1]
    segments = ((0, 60_000, 1.0, 1.0), (60_000, 200_000, 2.0, 0.0))
    return {
        "accumulate": ([real(*blob), real(*blob)], {}),
        "accuracy": ([real(*scores), label], {"top_k": 5}),
        "batch_norm": ([real(*blob), *kept, real(16), real(16)], {"relu": True}),
        "batch_norm_sum": ([real(*blob), *kept, real(16), real(16), real(*blob)], {"relu": True}),
        "batch_norm_sum_relu": ([real(*blob), *kept, real(16), real(16), real(*blob)], {}),
        "batch_norm_backward": (
            [real(*blob), real(*blob), real(16), real(16), *kept[:2]],
            {"relu": True},
        ),
        "batch_norm_inference": ([real(*blob), *kept, real(16), real(16)], {"relu": True}),
        "batch_norm_inference_sum": ([real(*blob), *kept, real(16), real(16), real(*blob)], {}),
        "batch_norm_inference_sum_relu": ([real(*blob), *kept, real(16), real(16), real(*blob)], {}),
        "batch_norm_inference_backward": (
            [real(*blob), real(*blob), *kept, real(16), real(16)],
            {"relu": True},
        ),
        "concat": ([real(*blob), real(*blob)], {"axis": 1}),
        "concat_backward": ([real(*blob)], {"axis": 1, "shapes": ((32, 4, 16, 16), (32, 12, 16, 16))}),
        "convolution": convolution(x, w, real(20)),
        "convolution_backward_data": convolution(dy, w, shape=images),
        "convolution_backward_weights": convolution(dy, x, shape=w.shape),
        "dropout": ([real(64, 4000), *counters], {"ratio": 0.3, **drawn}),
        "dropout_backward": ([real(*blob), random.integers(0, 2, blob).astype(np.uint8)], {}),
        "fill": ([real(*blob)], {"value": 2.0}),
        "image_transform": (
            [random.integers(0, 256, (64, 3, 40, 40)).astype(np.uint8), real(3, 1, 1), *counters],
            {"crop": 32, "mirror": True, "random": True, **drawn},
        ),
        "inner_product": ([matrices["x"], matrices["w"], real(200)], {}),
        "inner_product_backward_data": ([matrices["dy"], matrices["w"]], {"shape": (64, 300)}),
        "inner_product_backward_weights": ([matrices["dy"], matrices["x"]], {"shape": (200, 300)}),
        "lrn_across_channels": ([real(*blob)], window),
        "lrn_across_channels_backward": ([real(*blob), real(*blob), real(*blob), scale], window),
        "lrn_within_channel": ([real(*blob)], window),
        "lrn_within_channel_backward": ([real(*blob), real(*blob), real(*blob), scale], window),
        "momentum_update": (
            [*(real(200_000) for _ in range(3)), np.array([0.01])],
            {"momentum": 0.9, "decay": 0.004, "segments": segments},
        ),
        "pooling_average": ([real(*blob)], windows),
        "pooling_average_backward": ([real(*pooled)], {**windows, "shape": blob}),
        "pooling_max": ([real(*blob)], windows),
        "pooling_max_backward": (
            [real(*pooled), random.integers(0, 256, pooled).astype(np.int32)],
            {**windows, "shape": blob},
        ),
        "relu": ([real(*blob)], {}),
        "relu_backward": ([real(*blob), real(*blob)], {}),
        "reorder": ([real(*blob)], {}),
        "scale": ([real(*blob), real(16), real(16)], {}),
        "scale_relu": ([real(*blob), real(16), real(16)], {}),
        "scale_backward": ([real(*blob), real(*blob), real(16)], {}),
        "softmax": ([real(*scores)], {}),
        "softmax_backward": ([real(*scores), real(*scores)], {}),
        "softmax_loss": ([real(*scores), label], {}),
        "softmax_loss_backward": ([real(), np.abs(real(*scores)), label], {}),
        "sum": ([real(*blob), real(*blob), real(*blob)], {"coefficients": (1.0, -2.0, 0.5)}),
        "sum_relu": ([real(*blob), real(*blob)], {}),
        "sum_relu_backward": (
            [real(*blob), real(*blob), real(*blob), np.maximum(real(*blob), 0)],
            {"coefficients": (1.0, -2.0, 0.5)},
        ),
        "sum_backward": ([real(*blob)], {"shapes": (blob, blob)}),
    }


@pytest.fixture(params=["float32", "float64"])
def samples(request: pytest.FixtureRequest) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    return sample_requests(request.param)


@pytest.fixture(scope="module")
def however_few_channels() -> Iterator[None]:
    """Let Winograd's kernels compute with any number of channels, fewer than those for which they are
    offered."""
    from demitasse_cpu.kernels import winograd

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winograd, "_FEWEST_CHANNELS", 1)
        yield
