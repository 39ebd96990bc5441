"""A folder that a user misspells is told, with the nearest name, wherever files are read; folders of
files that are written are made; and nothing is computed for a file that could not be written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from demitasse import check_writable, write_json
from demitasse_cli.main import main

SAMPLES = (
    'layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "%s" batch_size: 2 } }'
)
NET = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 10 } }
layer { name: "l" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1'


@pytest.mark.parametrize(
    "words",
    [
        ["train", "exampels/solver.prototxt"],
        ["train", "solver.prototxt", "--hw", "exampels/machine.toml"],
        ["train", "solver.prototxt", "--weights", "exampels/net.caffemodel"],
        ["train", "solver.prototxt", "--resume", "exampels/net.demitasse"],
        ["train", "solver.prototxt", "--set", "layer.d.data_param.source=exampels/samples"],
        ["test", "exampels/net.prototxt", "--weights", "net.caffemodel"],
    ],
    ids=["solver", "description", "weights", "snapshot", "samples", "net"],
)
def test_a_misspelt_folder_is_told_with_the_nearest_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").mkdir()
    Path("net.prototxt").write_text(SAMPLES % "digits:train" + NET)
    Path("solver.prototxt").write_text(SOLVER)
    assert main(words) == 2
    assert "; there is no folder 'exampels', did you mean 'examples'?" in capsys.readouterr().err


OUTPUTS = {
    "train": ["train", "solver.prototxt", "--json", "FILE"],
    "train's timeline": ["train", "solver.prototxt", "--timeline", "FILE"],
    "test": ["test", "solver.prototxt", "--weights", "net.caffemodel", "--json", "FILE"],
    "time": ["time", "solver.prototxt", "--json", "FILE"],
    "explain": ["explain", "solver.prototxt", "--json", "FILE"],
    "plugins": ["plugins", "--json", "FILE"],
    "doctor": ["doctor", "--json", "FILE"],
    "detect": ["detect", "--output", "FILE"],
    "convert": ["convert", "net.caffemodel", "FILE"],
    "curve": ["curve", "run.json", "-o", "FILE"],
    "schedule": ["schedule", "ring", "--ranks", "4", "--draw", "whole.svg", "--json", "FILE"],
    "schedule's picture": ["schedule", "ring", "--ranks", "4", "--json", "whole.json", "--draw", "FILE"],
    "classify": ["classify", "net.prototxt", "net.caffemodel", "image.png", "--json", "FILE"],
    "compute_image_mean": ["compute_image_mean", "digits:train", "FILE"],
    "draw": ["draw", "net.prototxt", "FILE"],
    "check": ["check", "null", "--json", "FILE"],
    "machines": ["machines", "--json", "FILE"],
    "numa": ["numa", "solver.prototxt", "--json", "FILE"],
    "workers": ["workers", "solver.prototxt", "--json", "FILE"],
    "workers' description": ["workers", "solver.prototxt", "--output", "FILE"],
    "simulate": ["simulate", "solver.prototxt", "--json", "FILE"],
    "simulate's trace": ["simulate", "solver.prototxt", "--timeline", "FILE"],
    "simulate's picture": ["simulate", "solver.prototxt", "--picture", "FILE"],
    "reproduce": ["reproduce", "swcaffe", "--json", "FILE"],
    "extract_features": ["extract_features", "net.caffemodel", "net.prototxt", "ip", "FILE"],
    "convert_imageset": ["convert_imageset", "list.txt", "FILE"],
    "convert_annoset": ["convert_annoset", "list.txt", "FILE"],
    "data convert's set": ["data", "convert", "digits:train", "FILE"],
    "data convert": ["data", "convert", "digits:train", "set", "--json", "FILE"],
    "data measure": ["data", "measure", "digits:train", "--json", "FILE"],
}


@pytest.mark.parametrize("words", OUTPUTS.values(), ids=OUTPUTS)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("net.caffemodel", "run.json", "net.prototxt", "solver.prototxt"):
        Path(name).touch()  # empty: none of them is read
    there = sorted(tmp_path.iterdir())
    assert main([word.replace("FILE", "run.json/new/out.svg") for word in words]) == 2
    told = capsys.readouterr()
    assert "run.json/new/out.svg cannot be written: run.json is not a folder" in told.err
    assert told.err.count("\n") == 1 and not told.out
    assert sorted(tmp_path.iterdir()) == there


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["train", "solver.prototxt", "--timeline", "new/too/t.json", "--json"], "run.json"),
        (["explain", "solver.prototxt", "--json"], "plan.json"),
        (["schedule", "ring", "--ranks", "4", "--draw"], "ring.svg"),
        (["draw", "net.prototxt"], "net.svg"),
        (["compute_image_mean", "digits:train"], "mean.binaryproto"),
        (["convert", "net.prototxt"], "net.pbtxt"),
        (["data", "convert", "digits:test"], "set"),
        (["reproduce", "swcaffe", "--json"], "cells.json"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_missing_folder_is_made_for_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(SAMPLES % "digits:train" + NET)
    Path("solver.prototxt").write_text(SOLVER)
    assert main([*words, f"new/too/{name}"]) == 0
    assert Path("new/too", name).exists()
    assert Path("new/too/t.json").exists() == ("--timeline" in words)


def test_files_that_could_be_written_are_accepted(tmp_path: Path) -> None:
    """So are standard output, devices, a link to a file that is not there yet, and one in a folder that
    is not there yet, which is left to whoever writes it."""
    (tmp_path / "link").symlink_to(tmp_path / "later")
    paths = [None, "-", Path("/dev/null"), tmp_path / "new.json", tmp_path / "link", tmp_path / "a/b/c"]
    check_writable({f"--{number}": path for number, path in enumerate(paths)})
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_folder_in_place_of_a_file_and_a_file_in_place_of_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IsADirectoryError, match=r"^--json .* is a folder; name a file$"):
        check_writable({"--json": tmp_path})
    with pytest.raises(
        NotADirectoryError, match=r"^--json .*file/a cannot be written: .*file is not a folder"
    ):
        check_writable({"--json": tmp_path / "file" / "a"})


def test_json_has_no_number_that_json_has_not(tmp_path: Path) -> None:
    """Infinity and NaN are words that only some readers know."""
    value = {"loss": math.nan, "all": (1.5, math.inf), "array": np.array([1.0, -math.inf]), 3: Path("a")}
    write_json(tmp_path / "a.json", value)
    plain = {"loss": None, "all": [1.5, None], "array": [1.0, None], "3": "a"}
    assert json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail) == plain
