"""Margins of cosines, and vectors of length 1: CosFace, ArcFace and NormFace, beside their formulas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slopes import parameter, slope, step, train

import demitasse

RANDOM = np.random.default_rng(8)
COSINES = np.cos(RANDOM.uniform(0.2, np.pi - 0.1, (7, 5)))
LABEL = np.array([4, 0, 1, 3, 2, 2, 0], float)
COSINES[0, 4], COSINES[1, 0] = np.cos(np.pi - 0.2), np.cos(0.3)  # beyond the turn, and near the vector
ROWS = np.arange(7), LABEL.astype(int)


@pytest.fixture(scope="module", params=["cpu", "reference"])
def runtime(request: Any) -> Iterator[Any]:
    names = ["caffe", "datasets", "training", "snapshots", "onnx", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(names))) as made:
        yield made


def cosface(x: np.ndarray, bias: float) -> np.ndarray:
    y = x.copy()
    own = x[ROWS]
    y[ROWS] = np.where(own > -bias, own + bias, own)
    return y


def arcface(x: np.ndarray, m: float) -> np.ndarray:
    y = x.copy()
    angle = np.arccos(x[ROWS])
    y[ROWS] = np.where(angle < np.pi - m, np.cos(angle + m), x[ROWS] - m * np.sin(m))
    return y


def loss_of(y: np.ndarray) -> float:
    shifted = 8 * (y - y.max(1, keepdims=True))
    return float(-(shifted - np.log(np.exp(shifted).sum(1, keepdims=True)))[ROWS].mean())


def net(kind: str, about: str) -> str:
    return parameter("x", COSINES) + (
        f'layer {{ name: "m" type: "{kind}" bottom: "x" bottom: "label" top: "y" {about} }}'
        'layer { name: "s" type: "Power" bottom: "y" top: "s" power_param { scale: 8 } }'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "s" bottom: "label" top: "loss" }'
    )


@pytest.mark.parametrize(
    ("kind", "about", "margin"),
    [
        ("LabelSpecificAdd", "label_specific_add_param { bias: -0.35 }", lambda x: cosface(x, -0.35)),
        ("CosinAddm", "", lambda x: arcface(x, 0.5)),
        ("CosinAddm", "cosin_add_m_param { m: 0.3 }", lambda x: arcface(x, 0.3)),
    ],
)
def test_a_margin_at_the_label_is_that_of_its_paper(
    runtime: Any, tmp_path: Path, kind: str, about: str, margin: Any
) -> None:
    with train(runtime, tmp_path, net(kind, about), LABEL) as trainer:
        loss, gradients = step(trainer, {"x": COSINES})
    assert loss == pytest.approx(loss_of(margin(COSINES)), rel=1e-12)
    expected = slope(lambda x: loss_of(margin(x)), COSINES)
    np.testing.assert_allclose(gradients["x"], expected, rtol=1e-6, atol=1e-9)


def test_at_the_vector_itself_the_gradient_is_as_without_a_margin(runtime: Any, tmp_path: Path) -> None:
    x = COSINES.copy()
    x[2, 1], x[3, 3] = 1.0, 1 + 1e-7  # products of float32 are now and then above 1
    with train(runtime, tmp_path, net("CosinAddm", ""), LABEL) as trainer:
        loss, gradients = step(trainer, {"x": x})
    y = arcface(x.clip(-1, 1), 0.5)
    assert loss == pytest.approx(loss_of(y), rel=1e-6)
    shifted = np.exp(8 * (y - y.max(1, keepdims=True)))
    share = shifted[2] / shifted[2].sum()
    np.testing.assert_allclose(gradients["x"][2], 8 / 7 * (share - np.eye(5)[1]), rtol=1e-6)
    assert np.isfinite(gradients["x"]).all()


def test_tests_have_arcfaces_margin_and_not_cosfaces(runtime: Any, tmp_path: Path) -> None:
    """As their forks have it; a label that is no class stops the run."""
    path = tmp_path / "net.prototxt"
    path.write_text(
        'layer { name: "in" type: "Input" top: "x" top: "label" input_param { '
        "shape { dim: 7 dim: 5 } shape { dim: 7 } } }"
        'layer { name: "a" type: "CosinAddm" bottom: "x" bottom: "label" top: "arc" }'
        'layer { name: "c" type: "LabelSpecificAdd" bottom: "x" bottom: "label" top: "cos" '
        "label_specific_add_param { bias: -0.35 transform_test: true } }"
    )
    with runtime.net(path, phase="test") as made:
        found = made.forward(x=COSINES, label=LABEL)
        np.testing.assert_allclose(found["arc"], arcface(COSINES, 0.5), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["cos"], COSINES, rtol=1e-6)
        with pytest.raises(demitasse.DemitasseError, match="5"):
            made.forward(x=COSINES, label=np.full(7, 5.0))


VECTORS = RANDOM.normal(size=(5, 4))
SAMPLES = RANDOM.normal(size=(7, 4))


def test_weights_of_length_1_learn_as_those_that_are_overwritten(runtime: Any, tmp_path: Path) -> None:
    """The fork divides the weights themselves by their lengths at each step; directions are compared."""
    text = parameter("x", SAMPLES) + (
        'layer { name: "unit" type: "Normalize" bottom: "x" top: "u" normalize_param { bp_norm: true } }'
        'layer { name: "ip" type: "InnerProduct" bottom: "u" top: "y" inner_product_param { '
        'num_output: 5 bias_term: false normalize: true weight_filler { type: "gaussian" std: 1 } } }'
        'layer { name: "s" type: "Power" bottom: "y" top: "s" power_param { scale: 8 } }'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "s" bottom: "label" top: "loss" }'
    )

    def unit(rows: np.ndarray) -> np.ndarray:
        return rows / np.sqrt((rows**2).sum(1, keepdims=True) + 1e-6)

    theirs, samples = VECTORS.copy(), SAMPLES.copy()
    with train(runtime, tmp_path, text, LABEL) as trainer:
        params = trainer.net.params
        params["x"][0][...], params["ip"][0][...] = SAMPLES, VECTORS
        for _ in range(3):
            theirs = unit(theirs)
            of_weights = slope(lambda w: loss_of(unit(samples) @ w.T), theirs)  # noqa: B023
            of_samples = slope(lambda x: loss_of(unit(x) @ theirs.T), samples)  # noqa: B023
            loss = trainer.step().loss
            assert loss == pytest.approx(loss_of(unit(samples) @ theirs.T), rel=1e-5)
            theirs, samples = theirs - of_weights, samples - of_samples
            ours = params["ip"][0]
            cosines = (unit(np.asarray(ours)) * unit(theirs)).sum(1)
            np.testing.assert_allclose(cosines, 1, atol=2e-5)
            np.testing.assert_allclose(params["x"][0], samples, rtol=1e-4, atol=1e-5)


def test_lengths_have_a_gradient_where_it_is_asked_for(runtime: Any, tmp_path: Path) -> None:
    x = RANDOM.normal(size=(7, 3, 2, 1))
    for field in ("bp_norm: true", ""):
        text = parameter("x", x) + (
            f'layer {{ name: "n" type: "Normalize" bottom: "x" top: "u" top: "length" '
            f"normalize_param {{ {field} }} }}"
            'layer { name: "i" type: "Silence" bottom: "u" }'
            'layer { name: "loss" type: "Reduction" bottom: "length" top: "loss" loss_weight: 1 '
            "reduction_param { operation: SUMSQ } }"
        )
        text += 'layer { name: "label_is_read" type: "Silence" bottom: "label" bottom: "data" }'
        if not field:
            text += (
                'layer { name: "more" type: "Reduction" bottom: "x" top: "more" loss_weight: 1 '
                "reduction_param { operation: SUM } }"
            )
        with train(runtime, tmp_path, text, LABEL) as trainer:
            loss, gradients = step(trainer, {"x": x})
        lengths = np.sqrt((x**2).sum(1) + 1e-6)
        if field:
            assert loss == pytest.approx((lengths**2).sum(), rel=1e-9)
            np.testing.assert_allclose(gradients["x"], 2 * x, rtol=1e-6)
        else:
            np.testing.assert_allclose(gradients["x"], np.ones_like(x), rtol=1e-9)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (
            "'CosinAddm' bottom: 'label' cosin_add_m_param { m: 4 }",
            "m: 4 } is not an angle from 0 to below",
        ),
        ("'LabelSpecificAdd' bottom: 'x'", "must be a row per sample, label .* a number each"),
        ("'Normalize' normalize_param { normalize_type: 'L1' }", "normalize_type L2 without fix_grad"),
        (
            "'Normalize' norm_param { eps: 1 } normalize_param { }",
            "norm_param belongs to SSD's Normalize",
        ),
        (
            "'InnerProduct' inner_product_param { num_output: 3 normalize: true transpose: true }",
            "normalize cannot be combined with transpose",
        ),
    ],
)
def test_what_margins_are_not_is_told(runtime: Any, tmp_path: Path, layer: str, said: str) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        "layer { name: 'in' type: 'Input' top: 'x' top: 'label' input_param { "
        "shape { dim: 7 dim: 5 } shape { dim: 7 } } }"
        f"layer {{ name: 'l' bottom: 'x' top: 'y' type: {layer} }}"
    )
    with pytest.raises(demitasse.ModelError, match=said):
        runtime.net(path, phase="train")
