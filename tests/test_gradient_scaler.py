"""The reversal of gradients, whose size follows the training's iteration."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import ModelError

PLUGINS = ["caffe", "datasets", "training", "snapshots"]
NET = """
layer { name: "x" type: "DummyData" top: "x" top: "t"
  dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 1 }
    data_filler { type: "constant" value: 0.5 } data_filler { type: "constant" value: 2 } } }
layer { name: "w" type: "InnerProduct" bottom: "x" top: "h"
  inner_product_param { num_output: 1 bias_term: false weight_filler { type: "constant" value: 0.25 } } }
layer { name: "turn" type: "GradientScaler" bottom: "h" top: "turned"
  gradient_scaler_param { SCHEDULE } }
layer { name: "v" type: "InnerProduct" bottom: "turned" top: "y"
  inner_product_param { num_output: 1 bias_term: false weight_filler { type: "constant" value: 0.75 } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""
SCHEDULE = "lower_bound: 0.1 upper_bound: 0.7 alpha: 3 max_iter: 4"


def write(schedule: str, passes: int = 1) -> None:
    Path("net.prototxt").write_text(NET.replace("SCHEDULE", schedule))
    Path("solver.prototxt").write_text(
        f'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 6 iter_size: {passes} '
        'snapshot_prefix: "s" snapshot: 3'
    )


def expected(iterations: int, alpha: float = 3) -> tuple[float, float]:
    """The two weights after so many iterations, for SCHEDULE with an ``alpha``; by hand."""
    w, v = 0.25, 0.75
    for i in range(iterations):
        c = 2 * 0.6 / (1 + math.exp(-alpha * min(i / 4, 1))) - 0.6 + 0.1
        h = 3 * 0.5 * w
        slope = v * h - 2
        w, v = w - 0.1 * -c * slope * v * 0.5, v - 0.1 * slope * h
    return w, v


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("passes", [1, 2])
def test_it_turns_the_gradient_round_ever_more(kernels: str, passes: int) -> None:
    """Also after a snapshot, and in each pass of an iteration."""
    write(SCHEDULE, passes)
    about = {"precision": "f64"}
    with demitasse.compose(plugins=[*PLUGINS, kernels, "reference"]) as runtime:
        for resume, iterations in ((None, 6), ("s_iter_3.demitasse", 6)):
            with runtime.trainer("solver.prototxt", resume=resume, **about) as trainer:
                trainer.run()
                w, v = expected(iterations)
                params = trainer.net.params
                np.testing.assert_allclose(params["w"][0], np.full((1, 3), w), rtol=1e-12)
                np.testing.assert_allclose(params["v"][0], [[v]], rtol=1e-12)
        made = runtime.net("net.prototxt", phase="test", retain="all")
        made.forward()
        np.testing.assert_array_equal(made.blobs["turned"].data, made.blobs["h"].data)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_a_negative_alpha_falls(kernels: str) -> None:
    """As the published net of MHTN has it."""
    write(SCHEDULE.replace("alpha: 3", "alpha: -0.5"))
    with (
        demitasse.compose(plugins=[*PLUGINS, kernels, "reference"]) as runtime,
        runtime.trainer("solver.prototxt", precision="f64") as trainer,
    ):
        trainer.run()
        w, v = expected(6, alpha=-0.5)
        np.testing.assert_allclose(trainer.net.params["w"][0], np.full((1, 3), w), rtol=1e-12)
        np.testing.assert_allclose(trainer.net.params["v"][0], [[v]], rtol=1e-12)


def test_kernels_agree_and_long_blobs_too() -> None:
    write("alpha: 1 max_iter: 100")
    text = Path("net.prototxt").read_text().replace("dim: 2", "dim: 3000")
    Path("net.prototxt").write_text(text)
    found = []
    for kernels in ("reference", "cpu"):
        with (
            demitasse.compose(plugins=[*PLUGINS, kernels, "reference"]) as runtime,
            runtime.trainer("solver.prototxt") as trainer,
        ):
            trainer.step(3)
            found.append(trainer.net.params["w"][0].copy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_a_schedule_that_is_none_is_refused() -> None:
    for schedule, told in (
        ("lower_bound: 2", "lower_bound 2 is above upper_bound 1"),
        ("alpha: -701", "alpha -701 and max_iter 1: the first must be from -700 to 700"),
        ("max_iter: 0.5", "max_iter 0.5: the first must be from -700 to 700, the second 1 or more"),
    ):
        write(schedule)
        with (
            demitasse.compose(plugins=[*PLUGINS, "reference"]) as runtime,
            pytest.raises(ModelError, match=rf"layer 'turn' \(GradientScaler\): .*{told}"),
        ):
            runtime.trainer("solver.prototxt")
