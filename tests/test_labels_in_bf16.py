"""A bf16 plan rounds measures. Labels and indices stay whole numbers, whatever moves or shifts them: of
those above 256 16 bits keep every second, fourth, eighth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from small_nets import inputs, net_below

import demitasse
from demitasse import Runtime, Weights

SAMPLES, CLASSES = 16, 1001
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(scale=8, size=(SAMPLES, CLASSES)).astype(np.float32)
TWO = RANDOM.integers(300, CLASSES - 1, size=(SAMPLES, 2)).astype(np.float32)

MOVED = {
    "Power": 'layer { type: "Slice" bottom: "two" top: "a" top: "b" slice_param { axis: 1 } }'
    'layer { type: "Power" bottom: "b" top: "label" power_param { shift: 1 } }',
    "Slice": 'layer { type: "Slice" bottom: "two" top: "a" top: "label" slice_param { axis: 1 } }',
    "Concat": 'layer { type: "Slice" bottom: "two" top: "a" top: "b" slice_param { axis: 1 } }'
    'layer { type: "Concat" bottom: "b" bottom: "a" top: "c" }'
    'layer { type: "Slice" bottom: "c" top: "label" top: "d" slice_param { axis: 1 } }',
    "Eltwise": 'layer { type: "Slice" bottom: "two" top: "a" top: "b" slice_param { axis: 1 } }'
    'layer { type: "Eltwise" bottom: "a" bottom: "b" top: "c" eltwise_param { coeff: 1 coeff: -1 } }'
    'layer { type: "Eltwise" bottom: "a" bottom: "c" top: "label" eltwise_param { coeff: 1 coeff: -1 } '
    "}",
    "Permute": 'layer { type: "Permute" bottom: "two" top: "c" permute_param { order: 1 order: 0 } }'
    'layer { type: "Slice" bottom: "c" top: "d" top: "label" slice_param { axis: 0 } }',
}
READS = """
layer { type: "Power" bottom: "x" top: "twice" power_param { scale: 2 } }
layer { type: "SoftmaxWithLoss" bottom: "twice" bottom: "label" top: "loss" }
"""
SEEN = """
layer { type: "Python" bottom: "label" top: "seen" python_param { module: "sees" layer: "Sees" } }
"""
SEES = """
import demitasse_caffe.pycaffe as caffe

