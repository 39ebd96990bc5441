"""A step of several workers, each with its share of the samples, is the step of one who has them all,
whether an objective is a mean over samples, a sum, or a number for each of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_nets import WORKERS

import demitasse

SAMPLES, CLASSES = 7, 4
NET = """
name: "objective"
layer {{ name: "data" type: "Data" top: "data" top: "label"
        data_param {{ source: "given" batch_size: {batch} }} }}
layer {{ name: "hidden" type: "InnerProduct" bottom: "data" top: "hidden"
        inner_product_param {{ num_output: 5 weight_filler {{ type: "gaussian" std: 0.5 }} }} }}
layer {{ name: "tanh" type: "TanH" bottom: "hidden" top: "hidden" }}
layer {{ name: "score" type: "InnerProduct" bottom: "hidden" top: "score" {weighted}
        inner_product_param {{ num_output: {outputs} weight_filler {{ type: "gaussian" std: 0.5 }} }} }}
"""
SOLVER = """
net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 3 random_seed: 4 {more}
snapshot_after_train: false
"""


def loss(kind: str, *bottoms: str, more: str = "", top: str = "loss") -> str:
    """A layer that reads those blobs."""
    reads = " ".join(f'bottom: "{name}"' for name in bottoms)
    return f'layer {{ name: "{top}" type: "{kind}" {reads} top: "{top}" {more} }}\n'


def normalized(kind: str, *, by: str) -> str:
    targets = "label" if kind == "SoftmaxWithLoss" else "data"
    return loss(kind, "score", targets, more=f"loss_param {{ normalization: {by} }}")


def reduced(operation: str, axis: int, weight: str = "loss_weight: 0.3", top: str = "loss") -> str:
    more = f"reduction_param {{ operation: {operation} axis: {axis} }} {weight}"
    return loss("Reduction", "score", more=more, top=top)


PENALTY = """
layer { name: "given" type: "Parameter" top: "given" parameter_param { shape { dim: 3 } } }
layer { name: "moved" type: "Power" bottom: "given" top: "moved" power_param { shift: 1 } }
layer { name: "size" type: "Reduction" bottom: "moved" top: "size" loss_weight: 0.2
        reduction_param { operation: SUMSQ } }
"""
HALVED = 'layer { name: "half" type: "Power" bottom: "loss" top: "half" power_param { scale: 0.5 } }\n'

OBJECTIVES = {
    **{
        f"{kind} {by}": normalized(kind, by=by)
        for kind in ("SoftmaxWithLoss", "SigmoidCrossEntropyLoss")
        for by in ("VALID", "FULL", "BATCH_SIZE", "NONE")
    },
    "SoftmaxWithLoss of weighted classes": loss(
        "SoftmaxWithLoss",
        "score",
        "label",
        more="loss_param { weight_by_label_freqs: true class_weighting: [0.5, 3, 1, 2] }",
    ),
    "EuclideanLoss": loss("EuclideanLoss", "score", "data"),
    "a loss of channels that are dropped": loss("SpatialDropout", "score", top="kept")
    + loss("EuclideanLoss", "kept", "data"),
    "HingeLoss": loss("HingeLoss", "score", "label"),
    "HingeLoss L2": loss("HingeLoss", "score", "label", more="hinge_loss_param { norm: L2 }"),
    **{
        f"{operation} from axis {axis}": reduced(operation, axis)
        for operation in ("SUM", "MEAN", "ASUM", "SUMSQ")
        for axis in (0, 1)
    },
    "a mean of numbers for each sample": reduced("MEAN", 1, "", "each")
    + loss("Reduction", "each", more="reduction_param { operation: MEAN } loss_weight: 2"),
    "a multiple of a sum": reduced("SUMSQ", 0, "").replace("score", "hidden")
    + HALVED.replace('top: "half"', 'top: "half" loss_weight: 2'),
    "two means": normalized("SoftmaxWithLoss", by="VALID").replace('top: "loss"', 'top: "one"')
    + loss("EuclideanLoss", "score", "data", top="two", more="loss_weight: 0"),
    "the sum of two means": loss("HingeLoss", "score", "label", top="one", more="loss_weight: 0")
    + loss("EuclideanLoss", "score", "data", top="two", more="loss_weight: 0")
    + loss("Eltwise", "one", "two", more="loss_weight: 1"),
    "a penalty on parameters": PENALTY + loss("EuclideanLoss", "score", "data"),
}


def trained(
    folder: Path, text: str, workers: int, more: str = ""
) -> tuple[list[float], list[np.ndarray]]:
    """The losses of two steps and the parameters behind them."""
    (folder / "net.prototxt").write_text(text)
    (folder / "solver.prototxt").write_text(SOLVER.format(more=more))
    (folder / "machine.toml").write_text(WORKERS.format(count=workers))
    random = np.random.default_rng(7)
    samples = {
        "data": random.uniform(0, 1, size=(SAMPLES * 2, CLASSES)),
        "label": np.arange(SAMPLES * 2) % CLASSES,
    }
    hw = "auto" if workers == 1 else folder / "machine.toml"
    with demitasse.compose(hw, ["caffe", "training", "datasets", "reference"]) as runtime:
        trainer = runtime.trainer(
            folder / "solver.prototxt", data={"train": samples}, precision="f64", retain=None
        )
        losses = [trainer.step(1).loss for _ in range(2)]
        return losses, [a.copy() for each in trainer.net.params.values() for a in each]


def check_alike(folder: Path, text: str, workers: int, more: str = "") -> None:
    losses, parameters = trained(folder, text, 1, more)
    others, shared = trained(folder, text, workers, more)
    assert others == pytest.approx(losses, rel=1e-10)
    for one, several in zip(parameters, shared, strict=True):
        np.testing.assert_allclose(several, one, rtol=1e-10, atol=1e-12)


def net(more: str, weighted: str = "") -> str:
    return NET.format(batch=SAMPLES, weighted=weighted, outputs=CLASSES) + more


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_uneven_shares_of_an_objective_add_up(tmp_path: Path, objective: str, workers: int) -> None:
    check_alike(tmp_path, net(OBJECTIVES[objective]), workers)


@pytest.mark.parametrize("workers", [2, 7])
def test_a_blob_with_a_weight_adds_up_even_of_single_samples(tmp_path: Path, workers: int) -> None:
    check_alike(tmp_path, net("", "loss_weight: 0.3"), workers)


@pytest.mark.parametrize("by", ["VALID", "NONE"])
def test_the_passes_of_an_iteration_are_a_mean_for_any_number_of_workers(
    tmp_path: Path, by: str
) -> None:
    check_alike(tmp_path, net(normalized("SoftmaxWithLoss", by=by)), 2, more="iter_size: 2")


def test_a_sum_is_as_many_times_the_mean_as_there_are_samples(tmp_path: Path) -> None:
    mean = net(normalized("SoftmaxWithLoss", by="BATCH_SIZE"))
    added = net(normalized("SoftmaxWithLoss", by="NONE"))
    for workers in (1, 2):
        first, second = (trained(tmp_path, text, workers)[0][0] for text in (mean, added))
        assert second == pytest.approx(SAMPLES * first, rel=1e-12)
