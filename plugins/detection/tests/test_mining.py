"""R-FCN's hardest regions compared with a slow implementation of its authors' loops; their gradients;
mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse

PROPERTY = settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
OF_PLACES = (
    "layer { name: 'b' type: 'SmoothL1LossOHEM' bottom: 'told' bottom: 'target' bottom: 'inside' "
    "top: 'all' top: 'each' loss_weight: 0 loss_weight: 0 }\n"
)
OF_CLASSES = (
    "layer {{ name: 'c' type: 'SoftmaxWithLossOHEM' bottom: 'x' bottom: 'label' top: 'all' top: 'p' "
    "top: 'each' {} }}\n"
)
ANNOTATOR = (
    "layer {{ name: 'a' type: 'BoxAnnotatorOHEM' bottom: 'rois' bottom: 'losses' bottom: 'label' "
    "bottom: 'weights' top: 'kept' top: 'inside' box_annotator_ohem_param {{ {} }} }}\n"
)


def slow(
    regions: np.ndarray, losses: np.ndarray, label: np.ndarray, weights: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Choose region by region, the largest loss first, until an image has ``count`` regions."""
    kept, inside = np.full_like(label, -7), np.zeros_like(weights)
    left: dict[float, int] = {}
    places = [(n, i, j) for n in range(len(regions)) for i, j in np.ndindex(regions.shape[2:])]
    for n, i, j in sorted(places, key=lambda place: -losses[place[0], 0, place[1], place[2]]):
        image = regions[n, 0, i, j]
        if left.setdefault(image, count) > 0:
            left[image] -= 1
            kept[n, 0, i, j] = label[n, 0, i, j]
            inside[n, :, i, j] = weights[n, :, i, j]
    return kept, inside


@given(st.integers(0, 999), st.integers(1, 12), st.integers(1, 8), st.sampled_from([(1, 1), (2, 3)]))
@PROPERTY
def test_the_hardest_regions_are_the_authors(
    run: Any, seed: int, samples: int, count: int, plane: tuple[int, int]
) -> None:
    dice = np.random.default_rng(seed)
    regions = dice.normal(size=(samples, 5, *plane))
    regions[:, 0] = dice.integers(0, 3, (samples, *plane))
    losses = np.round(dice.uniform(0, 2, (samples, 1, *plane)), 1)  # some are equal: the first counts
    label = dice.integers(0, 21, losses.shape).astype(float)
    weights = dice.uniform(1, 2, (samples, 8, *plane))
    made = run(
        ANNOTATOR.format(f"roi_per_img: {count} ignore_label: -7"),
        rois=regions, losses=losses, label=label, weights=weights,
    )  # fmt: skip
    kept, inside = slow(regions, losses, label, weights, count)
    np.testing.assert_array_equal(made["kept"], kept)
    np.testing.assert_array_equal(made["inside"], inside)


@pytest.mark.parametrize("plane", [(), (1, 1), (2, 3)])
def test_the_loss_of_each_place_is_its_part_of_all(run: Any, plane: tuple[int, ...]) -> None:
    dice = np.random.default_rng(4)
    told, target, inside = dice.normal(0, 1.5, (3, 5, 8, *plane))
    made = run(OF_PLACES, told=told, target=target, inside=inside)
    d = np.abs(inside * (told - target))
    each = np.where(d < 1, d * d / 2, d - 0.5).sum(1, keepdims=True)
    np.testing.assert_allclose(made["each"].reshape(each.shape), each, rtol=1e-12)
    assert made["each"].shape == (5, 1, *(plane or (1, 1)))
    assert float(made["all"]) == pytest.approx(each.sum() / each.size)


