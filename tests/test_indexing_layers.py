"""Layers that take parts and copies of blobs, rows by number, and learned blobs, through prototxts:
NumPy's own indexing says what they give. Their gradients are checked beside this file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_files import DATA
from small_nets import net_below

import demitasse

PROTOTXTS = DATA / "prototxt"
KERNELS = {"reference": ["reference"], "cpu": ["cpu", "reference"]}
RNG = np.random.default_rng(8)
X = RNG.standard_normal((4, 6, 5, 7))
SMALL = np.zeros((9, 8, 3, 4))


@pytest.fixture(params=KERNELS)
def runtime(request: pytest.FixtureRequest) -> Iterator[demitasse.Runtime]:
    plugins = ["caffe", "datasets", "training", *KERNELS[request.param]]
    with demitasse.compose(plugins=plugins) as composed:
        yield composed


def outputs(
    runtime: demitasse.Runtime, folder: Path, layers: str, precision: str = "f32", **arrays: np.ndarray
) -> Any:
    shapes = {name: array.shape for name, array in arrays.items()}
    return net_below(runtime, folder, layers, precision, **shapes).forward(**arrays)


def layer(kind: str, fields: str = "", bottoms: str = "x", tops: str = "y") -> str:
    named = " ".join(f'bottom: "{name}"' for name in bottoms.split())
    named += " " + " ".join(f'top: "{name}"' for name in tops.split())
    return f'layer {{ name: "it" type: "{kind}" {named} {fields} }}\n'


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("fields", "box"),
    [
        ("", np.s_[:, :, :3, :4]),
        ("axis: 2 offset: 1", np.s_[:, :, 1:4, 1:5]),
        ("axis: 2 offset: 2 offset: 3", np.s_[:, :, 2:5, 3:7]),
        ("axis: 3 offset: 3", np.s_[:, :, :, 3:]),
        ("axis: -1", np.s_[:, :, :, :4]),
    ],
)
def test_a_crop_has_the_extents_of_its_second_bottom(
    runtime: demitasse.Runtime, tmp_path: Path, fields: str, box: Any, precision: str
) -> None:
    text = layer("Crop", f"crop_param {{ {fields} }}", "x ref")
    y = outputs(runtime, tmp_path, text, precision, x=X, ref=SMALL)["y"]
    np.testing.assert_allclose(y, X[box], rtol=1e-6 if precision == "f32" else 1e-2)


@pytest.mark.parametrize(
    ("fields", "axis", "points"),
    [
        ("", 1, [2, 4]),
        ("axis: 1", 1, [2, 4]),
        ("slice_dim: 0 slice_point: 1 slice_point: 3", 0, [1, 3]),
        ("axis: 2 slice_point: 1 slice_point: 2", 2, [1, 2]),
        ("axis: -1 slice_point: 1 slice_point: 6", 3, [1, 6]),
    ],
)
def test_a_slice_is_cut_at_its_points_or_evenly(
    runtime: demitasse.Runtime, tmp_path: Path, fields: str, axis: int, points: list[int]
) -> None:
    text = layer("Slice", f"slice_param {{ {fields} }}", tops="a b c")
    y = outputs(runtime, tmp_path, text, x=X)
    for name, part in zip("abc", np.split(X, points, axis), strict=True):
        np.testing.assert_allclose(y[name], part, rtol=1e-6)


@pytest.mark.parametrize(("axis", "tiles"), [(0, 2), (1, 3), (-1, 5), (2, 1)])
def test_a_tile_repeats(runtime: demitasse.Runtime, tmp_path: Path, axis: int, tiles: int) -> None:
    y = outputs(runtime, tmp_path, layer("Tile", f"tile_param {{ axis: {axis} tiles: {tiles} }}"), x=X)[
        "y"
    ]
    copies = [tiles if d == axis % 4 else 1 for d in range(4)]
    np.testing.assert_allclose(y, np.tile(X, copies), rtol=1e-6)


def test_samples_are_reindexed(runtime: demitasse.Runtime, tmp_path: Path) -> None:
    index = np.array([3, 0, 0, 2, 3, 3, 1])
    y = outputs(runtime, tmp_path, layer("BatchReindex", bottoms="x i"), x=X, i=index)["y"]
    np.testing.assert_allclose(y, X[index], rtol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 3, 2)])
def test_words_are_embedded(
    runtime: demitasse.Runtime, tmp_path: Path, shape: tuple[int, ...], bias: bool
) -> None:
    filled = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    fields = f"embed_param {{ input_dim: 300 num_output: 6 bias_term: {str(bias).lower()} {filled} }}"
    it = net_below(runtime, tmp_path, layer("Embed", fields), x=shape)
    words = RNG.integers(0, 300, shape)
    w, *b = it.params["it"]
    assert [array.shape for array in it.params["it"]] == [(300, 6), (6,)][: 1 + bias]
    np.testing.assert_allclose(it.forward(x=words)["y"], w[words] + (b[0] if bias else 0), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        (layer("Embed", "embed_param { input_dim: 4 num_output: 2 }", "i"), [1.0, 4.0, 0.0]),
        (layer("BatchReindex", bottoms="x i"), [1.0, 4.0, 0.0]),
    ],
)
def test_a_number_that_is_no_row_stops_the_run(
    runtime: demitasse.Runtime, tmp_path: Path, text: str, index: list[float]
) -> None:
    it = net_below(runtime, tmp_path, text, x=X.shape, i=(3,))
    with pytest.raises(demitasse.DataError, match=r"net\.prototxt:3: layer 'it' .* index 4 at place 1"):
        it.forward(x=X, i=np.array(index))
    found = it.forward(x=X, i=np.array([1, 3, 0]))["y"]
    assert np.isfinite(found).all()


@pytest.mark.parametrize("selector", [[1, 0, 2, -1], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0.5]])
def test_a_filter_keeps_what_is_selected(
    runtime: demitasse.Runtime, tmp_path: Path, selector: list[float]
) -> None:
    """Behind the chosen samples are zeros; one more top than Caffe's counts them."""
    labels = np.arange(4.0)
    text = layer("Filter", bottoms="x label s", tops="y kept count")
    y = outputs(runtime, tmp_path, text, x=X, label=labels, s=np.reshape(selector, (4, 1, 1)))
    chosen = np.flatnonzero(selector)
    assert y["count"] == len(chosen)
    for name, given in (("y", X), ("kept", labels)):
        np.testing.assert_allclose(y[name][: len(chosen)], given[chosen], rtol=1e-6)
        assert not y[name][len(chosen) :].any()
    plain = layer("Filter", bottoms="x s")
    again = outputs(runtime, tmp_path, plain, x=X, s=np.array(selector))
    np.testing.assert_array_equal(again["y"], y["y"])


