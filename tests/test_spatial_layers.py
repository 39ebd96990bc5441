"""Layers with windows, through prototxts, against formulas in float64 that share nothing with our
kernels (SciPy's correlations, windows one by one). Their gradients are checked beside this file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_nets import net_below

import demitasse

KERNELS = {"reference": ["reference"], "cpu": ["cpu", "reference"]}
RNG = np.random.default_rng(6)


@pytest.fixture(params=KERNELS)
def runtime(request: pytest.FixtureRequest) -> Iterator[demitasse.Runtime]:
    plugins = ["caffe", "datasets", "training", "snapshots", *KERNELS[request.param]]
    with demitasse.compose(plugins=plugins) as composed:
        yield composed


def dilated(kernel: np.ndarray, dilation: tuple[int, ...]) -> np.ndarray:
    """A kernel with zeros between its taps."""
    wide = np.zeros([(n - 1) * d + 1 for n, d in zip(kernel.shape, dilation, strict=True)])
    wide[tuple(slice(None, None, d) for d in dilation)] = kernel
    return wide


def correlated(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, ...],
    pad: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> np.ndarray:
    """A convolution layer without bias, one pair of channels after the other."""
    from scipy import signal  # which takes long to import for whoever collects tests

    each, made = w.shape[1], w.shape[0] // groups
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    steps = tuple(slice(None, None, s) for s in stride)
    return np.stack(
        [
            [
                sum(
                    signal.correlate(sample[k // made * each + c], dilated(w[k, c], dilation), "valid")
                    for c in range(each)
                )[steps]
                for k in range(len(w))
            ]
            for sample in padded
        ]
    )


def spread(
    x: np.ndarray,
    w: np.ndarray,
    stride: tuple[int, ...],
    pad: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> np.ndarray:
    """A deconvolution layer without bias: elements apart by the stride, convolved, less the padding."""
    from scipy import signal  # as above

    each, made = x.shape[1] // groups, w.shape[1]
    apart = np.zeros(
        [*x.shape[:2], *((n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True))]
    )
    apart[(..., *(slice(None, None, s) for s in stride))] = x
    inner = tuple(slice(p, -p or None) for p in pad)
    return np.stack(
        [
            [
                sum(
                    signal.convolve(sample[c], dilated(w[c, k % made], dilation))
                    for c in range(k // made * each, (k // made + 1) * each)
                )[inner]
                for k in range(groups * made)
            ]
            for sample in apart
        ]
    )


GEOMETRIES = {
    "one dimension": ((3, 4, 11), (3,), (2,), (1,), (2,), 1),
    "one dimension in groups": ((2, 6, 8), (2,), (1,), (0,), (1,), 3),
    "two dimensions": ((2, 3, 7, 6), (3, 2), (2, 1), (1, 0), (1, 2), 1),
    "depthwise": ((2, 20, 9, 9), (3, 3), (1, 1), (1, 1), (1, 1), 20),
    "depthwise strided": ((2, 16, 9, 8), (3, 3), (2, 2), (1, 1), (1, 1), 16),
    "three dimensions": ((2, 4, 5, 6, 7), (2, 3, 3), (1, 2, 2), (1, 0, 1), (2, 1, 1), 2),
}
FORMULAS = {"Convolution": correlated, "Deconvolution": spread}


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("kind", FORMULAS)
def test_convolutions_of_any_dimension_are_scipys(
    runtime: demitasse.Runtime, tmp_path: Path, kind: str, geometry: str, precision: str
) -> None:
    shape, kernel, stride, pad, dilation, groups = GEOMETRIES[geometry]
    fields = "".join(
        f"{name}: {number} "
        for name, numbers in (
            ("kernel_size", kernel),
            ("stride", stride),
            ("pad", pad),
            ("dilation", dilation),
        )
        for number in numbers
    )
    outputs = 2 * groups
    layer = (
        f'layer {{ name: "it" type: "{kind}" bottom: "x" top: "y" convolution_param {{ {fields} '
        f'num_output: {outputs} group: {groups} force_nd_im2col: true weight_filler {{ type: "gaussian" '
        f'std: 1 }} bias_filler {{ type: "gaussian" std: 1 }} }} }}'
    )
    it = net_below(runtime, tmp_path, layer, precision, x=shape)
    w, b = (np.asarray(array, np.float64) for array in it.params["it"])
    ends = (shape[1], 2) if kind == "Deconvolution" else (outputs, shape[1] // groups)
    assert (w.shape, b.shape) == ((*ends, *kernel), (outputs,))
    x = RNG.standard_normal(shape)
    expected = FORMULAS[kind](x, w, stride, pad, dilation, groups) + b.reshape(-1, *[1] * len(kernel))
    got = it.forward(x=x)["y"]
    within = 1e-5 if precision == "f32" else 2e-2
    np.testing.assert_allclose(got, expected, rtol=within, atol=within * np.abs(expected).max())


@pytest.mark.parametrize(
    ("axis", "shape", "kernel"),
    [(0, (3, 5, 6), (2, 2)), (2, (2, 4, 3, 7), (3,)), (-3, (2, 2, 4, 5, 6), (2, 3)), (1, (3, 4), ())],
)
@pytest.mark.parametrize("kind", FORMULAS)
def test_what_stands_before_the_channels_axis_counts_as_samples(
    runtime: demitasse.Runtime,
    tmp_path: Path,
    kind: str,
    axis: int,
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
) -> None:
    """Also with no axis behind it, where a convolution is an inner product."""
    sizes = " ".join(f"kernel_size: {n}" for n in kernel)
    layer = (
        f'layer {{ name: "it" type: "{kind}" bottom: "x" top: "y" convolution_param {{ axis: {axis} '
        f'num_output: 2 {sizes} bias_term: false weight_filler {{ type: "gaussian" std: 1 }} }} }}'
    )
    it = net_below(runtime, tmp_path, layer, x=shape)
    w = np.asarray(it.params["it"][0], np.float64)
    channels = axis % len(shape)
    assert w.shape[2:] == kernel
    x = RNG.standard_normal(shape)
    images = x.reshape(-1, shape[channels], *(shape[channels + 1 :] or (1,)))
    numbers = [(n,) * (images.ndim - 2) for n in (1, 0, 1)]
    wide = w.reshape(*w.shape[:2], *(kernel or (1,)))
    expected = FORMULAS[kind](images, wide, *numbers, 1)
    spatial = expected.shape[2:] if kernel else ()
    expected = expected.reshape(*shape[:channels], 2, *spatial)
    np.testing.assert_allclose(it.forward(x=x)["y"], expected, rtol=1e-5, atol=1e-4)


def test_a_bilinear_deconvolution_interpolates(runtime: demitasse.Runtime, tmp_path: Path) -> None:
    """Twice as large, as FCN does it: a ramp stays a ramp, away from the edges."""
    layer = (
        'layer { name: "up" type: "Deconvolution" bottom: "x" top: "y" convolution_param { '
        "num_output: 3 group: 3 kernel_size: 4 stride: 2 pad: 1 bias_term: false "
        'weight_filler { type: "bilinear" } } }'
    )
    ramp = np.arange(8.0) * np.ones((1, 3, 8, 1))
    y = net_below(runtime, tmp_path, layer, x=ramp.shape).forward(x=ramp)["y"]
    assert y.shape == (1, 3, 16, 16)
    np.testing.assert_allclose(
        y[:, :, 1:-1, 1:-1], np.ones((1, 3, 14, 1)) * (np.arange(1, 15) / 2 - 0.25), atol=1e-5
    )


def test_im2col_lists_what_each_tap_sees(runtime: demitasse.Runtime, tmp_path: Path) -> None:
    layer = (
        'layer { name: "it" type: "Im2col" bottom: "x" top: "y" convolution_param { kernel_size: 3 '
        "kernel_size: 2 stride: 2 stride: 1 pad: 1 pad: 0 dilation: 1 dilation: 2 } }"
    )
    x = RNG.standard_normal((2, 3, 6, 7))
    y = net_below(runtime, tmp_path, layer, x=x.shape).forward(x=x)["y"]
    expected = np.zeros((2, 3, 3, 2, 3, 5))
    for i, j, row, column in itertools.product(range(3), range(2), range(3), range(5)):
        if 0 <= 2 * row + i - 1 < 6:
            expected[:, :, i, j, row, column] = x[:, :, 2 * row + i - 1, column + 2 * j]
    np.testing.assert_allclose(y, expected.reshape(2, 18, 3, 5), rtol=1e-6)


def pyramid(x: np.ndarray, height: int, pool: Any) -> np.ndarray:
    """Every level's windows one by one: pooled is what lies in x, sizes count one pad beyond it."""
    rows = []
    for bins in (2**level for level in range(height)):
        sizes = [-(-n // bins) for n in x.shape[2:]]
        pads = [(k * bins - n + 1) // 2 for k, n in zip(sizes, x.shape[2:], strict=True)]
        level = np.zeros((*x.shape[:2], bins, bins))
        for place in np.ndindex(bins, bins):
            part, area = [], 1
            for i, k, p, n in zip(place, sizes, pads, x.shape[2:], strict=True):
                start, stop = i * k - p, min(i * k - p + k, n + p)
                part.append(slice(max(start, 0), min(stop, n)))
                area *= stop - start
            level[(..., *place)] = pool(x[(..., *part)], area)
        rows.append(level.reshape(len(x), -1))
    return np.concatenate(rows, axis=1)


@pytest.mark.parametrize("height", [1, 2, 3])
@pytest.mark.parametrize("extents", [(8, 8), (10, 7), (13, 16)])
def test_spp_pools_a_pyramid(
    runtime: demitasse.Runtime, tmp_path: Path, height: int, extents: tuple[int, int]
) -> None:
    x = RNG.uniform(0.5, 2, (2, 3, *extents))
    pools = {
        "MAX": lambda part, area: part.max(axis=(2, 3)),
        "AVE": lambda part, area: part.sum(axis=(2, 3)) / area,
        "STOCHASTIC": lambda part, area: (part**2).sum(axis=(2, 3)) / part.sum(axis=(2, 3)),
    }
    for pool, formula in pools.items():
        if pool == "STOCHASTIC" and (height > 1 and any(n % 2 ** (height - 1) for n in extents)):
            continue  # it has no padding
        layer = f'layer {{ name: "it" type: "SPP" bottom: "x" top: "y" spp_param {{ pool: {pool} '
        layer += f"pyramid_height: {height} }} }}"
        y = net_below(runtime, tmp_path, layer, x=x.shape).forward(x=x)["y"]
        assert y.shape == ((2, 3, 1, 1) if height == 1 else (2, 3 * (4**height - 1) // 3))
        np.testing.assert_allclose(y.reshape(2, -1), pyramid(x, height, formula), rtol=1e-5)


POOL = (
    'layer {{ name: "it" type: "Pooling" bottom: "x" top: "y" {} pooling_param {{ '
    "pool: STOCHASTIC {} }} }}"
)


def test_stochastic_pooling_in_tests_is_an_average_by_weight(
    runtime: demitasse.Runtime, tmp_path: Path
) -> None:
    """As in Caffe windows end where the image does, and one of zeros gives 0."""
    x = RNG.uniform(0, 1, (2, 3, 7, 6))
    x[:, :, :3, :3] = 0
    y = net_below(runtime, tmp_path, POOL.format("", "kernel_size: 3 stride: 2"), x=x.shape).forward(
        x=x
    )["y"]
    assert y.shape == (2, 3, 3, 3)
    assert np.all(y[:, :, 0, 0] == 0)
    for row, column in list(np.ndindex(3, 3))[1:]:
        part = x[:, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
        weighted = (part**2).sum(axis=(2, 3)) / part.sum(axis=(2, 3))
        np.testing.assert_allclose(y[:, :, row, column], weighted, rtol=1e-5)


def test_stochastic_pooling_in_training_takes_an_element_of_each_window(
    runtime: demitasse.Runtime, tmp_path: Path
) -> None:
    x = RNG.uniform(0.1, 1, (2, 3, 6, 6))
    it = net_below(runtime, tmp_path, POOL.format("phase: TRAIN", "kernel_size: 2 stride: 2"), x=x.shape)
    y = it.forward(x=x)["y"]
    parts = x.astype(np.float32).reshape(2, 3, 3, 2, 3, 2).swapaxes(3, 4).reshape(2, 3, 3, 3, 4)
    assert np.all((parts == y[..., None]).sum(axis=-1) == 1)
    assert not np.array_equal(y, parts.max(axis=-1))


IMPOSSIBLE = {
    'type: "Pooling" pooling_param { kernel_size: 2 }': (
        (2, 3),
        "pools samples x channels x space; its bottom is x",
    ),
    'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 pad: 1 }': (
        (2, 3, 9, 9),
        "pool STOCHASTIC supports no padding",
    ),
    'type: "SPP" spp_param { }': ((2, 3, 9, 9), "needs a pyramid_height"),
    'type: "SPP" spp_param { pyramid_height: 900000000 }': (
        (2, 3, 9, 9),
        r"level 3 cuts \(9, 9\) into 8",
    ),
    'type: "SPP" spp_param { pyramid_height: 2 pool: STOCHASTIC }': (
        (2, 3, 9, 9),
        "supports no padding",
    ),
    'type: "Im2col" convolution_param { kernel_size: 3 axis: 3 }': ((2, 3, 9, 9), "no spatial axis"),
    'type: "Im2col" convolution_param { kernel_size: 30 }': ((2, 3, 9, 9), "reaches 30 does not fit 9"),
    'type: "Convolution" convolution_param { kernel_size: 3 num_output: 2 axis: 4 }': (
        (2, 3, 9, 9),
        "axis 4 is not one of the 4 axes",
    ),
    'type: "Deconvolution" convolution_param { kernel_size: 3 num_output: 4 group: 2 }': (
        (2, 3, 9, 9),
        "group 2 does not divide 3 input channels",
    ),
    'type: "Deconvolution" convolution_param { kernel_size: 3 num_output: 3 pad: 9 }': (
        (2, 3, 9, 9),
        r"a pad of \(9, 9\) leaves nothing of its top: \(-7, -7\)",
    ),
    'type: "Deconvolution" convolution_param { num_output: 3 }': ((2, 3, 9, 9), "needs a kernel_size"),
}


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_windows_that_cannot_be_say_why_and_where(tmp_path: Path, text: str) -> None:
    shape, message = IMPOSSIBLE[text]
    with demitasse.compose(plugins=["caffe", "datasets", "training", "reference"]) as runtime:
        layer = f'layer {{ name: "odd" bottom: "x" top: "y" {text} }}'
        with pytest.raises(demitasse.DemitasseError, match=message) as raised:
            net_below(runtime, tmp_path, layer, x=shape)
    assert "net.prototxt:2" in str(raised.value)
    assert "'odd'" in str(raised.value)


ABSURD = {
    "stride": "kernel_size: 3 stride: 4000000000",
    "kernel_size": "kernel_size: 4000000000 pad: 2000000000",
    "pad": "kernel_size: 3 pad: 2000000000",
    "num_output": "kernel_size: 3 num_output: 4000000000",
}


@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution", "Im2col"])
@pytest.mark.parametrize("field", ABSURD)
def test_absurd_numbers_are_refused_or_small(tmp_path: Path, kind: str, field: str) -> None:
    """Nothing is walked through, and no more memory taken than there is."""
    fields = ABSURD[field] + (" num_output: 3" if field != "num_output" else "")
    layer = (
        f'layer {{ name: "it" type: "{kind}" bottom: "x" top: "y" convolution_param {{ {fields} }} }}'
    )
    plugins = ["caffe", "datasets", "training", "cpu", "reference"]
    with demitasse.compose(plugins=plugins) as runtime:
        try:
            y = net_below(runtime, tmp_path, layer, x=(2, 3, 9, 9)).forward(x=np.zeros((2, 3, 9, 9)))[
                "y"
            ]
        except (demitasse.DemitasseError, MemoryError) as error:
            assert str(error)
        else:
            assert y.size < 10_000
