"""SSP and ASP across processes: each at its own pace. A process that dies is dropped, unless it holds a
shard."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import Level, Machine, SyncSpec, Weights, compose

Run = Callable[..., list[dict[str, Any]]]

SSP, ASP = {"model": "ssp", "staleness": 1}, {"model": "asp"}
MODELS = pytest.mark.parametrize("sync", [SSP, ASP], ids=["ssp", "asp"])

pytestmark = pytest.mark.timeout(300, method="thread")


def bytes_of(told: dict[str, Any], shard: int) -> tuple[int, int]:
    """Return the bytes of a shard that a process reports as sent and received."""
    (line,) = (note for note in told["notes"] if f"shard {shard}: " in note)
    sent, received = re.findall(r"([\d,]+) (?:bytes sent|received)", line)
    return int(sent.replace(",", "")), int(received.replace(",", ""))


def snapshot(path: Path) -> Weights:
    with compose(Machine("any", (Level("machine"),), fingerprint="any"), ["snapshots"]) as runtime:
        return runtime.read(path).weights()


@MODELS
def test_all_do_their_iterations_and_learn(across: Run, sync: dict[str, Any]) -> None:
    told = across(80, SYNC=sync)
    assert [each["iteration"] for each in told] == [80] * 3
    assert all(each["finite"] for each in told)
    losses = np.array([each["losses"] for each in told])
    assert losses.shape == (3, 80)
    assert losses[:, -10:].mean() < 0.5 * losses[:, :10].mean()


def test_bytes_of_each_shard_are_counted_where_they_leave_and_where_they_come(across: Run) -> None:
    """A worker pushes and pulls a shard in each iteration; process 0 receives it at the end."""
    told = across(3, SYNC=ASP)
    for shard in (0, 1):
        counts = np.array([bytes_of(each, shard) for each in told])
        assert counts[:, 0].sum() == counts[:, 1].sum()
        pushed, pulled = counts[2]
        assert pushed == pulled > 0
        assert counts[shard, 1] == 2 * pushed
        taken_over = 0 if shard == 0 else 2 * pushed // 3
        assert counts[shard, 0] == 2 * pulled + taken_over


@pytest.mark.parametrize(("sync", "at", "leads"), [(SSP, 2, {1}), (ASP, 6, {5, 6})])
def test_a_slow_process_holds_others_up_only_as_the_model_says(
    across: Run, tmp_path: Path, sync: dict[str, Any], at: int, leads: set[int]
) -> None:
    """Process 2 waits in its first iteration until process 0 reads for iteration ``at``."""
    os.mkfifo(tmp_path / "gate")
    told = across(12, SYNC=sync, GATE=tmp_path / "gate", GATE_AT=at)
    assert [each["iteration"] for each in told] == [12] * 3
    (note,) = (note for note in told[0]["notes"] if "ahead when it began" in note)
    widest = int(re.findall(r"at most (\d+) iterations ahead when it began", note)[0])
    assert widest in leads if sync is SSP else widest >= min(leads)


@pytest.mark.parametrize(
    ("sync", "fate", "words"),
    [
        (SSP, "dies", r"died; last heard of "),
        pytest.param(ASP, "dies", r"died; last heard of ", marks=pytest.mark.slow),
        pytest.param(
            ASP,
            "raises",
            r"failed at iteration 7: DataError: samples.bin: sample 17 is cut off",
            marks=pytest.mark.slow,
        ),
        (SSP, "stops", r"has been silent for [\d.]+ s: stopped, or its host is down; last heard of "),
    ],
    ids=["killed, ssp", "killed, asp", "raising, asp", "stopped, ssp"],
)
def test_a_worker_that_is_lost_is_dropped_and_reported_and_the_run_goes_on(
    across: Run, tmp_path: Path, sync: dict[str, Any], fate: str, words: str
) -> None:
    prefix = tmp_path / "toy"
    solver = {"snapshot_last": True, "snapshot_prefix": str(prefix)}
    told = across(60, 2, 7, fate, SYNC=sync, SOLVER=solver)
    survivors = [each for each in told if "error" not in each]
    assert [each["rank"] for each in survivors] == [0, 1]
    assert [each["iteration"] for each in survivors] == [60, 60]
    assert all(each["finite"] for each in survivors)
    lost = rf"rank 2 of 3 \(host \S+, process \d+\) {words}.*: dropped"
    (report,) = survivors[0]["log"]
    assert re.match(rf"{lost}; 2 of 3 processes continue, without its share of each batch", report)
    for each in survivors:
        (note,) = (note for note in each["notes"] if "dropped" in note)
        assert re.match(f"ApartServer: {lost}", note)
    if fate == "stops":  # it went on in the end
        assert "rank 2 of 3" in told[2]["error"]
        assert "this process, has been silent for" in told[2]["error"]
    record = snapshot(Path(f"{prefix}_iter_60.demitasse"))
    assert all(np.isfinite(a).all() for arrays in record.parameters.values() for a in arrays)


def test_a_server_that_dies_ends_the_run_with_its_name(across: Run) -> None:
    told = across(1000, 1, 7, "dies", SYNC=SSP)
    assert [each["rank"] for each in told] == [0, 2]
    assert all(each["error"].startswith("WorkerError: rank 1 of 3 (host ") for each in told)
    assert all("died; last heard of " in each["error"] for each in told)


def test_pushes_of_an_iteration_add_up_to_the_synchronous_step_in_all_shards(
    across: Run, tmp_path: Path, toy: ModuleType
) -> None:
    """To first order in the learning rate, as a snapshot shows."""
    found = {}
    for model in ("bsp", "asp"):
        prefix = str(tmp_path / model)
        solver = {"rate": 1e-6, "momentum": 0.0, "decay": 0.5}
        solver |= {"snapshot_last": True, "snapshot_prefix": prefix}
        across(1, SYNC={"model": model}, SOLVER=solver)
        found[model] = snapshot(Path(f"{prefix}_iter_1.demitasse"))
    level = Level("worker", 1, workers="threads", sync=SyncSpec("reference"))
    plugins = ["reference", "training", toy.toy()]
    with compose(Machine("toys", (level,), fingerprint="any"), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier(batch=11)), precision="f64")
        began = {name: [a.copy() for a in arrays] for name, arrays in trainer.net.params.items()}
    for layer, before in began.items():
        for number, start in enumerate(before):
            synchronous, pushed = (found[m].parameters[layer][number] - start for m in ("bsp", "asp"))
            scale = np.abs(synchronous).max()
            assert scale > 1e-9
            np.testing.assert_allclose(pushed, synchronous, rtol=0, atol=1e-4 * scale)


def test_a_run_may_stop_on_a_score_of_process_0(across: Run) -> None:
    solver = {"test_interval": 5, "test_iterations": [4]}
    told = across(1000, SYNC=ASP, SOLVER=solver, UNTIL=0.5)
    iterations = {each["iteration"] for each in told}
    assert len(iterations) == 1
    assert max(iterations) < 1000


def test_what_needs_whole_gradients_is_refused_by_all(across: Run) -> None:
    told = across(3, SYNC=ASP, SOLVER={"clip": 1.0})
    assert len(told) == 3
    assert all("clipping and LARS need the size of whole gradients" in each["error"] for each in told)