def test_a_learned_blob_starts_as_zeros_and_may_be_shared(
    runtime: demitasse.Runtime, tmp_path: Path
) -> None:
    free = 'layer {{ name: "{0}" type: "Parameter" top: "{0}" param {{ name: "w" lr_mult: 2 }} '
    free += "parameter_param {{ shape {{ dim: 2 dim: 3 }} }} }}\n"
    text = free.format("p") + free.format("q")
    text += layer("Eltwise", bottoms="x p q")
    x = RNG.standard_normal((2, 3))
    it = net_below(runtime, tmp_path, text, x=x.shape)
    np.testing.assert_allclose(it.forward(x=x)["y"], x, rtol=1e-6)
    it.params["p"][0][...] = np.arange(6).reshape(2, 3)
    np.testing.assert_allclose(it.forward(x=x)["y"], x + 2 * np.arange(6).reshape(2, 3), rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("reshape_param { shape { dim: 0 dim: -1 } }", (4, 210)),
        ("reshape_param { shape { dim: 0 dim: 0 dim: 35 dim: 1 } }", (4, 6, 35, 1)),
        ("reshape_param { axis: 1 num_axes: 2 shape { dim: -1 } }", (4, 30, 7)),
        ("reshape_param { axis: 1 num_axes: 0 shape { dim: 1 dim: 1 } }", (4, 1, 1, 6, 5, 7)),
        ("reshape_param { axis: -1 shape { dim: 1 } }", (4, 6, 5, 7, 1)),
        ("reshape_param { axis: 2 shape { dim: 7 dim: 5 } }", (4, 6, 7, 5)),
        ("reshape_param { axis: -3 num_axes: 1 shape { dim: 0 dim: 1 } }", None),
    ],
)
def test_reshape_is_caffes(
    runtime: demitasse.Runtime, tmp_path: Path, text: str, shape: tuple[int, ...] | None
) -> None:
    """A negative axis counts from behind the last, and a 0 copies the extent at its own place."""
    expected = X.reshape(shape or (4, 6, 5, 1, 7))
    y = outputs(runtime, tmp_path, layer("Reshape", text), x=X)["y"]
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", (4, 210)),
        ("axis: 2", (4, 6, 35)),
        ("axis: 0 end_axis: -2", (120, 7)),
        ("axis: -1", (4, 6, 5, 7)),
    ],
)
def test_flatten_is_caffes(
    runtime: demitasse.Runtime, tmp_path: Path, text: str, shape: tuple[int, ...]
) -> None:
    y = outputs(runtime, tmp_path, layer("Flatten", f"flatten_param {{ {text} }}"), x=X)["y"]
    np.testing.assert_allclose(y, X.reshape(shape), rtol=1e-6)


