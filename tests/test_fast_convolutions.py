"""Every kernel that the cpu plugin offers for convolutions and inner products, in every layout and both
precisions, against the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convolution_checks import BLOCKED, NHWC, agree, check_convolution
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse import PLAIN, Layout
from demitasse.operations import Shape
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library, problem

CHANNELS = st.sampled_from([1, 3, 4, 10, 16, 20, 32, 50, 97])
SLOWLY = settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))


needs_onednn = pytest.mark.skipif(library() is None, reason=f"oneDNN is not here: {problem()}")


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


@needs_onednn
@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        # A stride that is longer than a line.
        ((2, 20, 14, 2), (8, 20, 3, 3), {"stride": (1, 3), "pad": (1, 2)}),
        ((1, 33, 28, 1), (3, 33, 1, 7), {"stride": (2, 2), "pad": (0, 6)}),
        # Lines of more than 28 results, taps that stand apart, channels that fill a vector in part.
        ((2, 96, 8, 35), (128, 3, 2, 2), {"pad": (1, 2), "dilation": (2, 2), "groups": 32}),
        ((1, 20, 3, 30), (16, 5, 1, 1), {"dilation": (2, 2), "groups": 4}),
        ((1, 20, 3, 43), (20, 20, 2, 5), {"pad": (1, 1), "dilation": (2, 2)}),
        # No window that lies wholly in the volume's depth.
        ((2, 16, 4, 5, 5), (33, 16, 11, 1, 1), {"stride": (2, 1, 1), "pad": (5, 0, 0)}),
        ((2, 16, 7, 3, 3), (16, 16, 11, 1, 1), {"stride": (3, 1, 1), "pad": (7, 0, 0)}),
        ((2, 33, 1, 5, 5), (16, 33, 3, 1, 1), {"stride": (1, 1, 1), "pad": (2, 0, 0)}),
    ],
)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_gradients_of_weights_that_onednn_has_kernels_for_but_no_right_ones(
    x: Shape, w: Shape, attributes: dict[str, Any], precision: str
) -> None:
    """Its kernels read, and in volumes wrote, beyond what they were given."""
    flat = {"stride": (1,) * (len(x) - 2), "pad": (0,) * (len(x) - 2), "groups": 1}
    whole = flat | {"dilation": (1,) * (len(x) - 2)} | attributes
    check_convolution({"seed": 1, "x": x, "w": w, "attributes": whole}, precision, PLAIN)


@needs_onednn
def test_no_kernel_that_wrote_behind_the_gradient_of_a_volume_s_weights() -> None:
    """Where no window lies wholly in the height: right numbers, and others' memory written over."""
    random, w = np.random.default_rng(0), (33, 1, 2, 5, 3)
    x, dy = (random.standard_normal(s).astype(np.float32) for s in ((3, 1, 7, 1, 9), (3, 33, 8, 1, 7)))
    given = {"stride": (1, 3, 1), "pad": (1, 2, 0), "dilation": (1, 1, 1), "groups": 1, "shape": w}
    names = agree("convolution_backward_weights", [dy, x], [w, w[:1]], given, "bf16")
    assert not any(name.startswith("oneDNN jit") for name in names)


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