class Sees(caffe.Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data

    def backward(self, top, propagate_down, bottom):
        pass
"""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with demitasse.compose() as composed:
        yield composed


def with_the_largest_at(classes: np.ndarray) -> np.ndarray:
    x = X.copy()
    x[np.arange(SAMPLES), classes.astype(int)] = 99
    return x


def near(found: np.ndarray, expected: np.ndarray) -> None:
    """To what bf16 keeps of a number."""
    np.testing.assert_allclose(found, expected, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize("kind", MOVED)
def test_labels_come_whole_to_a_loss(runtime: Runtime, tmp_path: Path, kind: str) -> None:
    net = net_below(runtime, tmp_path, MOVED[kind] + READS, "bf16", x=X.shape, two=TWO.shape)
    assert any(b.spec.stored == "bfloat16" for e in net.plan.entries for b in e.outputs if b)
    x = with_the_largest_at(TWO[:, 1] + (kind == "Power"))
    assert net.forward(x=x, two=TWO)["loss"] < 1e-6


@pytest.mark.parametrize("kind", MOVED)
def test_labels_come_whole_to_whoever_looks_at_an_output(
    runtime: Runtime, tmp_path: Path, kind: str
) -> None:
    net = net_below(runtime, tmp_path, MOVED[kind], "bf16", two=TWO.shape)
    found = net.forward(two=TWO)["label"].ravel()
    assert np.array_equal(found, TWO[:, 1] + (kind == "Power"))


def test_boxes_lie_where_the_priors_are(runtime: Runtime, tmp_path: Path) -> None:
    """To 8 bits an edge in an image of 300 pixels would be off by half of one."""
    layers = 'layer { type: "Input" top: "map" input_param { shape { dim: 1 dim: 1 dim: 5 dim: 5 } } }'
    for size in (21, 33):
        layers += f'layer {{ type: "PriorBox" bottom: "map" bottom: "x" top: "p{size}" '
        layers += f"prior_box_param {{ min_size: {size} variance: 0.1 }} }}"
    layers += 'layer { type: "Concat" bottom: "p21" bottom: "p33" top: "p" concat_param { axis: 2 } }'
    layers += 'layer { type: "DetectionOutput" bottom: "told" bottom: "sure" bottom: "p" top: "found" '
    layers += "detection_output_param { num_classes: 2 code_type: CENTER_SIZE keep_top_k: 50 "
    layers += "nms_param { nms_threshold: 0.99 } } }"
    shapes = {"x": (1, 3, 100, 100), "told": (1, 200), "sure": (1, 100)}
    net = net_below(runtime, tmp_path, layers, "bf16", **shapes)
    sure = RANDOM.permutation(np.linspace(0.1, 0.9, 50)).astype(np.float32)
    both = np.stack([1 - sure, sure], 1).reshape(1, 100)
    found = net.forward(told=np.zeros(shapes["told"]), sure=both)["found"].reshape(-1, 7)
    centres = (np.arange(5) + 0.5) / 5
    expected = [
        [x - half, y - half, x + half, y + half]
        for half in (0.105, 0.165)
        for y in centres
        for x in centres
    ]
    np.testing.assert_allclose(found[:, 3:], np.array(expected)[np.argsort(-sure)], atol=1e-6)


def test_a_loss_is_divided_in_full(runtime: Runtime, tmp_path: Path) -> None:
    layers = 'layer { type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" loss_param { '
    layers += "normalization: PRE_FIXED pre_fixed_normalizer: 7 } }"
    net = net_below(runtime, tmp_path, layers, "bf16", x=(4, 3), label=(4,))
    x = np.array([[1, 2, 0], [0.5, 0, 1], [2, 2, 1], [0, 0, 3]], np.float32)  # as 16 bits have them
    expected = (np.log(np.exp(x.astype(np.float64)).sum(1)) - x[:, 0]).sum() / 7
    np.testing.assert_allclose(net.forward(x=x, label=np.zeros(4))["loss"], expected, rtol=1e-6)


def test_an_index_that_is_found_in_what_is_learned_is_whole(runtime: Runtime, tmp_path: Path) -> None:
    layers = f"""
    layer {{ name: "same" type: "InnerProduct" bottom: "x" top: "y"
      inner_product_param {{ num_output: {CLASSES} bias_term: false }} }}
    layer {{ name: "most" type: "ArgMax" bottom: "y" top: "most" }}
    layer {{ name: "next" type: "Power" bottom: "most" top: "next" power_param {{ shift: 1 }} }}
    layer {{ name: "row" type: "Embed" bottom: "next" top: "row"
      embed_param {{ num_output: 1 input_dim: {CLASSES + 1} bias_term: false }} }}"""
    path = tmp_path / "net.prototxt"
    path.write_text(inputs(x=X.shape) + layers)
    rows = RANDOM.normal(size=(CLASSES + 1, 1)).astype(np.float32)
    weights = Weights({"same": [np.eye(CLASSES, dtype=np.float32)], "row": [rows]})
    net = runtime.net(path, weights=weights, precision="bf16")
    found = net.forward(x=with_the_largest_at(TWO[:, 0]))["row"]
    near(np.ravel(found), rows[TWO[:, 0].astype(int) + 1, 0])


def test_a_user_s_code_is_given_whole_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sees.py").write_text(SEES)
    monkeypatch.syspath_prepend(str(tmp_path))
    with demitasse.compose(plugins=["+python_layer"]) as runtime:
        net = net_below(runtime, tmp_path, MOVED["Power"] + SEEN, "bf16", two=TWO.shape)
        assert np.array_equal(np.ravel(net.forward(two=TWO)["seen"]), TWO[:, 1] + 1)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ('"LabelSpecificAdd" label_specific_add_param { bias: -0.35 }', lambda x: x - 0.35 * (x > 0.35)),
        (
            '"CosinAddm" cosin_add_m_param { m: 0.5 }',
            lambda x: np.where(
                x > np.cos(np.pi - 0.5), np.cos(np.arccos(x) + 0.5), x - 0.5 * np.sin(0.5)
            ),
        ),
    ],
    ids=["CosFace", "ArcFace"],
)
def test_a_margin_is_at_the_label(
    runtime: Runtime, tmp_path: Path, layer: str, expected: Callable[[np.ndarray], np.ndarray]
) -> None:
    cosines, label = np.clip(X / 16, -1, 1), TWO[:, 0].astype(int)
    text = inputs(x=X.shape, label=(SAMPLES,))
    text += f'layer {{ bottom: "x" bottom: "label" top: "y" type: {layer} }}'
    text += 'layer { type: "Power" bottom: "y" top: "z" power_param { scale: 2 } }'
    path = tmp_path / "net.prototxt"
    path.write_text(text)
    net = runtime.net(path, phase="train", precision="bf16")
    right = cosines.astype(np.float64)
    right[np.arange(SAMPLES), label] = expected(right[np.arange(SAMPLES), label])
    near(net.forward(x=cosines, label=label.astype(np.float32))["z"], 2 * right)
