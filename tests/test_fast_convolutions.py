"""Every kernel that the cpu plugin offers for convolutions and inner products, in every layout and both
precisions, against the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse import PLAIN, Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY, Shape
from demitasse_cpu.kernels import candidates
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library, problem
from demitasse_reference.kernels import candidates as reference

NHWC = Layout("NHWC", (0, 2, 3, 1))
BLOCKED = Layout("nChw16c", blocks=((1, 16),))
CHANNELS = st.sampled_from([1, 3, 4, 10, 16, 20, 32, 50, 97])
SLOWLY = settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
# Sums of float32 products round at 2^-24 each; bfloat16 keeps 8 bits of what is written.
_BEHIND = 4096
"""Bytes that others have behind a kernel's workspace."""

TOLERANCE = {"f32": 2e-5, "bf16": 2**-7}

needs_onednn = pytest.mark.skipif(library() is None, reason=f"oneDNN is not here: {problem()}")


def aligned(nbytes: int) -> Any:
    """Memory as a plan gives it: on a cache line, full of rubbish."""
    room = np.full(nbytes + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + nbytes]


def run(candidate: Candidate, inputs: Sequence[Any], outputs: Sequence[TensorSpec | None]) -> list[Any]:
    """What a candidate makes of logical arrays, in logical order; done twice, as in a second step, in no
    more memory than it has asked for."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    given_out = candidate.output_layouts or (PLAIN,) * len(outputs)
    arrays: list[Any] = []
    for array, layout in zip(inputs, taken, strict=True):
        if array is None:
            arrays.append(None)
            continue
        packed = layout.pack(array)
        arrays.append(aligned(packed.nbytes).view(packed.dtype).reshape(packed.shape))
        arrays[-1][...] = packed
    made: list[Any] = []
    for spec, layout in zip(outputs, given_out, strict=True):
        if spec is None:
            made.append(None)
            continue
        lying = replace(spec, layout=layout)
        made.append(aligned(lying.nbytes).view(lying.array_type).reshape(lying.physical))
    size = candidate.workspace
    room = aligned(size + _BEHIND)
    work = candidate.bind(arrays, made, room[:size] if size else None)
    work()
    work()
    assert (room[size:] == 255).all(), f"{candidate.kernel} writes behind its workspace"
    return [
        None if spec is None else layout.unpack(array, spec.shape)
        for layout, array, spec in zip(given_out, made, outputs, strict=True)
    ]


def known(candidate: Candidate, inputs: Sequence[Any]) -> list[Any]:
    """What a candidate can know of its inputs, in float64: as it has them stored."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    return [
        None if a is None else layout.unpack(layout.pack(a), a.shape).astype(np.float64)
        for a, layout in zip(inputs, taken, strict=True)
    ]


def agree(
    name: str,
    inputs: Sequence[Any],
    shapes: Sequence[Shape | None],
    attributes: dict[str, Any],
    precision: str,
    arriving: Layout = PLAIN,
) -> set[str]:
    """Compare all candidates of an operation with the reference; the names of the kernels."""
    plain_name = name.removesuffix("_relu")
    word = VOCABULARY[plain_name]
    complete = {**word.attributes, **attributes}
    exact = [None if shape is None else np.full(shape, 77.0) for shape in shapes]
    specs = [None if a is None else TensorSpec(a.shape, "float64") for a in inputs]
    wanted = Request(
        word,
        tuple(specs),
        tuple(None if shape is None else TensorSpec(shape, "float64") for shape in shapes),
        complete,
        Place("test"),
        "f64",
    )
    (oracle,) = reference(wanted)
    room = aligned(oracle.workspace) if oracle.workspace else None

    def expected_of(candidate: Candidate) -> list[Any]:
        oracle.bind(known(candidate, inputs), exact, room)()
        rectified = name != plain_name and exact[0] is not None
        return [np.maximum(exact[0], 0), *exact[1:]] if rectified else exact

    # What a sum of such terms comes to as a rule: one that happens to cancel is no more exact.
    usual = [None if a is None else np.empty_like(a) for a in exact]
    oracle.bind([None if a is None else np.square(a, dtype=np.float64) for a in inputs], usual, room)()
    usual = [None if a is None else np.sqrt(a).max() for a in usual]

    lying = [
        None if a is None else TensorSpec(a.shape, "float32", arriving if a.ndim == 4 else PLAIN)
        for a in inputs
    ]
    outputs = [None if shape is None else TensorSpec(shape, "float32") for shape in shapes]
    request = Request(
        replace(word, name=name),
        tuple(lying),
        tuple(outputs),
        complete,
        Place("test", threads=2),
        precision,
    )
    names = set()
    for candidate in candidates(request):
        names.add(candidate.kernel)
        results = run(candidate, inputs, outputs)
        for made, expected, size in zip(results, expected_of(candidate), usual, strict=True):
            if expected is None:
                continue
            scale = max(np.abs(expected).max(), size) + 1e-30
            worst = np.abs(made - expected).max() / scale
            assert worst < TOLERANCE[precision], f"{candidate.kernel}: {name}"
    return names


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    inputs, outputs = draw(CHANNELS), draw(CHANNELS)
    depthwise = draw(st.booleans()) and groups == 3
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    dilation = draw(st.sampled_from([(1, 1), (1, 1), (2, 1)]))
    pad = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    spare = draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
    image = tuple((k - 1) * d + 1 + s for k, d, s in zip(kernel, dilation, spare, strict=True))
    if depthwise:
        groups, inputs, outputs = inputs, 1, 1
    return {
        "seed": draw(st.integers(0, 99)),
        "x": (draw(st.integers(1, 4)), inputs * groups, *image),
        "w": (outputs * groups, inputs, *kernel),
        "attributes": {"groups": groups, "stride": stride, "pad": pad, "dilation": dilation},
    }