IMPOSSIBLE = {
    layer(
        "Crop", "crop_param { offset: 3 }", "x ref"
    ): r"axis 2 of x \(4, 6, 5, 7\) has no 3 elements from 3",
    layer("Crop", "crop_param { axis: 1 offset: 1 offset: 2 }", "x ref"): "2 offsets for the 3 axes",
    layer("Crop", "crop_param { axis: 4 }", "x ref"): "axis 4 is not one of the 4 axes",
    layer("Crop", "", "x i"): "has fewer axes",
    layer("Slice", "", "x", "a b c d"): "4 tops do not divide the 6 elements along axis 1",
    layer(
        "Slice", "slice_param { slice_point: 2 }", "x", "a b c"
    ): "1 slice_point for 3 tops; 2 are needed",
    layer("Slice", "slice_param { slice_point: 4 slice_point: 2 }", "x", "a b c"): "must rise",
    layer("Slice", "slice_param { slice_point: 0 }", "x", "a b"): "must rise",
    layer("Slice", "slice_param { slice_point: 6 }", "x", "a b"): "must rise, from above 0 to below 6",
    layer("Slice", "slice_param { axis: 1 slice_dim: 1 }", "x", "a b"): "cannot be combined",
    layer("Slice", "slice_param { slice_dim: 4000000000 }", "x", "a b"): "is not one of the 4 axes",
    layer("Tile", "tile_param { tiles: 0 }"): "needs tiles of 1 or more",
    layer("Tile", ""): "needs tiles of 1 or more",
    layer("BatchReindex", "", "i x"): "a row of sample numbers",
    layer("Embed", "embed_param { num_output: 4 }"): "needs an input_dim and a num_output",
    layer("Filter", "", "x ref"): r"selector \(9, 8, 3, 4\) does not have one number for each row",
    layer("Filter", "", "x i s"): "has 1 tops for 2 bottoms and a selector",
    layer("Parameter", "parameter_param { shape { dim: 0 } }", ""): "its extents must be positive",
}


@pytest.mark.parametrize("text", IMPOSSIBLE)
def test_what_cannot_be_says_why_and_where(tmp_path: Path, text: str) -> None:
    shapes: dict[str, tuple[int, ...]] = {"x": X.shape, "ref": SMALL.shape, "i": (3,), "s": (4,)}
    with (
        demitasse.compose(plugins=["caffe", "datasets", "training", "reference"]) as runtime,
        pytest.raises(demitasse.DemitasseError, match=IMPOSSIBLE[text]) as raised,
    ):
        net_below(runtime, tmp_path, text, **shapes)
    assert "net.prototxt:5: layer 'it'" in str(raised.value)


