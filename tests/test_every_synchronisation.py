"""A recurrent net on several workers: the gradient of each parameter by every synchronisation of
threads, and what a user writes to parameters between steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from recurrent_formulas import lstm, rnn

import demitasse

STEPS, STREAMS, WORKERS = 4, 7, 3
"""Streams do not divide among the workers."""

SHAPES = {
    "frozen": [(6, 5), (6,)],
    "lstm": [(4 * 9, 6), (4 * 9,), (4 * 9, 9)],
    "rnn": [(7, 9), (7,), (7, 7), (7, 7), (7,)],
    "scores": [(11, 7), (11,)],
}
NET = f"""
name: "recurrent"
layer {{ name: "read" type: "HDF5Data" top: "x" top: "goes_on" top: "wanted"
  hdf5_data_param {{ source: "list.txt" batch_size: {STREAMS} }} }}
layer {{ name: "xs" type: "Permute" bottom: "x" top: "xs" permute_param {{ order: [1, 0, 2] }} }}
layer {{ name: "cont" type: "Permute" bottom: "goes_on" top: "cont" permute_param {{ order: [1, 0] }} }}
layer {{ name: "label" type: "Permute" bottom: "wanted" top: "label" permute_param {{ order: [1, 0] }} }}
layer {{ name: "frozen" type: "InnerProduct" bottom: "xs" top: "frozen" param {{ lr_mult: 0 }}
  param {{ lr_mult: 0 }} inner_product_param {{ axis: 2 num_output: 6 }} }}
layer {{ name: "lstm" type: "LSTM" bottom: "frozen" bottom: "cont" top: "lstm"
  recurrent_param {{ num_output: 9 }} }}
layer {{ name: "rnn" type: "RNN" bottom: "lstm" bottom: "cont" top: "rnn"
  recurrent_param {{ num_output: 7 }} }}
