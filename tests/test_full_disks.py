"""All plugins' commands on a full disk: a line that names the file, status 2, nothing half written."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest

from demitasse_cli.main import main

FULL = Path("/dev/full")
HARDWARE = Path(__file__).parents[1] / "hwdesc"

pytestmark = pytest.mark.skipif(
    not FULL.exists() or not stat.S_ISCHR(FULL.stat().st_mode),
    reason="this system has no device that is full",
)

NET = """
name: "small"
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 8 dim: 3 dim: 6 dim: 6 } shape { dim: 8 } } }
layer { name: "score" type: "InnerProduct" bottom: "data" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""

WRITING = {
    "schedule": ["schedule", "ring", "--ranks", "4", "--json", "FILE"],
    "schedule's picture": ["schedule", "ring", "--ranks", "4", "--draw", "FILE"],
    "numa": ["numa", "--json", "FILE"],
    "simulate": ["simulate", "SOLVER", "--hw", str(HARDWARE / "taihulight.toml"), "--json", "FILE"],
    "simulate's trace": [
        *("simulate", "SOLVER", "--hw", str(HARDWARE / "taihulight.toml"), "--timeline", "FILE"),
    ],
    "reproduce": ["reproduce", "singlecaffe", "--plugins", "parameter_server", "--json", "FILE"],
    "data predict": ["data", "predict", str(HARDWARE / "taihulight.toml"), "--json", "FILE"],
    "workers": ["workers", "SOLVER", "--seconds", "0.1", "--json", "FILE"],
    "workers' description": ["workers", "SOLVER", "--seconds", "0.1", "--output", "FILE"],
    "explain": ["explain", "SOLVER", "--json", "FILE"],
    "train": ["train", "SOLVER", "--iterations", "1", "--json", "FILE"],
    "draw": ["draw", "NET", "FILE"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A solver, its net, and a link to the device."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(
        f'net: "{tmp_path / "net.prototxt"}" base_lr: 0.01 lr_policy: "fixed" max_iter: 1 '
        f'snapshot_prefix: "{tmp_path / "out" / "small"}"'
    )
    (tmp_path / "full.svg").symlink_to(FULL)
    return tmp_path


def words(command: list[str], folder: Path) -> list[str]:
    """The command's, with the folder's files for their names."""
    names = {"FILE": "full.svg", "SOLVER": "solver.prototxt", "NET": "net.prototxt"}
    return [str(folder / names[word]) if word in names else word for word in command]


@pytest.mark.parametrize("command", WRITING.values(), ids=WRITING)
def test_a_file_that_finds_no_room_is_named_and_a_device_stays_one(
    folder: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(command, folder)) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    full = folder / "full.svg"
    assert line.startswith(f"demitasse: {full}"), line
    assert line.endswith("written: No space left on device"), line
    assert full.is_symlink() and stat.S_ISCHR(full.stat().st_mode)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["--help"],
        ["--version"],
        ["plugins"],
        ["train", "--help"],
        ["schedule", "ring", "--ranks", "4", "--json", "-"],
        ["draw", "NET", "NET.svg"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("buffered", [True, False])
def test_standard_output_that_finds_no_room_is_named(
    folder: Path,
    command: list[str],
    buffered: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unbuffered, as by PYTHONUNBUFFERED, the device refuses a text without a letter too."""
    monkeypatch.chdir(folder)
    raw = FULL.open("wb", buffering=-1 if buffered else 0)
    with io.TextIOWrapper(raw, write_through=not buffered) as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words(command, folder)) == 2
        monkeypatch.undo()
    assert capsys.readouterr().err == "demitasse: standard output: No space left on device\n"


def test_a_prediction_is_told_where_its_file_finds_no_room(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = words(WRITING["simulate"], folder)
    assert main([*command[:-1], str(folder / "whole.json")]) == 0
    whole = capsys.readouterr().out
    assert json.loads((folder / "whole.json").read_text())["net"] == "small"
    assert main(command) == 2
    assert capsys.readouterr().out == whole


def test_a_run_tells_what_it_came_to_where_its_report_finds_no_room(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(WRITING["train"], folder)) == 2
    assert "done: 1 iteration  loss " in capsys.readouterr().out
