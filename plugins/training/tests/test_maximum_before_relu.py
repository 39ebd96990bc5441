"""A maximum over windows is taken before the ReLU in front of it, if nobody can tell the difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import demitasse

PLUGINS = ["caffe", "training", "datasets", "reference"]
NET = """
name: "windows"
layer {{ name: "data" type: "Data" top: "data" top: "label"
         data_param {{ source: "given" batch_size: 4 }} }}
layer {{ name: "conv" type: "Convolution" bottom: "data" top: "conv"
         convolution_param {{ num_output: 5 kernel_size: 3
                              weight_filler {{ type: "gaussian" std: 1 }} }} }}
layer {{ name: "relu" type: "ReLU" bottom: "conv" top: "{top}" {relu} }}
layer {{ name: "pool" type: "Pooling" bottom: "{top}" top: "pool"
         pooling_param {{ pool: {kind} kernel_size: 3 stride: 2 pad: {pad} }} }}
{more}
layer {{ name: "scores" type: "InnerProduct" bottom: "pool" top: "scores"
         inner_product_param {{ num_output: 3 weight_filler {{ type: "gaussian" std: 1 }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" }}
"""
SECOND = """
layer { name: "other" type: "InnerProduct" bottom: "TOP" top: "other"
        inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "loss2" type: "SoftmaxWithLoss" bottom: "other" bottom: "label" }
"""
USUAL = {"top": "conv", "kind": "MAX", "pad": "0", "relu": "", "more": ""}


def trained(folder: Path, retain: str | None, **parts: str) -> tuple[list[str], list[np.ndarray], float]:
    """Return the forward operations, the parameters after three steps, and the last loss."""
    (folder / "net.prototxt").write_text(NET.format(**{**USUAL, **parts}))
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 3 random_seed: 2'
    )
    random = np.random.default_rng(4)
    data = {"train": {"data": random.normal(size=(4, 2, 9, 9)), "label": np.arange(4) % 3}}
    with demitasse.compose(plugins=PLUGINS) as runtime:
        trainer = runtime.trainer(folder / "solver.prototxt", data=data, retain=retain, precision="f64")
        names = [e.operation for e in trainer.plan.entries if e.phase == "forward"]
        loss = trainer.step(3).loss
        return names, [a.copy() for each in trainer.net.params.values() for a in each], loss


@pytest.mark.parametrize("pad", ["0", "1"])
@pytest.mark.parametrize("top", ["conv", "rectified"], ids=["in place", "apart"])
def test_the_numbers_are_the_same_to_the_bit(tmp_path: Path, top: str, pad: str) -> None:
    names, parameters, loss = trained(tmp_path, None, top=top, pad=pad)
    usual, expected, loss_there = trained(tmp_path, "all", top=top, pad=pad)
    assert names.index("pooling_max") < names.index("relu")
    assert usual.index("relu") < usual.index("pooling_max"), "whoever looks sees the file's order"
    assert loss == loss_there
    assert all(np.array_equal(a, b) for a, b in zip(parameters, expected, strict=True))


@pytest.mark.parametrize(
    "parts",
    [
        {"kind": "AVE"},
        {"relu": "relu_param { negative_slope: 0.5 }"},
        {"top": "rectified", "more": SECOND.replace("TOP", "rectified")},
        {"top": "rectified", "more": 'layer { name: "s" type: "Silence" bottom: "rectified" }'},
    ],
    ids=["average", "leaky", "another reader", "silenced"],
)
def test_it_stays_where_somebody_could_tell(tmp_path: Path, parts: dict[str, str]) -> None:
    names, parameters, _ = trained(tmp_path, None, **parts)
    _, expected, _ = trained(tmp_path, "all", **parts)
    pool = next(i for i, name in enumerate(names) if name.startswith("pooling"))
    if "Silence" not in parts.get("more", ""):
        assert names.index("relu") < pool
    for a, b in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
