"""Siblings whose kernels like other layouts, statistics that only training changes, and forks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import Level, Machine, MemorySpace, NumericsError, Runtime, SyncSpec, compose

ROOT = Path(__file__).parent.parent
NET = """
name: "small"
layer { name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "given" batch_size: BATCH } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 16 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "bn" }
layer { name: "scale" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }
layer { name: "hidden" type: "InnerProduct" bottom: "TOP" top: "hidden"
  inner_product_param { num_output: 96 weight_filler { type: "xavier" } } }
layer { name: "scores" type: "InnerProduct" bottom: "hidden" top: "scores"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""
SHORTCUT = """
layer { name: "sum" type: "Eltwise" bottom: "bn" bottom: "conv" top: "sum" }
layer { name: "relu" type: "ReLU" bottom: "sum" top: "sum" }
"""


def solver(folder: Path, batch: int, normalised: bool, shortcut: bool = False) -> Path:
    """A solver of the net; without its normalisation, where several workers are to agree; with a
    shortcut past that, which kernels add as they normalise."""
    net = NET.replace('layer { name: "relu" type: "ReLU" bottom: "bn" top: "bn" }', SHORTCUT)
    net = (net if shortcut else NET).replace("BATCH", str(batch))
    lines = net.replace("TOP", ("sum" if shortcut else "bn") if normalised else "conv").split("\n")
    inside = ('name: "bn"', 'name: "scale"', 'name: "relu"')
    kept = lines if normalised else [x for x in lines if not any(name in x for name in inside)]
    (folder / "net.prototxt").write_text("\n".join(kept))
    path = folder / "solver.prototxt"
    path.write_text(
        f'net: "{folder}/net.prototxt"\nbase_lr: 0.05\nmomentum: 0.9\nlr_policy: "fixed"\n'
        "max_iter: 100\nrandom_seed: 3\nsnapshot: 0\n"
    )
    return path


def samples(batch: int) -> dict[str, dict[str, Any]]:
    random = np.random.default_rng(5)
    data = random.standard_normal((4 * batch, 3, 8, 8)).astype(np.float32)
    return {"train": {"data": data, "label": random.integers(0, 10, 4 * batch).astype(np.float32)}}


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with compose() as runtime:
        yield runtime


@pytest.mark.parametrize("batch", [13, 14, 161])
def test_workers_whose_shares_differ_keep_their_parameters_alike(tmp_path: Path, batch: int) -> None:
    """oneDNN likes another form of weights for 6 rows than for 7, and for 80 than for 81."""
    path, learned = solver(tmp_path, batch, normalised=False), []
    for hw in ("auto", ROOT / "hwdesc" / "two-workers.toml"):
        with compose(hw, plugins=["-tuning"]) as runtime:
            trainer = runtime.trainer(path, data=samples(batch))
            trainer.step(3)
            learned.append(trainer.net.params)
    for layer, arrays in learned[0].items():
        for one, two in zip(arrays, learned[1][layer], strict=True):
            assert np.abs(one - two).max() < 1e-4 * max(1.0, np.abs(one).max())


@pytest.mark.parametrize("shortcut", [False, True])
def test_profiling_leaves_running_statistics_as_they_were(
    runtime: Runtime, tmp_path: Path, shortcut: bool
) -> None:
    trainer = runtime.trainer(solver(tmp_path, 8, True, shortcut), data=samples(8))
    trainer.step(2)
    before = [array.copy() for array in trainer.net.params["bn"]]
    trainer.profile(3)
    assert all(np.array_equal(*pair) for pair in zip(before, trainer.net.params["bn"], strict=True))


@pytest.mark.parametrize("shortcut", [False, True])
def test_a_step_that_fails_leaves_running_statistics_as_they_were(
    runtime: Runtime, tmp_path: Path, shortcut: bool
) -> None:
    data = samples(8)
    data["train"]["data"][16] = np.nan
    trainer = runtime.trainer(solver(tmp_path, 8, True, shortcut), data=data)
    words = {entry.operation for entry in trainer.net.plan.entries}
    assert ("batch_norm_sum_relu" in words) == shortcut
    trainer.step(2)
    before = [array.copy() for array in trainer.net.params["bn"]]
    with pytest.raises(NumericsError, match="iteration 2"):
        trainer.step(1)
    assert all(np.array_equal(*pair) for pair in zip(before, trainer.net.params["bn"], strict=True))


@pytest.mark.parametrize("statistics", ["global", "local"])
@pytest.mark.parametrize("shortcut", [False, True])
def test_workers_of_one_memory_have_running_statistics_of_all_samples_or_each_of_its_own(
    tmp_path: Path, shortcut: bool, statistics: str
) -> None:
    """The first's are those of a worker alone that has all of the batch, or half of it."""
    found, data = [], samples(8)
    half = {"train": {name: array[:4] for name, array in data["train"].items()}}
    levels = (
        Level("node", memory=(MemorySpace("host"),)),
        Level("worker", count=2, workers="threads", sync=SyncSpec("parameter_server", {"model": "bsp"})),
    )
    alone = (8, data) if statistics == "global" else (4, half)
    for machine, batch, given in ((Machine("two", levels), 8, data), ("auto", *alone)):
        with compose(machine) as runtime:
            path = solver(tmp_path, batch, True, shortcut)
            trainer = runtime.trainer(path, data=given, statistics=statistics)
            trainer.step(1)
            found.append([array.copy() for array in trainer.net.params["bn"]])
    assert found[0][2][0] == found[1][2][0] == 1
    for two, one in zip(*found, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_net_made_in_a_forked_process_runs_there(tmp_path: Path) -> None:
    path = solver(tmp_path, 8, normalised=True)
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import demitasse, test_siblings_and_statistics as t
def loss():
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        return runtime.trainer({str(path)!r}, data=t.samples(8)).step(1).loss
first = loss()
child = os.fork()
if child == 0:
    os._exit(0 if abs(loss() - first) < 1e-5 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "0", done.stderr


def test_records_of_a_call_own_what_compiled_code_writes() -> None:
    """A call stands in several tables, each of which has a record of its own."""
    from numba import njit

    from demitasse_cpu.native import Call

    @njit(nogil=True)  # type: ignore[untyped-decorator]
    def double(x: Any) -> None:
        x[0] *= 2

    record = Call(double, (np.ones(1),)).record()
    start, stop = record.ctypes.data, record.ctypes.data + record.nbytes
    assert all(start <= int(record[i]) < stop for i in (2, 3))
