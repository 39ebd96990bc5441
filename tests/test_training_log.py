"""Caffe's log of a training: scripts that read losses and scores from it find them."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from small_nets import WORKERS

import demitasse
from demitasse import CompositionError
from demitasse_caffe.training_log import Lines, TrainingLog, listener
from demitasse_cli.main import main

NET = """
name: "two losses"
layer { name: "data" type: "Data" top: "data" top: "label"
        data_param { source: "digits:train" batch_size: 10 } include { phase: TRAIN } }
layer { name: "data" type: "Data" top: "data" top: "label"
        data_param { source: "digits:test" batch_size: 10 } include { phase: TEST } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "aux" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "aux" loss_weight: 0.25 }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy"
        include { phase: TEST } }
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.01 lr_policy: "step" gamma: 0.1 stepsize: 3 max_iter: 6 display: 2
snapshot_prefix: "snapshot" snapshot_format: BINARYPROTO test_iter: 3 test_interval: 3 random_seed: 1
"""
LINE = re.compile(r"I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.cpp:\d+\] (.*)")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*words: str) -> None:
    assert main(["train", "-solver", "solver.prototxt", "--option", "tuning.tune=off", *words]) == 0


def said(text: str) -> list[str]:
    """The texts of the lines that glog's form holds for."""
    return [match[1] for match in map(LINE.fullmatch, text.splitlines()) if match]


def outputs(lines: list[str], phase: str) -> list[tuple[int, str, float]]:
    """(iteration, blob, value), read as Caffe's own parse_log.py does: the iteration is the last that
    was told of."""
    found, iteration = [], -1
    for line in lines:
        if match := re.search(r"Iteration (\d+)", line):
            iteration = int(match[1])
        if match := re.search(phase + r" net output #\d+: (\S+) = ([\.\deE+-]+)", line):
            found.append((iteration, match[1], float(match[2])))
    return found


def test_losses_rates_and_scores_stand_where_scripts_look(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("-logtostderr", "--json", "run.json")
    output = capsys.readouterr()
    lines, record = said(output.err), json.loads(Path("run.json").read_text())
    assert len(lines) == len(output.err.splitlines())
    assert lines[:2] == ["Starting Optimization", "Solving two losses"]
    assert lines[-1] == "Optimization Done."
    losses = dict(record["history"])
    told = [re.match(r"Iteration (\d+) \(.* iter/s, .*s/2 iters\), loss = (.*)", x) for x in lines]
    assert [(int(m[1]), float(m[2])) for m in told if m] == [
        (number, pytest.approx(losses[number + 1], rel=1e-5)) for number in (0, 2, 4)
    ]
    rates = [re.match(r"Iteration (\d+), lr = (.*)", line) for line in lines]
    assert [(int(m[1]), float(m[2])) for m in rates if m] == [(0, 0.01), (2, 0.01), (4, 0.001)]
    parts = outputs(lines, "Train")
    assert [row[:2] for row in parts] == [(n, b) for n in (0, 2, 4) for b in ("aux", "loss")]
    for number, value in ((n, v) for n, _, v in parts):
        assert 1.25 * value == pytest.approx(losses[number + 1], rel=1e-5), "both are the same blob's"
    scores = {row["iteration"]: row["scores"] for row in record["tests"]}
    assert outputs(lines, "Test") == [
        (n, blob, pytest.approx(scores[n][blob], rel=1e-5))
        for n in (0, 3, 6)
        for blob in ("accuracy", "aux", "loss")
    ]
    loss = f"{scores[6]['aux']:g} (* 0.25 = {scores[6]['aux'] / 4:g} loss)"
    assert f"    Test net output #1: aux = {loss}" in lines
    assert "Snapshotting to binary proto file snapshot_iter_6.caffemodel" in lines


def test_a_folder_has_the_log_by_the_name_that_glog_gives_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOG_log_dir", "logs")
    train()
    output = capsys.readouterr()
    assert output.err == ""
    assert "iteration 6" in output.out, "the progress stays where it was"
    (file,) = Path("logs").glob("caffe.*.log.INFO.*")
    link = Path("logs", "caffe.INFO")
    assert link.resolve() == file.resolve()
    text = link.read_text()
    assert text.startswith("Log file created at: ")
    assert "Optimization Done." in said(text)


def test_switches_can_be_off(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("--logtostderr=0", "-alsologtostderr=false", "-minloglevel", "0")
    assert capsys.readouterr().err == ""


def logged(workers: int) -> list[float]:
    """The trained net's losses in the log of that many workers."""
    Path("machine.toml").write_text(WORKERS.format(count=workers))
    plugins = ["caffe", "training", "datasets", "reference", "snapshots"]
    options = {"caffe": {"log": f"{workers}.log"}}
    with demitasse.compose("machine.toml", plugins, options=options) as runtime:
        runtime.trainer("solver.prototxt", precision="f64").run()
    return [value for *_, value in outputs(said(Path(f"{workers}.log").read_text()), "Train")]


def test_a_loss_is_told_of_all_samples_whatever_each_worker_has_of_them(folder: Path) -> None:
    assert logged(3) == pytest.approx(logged(1), rel=1e-5)


def test_scores_of_several_values_and_of_a_second_net_are_told_one_by_one() -> None:
    lines: list[str] = []
    log = TrainingLog(1, lambda place, text: lines.append(text))
    log.tests(4, {"loss": 0.5, "1.loss": 2.0, "1.by_class": [0.25, 1.0]}, [{"loss": 1.0}, {}])
    assert lines == [
        "Iteration 4, Testing net (#0)",
        "    Test net output #0: loss = 0.5 (* 1 = 0.5 loss)",
        "Iteration 4, Testing net (#1)",
        "    Test net output #0: by_class = 0.25",
        "    Test net output #1: by_class = 1",
        "    Test net output #2: loss = 2",
    ]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (5, "option caffe.log = 5 (valid: a file, a folder, - for standard error, or a list"),
        ("nowhere/train.log", "option caffe.log: nowhere/train.log: No such file or directory"),
    ],
)
def test_a_log_that_cannot_be_written_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompositionError, match=re.escape(words)):
        listener(wanted)