@pytest.mark.parametrize(
    ("fields", "over"),
    [
        ("loss_param { ignore_label: -1 }", 8),
        ("loss_param { normalization: FULL ignore_label: -1 }", 10),
        ("loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 4 ignore_label: -1 }", 4),
        ("loss_param { normalize: false ignore_label: -1 }", 5),
    ],
)
def test_the_loss_of_each_label_is_its_part_of_all(run: Any, fields: str, over: float) -> None:
    dice = np.random.default_rng(5)
    x, label = dice.normal(0, 3, (5, 4, 2, 1)), dice.integers(0, 4, (5, 1, 2, 1)).astype(float)
    label[1, 0, 0], label[4, 0, 1] = -1, -1
    x[2, :, 1, 0] = [0, 0, 0, -300]
    label[2, 0, 1] = 3  # a label whose probability is 0 in single precision
    made = run(OF_CLASSES.format(fields), x=x, label=label)
    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    own = np.take_along_axis(p, np.maximum(label, 0).astype(int), 1)
    each = np.where(label < 0, 0, -np.log(np.maximum(own, np.finfo("f4").tiny)))
    np.testing.assert_allclose(made["each"], each, rtol=1e-9)
    np.testing.assert_allclose(made["p"], p, rtol=1e-9)
    assert float(made["all"]) == pytest.approx(np.where(label < 0, 0, -np.log(own)).sum() / over)


RFCN = (
    OF_CLASSES.format("loss_weight: 0 loss_weight: 0 loss_weight: 0 propagate_down: 0 propagate_down: 0")
    .replace("'all'", "'all_c'")
    .replace("'each'", "'each_c'")
    + OF_PLACES.replace("'all'", "'all_b'").replace("'each'", "'each_b'")
    + """
layer { name: 'e' type: 'Eltwise' bottom: 'each_c' bottom: 'each_b' top: 'losses' }
layer { name: 's' type: 'Silence' bottom: 'all_c' bottom: 'p' bottom: 'all_b' }
"""
    + ANNOTATOR.format("roi_per_img: 3")
    .replace("'weights'", "'inside'")
    .replace("top: 'inside'", "top: 'w'")
    + """
layer { name: 'l' type: 'SoftmaxWithLoss' bottom: 'x' bottom: 'kept' top: 'l'
  loss_param { ignore_label: -1 } }
layer { name: 'm' type: 'SmoothL1LossOHEM' bottom: 'told' bottom: 'target' bottom: 'w' top: 'm'
  loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 3 } }
"""
)


def test_what_is_learned_is_of_the_hardest_regions(runtime: demitasse.Runtime, tmp_path: Path) -> None:
    """Runs one iteration of the part of R-FCN's nets after the regions: the parameters change by the
    gradient of the losses over the three hardest of seven regions of an image."""
    dice = np.random.default_rng(6)
    x, told = dice.normal(0, 2, (7, 4)), dice.normal(0, 1, (7, 8))
    blobs = {
        "rois": np.concatenate([np.zeros((7, 1)), dice.uniform(0, 9, (7, 4))], 1),
        "label": np.array([0, 1, 3, 0, 2, 1, 1.0]).reshape(7, 1, 1, 1),
        "target": dice.normal(0, 1, (7, 8, 1, 1)),
        "inside": dice.integers(0, 2, (7, 8, 1, 1)).astype(float),
    }
    net = tmp_path / "net.prototxt"
    net.write_text(
        "".join(
            f"layer {{ name: '{name}' type: 'Parameter' top: '{name}' parameter_param "
            f"{{ shape {{ {' '.join(f'dim: {extent}' for extent in value.shape)} }} }} "
            f"param {{ lr_mult: {rate} }} }}\n"
            for name, value, rate in [
                ("x", x[:, :, None, None], 1), ("told", told[:, :, None, None], 1),
                *((name, value, 0) for name, value in blobs.items()),
            ]
        )
        + RFCN
    )  # fmt: skip
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        f'net: "{net}" base_lr: 1 lr_policy: "fixed" max_iter: 1 display: 0 snapshot_prefix: "n" '
    )
    given = {"x": x[:, :, None, None], "told": told[:, :, None, None], **blobs}
    weights = demitasse.Weights({name: [value] for name, value in given.items()})
    trainer = runtime.trainer(solver, precision="f64", weights=weights)
    loss = float(trainer.step(1).loss)

    p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    label, target, inside = (blobs[n].reshape(7, -1) for n in ("label", "target", "inside"))
    d = inside * (told - target)
    of_classes = -np.log(np.take_along_axis(p, label.astype(int), 1))[:, 0]
    of_places = np.where(np.abs(d) < 1, d * d / 2, np.abs(d) - 0.5).sum(1)
    hard = np.argsort(-(of_classes + of_places))[:3]
    assert loss == pytest.approx((of_classes[hard].sum() + of_places[hard].sum()) / 3)
    dx, dtold = np.zeros_like(x), np.zeros_like(told)
    dx[hard] = (p - np.eye(4)[label[:, 0].astype(int)])[hard] / 3
    dtold[hard] = (inside * np.clip(d, -1, 1))[hard] / 3
    after = {name: np.array(trainer.net.params[name][0]) for name in ("x", "told")}
    trainer.close()
    np.testing.assert_allclose(after["x"].reshape(7, 4), x - dx, atol=1e-12)
    np.testing.assert_allclose(after["told"].reshape(7, 8), told - dtold, atol=1e-12)