def check_convolution(case: dict[str, Any], precision: str, arriving: Layout) -> set[str]:
    random, attributes = np.random.default_rng(case["seed"]), case["attributes"]
    word = VOCABULARY["convolution"]
    shapes = {"x": case["x"], "w": case["w"], "b": None}
    (y,) = word.shapes(shapes, {**word.attributes, **attributes})
    x, w, dy = (random.standard_normal(shape).astype(np.float32) for shape in (case["x"], case["w"], y))
    b = random.standard_normal(w.shape[0]).astype(np.float32)
    names = agree("convolution", [x, w, None], [y], attributes, precision, arriving)
    names |= agree("convolution", [x, w, b], [y], attributes, precision, arriving)
    names |= agree("convolution_relu", [x, w, b], [y], attributes, precision, arriving)
    back = {**attributes, "shape": x.shape}
    names |= agree("convolution_backward_data", [dy, w], [x.shape], back, precision, arriving)
    back = {**attributes, "shape": w.shape}
    made = [w.shape, b.shape]
    agree("convolution_backward_weights", [dy, x], [w.shape, None], back, precision, arriving)
    return names | agree("convolution_backward_weights", [dy, x], made, back, precision, arriving)


@needs_onednn
@pytest.mark.parametrize("stride", [(1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("channels", [1, 3, 7, 12])
def test_gradients_of_skipped_pixels_of_few_channels(channels: int, stride: tuple[int, int]) -> None:
    """oneDNN's kernel for these writes as much as 819 bytes behind its workspace on AVX2."""
    attributes = {"groups": 1, "stride": stride, "pad": (0, 0), "dilation": (1, 1)}
    for seed, images in enumerate((1, 2)):
        case = {"seed": seed, "x": (images, channels, 8, 14), "w": (4, channels, 1, 1)}
        check_convolution(case | {"attributes": attributes}, "f32", PLAIN)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@given(case=convolutions(), arriving=st.sampled_from([PLAIN, NHWC, BLOCKED]))
@SLOWLY
def test_convolutions_agree_with_the_reference(
    precision: str, case: dict[str, Any], arriving: Layout
) -> None:
    if precision == "bf16":
        arriving = replace(arriving, stored="bfloat16")
    check_convolution(case, precision, arriving)


@needs_onednn
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_groups_whose_weights_onednn_can_hardly_reorder(precision: str) -> None:
    """With a matrix unit it would have them in a form to which only its reference brings them."""
    attributes = {"groups": 3, "stride": (1, 1), "pad": (0, 0), "dilation": (1, 1)}
    case = {"seed": 0, "x": (1, 291, 1, 1), "w": (291, 97, 1, 1), "attributes": attributes}
    check_convolution(case, precision, PLAIN)


@needs_onednn
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_very_many_weights_of_one_tap_meet_pixels_in_a_product(precision: str) -> None:
    attributes = {"groups": 1, "stride": (1, 1), "pad": (0, 0), "dilation": (1, 1)}
    case = {"seed": 1, "x": (2, 2048, 3, 2), "w": (2048, 2048, 1, 1), "attributes": attributes}
    names = check_convolution(case, precision, NHWC)
    if precision == "f32" or bfloat16_kernel(library()):
        assert sum(name.endswith("of pixels") for name in names) >= 2


@needs_onednn
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("x", "w", "groups"),
    [
        ((4, 3, 33, 33), (96, 3, 11, 11), 1),
        ((2, 96, 13, 13), (256, 48, 5, 5), 2),
        ((2, 64, 20, 20), (64, 64, 3, 3), 1),
        ((2, 64, 14, 14), (256, 64, 1, 1), 1),
        ((2, 48, 14, 14), (48, 1, 3, 3), 48),
    ],
)
def test_convolutions_of_well_known_nets_run_on_onednn(
    x: Shape, w: Shape, groups: int, precision: str
) -> None:
    pad = (w[2] // 2, w[3] // 2)
    attributes = {"groups": groups, "stride": (1, 1), "pad": pad, "dilation": (1, 1)}
    case = {"seed": 1, "x": x, "w": w, "attributes": attributes}
    names = check_convolution(case, precision, NHWC)
    if precision == "f32" or bfloat16_kernel(library()):
        assert any("oneDNN" in name for name in names)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize(("image", "stride"), [((3, 3), (2, 2)), ((2, 2), (2, 2)), ((7, 7), (1, 1))])
def test_one_tap_meets_the_right_pixels(
    image: tuple[int, int], stride: tuple[int, int], precision: str
) -> None:
    """Also where as many results as pixels are others than those: padding and strides make up."""
    pad = (1, 1) if stride != (1, 1) else (0, 0)
    attributes = {"groups": 1, "stride": stride, "pad": pad, "dilation": (1, 1)}
    case = {"seed": 1, "x": (2, 16, *image), "w": (20, 16, 1, 1), "attributes": attributes}
    check_convolution(case, precision, NHWC)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@given(
    rows=st.sampled_from([1, 3, 64]),
    inputs=st.sampled_from([1, 10, 97, 800]),
    outputs=st.sampled_from([1, 10, 50, 97, 512]),
    seed=st.integers(0, 99),
)
@SLOWLY
def test_inner_products_agree_with_the_reference(
    precision: str, rows: int, inputs: int, outputs: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    x, w, b, dy = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
    )
    for name in ("inner_product", "inner_product_relu"):
        agree(name, [x, w, b], [dy.shape], {}, precision)
    agree("inner_product_backward_data", [dy, w], [x.shape], {"shape": x.shape}, precision)
    back = {"shape": w.shape}
    agree("inner_product_backward_weights", [dy, x], [w.shape, b.shape], back, precision)


@needs_onednn
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_bright_pixel_leaves_its_neighbours_alone(tmp_path: Path, precision: str) -> None:
    """Without Winograd's algorithm errors are of what a result's own window holds."""
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { type: "Input" top: "x" input_param { shape { dim: 2 dim: 64 dim: 20 dim: 20 } } }'
        'layer { type: "Convolution" bottom: "x" top: "y" name: "c" convolution_param { num_output: 64 '
        'kernel_size: 3 pad: 1 bias_term: false weight_filler { type: "msra" } } }'
    )
    random = np.random.default_rng(3)
    x = random.integers(-127, 128, (2, 64, 20, 20)).astype(np.float32) / 128  # as bfloat16 has them
    x[:, :, 9, 7] *= 2**14
    w = random.integers(-127, 128, (64, 64, 3, 3)).astype(np.float32) / 1024
    options = {"cpu": {"winograd": "off"}, "tuning": {"cache": "off"}}
    with demitasse.compose(options=options) as runtime:
        made = runtime.net(net, precision=precision, weights=demitasse.Weights({"c": [w]}))
        y = made.forward(x=x)["y"].astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), (2, 3)
    )
    expected, size = (
        np.einsum(
            "ncijuv,kcuv->nkij", f(windows.astype(np.float64)), f(w.astype(np.float64)), optimize=True
        )
        for f in (np.positive, np.abs)
    )
    rounding = 2**-8 * np.abs(expected) if precision == "bf16" else 0
    assert (np.abs(y - expected) <= 2e-6 * size + rounding).all()
