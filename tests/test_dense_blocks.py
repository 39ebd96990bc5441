"""DenseBlock beside what it is made of, and beside arithmetic written out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_nets import net_below

import demitasse
from demitasse import ModelError, Weights

BLOCK = (
    'layer { name: "block" type: "DenseBlock" bottom: "x" top: "y" denseblock_param { numTransition: 2 '
    'growthRate: 3 Filter_Filler { type: "msra" } BN_Scaler_Filler { type: "constant" value: 1 } '
    "%s } }\n"
)
X = np.random.default_rng(2).normal(size=(2, 4, 5, 6))


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose(plugins=["-tuning"]) as made:
        yield made


def blobs(narrowed: bool) -> list[np.ndarray]:
    """As a file has them: by kind, each of four axes."""
    random, made = np.random.default_rng(7), list[np.ndarray]()
    counts, filters = (4, 7), [(3, 12 if narrowed else count, 3, 3) for count in (4, 7)]
    for shapes, channels in (
        (filters, counts),
        ([(12, count, 1, 1) for count in counts], (12, 12)),
    )[: 1 + narrowed]:
        made += [random.normal(0, 0.3, shape) for shape in shapes]
        for low, high in ((0.5, 2), (-1, 1), (-1, 1), (0.5, 2)):
            made += [random.uniform(low, high, (1, count, 1, 1)) for count in channels]
    return [*made, np.zeros(1)]


def convolved(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    pad = w.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w)


def rectified(x: np.ndarray, w: Any, b: Any, mean: Any, variance: Any) -> np.ndarray:
    return np.maximum((x - mean) / np.sqrt(variance + 1e-5) * w + b, 0)


@pytest.mark.parametrize("narrowed", [False, True])
def test_a_trained_block_is_arithmetic(runtime: Any, tmp_path: Path, narrowed: bool) -> None:
    given = blobs(narrowed)
    told = "use_BC: true" if narrowed else ""
    with net_below(runtime, tmp_path, BLOCK % told, "f64", x=X.shape) as net:
        assert [p.size for p in net.params["block"]] == [blob.size for blob in given]
        runtime.write(tmp_path / "w.caffemodel", Weights({"block": given}))
    y = X
    for step in range(2):
        ready = rectified(y, *given[2 + step : 10 : 2])
        if narrowed:
            narrow = convolved(ready, given[10 + step])
            ready = rectified(narrow, *given[12 + step : 20 : 2])
        y = np.concatenate([y, convolved(ready, given[step])], 1)
    net = runtime.net(tmp_path / "net.prototxt", weights=tmp_path / "w.caffemodel", precision="f64")
    np.testing.assert_allclose(net.forward(x=X)["y"], y, rtol=1e-5, atol=1e-5)


PARTS = "".join(
    f"""
layer {{ name: "n{i}" type: "BN" bottom: "{below}" top: "n{i}" bn_param {{ momentum: 0.9 eps: 1e-5
  slope_filler {{ type: "constant" value: 1 }} bias_filler {{ type: "constant" value: 0 }} }} }}
layer {{ name: "r{i}" type: "ReLU" bottom: "n{i}" top: "n{i}" }}
layer {{ name: "c{i}" type: "Convolution" bottom: "n{i}" top: "c{i}" convolution_param {{ num_output: 3
  kernel_size: 3 pad: 1 bias_term: false weight_filler {{ type: "msra" }} }} }}
layer {{ name: "j{i}" type: "Concat" bottom: "{below}" bottom: "c{i}" top: "j{i}" }}
"""
    for i, below in enumerate(("x", "j0"))
)


def test_a_block_learns_as_its_parts_do(runtime: Any, tmp_path: Path) -> None:
    """In two steps: the second sees what the first has learned and averaged."""
    filters = [blob for blob in blobs(narrowed=False) if blob.ndim == 4 and blob.shape[2] == 3]
    found = []
    for net, top in ((BLOCK % "", "y"), (PARTS, "j1")):
        (tmp_path / "net.prototxt").write_text(
            'layer { name: "d" type: "Data" top: "x" top: "label" data_param { batch_size: 2 } }'
            f'{net} layer {{ name: "loss" type: "EuclideanLoss" bottom: "{top}" bottom: "label" }}'
        )
        (tmp_path / "solver.prototxt").write_text(
            'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" snapshot_after_train: false'
        )
        label = np.random.default_rng(9).normal(size=(2, 10, 5, 6))
        data = {"train": {"data": X, "label": label}}
        with runtime.trainer(tmp_path / "solver.prototxt", data=data, precision="f64") as trainer:
            params = trainer.net.params
            ours = params["block"][:2] if "block" in params else [params["c0"][0], params["c1"][0]]
            for mine, value in zip(ours, filters, strict=True):
                mine[...] = value
            losses = [trainer.step().loss for _ in range(2)]
            if "block" in params:
                by_step = [[np.array(params["block"][2 * k + i]) for k in range(5)] for i in range(2)]
            else:
                by_step = [[np.array(p).reshape(-1) for p in params[f"n{i}"]] for i in range(2)]
                by_step = [[np.array(params[f"c{i}"][0]), *by_step[i]] for i in range(2)]
            found.append((losses, by_step))
    (losses, ours), (wanted, theirs) = found
    np.testing.assert_allclose(losses, wanted, rtol=1e-12)
    for mine, other in zip(ours, theirs, strict=True):
        for k, (a, b) in enumerate(zip(mine, other, strict=True)):
            if k == 4:  # a block's variances begin at 1, of which two steps leave 0.81
                b = b + 0.81
            np.testing.assert_allclose(a.reshape(b.shape), b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ("use_dropout: true", "use_dropout } is supported only as False"),
        ("filter_H: 5", "filter_H } is supported only as 3"),
        ("moving_average_fraction: 2", "moving_average_fraction 2 is not from 0 to 1"),
    ],
)
def test_what_is_not_served_says_so(runtime: Any, tmp_path: Path, about: str, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        net_below(runtime, tmp_path, BLOCK % about, x=X.shape)


def test_it_takes_images(runtime: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"needs images .four axes"):
        net_below(runtime, tmp_path, BLOCK % "", x=(2, 4))
