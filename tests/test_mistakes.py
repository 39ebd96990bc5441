"""Mistakes on the command line: one line that says what was asked, and what is valid; status 2."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from demitasse_cli.main import main

ROOT = Path(__file__).parents[1]
SOLVER = str(ROOT / "examples/digits/digits_solver.prototxt")


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a mistake is told in."""
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("demitasse: ")
    return line.removeprefix("demitasse: ")


@pytest.mark.parametrize(
    "words",
    [
        ["train", SOLVER, "--weights", "{folder}"],
        ["train", SOLVER, "--resume", "{folder}"],
        ["train", SOLVER, "--set", "weights={folder}"],
        ["test", SOLVER, "--weights", "{folder}"],
    ],
)
def test_a_folder_in_place_of_a_file_is_called_one(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = told([word.format(folder=tmp_path) for word in words], capsys)
    named = f"{SOLVER}: override 'weights': file '{tmp_path}'" if "--set" in words else tmp_path
    assert line == f"{named} is a folder; a file is needed here: name one in it"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_place_of_a_file_is_not_said_to_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "solver.prototxt"
    os.mkfifo(pipe)
    line = told(["train", str(pipe)], capsys)
    assert line == f"{pipe} is a pipe or a device; a file is needed here: copy it to one"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "SOLVER is missing; see "),
        (["convert", "a"], "OUT is missing; see "),
        (["schedule", "ring"], "--ranks is missing; see "),
        (["detect", "foo", "bar"], "too many arguments: foo bar; see "),
        (["train", "x", "--gpu"], "--gpu needs a value; see "),
        (["train", "x", "--level", "high"], "--level: 'high' (valid: a whole number); see "),
        (
            ["train", "x", "--iterations", "-1"],
            "--iterations: '-1' (valid: a whole number, 0 or more); ",
        ),
        (["schedule", "ring", "--ranks", "x"], "--ranks: 'x' (valid: a whole number from 1 to 1048576)"),
        (
            ["train", "x", "--scaling", "strnog"],
            "--scaling: unknown value 'strnog'; did you mean",
        ),
        (["train", "x", "--set", "foo"], "--set: 'foo' is not KEY=VALUE; see "),
        (["train", "/"], "SOLVER: / is a folder; a file is needed here: name one in it; see "),
        (
            ["simulate", "x", "--samples", "3xx"],
            "'3xx' is not a shape like 3x227x227, or NAME=3x",
        ),
        (["train", "--nosuch"], "unknown option '--nosuch' (valid: "),
        (["train", "x", "--scaling"], "--scaling needs a value; see demitasse train --help"),
        (
            ["explain", "--phase", "tset"],
            "--phase: unknown value 'tset'; did you mean 'test'? (valid: test, ",
        ),
        (["workers", "x", "--seconds", "0"], "--seconds: '0.0' (valid: a number, 0.1 or more); see "),
        (["workers", "x", "--seconds", "y"], "--seconds: 'y' (valid: a number, 0.1 or more); see "),
        (["classify", "--scale", "y"], "--scale: 'y' (valid: a number); see "),
        (["data", "shwo"], "unknown command 'shwo'; did you mean 'show'? (valid: check, convert, "),
        (["explain", "--hw", "/"], "/ is a folder; a file is needed here: name one in it"),
        (["draw", "x", "such.svg"], "no such file: x"),
        (
            ["schedule", "ring", "--ranks", "2", "--draw", "/dev/null/x.svg"],
            "--draw /dev/null/x.svg cannot be written: /dev/null is not a folder",
        ),
    ],
)
def test_the_words_of_a_command_are_told_plainly(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(words, capsys).startswith(said)


STAGED = """
name: "staged"
layer { name: "in" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "deep" type: "InnerProduct" bottom: "data" top: "deep"
        inner_product_param { num_output: 2 } include { stage: "deep" min_level: 1 } }
layer { name: "tail" type: "ReLU" bottom: "deep" top: "tail" exclude { phase: TRAIN } }
"""


@pytest.fixture
def staged(tmp_path: Path) -> str:
    path = tmp_path / "net.prototxt"
    path.write_text(STAGED)
    return str(path)


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ([], "phase test, level 0, stages: none"),
        (["-stage", "deep"], "phase test, level 0, stages: 'deep'"),
        (["--stage=a,b", "--level", "1", "-phase", "TEST"], "phase test, level 1, stages: 'a', 'b'"),
    ],
)
def test_a_bottom_whose_maker_the_rules_leave_out_names_it(
    given: list[str], state: str, staged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = told(["explain", staged, *given], capsys)
    assert line == (
        f"{staged}:6: layer 'tail' (ReLU): bottom blob 'deep': layer 'deep' ({staged}:4), which makes "
        f"it, is left out by its include rules ({state})"
    )


@pytest.mark.parametrize(("phase", "tail"), [("TEST", True), ("train", False)])
def test_explain_plans_the_state_that_is_asked_for(
    phase: str, tail: bool, staged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "--stage",
        "deep",
        "--level",
        "1",
        "--phase",
        phase,
        "--plugins",
        "caffe,training,reference",
    ]
    assert main(["explain", staged, *given]) == 0
    shown = capsys.readouterr().out
    assert f"the net's plan in phase {phase.lower()}, forward:" in shown
    assert "deep   forward" in shown and ("relu" in shown.partition("plan in phase")[2]) == tail


@pytest.mark.parametrize(("phase", "word"), [([], "backward"), (["--phase", "TEST"], "accuracy")])
def test_explain_plans_a_solvers_net_in_either_phase(
    phase: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", SOLVER, *phase, "--plugins", "caffe,training,datasets,reference"]) == 0
    plan = capsys.readouterr().out.partition("plan")[2]
    assert word in plan and ("backward" in plan) != ("accuracy" in plan)


def test_a_misspelt_kind_of_samples_is_told_with_the_valid_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = told(["compute_image_mean", str(tmp_path), "-backend", "lmbd"], capsys)
    kind = "unknown kind 'lmbd'; did you mean 'lmdb'? (valid: annotated, arrays, "
    assert f"{str(tmp_path)!r}: {kind}" in line


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compute_image_mean", "-bakend", "lmdb", "x"], "'-bakend'; did you mean '-backend'?"),
        (["convert_imageset", "-resize_heigth=3", "x", "y"], "did you mean '-resize_height'?"),
        (["convert_imageset", "--resize_heigth=3", "x", "y"], "did you mean '--resize_height'?"),
        (["convert_imageset", "-nogry", "x", "y"], "unknown option '-nogry'; did you mean '-nogray'?"),
        (["convert", "-pluginss", "x", "y"], "unknown option '-pluginss'; did you mean '--plugins'?"),
    ],
)
def test_a_misspelt_flag_of_one_dash_is_told_whole(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in told(words, capsys)


def test_a_net_of_another_format_is_not_drawn_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } }'
        'layer { name: "r" type: "ReLU" bottom: "x" top: "y" }'
    )
    assert main(["convert", str(net), str(tmp_path / "net.onnx")]) == 0
    line = told(["draw", str(tmp_path / "net.onnx"), str(tmp_path / "a.svg")], capsys)
    assert line.startswith(f"{tmp_path}/net.onnx: is not one of Caffe's files, and only their nets")


