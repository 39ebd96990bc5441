"""An arena is many's: of a net's plans for several shapes, of training and its tests. Nobody counts on
what lay there before, but for what is done once, and that is done again when another was there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_nets import WORKERS

import demitasse
from demitasse import Weights, compose

LAYERS = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 13 kernel_size: 3 pad: 1
    weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "left" type: "Convolution" bottom: "conv" top: "left"
  convolution_param { num_output: 5 kernel_size: 1 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "right" type: "Convolution" bottom: "conv" top: "right"
  convolution_param { num_output: 5 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "clip" type: "ReLU6" bottom: "right" top: "right" }
layer { name: "sum" type: "Eltwise" bottom: "left" bottom: "right" top: "sum" }
layer { name: "wide" type: "Concat" bottom: "sum" bottom: "conv" bottom: "data" top: "wide" }
layer { name: "lrn" type: "LRN" bottom: "wide" top: "lrn" }
layer { name: "pool" type: "Pooling" bottom: "lrn" top: "pool"
  pooling_param { pool: MAX kernel_size: 3 stride: 2 } }
layer { name: "mean" type: "Pooling" bottom: "pool" top: "mean"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "flat" type: "Flatten" bottom: "mean" top: "flat" }
layer { name: "hidden" type: "InnerProduct" bottom: "flat" top: "hidden"
  inner_product_param { num_output: 520 weight_filler { type: "gaussian" std: 0.2 } } }
layer { name: "tanh" type: "TanH" bottom: "hidden" top: "hidden" }
layer { name: "large" type: "InnerProduct" bottom: "hidden" top: "large"
  inner_product_param { num_output: 1100 weight_filler { type: "gaussian" std: 0.05 } } }
layer { name: "drop" type: "Dropout" bottom: "large" top: "large" }
layer { name: "ip" type: "InnerProduct" bottom: "large" top: "ip"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.05 } } }
"""
DEPLOY = f"""
layer {{ name: "data" type: "Input" top: "data"
  input_param {{ shape {{ dim: 2 dim: 3 dim: 10 dim: 10 }} }} }}
{LAYERS}
layer {{ name: "prob" type: "Softmax" bottom: "ip" top: "prob" }}
"""
TRAIN = f"""
layer {{ name: "data" type: "Data" top: "data" top: "label"
  data_param {{ source: "given" batch_size: 8 }} }}
{LAYERS}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }}
layer {{ name: "accuracy" type: "Accuracy" bottom: "ip" bottom: "label" top: "accuracy" }}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 9 test_iter: 3
test_interval: 100 test_initialization: false random_seed: 4
"""
LARGE, SMALL, OTHER = (2, 3, 20, 20), (2, 3, 10, 10), (3, 3, 12, 9)
SHAPES = LARGE, SMALL, SMALL, OTHER, LARGE, LARGE, SMALL, OTHER
"""Of inputs. The first needs the largest arena, so that all others have the same."""


def spoil(arena: Any) -> None:
    """Have nothing there that is a number."""
    arena.view(0, (arena.nbytes,), "uint8")[...] = 0xFF


@pytest.fixture(scope="module")
def runtime() -> Iterator[Any]:
    with compose(plugins=["-tuning"]) as made:
        yield made


