"""Inner products whose gradient of weights is made a stretch at a time: with a bias, without one, and
with one that is not trained."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import demitasse

INPUTS = 2048  # by 1024 outputs weights have 8 MB: from there on the gradient comes in stretches

NET = """
layer {{ name: "d" type: "Data" top: "data" top: "label" data_param {{ source: "none" batch_size: 3 }} }}
layer {{ name: "fc" type: "InnerProduct" bottom: "data" top: "y" param {{ lr_mult: 1 }} {bias}
  inner_product_param {{ num_output: 1024 {term} weight_filler {{ type: "gaussian" std: 0.1 }} }} }}
layer {{ name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1
  reduction_param {{ operation: SUMSQ }} }}
"""


@pytest.mark.parametrize(
    ("bias", "term", "trained"),
    [
        ("param { lr_mult: 1 }", "", True),
        ("param { lr_mult: 0 }", "", False),
        ("", "bias_term: false", False),
    ],
    ids=["trained", "frozen", "none"],
)
def test_a_large_product_is_trained_whatever_its_bias(
    tmp_path: Path, bias: str, term: str, trained: bool
) -> None:
    (tmp_path / "net.prototxt").write_text(NET.format(bias=bias, term=term))
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: 1'
    )
    x = np.random.default_rng(1).normal(size=(3, INPUTS)).astype(np.float32)
    data = {"train": {"data": x, "label": np.zeros(3, np.float32)}}
    with demitasse.compose() as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt", data=data)
        w = np.float64(trainer.net.params["fc"][0])
        trainer.step(1)
        after = [np.array(each) for each in trainer.net.params["fc"]]
    dy = 2 * (np.float64(x) @ w.T)
    np.testing.assert_allclose(after[0], w - 0.001 * (dy.T @ np.float64(x)), rtol=1e-4, atol=1e-4)
    if len(after) > 1:
        np.testing.assert_allclose(after[1], -0.001 * dy.sum(0) * trained, rtol=1e-4, atol=1e-5)


CHAIN = """
layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "none" batch_size: 3 } }
layer { name: "low" type: "InnerProduct" bottom: "data" top: "h"
  inner_product_param { num_output: 1024 bias_term: false
    weight_filler { type: "gaussian" std: 0.03 } } }
layer { name: "high" type: "InnerProduct" bottom: "h" top: "y"
  inner_product_param { num_output: 2048 bias_term: false
    weight_filler { type: "gaussian" std: 0.03 } } }
layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1
  reduction_param { operation: SUMSQ } }
"""


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_layer_below_gets_its_gradient_by_the_weights_as_they_were(
    tmp_path: Path, precision: str
) -> None:
    """Of two large products in line, beside NumPy in float64, at a rate at which weights that were
    updated before the layer below had its gradient would make that many times too large."""
    (tmp_path / "net.prototxt").write_text(CHAIN)
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 1'
    )
    x = np.random.default_rng(1).normal(size=(3, INPUTS)).astype(np.float32)
    data = {"train": {"data": x, "label": np.zeros(3, np.float32)}}
    with demitasse.compose() as runtime:
        trainer = runtime.trainer(tmp_path / "solver.prototxt", data=data, precision=precision)
        low, high = (np.float64(trainer.net.params[name][0]) for name in ("low", "high"))
        trainer.step(1)
        after = [np.float64(trainer.net.params[name][0]) for name in ("low", "high")]
    h = np.float64(x) @ low.T
    dy = 2 * (h @ high.T)
    right = [(dy @ high).T @ np.float64(x), dy.T @ h]
    for before, now, gradient in zip((low, high), after, right, strict=True):
        apart = np.abs(before - now - gradient).max() / np.abs(gradient).max()
        assert apart < (1e-5 if precision == "f32" else 2e-2)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_stretches_are_used_before_the_next_is_made_and_never_all_in_memory(
    tmp_path: Path, precision: str
) -> None:
    """Beside a run that keeps every gradient whole; looking at times leaves parameters alone."""
    (tmp_path / "net.prototxt").write_text(NET.format(bias="param { lr_mult: 2 }", term=""))
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.0001 lr_policy: "fixed" momentum: 0.9 weight_decay: 0.01 '
        "max_iter: 3 random_seed: 3"
    )
    x = np.random.default_rng(1).normal(size=(3, INPUTS)).astype(np.float32)
    data = {"train": {"data": x, "label": np.zeros(3, np.float32)}}
    results = []
    for retain in (None, "all"):
        with demitasse.compose() as runtime:
            trainer = runtime.trainer(
                tmp_path / "solver.prototxt", data=data, retain=retain, precision=precision
            )
            cut = [entry for entry in trainer.plan.entries if entry.stretches]
            if retain is None:
                if not any("oneDNN" in entry.kernel for entry in trainer.plan.entries):
                    pytest.skip("oneDNN, whose products come in stretches, is not there")
                if trainer.plan.entries[-1].operation == "reorder":
                    pytest.skip(
                        "this processor's gradient lies otherwise than the weights, so it is whole"
                    )
                (entry,) = cut
                (gradient, *_) = entry.outputs
                assert gradient is not None and gradient.region == "arena"
                assert trainer.plan.arena_bytes < gradient.spec.nbytes
                spans = entry.stretches
                assert all(a.stop == b.start for a, b in itertools.pairwise(spans))
                assert sum(map(len, spans)) * 4 == gradient.spec.nbytes
                before = np.array(trainer.net.params["fc"][0])
                trainer.profile(2)
                assert np.array_equal(before, trainer.net.params["fc"][0])
            assert retain is None or not cut
            trainer.step(3)
            results.append([np.array(each) for each in trainer.net.params["fc"]])
    for one, other in zip(*results, strict=True):
        bound = 1e-5 if precision == "f32" else 5e-3
        np.testing.assert_allclose(one, other, rtol=bound, atol=bound * np.abs(other).max())