def test_samples_that_are_not_there_have_their_layers_name(capsys: pytest.CaptureFixture[str]) -> None:
    line = told(["train", SOLVER, "--set", "layer.digits.data_param.source=nosuch"], capsys)
    net = ROOT / "examples/digits/digits_train_test.prototxt"
    assert line.startswith(f"{net}:3: layer 'digits' (Data): no such file or folder: 'nosuch'")


def test_a_solver_without_a_last_iteration_trains_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = ROOT / "examples/digits/digits_train_test.prototxt"
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{net}" base_lr: 0.1 lr_policy: "fixed" snapshot_after_train: false')
    assert told(["train", str(solver)], capsys) == (
        f"{solver}: max_iter is missing or 0, so nothing would be trained; give it, or --iterations "
        f"N (0 to test only)"
    )
    assert main(["train", str(solver), "--iterations", "0", "--quiet"]) == 0
    capsys.readouterr()
    solver.write_text(solver.read_text() + " max_iter: 0 test_interval: 9 test_iter: 1")
    assert main(["train", str(solver)]) == 0, "a solver that only tests, as SSD's score scripts write it"
    said = capsys.readouterr()
    assert f"{solver}: max_iter is missing or 0: nothing is trained, only tested" in said.err
    assert "iteration 0  test  accuracy 0." in said.out


@pytest.mark.parametrize(
    ("command", "old", "new", "shown"),
    [
        ("explain", '"ip1"', r'"ip\033]0;mine\007"', r"ip\x1b]0;mine\x07  forward"),
        ("explain", '"ip1"', r'"ip\n0  other"', r"ip\n0  other  forward"),
        ("explain", '"ip1"', '"\u202eabc"', r"\u202eabc  forward"),
        ("explain", '"InnerProduct"', r'"Inner\033]0;mine\007"', r"(Inner\x1b]0;mine\x07): unknown"),
        ("time", '"ip1"', r'"ip\rok"', r"ip\rok"),
    ],
)
def test_a_terminal_does_not_obey_a_strangers_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, old: str, new: str, shown: str
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'
        'layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "y" '
        "inner_product_param { num_output: 2 } }".replace(old, new)
    )
    main([command, str(path), *(["--iterations", "1"] if command == "time" else [])])
    captured = capsys.readouterr()
    told = captured.out + captured.err
    assert shown in told
    assert not re.search("[\\x00-\\x08\\x0b-\\x1f\\x7f\u202e]", told)
