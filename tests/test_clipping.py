"""Updates that need the size of the whole gradient, clipping by its norm and LARS, alone and with
workers that each hold a part, against the formula in double precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_nets import TWO_PRODUCTS, WORKERS

import demitasse

SOLVER = """
net: "net.prototxt" base_lr: 0.5 lr_policy: "fixed" max_iter: 3 random_seed: 4 weight_decay: 0.1
momentum: 0.9 snapshot_after_train: false {more}
"""
Parameters = dict[str, list[np.ndarray]]


def trained(folder: Path, more: str, workers: int, steps: int) -> list[Parameters]:
    """The parameters before the first step and after each."""
    (folder / "net.prototxt").write_text(TWO_PRODUCTS)
    (folder / "solver.prototxt").write_text(SOLVER.format(more=more))
    (folder / "machine.toml").write_text(WORKERS.format(count=workers))
    random = np.random.default_rng(7)
    samples = {"data": random.normal(size=(8, 6)) * 3, "label": np.arange(8) % 3}
    hw = "auto" if workers == 1 else folder / "machine.toml"
    with demitasse.compose(hw, ["caffe", "training", "datasets", "reference"]) as runtime:
        trainer = runtime.trainer(
            folder / "solver.prototxt", data={"train": samples}, precision="f64", retain=None
        )
        seen = [copied(trainer)]
        for _ in range(steps):
            trainer.step(1)
            seen.append(copied(trainer))
    return seen


def copied(trainer: demitasse.Runtime) -> Parameters:
    return {name: [a.copy() for a in arrays] for name, arrays in trainer.net.params.items()}


def gradients(parameters: Parameters) -> Parameters:
    """Of the mean softmax loss of the samples, by hand."""
    random = np.random.default_rng(7)
    x, label = random.normal(size=(8, 6)) * 3, np.arange(8) % 3
    (w1, b1), (w2, b2) = parameters["one"], parameters["two"]
    hidden = x @ w1.T + b1
    scores = hidden @ w2.T + b2
    share = np.exp(scores - scores.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    share[np.arange(8), label] -= 1
    d = share / 8
    back = d @ w2
    return {"one": [back.T @ x, back.sum(axis=0)], "two": [d.T @ hidden, d.sum(axis=0)]}


def norm(arrays: Parameters) -> float:
    return float(np.sqrt(sum((a**2).sum() for each in arrays.values() for a in each)))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_a_gradient_is_shortened_to_the_global_norm_before_decay_and_momentum(
    tmp_path: Path, workers: int, clip: float
) -> None:
    seen = trained(tmp_path, f"clip_gradients: {clip}", workers, 3)
    here, history = seen[0], {k: [np.zeros_like(a) for a in v] for k, v in seen[0].items()}
    assert norm(gradients(here)) > 0.1
    for found in seen[1:]:
        gradient = gradients(here)
        scale = min(1.0, clip / norm(gradient))
        for layer, arrays in gradient.items():
            for i, g in enumerate(arrays):
                history[layer][i] = 0.9 * history[layer][i] + 0.5 * (scale * g + 0.1 * here[layer][i])
        here = {k: [a - h for a, h in zip(v, history[k], strict=True)] for k, v in here.items()}
        for layer, arrays in found.items():
            for a, b in zip(arrays, here[layer], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("workers", [1, 2])
def test_lars_takes_the_norms_of_whole_parameters(tmp_path: Path, workers: int) -> None:
    seen = trained(tmp_path, "type: 'LARS' lars_trust: 0.01", workers, 2)
    here, history = seen[0], {k: [np.zeros_like(a) for a in v] for k, v in seen[0].items()}
    for found in seen[1:]:
        for layer, arrays in gradients(here).items():
            for i, g in enumerate(arrays):
                w = here[layer][i]
                sizes = np.linalg.norm(w), np.linalg.norm(g)
                local = 0.01 * sizes[0] / (sizes[1] + 0.1 * sizes[0]) if all(sizes) else 1.0
                history[layer][i] = 0.9 * history[layer][i] + 0.5 * local * (g + 0.1 * w)
        here = {k: [a - h for a, h in zip(v, history[k], strict=True)] for k, v in here.items()}
        for layer, arrays in found.items():
            for a, b in zip(arrays, here[layer], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_clipping_works_with_fast_kernels_and_several_passes(tmp_path: Path) -> None:
    """Twice the samples in two passes of half the batch: the norm is that of the mean gradient."""
    (tmp_path / "net.prototxt").write_text(TWO_PRODUCTS)
    random = np.random.default_rng(7)
    samples = {"data": random.normal(size=(8, 6)) * 3, "label": np.arange(8) % 3}
    results = []
    for batch, passes in ((8, 1), (4, 2)):
        more = f"clip_gradients: {0.05 * passes} iter_size: {passes}"
        (tmp_path / "solver.prototxt").write_text(SOLVER.format(more=more))
        overrides = {"layer.data.data_param.batch_size": batch}
        with demitasse.compose() as runtime:
            trainer = runtime.trainer(
                tmp_path / "solver.prototxt", data={"train": samples}, overrides=overrides
            )
            trainer.step(3)
            results.append(copied(trainer))
    for layer, arrays in results[0].items():
        for a, b in zip(arrays, results[1][layer], strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