def test_a_user_without_a_name_has_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nobody)
    listener(str(tmp_path))
    assert len([*tmp_path.glob("caffe.*.invalid-user.log.INFO.*")]) == 1


def test_a_log_does_not_go_where_a_foreseen_name_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of all users' the name may be a link that somebody has made."""

    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Noon:
            return cls(2026, 1, 1, 12)

    monkeypatch.setattr("demitasse_caffe.training_log.datetime", Noon)
    folder, notes = tmp_path / "logs", tmp_path / "notes.txt"
    folder.mkdir()
    notes.write_text("notes")
    listener(str(folder))
    (first,) = folder.glob("caffe.*.20260101-120000.*")
    first.unlink()
    first.symlink_to(notes)
    listener(str(folder))
    assert notes.read_text() == "notes"
    assert (folder / "caffe.INFO").resolve().name == f"{first.name}.1"


def test_a_log_shows_a_strangers_names(tmp_path: Path) -> None:
    lines = Lines([str(tmp_path / "train.log")])
    lines.say("solver.cpp:1", "\x1b]0;mine\a = 1")
    assert (tmp_path / "train.log").read_text().endswith("] \\x1b]0;mine\\x07 = 1\n")


def test_a_log_has_names_of_any_alphabet_wherever_it_is_written(tmp_path: Path) -> None:
    """The encoding of a process that was started without a locale is ASCII."""
    program = r"""
import sys
from demitasse_caffe.training_log import listener, Lines
listener(sys.argv[1])
Lines([sys.argv[1] + "/train.log"]).say("solver.cpp:1", "\u640d\udcff = 1")
"""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    asked = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(asked, env={**os.environ, **locale}, check=True)
    assert (tmp_path / "train.log").read_text("utf-8").endswith("] \u640d\\udcff = 1\n")


def test_a_folder_s_newest_log_may_be_another_user_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "caffe.INFO").symlink_to("other")

    def not_mine(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "unlink", not_mine)
    listener(str(tmp_path))
    assert len([*tmp_path.glob("caffe.*.log.INFO.*")]) == 1
