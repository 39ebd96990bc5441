"""Windows over images with separate padding on each side, and other layers of nets that come from
TensorFlow, as in Synopsys's fork. They are compared with slow implementations of what its fields
mean."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import demitasse

Ends = tuple[int, int]


def window(
    x: np.ndarray, kernel: int, stride: int, rows: Ends, columns: Ends, ceil: bool
) -> tuple[list[int], list[int]]:
    """Return where windows begin, by Caffe's rule, with the padding of both sides instead of twice the
    pad."""
    starts = []
    for n, (before, behind) in zip(x.shape[2:], (rows, columns), strict=True):
        room = n + before + behind - kernel
        count = (-(-room // stride) if ceil else room // stride) + 1
        if (count - 1) * stride >= n + before:
            count -= 1
        starts.append([place * stride - before for place in range(count)])
    return starts[0], starts[1]


def pooled(
    x: np.ndarray, method: str, kernel: int, stride: int, rows: Ends, columns: Ends, ceil: bool
) -> np.ndarray:
    tops, lefts = window(x, kernel, stride, rows, columns, ceil)
    y = np.zeros((*x.shape[:2], len(tops), len(lefts)))
    for (i, top), (j, left) in itertools.product(enumerate(tops), enumerate(lefts)):
        inside = x[:, :, max(top, 0) : top + kernel, max(left, 0) : left + kernel]
        counted = (min(top + kernel, x.shape[2] + rows[1]) - top) * (
            min(left + kernel, x.shape[3] + columns[1]) - left
        )
        if method == "MAX":
            y[:, :, i, j] = inside.max((2, 3))
        else:
            y[:, :, i, j] = inside.mean((2, 3)) if method != "AVE" else inside.sum((2, 3)) / counted
    return y


SIDES = [
    ((0, 1), (0, 1)),
    ((1, 0), (0, 2)),
    ((2, 1), (1, 1)),
    ((0, 2), (2, 0)),
    ((1, 1), (2, 2)),
]


@pytest.mark.parametrize(("rows", "columns"), SIDES)
def test_each_side_of_images_is_padded_by_its_own_number(run: Any, rows: Ends, columns: Ends) -> None:
    pads = f"pad_t: {rows[0]} pad_b: {rows[1]} pad_l: {columns[0]} pad_r: {columns[1]}"
    layers, asked = "", []
    methods = ("MAX", "AVE", "AVE_EXC_PAD")
    for stride, ceil, method in itertools.product((1, 2), (True, False), methods):
        name = f"p{stride}{ceil:d}{method}"
        asked.append((name, method, stride, ceil))
        layers += (
            f"layer {{ name: '{name}' type: 'Pooling' bottom: 'x' top: '{name}' pooling_param {{ "
            f"pool: {method} kernel_size: 3 stride: {stride} {pads} "
            f"ceil_mode: {str(ceil).lower()} }} }}\n"
        )
    layers += (
        f"layer {{ name: 'c' type: 'Convolution' bottom: 'x' top: 'c' convolution_param {{ "
        f"num_output: 4 kernel_size: 3 stride: 2 dilation: 2 {pads} weight_filler {{ type: "
        "'gaussian' std: 1 } } }"
    )
    given, made, learned = run(layers, x=(2, 3, 7, 8))
    for name, method, stride, ceil in asked:
        expected = pooled(given["x"].astype("f8"), method, 3, stride, rows, columns, ceil)
        np.testing.assert_allclose(made[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
    padded = np.pad(given["x"].astype("f8"), [(0, 0), (0, 0), rows, columns])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(2, 3))
    seen = windows[:, :, ::2, ::2, ::2, ::2]
    expected = np.einsum("nchwij,ocij->nohw", seen, learned["c"][0].astype("f8"))
    np.testing.assert_allclose(made["c"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["MAX", "AVE", "AVE_EXC_PAD"])
@pytest.mark.parametrize(("rows", "columns"), [((0, 2), (2, 1)), ((1, 0), (0, 2)), ((2, 0), (0, 0))])
def test_windows_may_be_larger_than_the_image_by_what_is_padded(
    run: Any, method: str, rows: Ends, columns: Ends
) -> None:
    pads = f"pad_t: {rows[0]} pad_b: {rows[1]} pad_l: {columns[0]} pad_r: {columns[1]}"
    about = f"pool: {method} kernel_size: 4 stride: 2 {pads}"
    layer = f"layer {{ name: 'p' type: 'Pooling' bottom: 'x' top: 'p' pooling_param {{ {about} }} }}"
    given, made, _ = run(layer, x=(2, 3, 3, 5))
    expected = pooled(given["x"].astype("f8"), method, 4, 2, rows, columns, True)
    np.testing.assert_allclose(made["p"], expected, rtol=1e-5, atol=1e-5)


IMAGES = [(3, 1, 9), (3, 2, 9), (2, 1, 9), (2, 2, 9), (5, 3, 9), (5, 3, 4), (4, 1, 2)]


@pytest.mark.parametrize(("kernel", "stride", "height"), IMAGES)
def test_same_is_as_large_as_the_image_over_the_stride(
    run: Any, kernel: int, stride: int, height: int
) -> None:
    """TensorFlow's rule: as much padding as necessary, with the larger half after the image."""
    about = f"kernel_size: {kernel} stride: {stride} pad_type: 1"
    layers = (
        f"layer {{ name: 'p' type: 'Pooling' bottom: 'x' top: 'p' pooling_param {{ {about} }} }}\n"
        f"layer {{ name: 'c' type: 'Convolution' bottom: 'x' top: 'c' convolution_param {{ "
        f"num_output: 1 {about} weight_filler {{ type: 'constant' value: 1 }} }} }}"
    )
    given, made, _ = run(layers, x=(1, 2, height, 10))
    ends = []
    for n in (height, 10):
        total = max((-(-n // stride) - 1) * stride + kernel - n, 0)
        ends.append((total // 2, total - total // 2))
    shape = (-(-height // stride), -(-10 // stride))
    x = given["x"].astype("f8")
    low = np.pad(x, [(0, 0), (0, 0), *ends], constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(low, (kernel, kernel), axis=(2, 3))
    expected = windows[:, :, ::stride, ::stride].max((4, 5))
    assert expected.shape[2:] == shape
    np.testing.assert_allclose(made["p"], expected, rtol=1e-6)
    zeros = np.pad(x, [(0, 0), (0, 0), *ends])
    windows = np.lib.stride_tricks.sliding_window_view(zeros, (kernel, kernel), axis=(2, 3))
    sums = windows[:, :, ::stride, ::stride].sum((1, 4, 5))[:, None]
    np.testing.assert_allclose(made["c"], sums, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        ("'Pooling' pooling_param { kernel_size: 3 pad: 1 pad_l: 1 }", "pad and pad_l cannot be"),
        (
            "'Convolution' convolution_param { num_output: 1 kernel_size: 3 pad_b: -1 }",
            "pad_b -1 is neg",
        ),
        (
            "'Pooling' pooling_param { kernel_size: 2 pad_b: 2 }",
            "a pad of 2 is not smaller than the win",
        ),
        (
            "'Pooling' pooling_param { kernel_size: 2 pad_type: 2 }",
            "unknown pad_type 2 .valid: 0, .* and 1",
        ),
        (
            "'Pooling' top: 'm' pooling_param { kernel_size: 2 pad_b: 1 }",
            "one side is padded more than the other: supported for images, with MAX or AVE, and one top",
        ),
        (
            "'Deconvolution' convolution_param { num_output: 1 kernel_size: 3 pad_b: 1 }",
            "must cut the same amount off each side of its top; give pad",
        ),
        ("'Squeeze' squeeze_param { axis: 1 }", "axis 1 of .* has an extent of 3, not 1"),
        ("'Squeeze' squeeze_param { axis: 5 }", "axis 5 is not one of the 4 axes"),
        ("'Mul' bottom: 'z'", "multiplies blobs of the same shape, or one by another whose"),
    ],
)
def test_what_cannot_be_is_told(run: Any, layer: str, said: str) -> None:
    with pytest.raises(demitasse.ModelError, match=said):
        run(f"layer {{ name: 'l' bottom: 'x' top: 'y' type: {layer} }}", x=(2, 3, 8, 8), z=(2, 1, 8, 8))


def test_functions_and_shapes_of_mobile_nets(run: Any) -> None:
    """Howard et al. 2019, *Searching for MobileNetV3*: the gate of a block has a number for each
    channel."""
    given, made, _ = run(
        """
layer { name: "i" type: "Pooling" bottom: "x" top: "i" pooling_param { pool: AVE_TF
  kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "j" type: "Pooling" bottom: "x" top: "j" pooling_param { pool: AVE_EXC_PAD
  global_pooling: true } }
layer { name: "a" type: "HardSwish" bottom: "x" top: "a" }
layer { name: "b" type: "ReLU" bottom: "x" top: "b" relu_param { relu6: true } }
layer { name: "c" type: "ReLU" bottom: "x" top: "c" relu_param { relu6: true negative_slope: 0.1 } }
layer { name: "d" type: "Mul" bottom: "x" bottom: "gate" top: "d" }
layer { name: "e" type: "Mul" bottom: "gate" bottom: "x" top: "e" }
layer { name: "f" type: "Mul" bottom: "x" bottom: "x" top: "f" }
layer { name: "k" type: "Mul" bottom: "x" bottom: "columns" top: "k" }
layer { name: "g" type: "Squeeze" bottom: "gate" top: "g" squeeze_param { axis: [-1, 2] } }
layer { name: "h" type: "Squeeze" bottom: "one" top: "h" }
""",
        x=(2, 3, 4, 5),
        gate=(2, 3, 1, 1),
        one=(1, 3, 1, 1),
        columns=(1, 1, 1, 5),
    )
    x, gate = given["x"].astype("f8"), given["gate"].astype("f8")
    assert x.min() < -3 and x.max() > 6
    expected = {
        "a": x * np.minimum(np.maximum(x + 3, 0), 6) / 6,
        "b": np.minimum(np.maximum(x, 0), 6),
        "c": np.minimum(np.where(x > 0, x, 0.1 * x), 6),
        "d": x * gate,
        "e": x * gate,
        "f": x * x,
        "k": x * given["columns"],
        "g": gate[:, :, 0, 0],
        "h": given["one"].reshape(3),
        "i": pooled(x, "AVE_EXC_PAD", 3, 2, (1, 1), (1, 1), True),
        "j": x.mean((2, 3), keepdims=True),
    }
    for name, values in expected.items():
        assert made[name].shape == values.shape, name
        np.testing.assert_allclose(made[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
