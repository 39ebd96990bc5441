"""``explain`` of a machine that is only described plans what would run there, without its memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from demitasse import CompositionError, compose
from demitasse_cli.main import main

ROOT = Path(__file__).parents[1]
SOLVER = str(ROOT / "examples/digits/digits_solver.prototxt")

BOX = """schema = 1
name = "box"
plugins = ["caffe", "training", "datasets", "reference", "simulator"]

[[level]]
name = "socket"
count = 2
workers = "threads"
memory = [{ space = "hbm", at = "hbm:*", capacity = "1 GiB", bandwidth = "9 GB/s", source = "assumed" }]
peak = "1 TFLOP/s"
sync = { plugin = "simulator" }
"""


def explained(hw: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", SOLVER, "--hw", str(hw), *words]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "workers", "said"),
    [
        ("kesch-cs-storm", 1, "with the 192 processes that kesch-cs-storm describes"),
        ("power8-4xp100", 4, "roofline"),
        ("h200-box", 8, "gpu"),
    ],
)
def test_accelerators_that_are_not_here_are_planned_for(
    name: str, workers: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = explained(ROOT / f"hwdesc/{name}.toml", capsys)
    assert f"planned for a described machine, {name}; nothing runs" in shown
    assert f"batch 64 on {workers} worker" in shown
    assert "convolution_backward_weights" in shown and said in shown.partition("planned for")[2]


def test_a_synchronisation_that_only_predicts_is_planned_and_refused_in_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = tmp_path / "box.toml"
    box.write_text(BOX)
    record = json.loads(explained(box, capsys, "--json", "-"))
    assert record["described"] and record["workers"] == 2
    assert record["plan"]["buckets"]  # two workers agree
    with compose(box) as runtime, runtime.program("planned") as planner:
        whole = 200 * 2**20
        allocator = planner.allocator("hbm")
        assert allocator.allocate(whole).nbytes == allocator.held == whole
    box.write_text(BOX.replace('"hbm", at = "hbm:*"', '"host"'))
    with compose(box) as runtime, pytest.raises(CompositionError, match="only predicts"):
        runtime.trainer(SOLVER)


def test_a_net_is_planned_there_too(capsys: pytest.CaptureFixture[str]) -> None:
    shown = explained(ROOT / "hwdesc/h200-box.toml", capsys, "--phase", "TEST")
    assert "planned for a described machine, h200-box" in shown
    assert "the net's plan in phase test, forward:" in shown and "accuracy" in shown


def test_of_this_machine_it_is_planned_as_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the description is for any."""
    shown = explained(ROOT / "hwdesc/two-workers.toml", capsys)
    assert "planned for" not in shown and "batch 64 on 2 workers" in shown