@pytest.mark.parametrize(
    ("layer", "shapes", "message"),
    [
        (ANNOTATOR.format(""), {}, r"roi_per_img } must be 1 or more"),
        (ANNOTATOR.format("roi_per_img: 1"), {"rois": (3, 4)}, "are not rows of 5 numbers"),
        (
            ANNOTATOR.format("roi_per_img: 1"),
            {"losses": (2, 1)},
            r"losses \(2, 1\) does not have one number for each of 3",
        ),
        (ANNOTATOR.format("roi_per_img: 1"), {"weights": (2, 8)}, "are not a row for each of regions"),
        (OF_CLASSES.format("softmax_param { axis: 4 }"), {}, "axis 4 is not one of the 2 axes of"),
        (OF_CLASSES.format("propagate_down: true"), {}, "needs a propagate_down for each of 2"),
        (
            OF_CLASSES.format("loss_param { normalization: PRE_FIXED pre_fixed_normalizer: nan }"),
            {},
            "pre_fixed_normalizer nan is not a finite number",
        ),
        (OF_PLACES, {"told": (3,), "target": (3,), "inside": (3,)}, "is not samples x channels x rows"),
    ],
)
def test_a_wrong_layer_is_told_with_its_line(
    run: Callable[..., Any], layer: str, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    usual = {
        "a": {"rois": (3, 5), "losses": (3, 1), "label": (3, 1), "weights": (3, 8)},
        "c": {"x": (3, 4), "label": (3, 1)},
        "b": {},
    }
    name = layer.split("'")[1]
    arrays = {n: np.zeros(shape) for n, shape in {**usual[name], **shapes}.items()}
    with pytest.raises(demitasse.ModelError, match=message) as caught:
        run(layer, **arrays)
    assert f"net.prototxt:{len(arrays) + 1}" in str(caught.value)


def test_what_is_no_region_or_class_is_an_error(run: Any) -> None:
    rois, column = np.zeros((3, 5)), np.zeros((3, 1))
    rois[1, 0] = 0.5
    where = r"net.prototxt:5: layer 'a' \(BoxAnnotatorOHEM\): region 1 has image 0.5"
    with pytest.raises(demitasse.DataError, match=where):
        run(
            ANNOTATOR.format("roi_per_img: 1"),
            rois=rois, losses=column, label=column, weights=np.zeros((3, 8)),
        )  # fmt: skip
    column[2] = 4
    with pytest.raises(demitasse.DataError, match=r"label .*4"):
        run(OF_CLASSES.format(""), x=np.zeros((3, 4)), label=column)
