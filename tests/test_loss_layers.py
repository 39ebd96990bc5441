"""Caffe's losses against formulas: values, gradients, normalisations, weights, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loss_formulas import (
    balance,
    contrast,
    cross_entropy,
    dice,
    hinges,
    picked,
    smooth,
    softmax,
    squared_contrast,
)
from slopes import parameter, slope, step, train

import demitasse

Arrays = list[np.ndarray]
RANDOM = np.random.default_rng(11)


@dataclass
class Case:
    """A loss layer of some learned blobs and a label, and the formula of its value."""

    type: str
    formula: Callable[..., Any]
    learned: Arrays
    label: np.ndarray | None
    parameters: str = ""
    more: dict[str, np.ndarray] = field(default_factory=dict)


def real(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape)


CLASSES = np.array([2.0, 0, 1, 3, 2])
PLANES = RANDOM.integers(0, 4, (5, 2, 3)).astype(float)
ALIKE = np.array([1.0, 0, 0, 1, 0])
TARGETS = RANDOM.uniform(0, 1, (5, 4))
SOME = np.where(RANDOM.uniform(size=(5, 4)) < 0.4, -1.0, TARGETS)
EDGES = np.array([[0, 1, 0, 0.4, 0, 1], [0] * 6, [1] * 6, [0.3] * 6, [1, 1, 0, 1, 0.5, 1]])


LAYERS = {
    "Euclidean": Case(
        "EuclideanLoss", lambda a, b, _: ((a - b) ** 2).sum() / 10, [real(5, 4), real(5, 4)], None
    ),
    "Euclidean of planes": Case(
        "EuclideanLoss",
        lambda a, b: ((a - b.reshape(a.shape)) ** 2).sum() / 10,
        [real(5, 2, 2, 3)],
        real(5, 12),
    ),
    "hinge": Case("HingeLoss", lambda x, t: hinges(x, t).sum() / 5, [real(5, 4)], CLASSES),
    "hinge squared": Case(
        "HingeLoss",
        lambda x, t: (hinges(x, t) ** 2).sum() / 5,
        [real(5, 2, 2, 1)],
        CLASSES,
        "hinge_loss_param { norm: L2 }",
    ),
    "multinomial": Case(
        "MultinomialLogisticLoss",
        lambda x, t: -np.log(picked(x, t.reshape(5), 1)).mean(),
        [softmax(real(5, 4))],
        CLASSES.reshape(5, 1, 1, 1),
    ),
    "sigmoid": Case(
        "SigmoidCrossEntropyLoss", lambda x, t: cross_entropy(x, t).sum() / 5, [real(5, 4)], TARGETS
    ),
    "sigmoid ignoring": Case(
        "SigmoidCrossEntropyLoss",
        lambda x, t: cross_entropy(x, t)[t != -1].mean(),
        [real(5, 4)],
        SOME,
        "loss_param { ignore_label: -1 normalization: VALID }",
    ),
    "sigmoid, older words": Case(
        "SigmoidCrossEntropyLoss",
        lambda x, t: cross_entropy(x, t)[t != -1].mean(),
        [real(5, 4)],
        SOME,
        "loss_param { ignore_label: -1 normalize: true }",
    ),
    "sigmoid over all": Case(
        "SigmoidCrossEntropyLoss",
        lambda x, t: cross_entropy(x, t).mean(),
        [real(5, 4)],
        TARGETS,
        "loss_param { normalization: FULL }",
    ),
    "sigmoid not normalised": Case(
        "SigmoidCrossEntropyLoss",
        lambda x, t: cross_entropy(x, t).sum(),
        [real(5, 4)],
        TARGETS,
        "loss_param { normalization: NONE }",
    ),
    "sigmoid, balanced": Case(
        "SigmoidCrossEntropyBalanceLoss",
        lambda x, t: (balance(t.reshape(x.shape)) * cross_entropy(x, t.reshape(x.shape))).sum() / 5,
        [real(5, 2, 3, 1)],
        EDGES,
    ),
    "dice": Case("DiceCoefLoss", lambda a, b, _: dice(a, b), [real(5, 2, 3, 1), real(5, 1, 3, 2)], None),
    "contrastive": Case(
        "ContrastiveLoss",
        contrast,
        [20 * real(5, 3), 20 * real(5, 3)],
        ALIKE,
        "contrastive_loss_param { margin: 60 }",
    ),
    "contrastive, squared": Case(
        "ContrastiveLoss",
        squared_contrast,
        [real(5, 3, 1, 1), real(5, 3, 1, 1)],
        ALIKE,
        "contrastive_loss_param { margin: 9 legacy_version: true }",
    ),
    "softmax": Case(
        "SoftmaxWithLoss",
        lambda x, t: -np.log(picked(softmax(x), t, 1)).mean(),
        [real(5, 4, 2, 3)],
        PLANES,
    ),
    "softmax, older words": Case(
        "SoftmaxWithLoss",
        lambda x, t: -np.log(picked(softmax(x), t, 1)).sum() / 5,
        [real(5, 4, 2, 3)],
        PLANES,
        "loss_param { normalize: false }",
    ),
    "softmax of a later axis": Case(
        "SoftmaxWithLoss",
        lambda x, t: -np.log(picked(softmax(x, 2), t, 2))[t != 1].sum() / 10,
        [real(5, 2, 4, 3)],
        PLANES,
        "softmax_param { axis: 2 } loss_param { normalization: BATCH_SIZE ignore_label: 1 }",
    ),
    "smooth": Case(
        "SmoothL1Loss", lambda a, b, _: smooth(a - b, 1).sum() / 5, [real(5, 4), real(5, 4)], None
    ),
    "absolute": Case(
        "L1Loss", lambda a, b, _: np.abs(a - b).sum() / 5, [real(5, 2, 3, 1), real(5, 2, 3, 1)], None
    ),
    "smooth of planes, weighted inside and outside": Case(
        "SmoothL1Loss",
        lambda a, b, inside, outside, _: (outside * smooth(inside * (a - b), 9)).sum() / 5,
        [real(5, 2, 2, 3), real(5, 2, 2, 3), real(5, 2, 2, 3), real(5, 2, 2, 3)],
        None,
        "smooth_l1_loss_param { sigma: 3 }",
    ),
    "smooth, over a number that is given": Case(
        "SmoothL1LossOHEM",
        lambda a, b, inside: smooth(inside.reshape(5, 4) * (a - b), 1).sum() / 128,
        [real(5, 4), real(5, 4)],
        real(5, 4),
        "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 128 }",
    ),
    "smooth, over places": Case(
        "SmoothL1LossOHEM",
        lambda a, b, _: smooth(a - b, 1).sum() / 30,
        [real(5, 4, 2, 3), real(5, 4, 2, 3)],
        None,
    ),
    "softmax over a number that is given": Case(
        "SoftmaxWithLoss",
        lambda x, t: -np.log(picked(softmax(x, 1), t, 1))[t != 1].sum() / 2.5,
        [real(5, 4, 2, 3)],
        PLANES,
        "loss_param { normalization: PRE_FIXED pre_fixed_normalizer: 2.5 ignore_label: 1 }",
    ),
    "smooth, weighted inside": Case(
        "SmoothL1Loss",
        lambda a, b, inside: smooth(inside.reshape(5, 4) * (a - b), 1).sum() / 5,
        [real(5, 4), real(5, 4)],
        real(5, 4),
    ),
}


def net(case: Case, layer: str = "") -> str:
    """Parameters as blobs x0, x1, a label, and the loss."""
    text, bottoms = [], []
    for number, value in enumerate(case.learned):
        text.append(parameter(f"x{number}", value))
        bottoms.append(f'bottom: "x{number}"')
    if case.label is not None:
        bottoms.append('bottom: "label"')
    text.append(
        layer
        or f'layer {{ name: "loss" type: "{case.type}" {" ".join(bottoms)} top: "loss" '
        f"{case.parameters} }}"
    )
    return "\n".join(text)


@pytest.fixture(params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


@pytest.mark.parametrize("precision", ["f32", "f64"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_loss_and_its_gradients_are_the_formula_s(
    runtime: Any, tmp_path: Path, name: str, precision: str
) -> None:
    case = LAYERS[name]
    label = np.zeros(5) if case.label is None else case.label
    trainer = train(runtime, tmp_path, net(case), label, precision)
    kind = "float32" if precision == "f32" else "float64"
    values = {f"x{i}": x.astype(kind) for i, x in enumerate(case.learned)}
    loss, gradients = step(trainer, values)
    within = 1e-5 if precision == "f32" or case.type == "ContrastiveLoss" else 1e-8
    exact = [v.astype(np.float64) for v in values.values()]
    assert loss == pytest.approx(
        float(case.formula(*exact, label)), rel=1e-5 if kind == "float32" else 1e-12
    )
    for position, gradient in enumerate(gradients.values()):

        def moved(x: np.ndarray, position: int = position) -> float:
            return float(case.formula(*exact[:position], x, *exact[position + 1 :], label))

        expected = slope(moved, exact[position])
        scale = np.abs(expected).max() + (np.abs(exact[position]).max() if kind == "float32" else 0)
        np.testing.assert_allclose(gradient, expected, rtol=within, atol=within * scale)


# What is particular.


def infogain(parameters: str, third: str = "") -> str:
    return (
        f'layer {{ name: "loss" type: "InfogainLoss" bottom: "x0" bottom: "label" {third} top: "loss" '
        f"{parameters} }}"
    )


def gained(x: np.ndarray, label: np.ndarray, matrix: np.ndarray) -> Any:
    """For each prediction along axis 1: minus the sum of gains times logarithms."""
    logarithms = np.moveaxis(np.log(softmax(x)), 1, -1)
    return -(matrix[label.astype(int)] * logarithms).sum(-1)


MATRIX = RANDOM.uniform(0, 2, (4, 4)).astype(np.float32).astype(np.float64)


@pytest.mark.parametrize(
    ("parameters", "formula"),
    [
        ("", lambda x, t: gained(x, t, MATRIX).mean()),
        ("loss_param { normalization: BATCH_SIZE }", lambda x, t: gained(x, t, MATRIX).sum() / 5),
        ("loss_param { ignore_label: 2 }", lambda x, t: gained(x, t, MATRIX)[t != 2].mean()),
    ],
)
def test_infogain_reads_its_matrix_from_a_file(
    runtime: Any, tmp_path: Path, parameters: str, formula: Callable[..., Any]
) -> None:
    from demitasse_caffe.schema import wire_classes

    blob = wire_classes()["BlobProto"]()
    blob.shape.dim.extend((1, 1, 4, 4))
    blob.data.append(MATRIX.astype("<f4").tobytes())
    (tmp_path / "matrix.binaryproto").write_bytes(blob.SerializeToString())
    case = Case("InfogainLoss", formula, [real(5, 4, 2, 3)], PLANES)
    source = f'infogain_loss_param {{ source: "matrix.binaryproto" }} {parameters}'
    trainer = train(runtime, tmp_path, net(case, infogain(source)), PLANES)
    loss, gradients = step(trainer, {"x0": case.learned[0]})
    assert loss == pytest.approx(formula(case.learned[0], PLANES), rel=1e-12)
    expected = slope(lambda x: formula(x, PLANES), case.learned[0])
    np.testing.assert_allclose(gradients["x0"], expected, rtol=1e-7, atol=1e-9)


def test_infogain_takes_its_matrix_from_a_bottom(runtime: Any, tmp_path: Path) -> None:
    """The matrix may change, but no gradient reaches it; the second top is the softmax."""
    x, matrix = real(5, 4), MATRIX + 1
    case = Case("InfogainLoss", gained, [x, matrix], CLASSES)
    layer = infogain('top: "share"', 'bottom: "x1"')
    trainer = train(runtime, tmp_path, net(case, layer), CLASSES)
    loss, gradients = step(trainer, {"x0": x, "x1": matrix})
    assert loss == pytest.approx(gained(x, CLASSES, matrix).mean(), rel=1e-12)
    expected = slope(lambda x: gained(x, CLASSES, matrix).mean(), x)
    np.testing.assert_allclose(gradients["x0"], expected, rtol=1e-7, atol=1e-9)
    assert not gradients["x1"].any()


def test_the_contrastive_gradient_has_caffe_s_guard_against_no_distance(
    runtime: Any, tmp_path: Path
) -> None:
    a, b = np.array([[0.001, 0.0], [0.0, 0.0], [1.0, 1.0]]), np.zeros((3, 2))
    case = Case("ContrastiveLoss", contrast, [a, b], np.array([0.0, 0, 1]))
    trainer = train(runtime, tmp_path, net(case), case.label)  # type: ignore[arg-type]
    _, gradients = step(trainer, {"x0": a, "x1": b})
    pushed = -(1 - 0.001) / (0.001 + 1e-4) * 0.001 / 3
    expected = np.array([[pushed, 0], [0, 0], [1 / 3, 1 / 3]])
    np.testing.assert_allclose(gradients["x0"], expected, rtol=1e-12)
    np.testing.assert_allclose(gradients["x1"], -expected, rtol=1e-12)


def test_large_scores_make_no_infinite_cross_entropy(runtime: Any, tmp_path: Path) -> None:
    x, target = np.array([[900.0, -900.0, 900.0]]), np.array([[1.0, 0.0, 0.0]])
    case = Case("SigmoidCrossEntropyLoss", cross_entropy, [x], target)
    loss, gradients = step(train(runtime, tmp_path, net(case), target, "f32"), {"x0": x})
    assert loss == 900
    np.testing.assert_allclose(gradients["x0"], [[0, 0, 1]], atol=1e-4)


def test_a_label_that_is_no_class_is_an_error(runtime: Any, tmp_path: Path) -> None:
    for kind in ("HingeLoss", "MultinomialLogisticLoss"):
        case = Case(kind, hinges, [softmax(real(3, 4))], np.array([0.0, 4, 1]))
        trainer = train(runtime, tmp_path, net(case), case.label)  # type: ignore[arg-type]
        with pytest.raises(demitasse.DataError, match="label 4 of sample 1 of the batch"):
            trainer.step()


@pytest.mark.parametrize(
    ("kind", "bottoms", "parameters", "message"),
    [
        ("EuclideanLoss", [real(5, 4), real(5, 3)], "", "a .* has 20 values, b .* 15"),
        ("EuclideanLoss", [real(5, 4), real(4, 5)], "", "do not have the same first dimension"),
        ("HingeLoss", [real(5, 4), real(5, 2)], "", "label .* has 10 values, x .* 5 samples"),
        ("InfogainLoss", [real(5, 4), real(5)], "", "a third bottom, or infogain_loss_param"),
        ("InfogainLoss", [real(5, 4), real(5), real(3, 3)], "", "4 classes need 4 x 4"),
        (
            "InfogainLoss",
            [real(5, 4), real(5), real(4, 4)],
            "loss_param { normalize: true }",
            "write normalization",
        ),
        (
            "InfogainLoss",
            [real(5, 4), real(5)],
            'infogain_loss_param { source: "nowhere.binaryproto" }',
            "nowhere.binaryproto",
        ),
        ("ContrastiveLoss", [real(5, 4), real(5, 4)], "", r"has 2 bottoms \(x0, x1\), not 3"),
        ("ContrastiveLoss", [real(5, 4), real(5, 3), real(5)], "", "vectors of one length"),
        ("SigmoidCrossEntropyLoss", [real(5, 4), real(5, 2)], "", "x .* 20 values, target .* 10"),
        (
            "HingeLoss",
            [real(5, 4), real(5)],
            "loss_weight: 1 loss_weight: 0",
            "2 loss_weight for 1 tops",
        ),
    ],
)
def test_a_loss_that_cannot_be_says_why_and_where(
    tmp_path: Path, kind: str, bottoms: Arrays, parameters: str, message: str
) -> None:
    case = Case(kind, hinges, bottoms, None, parameters)
    with demitasse.compose(plugins=["caffe", "training", "reference"]) as runtime:
        (tmp_path / "net.prototxt").write_text(net(case))
        with pytest.raises(demitasse.ModelError, match=rf"net.prototxt:\d+: layer 'loss'.*{message}"):
            runtime.net(tmp_path / "net.prototxt", phase="train")


def test_losses_run_in_the_test_phase(runtime: Any, tmp_path: Path) -> None:
    x = real(5, 4)
    text = """
layer { name: "x" type: "Input" top: "x" top: "label" top: "same"
  input_param { shape { dim: 5 dim: 4 } shape { dim: 5 } shape { dim: 5 dim: 4 } } }
layer { name: "hinge" type: "HingeLoss" bottom: "x" bottom: "label" top: "hinge" }
layer { name: "apart" type: "EuclideanLoss" bottom: "x" bottom: "same" top: "apart" loss_weight: 0 }
"""
    (tmp_path / "net.prototxt").write_text(text)
    made = runtime.net(tmp_path / "net.prototxt", precision="f64")
    outputs = made.forward(x=x, label=CLASSES, same=x + 2)
    assert outputs["hinge"] == pytest.approx(hinges(x, CLASSES).sum() / 5)
    assert outputs["apart"] == pytest.approx(4 * 4 / 2)