layer {{ name: "scores" type: "InnerProduct" bottom: "rnn" top: "scores"
  inner_product_param {{ axis: 2 num_output: 11 }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss"
  softmax_param {{ axis: 2 }} }}
"""
PLUGINS = ["caffe", "onnx", "training", "datasets", "cpu", "reference", "numa", "parameter_server"]
PLUGINS += ["cgdp", "host_streams"]
THREADS = {
    "reference": 'plugin = "reference"',
    "numa": 'plugin = "numa", bucket_bytes = 64',
    "one root": 'plugin = "numa", root = "first"',
    "bsp": 'plugin = "parameter_server", bucket_bytes = 64',
    "ssp": 'plugin = "parameter_server", model = "ssp", bucket_bytes = 64',
    "asp": 'plugin = "parameter_server", model = "asp"',
}
STREAMS_OF_DEVICES = {f"cgdp, {s}": f'plugin = "cgdp", scheme = "{s}"' for s in ("cgdp", "typical")}
SYNCS = THREADS | STREAMS_OF_DEVICES

Parameters = dict[str, list[np.ndarray]]


def drawn(seed: int) -> Parameters:
    random = np.random.default_rng(seed)
    return {name: [random.normal(0, 0.5, shape) for shape in row] for name, row in SHAPES.items()}


@pytest.fixture(scope="module")
def samples() -> dict[str, np.ndarray]:
    """Some sequences end within a batch, and the first begin with it."""
    random = np.random.default_rng(4)
    goes_on = random.integers(0, 3, (STREAMS, STEPS)) > 0
    goes_on[:, 0] = False
    label = random.integers(0, 11, (STREAMS, STEPS))
    return {"x": random.normal(size=(STREAMS, STEPS, 5)), "goes_on": goes_on, "wanted": label}


@pytest.fixture
def trainer(
    samples: dict[str, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_threads_left: None,
) -> Iterator[Callable[..., Any]]:
    """``trainer(sync, rate)``: of three workers, with drawn parameters; of one where sync is None."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("samples.h5", "w") as file:
        for name, array in samples.items():
            file[name] = array.astype(np.float64)
    Path("list.txt").write_text("samples.h5\n")
    Path("net.prototxt").write_text(NET)

    def make(sync: str | None, rate: float) -> Any:
        Path("solver.prototxt").write_text(
            f'net: "net.prototxt" base_lr: {rate} lr_policy: "fixed" max_iter: 9'
        )
        level = f'[[level]]\nname = "w"\ncount = {WORKERS if sync else 1}\n'
        if sync in STREAMS_OF_DEVICES:
            level += 'workers = "streams"\nmemory = [{ space = "host", at = "accelerator:*" }]\n'
        else:
            level += f'workers = "threads"\ncores = {WORKERS}\n'
        level += f"sync = {{ {SYNCS[sync]} }}\n" if sync else ""
        Path("hw.toml").write_text(f'schema = 1\nname = "w"\nfingerprint = "any"\n{level}')
        runtime = stack.enter_context(demitasse.compose("hw.toml", PLUGINS))
        given = demitasse.Weights(drawn(0))
        made: Any = runtime.trainer("solver.prototxt", weights=given, precision="f64")
        return stack.enter_context(made)

    with ExitStack() as stack:
        yield make


def gradients(trainer: Any, rate: float) -> dict[str, np.ndarray]:
    """Of each parameter, from what a step by itself changes."""
    before = {name: [a.copy() for a in arrays] for name, arrays in trainer.net.params.items()}
    trainer.step()
    return {
        f"{name} {number}": (was - is_now) / rate
        for name, arrays in before.items()
        for number, (was, is_now) in enumerate(zip(arrays, trainer.net.params[name], strict=True))
    }


def loss_of(p: Parameters, samples: dict[str, np.ndarray]) -> float:
    """By the layers' formulas."""
    x, cont = samples["x"].transpose(1, 0, 2), samples["goes_on"].T
    y = rnn(lstm(x @ p["frozen"][0].T + p["frozen"][1], cont, None, p["lstm"]), cont, None, p["rnn"])
    scores = np.exp(y @ p["scores"][0].T + p["scores"][1])
    right = np.take_along_axis(scores, samples["wanted"].T[..., None], 2)[..., 0]
    return float(-np.log(right / scores.sum(2)).mean())


def test_one_workers_gradients_are_the_slopes_of_the_formulas(
    trainer: Callable[..., Any], samples: dict[str, np.ndarray]
) -> None:
    found, way = gradients(trainer(None, 1e3), 1e3), drawn(1)
    for name, rows in SHAPES.items():
        for number in range(len(rows)):
            sides = []
            for step in (1e-5, -1e-5):
                moved = drawn(0)
                moved[name][number] += step * way[name][number]
                sides.append(loss_of(moved, samples))
            slope = 0.0 if name == "frozen" else (sides[0] - sides[1]) / 2e-5
            told = float((found[f"{name} {number}"] * way[name][number]).sum())
            assert told == pytest.approx(slope, rel=1e-6, abs=1e-9), (name, number)


@pytest.mark.parametrize("sync", SYNCS)
def test_several_workers_have_the_gradients_of_one(trainer: Callable[..., Any], sync: str) -> None:
    """Pushes at different times see parameters that others have changed: by a rate of nearly nothing
    they add up to the same, to first order in it."""
    stale = sync in ("ssp", "asp")
    rate, digits = (1e-6, 1e-5) if stale else (1e3, 1e-12)
    right, found = gradients(trainer(None, rate), rate), gradients(trainer(sync, rate), rate)
    for name, array in right.items():
        scale = np.abs(array).max()
        assert scale > 1e-6 or name.startswith("frozen")
        np.testing.assert_allclose(found[name], array, rtol=0, atol=digits * scale, err_msg=name)


@pytest.mark.parametrize("sync", SYNCS)
def test_all_workers_train_on_what_is_written_between_steps(
    trainer: Callable[..., Any], samples: dict[str, np.ndarray], sync: str
) -> None:
    """Parameters that are trained, and those that are not, which nobody exchanges."""
    rate = 1e-9 if sync in ("ssp", "asp") else 0.5
    several, alone, others = trainer(sync, rate), trainer(None, rate), drawn(2)
    for made in (several, alone):
        made.step()
        for name, arrays in made.net.params.items():
            for array, values in zip(arrays, others[name], strict=True):
                array[...] = values
    losses = [[made.step().loss for _ in range(3)] for made in (several, alone)]
    assert losses[0][0] == pytest.approx(loss_of(others, samples), rel=1e-6)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6 if rate < 1e-3 else 1e-12)
