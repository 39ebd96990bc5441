"""Accelerators that host_streams stands in for, beside other plugins: solvers that need whole gradients,
processes around them, the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from launchers import LAUNCHER
from small_nets import TWO_PRODUCTS

import demitasse

ROOT = Path(__file__).parents[1]
COMMAND = Path(sys.executable).with_name("demitasse")
DIGITS = ROOT / "examples/digits/digits_solver.prototxt"
SCHEMES = ["cgdp", "typical"]

PLUGINS = (
    '["caffe", "training", "datasets", "cpu", "reference", "host_streams", "snapshots", "allreduce"]'
)
NODES = """
[[level]]
name = "node"
count = 2
workers = "mpi"
sync = { plugin = "allreduce" }
"""
ACCELERATORS = """
[[level]]
name = "gpu"
count = {count}
workers = "streams"
memory = [{{ space = "host", at = "accelerator:*" }}]
sync = {{ plugin = "cgdp", scheme = "{scheme}" }}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.5 lr_policy: "fixed" max_iter: 4 random_seed: 4 weight_decay: 0.1
momentum: 0.9 snapshot_after_train: false
"""


def machine(path: Path, scheme: str, count: int, outside: str = "") -> Path:
    """A description of so many stand-ins, in what is ``outside``."""
    head = f'schema = 1\nname = "stand-ins"\nfingerprint = "any"\nplugins = {PLUGINS}\n'
    path.write_text(head + outside + ACCELERATORS.format(count=count, scheme=scheme))
    return path


def trained(folder: Path, more: str, hw: Any) -> list[np.ndarray]:
    """All parameters after some steps."""
    (folder / "net.prototxt").write_text(TWO_PRODUCTS)
    (folder / "solver.prototxt").write_text(SOLVER + more)
    random = np.random.default_rng(7)
    samples = {"data": random.normal(size=(8, 6)) * 3, "label": np.arange(8) % 3}
    plugins = None if hw != "auto" else ["caffe", "training", "datasets", "reference"]
    with demitasse.compose(hw, plugins) as runtime:
        trainer = runtime.trainer(folder / "solver.prototxt", data={"train": samples}, precision="f64")
        trainer.step(4)
        return [array.copy() for arrays in trainer.net.params.values() for array in arrays]


@pytest.mark.parametrize(
    "more", ["clip_gradients: 0.05", "clip_gradients: 1e6", "type: 'LARS' lars_trust: 0.01"]
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_updates_that_need_whole_gradients_are_as_alone(
    tmp_path: Path, scheme: str, more: str, no_threads_left: None
) -> None:
    alone = trained(tmp_path, more, "auto")
    found = trained(tmp_path, more, machine(tmp_path / "hw.toml", scheme, 3))
    for ours, theirs in zip(found, alone, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def run(folder: Path, hw: Path | None, *words: str, launch: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train the digits for some iterations by the command line; what it wrote."""
    settings = ["--set", "test_interval=5", "--set", "snapshot_after_train=false", "--json", "run.json"]
    command = [*launch, str(COMMAND), "train", str(DIGITS), "--iterations", "5", *settings, *words]
    done = subprocess.run(
        [*command, *(["--hw", str(hw)] if hw else [])],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


@pytest.mark.skipif(not LAUNCHER.exists(), reason=f"no MPI launcher at {LAUNCHER}")
def test_two_processes_of_two_accelerators_train_as_one_worker_does(tmp_path: Path) -> None:
    """By either scheme inside an allreduce: what they compute together is one batch."""
    pytest.importorskip("sklearn")
    alone = [loss for _, loss in run(tmp_path, None)["history"]]
    assert len(alone) == 5
    for scheme in SCHEMES:
        hw = machine(tmp_path / f"{scheme}.toml", scheme, 2, NODES)
        told = run(tmp_path, hw, launch=(str(LAUNCHER), "-n", "2"))
        assert told["workers"] == 4
        assert [loss for _, loss in told["history"]] == pytest.approx(alone, rel=1e-5)


def test_the_command_lines_timeline_has_copies_and_sums(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    hw = machine(tmp_path / "hw.toml", "cgdp", 2)
    told = run(tmp_path, hw, "--timeline", "timeline.json")["synchronisation"]
    assert any("chunks by Algorithm 1: the search goes on, now with 1" in line for line in told)
    events = json.loads((tmp_path / "timeline.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    names = [event["name"] for event in events if event.get("cat") == "synchronisation"]
    kinds = {name.split()[0] for name in names}
    assert kinds == {"d2h", "accumulate", "h2d"}
    counts = {kind: sum(name.startswith(kind) for name in names) for kind in kinds}
    assert len(set(counts.values())) == 1, "each chunk goes, is added and comes back"


def test_the_bench_has_resnet_152(no_threads_left: None) -> None:
    """As many parameters as its authors': 60,192,808 without running means."""
    import bench_cgdp

    net = bench_cgdp.resnet152()
    assert net.parameters == 60_192_808
    kinds = [layer.kind for layer in net.layers]
    assert (kinds.count("convolution"), kinds.count("batch_norm"), kinds.count("add")) == (155, 155, 50)


@pytest.mark.parametrize("what", ["hidden", "chunks"])
def test_the_bench_measures_and_writes_what_it_found(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a small net, a few steps of some milliseconds each."""
    import bench_cgdp

    words = "--step 0.005 --bandwidth 1e9 --rounds 1 --steps 1 --largest 3 --interval 1 --search-step 2"
    path = tmp_path / "found.json"
    monkeypatch.setattr(
        sys, "argv", ["", what, "lenet", *words.split(), "--range", "1", "--json", str(path)]
    )
    bench_cgdp.main()
    found = json.loads(path.read_text())
    assert (found["net"], found["replicas"], found["bandwidth"]) == ("lenet", 2, 1e9)
    if what == "hidden":
        assert set(found["seconds"]) == {"one", "typical", "cgdp"}
        assert "hidden" in capsys.readouterr().out
    else:
        assert found["layers"] == 4
        assert {"1", "2", "3"} <= set(found["seconds"])
        assert str(found["found"]) in found["seconds"]
        assert found["found over best"] >= 1.0