needs_prototxts = pytest.mark.skipif(
    not PROTOTXTS.is_dir(), reason=f"no real nets at {PROTOTXTS}; DEMITASSE_SHARED names their folder"
)
FCN, MOBILE, SQUEEZE = (
    "shelhamer+fcn.berkeleyvision.org",
    "shicai+MobileNet-Caffe",
    "DeepScale+SqueezeNet",
)
REAL = [
    f"{MOBILE}/mobilenet_deploy.prototxt",
    f"{MOBILE}/mobilenet_v2_deploy.prototxt",
    f"{SQUEEZE}/SqueezeNet_v1.0/deploy.prototxt",
    f"{SQUEEZE}/SqueezeNet_v1.1/deploy.prototxt",
    "songhan+SqueezeNet-Deep-Compression/SqueezeNet_deploy.prototxt",
    f"{FCN}/voc-fcn-alexnet/val.prototxt",
    *(
        pytest.param(f"{FCN}/{name}.prototxt", marks=pytest.mark.slow)
        for name in ("voc-fcn8s/deploy", "voc-fcn8s/val", "voc-fcn32s/val", "siftflow-fcn32s/test")
    ),
]


def with_inputs(text: str) -> str:
    """A net whose samples come from a Python layer, with blobs that the caller fills instead."""
    found = re.match(r'layer \{\s*name: "data"\s*type: "Python"(.*?)\n\}\n', text, re.S)
    if found is None:
        return text
    tops = re.findall(r'top: "(\w+)"', found.group(1))
    named = " ".join(f'top: "{top}"' for top in tops)
    channels = (3 if top == "data" else 1 for top in tops)
    shapes = " ".join(f"shape {{ dim: 1 dim: {count} dim: 96 dim: 128 }}" for count in channels)
    head = f'layer {{ name: "data" type: "Input" {named} input_param {{ {shapes} }} }}\n'
    return head + text[found.end() :]


@needs_prototxts
@pytest.mark.parametrize("file", REAL)
def test_real_nets_run(tmp_path: Path, file: str) -> None:
    """Nets made of deconvolutions, crops, and convolutions with a group for each channel."""
    (tmp_path / "net.prototxt").write_text(with_inputs((PROTOTXTS / file).read_text()))
    with demitasse.compose(plugins=["caffe", "datasets", "training", "cpu", "reference"]) as runtime:
        it = runtime.net(tmp_path / "net.prototxt")
        inputs = {}
        for name, tensor in it.graph.inputs.items():
            shape = (*tensor.shape[:2], 96, 128) if FCN in file else tensor.shape
            is_image = name == "data"
            inputs[name] = RNG.standard_normal(shape) if is_image else RNG.integers(0, 3, shape)
        for arrays in it.params.values():
            if len(arrays) == 3:  # a BatchNorm's mean, variance and what divides them
                arrays[1][...] = arrays[2][...] = 1
        found = it.forward(**inputs)
        assert found
        assert all(np.isfinite(array).all() for array in found.values())
        assert not [e.operation for e in it.plan.entries if e.candidate.kernel.startswith("numpy")]
        it.close()


@needs_prototxts
@pytest.mark.slow
def test_a_real_fcn_learns(tmp_path: Path) -> None:
    """FCN-AlexNet on one image, which it is given: forward, backward and updates below a deconvolution
    and a crop. The file has no fillers, for it starts from others' weights."""
    text = (PROTOTXTS / FCN / "voc-fcn-alexnet/train.prototxt").read_text()
    text = text.replace('type: "Python"', 'type: "Data" data_param { source: "given" batch_size: 1 }')
    text = re.sub(r"python_param \{.*?\n  \}", "", text, flags=re.S)
    text = text.replace("normalize: false", "normalize: true")
    text = text.replace("convolution_param {", 'convolution_param { weight_filler { type: "msra" }')
    text = re.sub(r'(type: "Deconvolution".*?)"msra"', r'\1"gaussian" std: 0.1', text, flags=re.S)
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: 5 momentum: 0.9'
    )
    label = np.repeat([0, 5], 40) * np.ones((1, 1, 64, 1))
    samples = {"data": RNG.standard_normal((1, 3, 64, 80)), "label": label}
    plugins = ["caffe", "datasets", "training", "snapshots", "cpu", "reference"]
    with demitasse.compose(plugins=plugins) as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt", data={"train": samples})
        losses = [trainer.step().loss for _ in range(5)]
    assert losses[4] < 0.9 * losses[0]
