"""Shell scripts that call Caffe's command run with this one in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse_cli.main import main

NET = """
name: "two stages"
layer { name: "data" type: "Data" top: "data" top: "label"
        data_param { source: "digits:train" batch_size: 8 } }
layer { name: "wide" type: "InnerProduct" bottom: "data" top: "fc" include { stage: "wide" }
        inner_product_param { num_output: 20 weight_filler { type: "xavier" } } }
layer { name: "deep" type: "InnerProduct" bottom: "data" top: "fc"
        include { min_level: 3 not_stage: "wide" }
        inner_product_param { num_output: 12 weight_filler { type: "xavier" } } }
layer { name: "plain" type: "InnerProduct" bottom: "data" top: "fc"
        include { max_level: 2 not_stage: "wide" }
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" }
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 3 snapshot_prefix: "snapshot"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def newest(folder: Path) -> str:
    return max(folder.glob("snapshot_iter_*"), key=lambda path: path.stat().st_mtime_ns).name


@pytest.mark.parametrize(
    "words",
    [
        ["train", "-solver", "solver.prototxt"],
        ["train", "--solver", "solver.prototxt"],
        ["train", "-solver=solver.prototxt"],
        ["train", "--solver=solver.prototxt"],
        ["-solver", "solver.prototxt", "train"],
        ["--solver=solver.prototxt", "train", "--logtostderr=1"],
        ["train", "-log_dir", "logs", "-logtostderr", "solver.prototxt"],
    ],
    ids=" ".join,
)
def test_a_solver_is_named_in_every_way_that_caffe_takes(
    folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert "done: 3 iterations" in capsys.readouterr().out


def test_a_snapshot_is_continued_and_weights_are_taken_over(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "-solver", "solver.prototxt", "-iterations=2"]) == 0
    assert main(["train", "-solver", "solver.prototxt", "-snapshot", newest(folder)]) == 0
    assert "from iteration 2" in capsys.readouterr().out
    assert main(["train", "-solver=solver.prototxt", "-weights", newest(folder)]) == 0
    assert "from iteration 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "layer"),
    [
        ([], "plain"),
        (["-level", "3"], "deep"),
        (["-stage", "wide,other"], "wide"),
        (["-level=3", "-stage=wide"], "wide"),
        (["-phase", "TEST", "-level=4"], "deep"),
    ],
)
@pytest.mark.parametrize("model", ["net.prototxt", "solver.prototxt"])
def test_level_and_stages_reach_the_rules_of_the_net_that_is_timed(
    folder: Path, flags: list[str], layer: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["time", "-model", model, "-iterations", "1", *flags]) == 0
    rows = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert rows & {"plain", "deep", "wide"} == {layer}


@pytest.mark.parametrize(("flags", "layer"), [(["-level", "3"], "deep"), (["-stage=wide"], "wide")])
def test_level_and_stages_reach_the_net_that_is_trained_and_the_one_that_is_tested(
    folder: Path, flags: list[str], layer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import demitasse

    assert main(["train", "-solver", "solver.prototxt", *flags]) == 0
    weights = newest(folder)
    with demitasse.compose() as runtime:
        assert set(runtime.read(weights).weights().parameters) == {layer}
    assert main(["test", "-model", "net.prototxt", "-weights", weights, "-iterations=2", *flags]) == 0
    assert "2 batches, 16 samples" in capsys.readouterr().out


def test_a_stage_is_added_to_those_of_the_solver(folder: Path) -> None:
    import demitasse

    (folder / "solver.prototxt").write_text(SOLVER + 'train_state { stage: "wide" }')
    assert main(["train", "-solver", "solver.prototxt", "-stage", "other"]) == 0
    with demitasse.compose() as runtime:
        assert set(runtime.read(newest(folder)).weights().parameters) == {"wide"}


def test_a_device_number_is_taken_with_a_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-solver", "solver.prototxt", "-gpu", "0"]) == 0
    assert "--gpu 0 has no effect: the composition decides which device runs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "-solvr", "solver.prototxt"], "'--solvr'; did you mean '--solver'?"),
        (["train"], "SOLVER is missing"),
        (["test", "-weights", "x"], "MODEL is missing"),
        (["train", "a.prototxt", "-solver", "b.prototxt"], "two files are given"),
        (
            ["train", "-solver", "solver.prototxt", "-sigint_effect", "halt"],
            "--sigint-effect: unknown value 'halt' (valid: none, snapshot, stop)",
        ),
        (
            ["train", "-solver", "solver.prototxt", "-level", "high"],
            "'high' (valid: a whole",
        ),
        (["train", "-solver", "slver.prototxt"], "did you mean 'solver.prototxt'?"),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_valid(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def running(folder: Path, *words: str) -> subprocess.Popen[str]:
    """A training that does not end by itself, after its first iterations."""
    command = [sys.executable, "-m", "demitasse_cli", "train", "-solver=solver.prototxt", *words]
    (folder / "solver.prototxt").write_text(
        SOLVER.replace("max_iter: 3", "max_iter: 100000000 display: 1")
    )
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )
    assert process.stdout is not None
    assert any("iteration 2 " in line for line in process.stdout)
    return process


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_signal_may_ask_for_a_snapshot_or_for_nothing_while_the_training_goes_on(folder: Path) -> None:
    with running(folder, "-sigint_effect=snapshot", "-sighup_effect=none") as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        assert any("snapshot snapshot_iter_" in line for line in process.stdout)
        assert any("iteration" in line for line in process.stdout)
        assert process.poll() is None
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "interrupted: " in out