def known(net: Any) -> Weights:
    """Weights of which a normalisation's statistics are some."""
    dice, weights = np.random.default_rng(8), Weights()
    for name, arrays in net.params.items():
        weights.parameters[name] = [np.array(a) for a in arrays]
    weights.parameters["norm"] = [
        dice.normal(0, 0.2, 13).astype("f4"),
        dice.uniform(0.5, 1.5, 13).astype("f4"),
        np.ones(1, "f4"),
    ]
    return weights


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("written", [False, True])
def test_plans_for_several_shapes_do_again_what_others_have_overwritten(
    runtime: demitasse.Runtime, tmp_path: Path, precision: str, written: bool
) -> None:
    """Written to or not: the outputs are those of a net that was made for the shape."""
    (tmp_path / "net.prototxt").write_text(DEPLOY)

    def made() -> Any:
        return runtime.net(tmp_path / "net.prototxt", weights=weights, precision=precision)

    weights = known(runtime.net(tmp_path / "net.prototxt"))
    net, dice, changed = made(), np.random.default_rng(5), 0
    for number, shape in enumerate(SHAPES):
        x = dice.normal(size=shape).astype("f4")
        if number and shape != SHAPES[number - 1]:
            spoil(net._arena)  # as another plan's forward pass does
        ours = [net.forward(data=x)["prob"], net.forward(data=x)["prob"]]
        expected = made().forward(data=x)["prob"]
        assert all(np.array_equal(each, expected) for each in ours) or written
        assert all(
            np.allclose(each, expected, atol=1e-5 if precision == "f32" else 2e-2) for each in ours
        )
        for name, arrays in net.params.items() if written else ():
            for mine, array in zip(weights.parameters[name], arrays, strict=True):
                if name != "norm" and array.flags.writeable:
                    array *= -1.5 if number % 2 else -0.7
                    mine *= -1.5 if number % 2 else -0.7
                    changed += 1
    assert bool(changed) == written


@pytest.mark.parametrize("more", ["", "iter_size: 2", "clip_gradients: 0.5"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_training_and_its_tests_leave_nothing_to_each_other(
    tmp_path: Path, precision: str, workers: int, more: str
) -> None:
    """The same bits, whatever lies in the arena before an iteration or a test."""
    (tmp_path / "net.prototxt").write_text(TRAIN)
    (tmp_path / "solver.prototxt").write_text(SOLVER + more)
    (tmp_path / "hw.toml").write_text(WORKERS.format(count=workers))
    dice = np.random.default_rng(3)
    x = dice.normal(size=(48, 3, 10, 10)).astype("f4")
    arrays = {"data": x, "label": (x.mean((1, 2, 3)) > 0).astype("f4")}
    given = {"data": {"train": arrays, "test": arrays}, "precision": precision}

    def trained(spoilt: bool) -> Any:
        def before() -> None:
            for worker in trainer._workers if spoilt else ():
                spoil(worker.memory["arena"])

        with compose(tmp_path / "hw.toml", ["-tuning"]) as runtime:
            trainer: Any = runtime.trainer(tmp_path / "solver.prototxt", **given)
            found = []
            for number in range(4):
                before()
                found.append(trainer.step(1).loss)
                if number % 2:
                    before()
                    found.append(trainer.test())
            parameters = [np.array(a) for arrays in trainer.net.params.values() for a in arrays]
        return found, parameters

    plain, spoilt = trained(False), trained(True)
    assert spoilt[0] == plain[0]
    assert all(np.array_equal(a, b) for a, b in zip(spoilt[1], plain[1], strict=True))
    assert np.isfinite(plain[0][0])


FACTORS = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
layer { name: "learned" type: "Parameter" top: "learned" parameter_param { shape { dim: 3 } } }
layer { name: "twice" type: "Power" bottom: "learned" top: "twice" power_param { scale: 2 shift: 1 } }
layer { name: "y" type: "Scale" bottom: "data" bottom: "twice" top: "y" }
"""


def test_what_is_made_of_a_parameter_once_is_made_anew_when_it_may_have_been_written_to(
    runtime: demitasse.Runtime, tmp_path: Path
) -> None:
    (tmp_path / "net.prototxt").write_text(FACTORS)
    net, x = runtime.net(tmp_path / "net.prototxt"), np.ones((2, 3, 4, 4), "f4")
    net.forward(data=x)
    assert [entry.layer for entry in net.plan.entries if entry.once] == ["twice"]
    for factors in ([1, 2, 3], [-4, 0, 0.5]):
        net.params["learned"][0][...] = factors
        assert net.forward(data=x)["y"][1, :, 3, 3].tolist() == [2 * each + 1 for each in factors]
