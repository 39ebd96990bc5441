"""The real command, in a separate process, training on scikit-learn's digits."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demitasse_cli.main import main

PLUGINS = "caffe,datasets,training,reference,snapshots"

NET = """
name: "small"
layer {
  name: "digits" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.0625 }
  data_param { source: "digits:train" batch_size: 32 }
}
layer {
  name: "digits" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.0625 }
  data_param { source: "digits:test" batch_size: 359 }
}
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 8 kernel_size: 3 weight_filler { type: "xavier" } }
}
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer { name: "relu1" type: "ReLU" bottom: "pool1" top: "pool1" }
layer {
  name: "ip1" type: "InnerProduct" bottom: "pool1" top: "ip1"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } }
}
layer {
  name: "accuracy" type: "Accuracy" bottom: "ip1" bottom: "label" top: "accuracy"
  include { phase: TEST }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip1" bottom: "label" top: "loss" }
"""
SOLVER = """
net: "small.prototxt"
test_iter: 1
test_interval: 200
base_lr: 0.05
momentum: 0.9
lr_policy: "fixed"
display: 50
max_iter: 400
random_seed: 1
snapshot_prefix: "saved/small"
"""


@dataclass
class Folder:
    """A folder with a solver and a net, in which the command runs."""

    path: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "demitasse_cli", *arguments]

    def run(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*arguments), cwd=self.path, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "small.prototxt").write_text(NET)
    (tmp_path / "small_solver.prototxt").write_text(SOLVER)
    return Folder(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, str, dict[str, Any]]:
    """A finished run: its folder, its output, and its report."""
    path = tmp_path_factory.mktemp("trained")
    (path / "small.prototxt").write_text(NET)
    (path / "small_solver.prototxt").write_text(SOLVER)
    folder = Folder(path)
    done = folder.run(
        *("train", "small_solver.prototxt", "--plugins", PLUGINS),
        *("--json", "result.json", "--timeline", "timeline.json"),
    )
    return folder, done.stdout, json.loads((path / "result.json").read_text())


Trained = tuple[Folder, str, dict[str, Any]]


def test_a_prefix_that_cannot_be_written_is_told_before_training(folder: Folder) -> None:
    (folder.path / "saved").write_text("a file")
    done = folder.run("train", "small_solver.prototxt", "--plugins", PLUGINS, status=2)
    assert done.stdout == ""
    assert done.stderr.startswith("demitasse: snapshots with prefix 'saved/small' ")
    assert done.stderr.count("\n") == 1


def test_digits_are_learnt_and_the_run_is_told(trained: Trained) -> None:
    _, said, result = trained
    lines = said.splitlines()
    assert lines[0].startswith("machine  ")
    assert any(line.startswith("batch 32 on 1 worker (strong scaling)") for line in lines)
    told = [int(m[1]) for line in lines if (m := re.match(r"iteration (\d+)  loss", line))]
    assert told == list(range(50, 401, 50))
    tests = [line for line in lines if "  test  accuracy" in line]
    assert [line.split()[1] for line in tests] == ["0", "200", "400"]
    assert result["scores"]["accuracy"] > 0.9
    assert result["iterations"] == 400
    assert len(result["history"]) == 400
    assert result["history"][0][1] > 1 > result["loss"] > 0
    assert set(result["phases"]) == {"read", "forward", "backward", "synchronise"}
    assert sum(result["phases"].values()) < result["seconds"]
    assert lines[-1].startswith("done: 400 iterations")
    assert "\x1b" not in said


def test_the_timeline_has_every_operation(trained: Trained) -> None:
    folder, _, _ = trained
    events = json.loads((folder.path / "timeline.json").read_text())["traceEvents"]
    drawn = {(e["name"], e["cat"]) for e in events if e["ph"] == "X"}
    assert {("conv1", "forward"), ("conv1", "backward"), ("loss", "backward")} <= drawn
    assert sum(e["ph"] == "X" and e["cat"] == "iteration" for e in events) == 400


def test_the_snapshot_scores_as_the_run_did(trained: Trained) -> None:
    folder, _, result = trained
    assert result["snapshot"] == "saved/small_iter_400.demitasse"
    for model in ("small_solver.prototxt", "small.prototxt"):
        given = ["--weights", result["snapshot"], "--plugins", PLUGINS, "--json", "-"]
        scored = json.loads(folder.run("test", model, *given).stdout)
        assert scored["iterations"] == 1
        assert scored["scores"]["accuracy"] == pytest.approx(result["scores"]["accuracy"], abs=1e-6)


def test_a_converted_snapshot_scores_the_same(trained: Trained) -> None:
    folder, _, result = trained
    plugins = ["--plugins", PLUGINS]
    done = folder.run("convert", result["snapshot"], "w.caffemodel", *plugins)
    assert done.stdout.startswith("wrote w.caffemodel: 2 layers, 810 parameters")
    folder.run("convert", result["snapshot"], "w.caffemodel", *plugins, status=2)
    given = ["--weights", "w.caffemodel", *plugins, "--json", "-"]
    scored = json.loads(folder.run("test", "small.prototxt", *given).stdout)
    assert scored["scores"]["accuracy"] == pytest.approx(result["scores"]["accuracy"], abs=1e-6)


def test_a_resumed_run_goes_on_where_it_was(trained: Trained, folder: Folder) -> None:
    _, _, result = trained
    train = ("train", "small_solver.prototxt", "--plugins", PLUGINS, "--quiet")
    folder.run(*train, "--iterations", "250")
    assert (folder.path / "saved/small_iter_250.demitasse").is_file()
    folder.run(*train, "--resume", "auto", "--json", "result.json")
    resumed = json.loads((folder.path / "result.json").read_text())
    assert resumed["history"][0][0] == 251
    assert resumed["history"][-1] == result["history"][-1]


def test_each_layer_is_timed_and_explained(trained: Trained) -> None:
    folder, _, _ = trained
    given = ["--plugins", PLUGINS, "--json", "-"]
    for model in ("small_solver.prototxt", "small.prototxt"):
        timed = json.loads(folder.run("time", model, "--iterations", "2", *given).stdout)
        layers = {(row["layer"], row["phase"]): row for row in timed["layers"]}
        assert layers["conv1", "backward"]["plugins"] == ["reference"]
        assert timed["seconds"] == pytest.approx(sum(r["seconds"] for r in layers.values()))
    plan = json.loads(folder.run("explain", "small_solver.prototxt", *given).stdout)["plan"]
    # conv1: 8 filters of 3 x 3 and 8 biases; ip1: 10 x (8 x 3 x 3) and 10 biases. Each parameter array
    # is padded to 64 bytes, which is 16 numbers: 80 + 16, 720 + 16.
    assert {tuple(b["layers"]): b["elements"] for b in plan["buckets"]} == {
        ("ip1",): 736,
        ("conv1",): 96,
    }
    assert plan["parameters"] == plan["trainable"] == 80 + 730
    assert plan["arena_bytes"] < plan["unshared_bytes"]
    shown = folder.run("explain", "small_solver.prototxt", "--plugins", PLUGINS).stdout
    assert "reference" in shown
    assert "synchronised after" in shown


NODE = """
schema = 1
name = "node"

[[level]]
name = "node"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
peak = "100 GFLOP/s (assumed)"
"""


def test_what_a_reader_has_read_over_is_told_once(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within this process, because a dozen separate commands would take four times as long."""
    monkeypatch.chdir(folder.path)
    (folder.path / "small.prototxt").write_text(f'engine: "MKLDNN"\n{NET}')
    (folder.path / "node.toml").write_text(NODE)
    note = "demitasse: small.prototxt: fields of Intel's fork that have no effect here: engine (line 1)"
    shapes = ("--samples", "1x8x8")
    for arguments in (
        ("train", "small_solver.prototxt", "--iterations", "1", "--set", "test_interval=1"),
        ("explain", "small_solver.prototxt"),
        ("explain", "small.prototxt", "--phase", "TRAIN"),
        ("test", "small_solver.prototxt", "--weights", "saved/small_iter_1.caffemodel"),
        ("time", "small_solver.prototxt", "--iterations", "1"),
        ("time", "small.prototxt", "--iterations", "1"),
        ("time", "small.prototxt", "--iterations", "1", "--phase", "TEST"),
        ("simulate", "small_solver.prototxt", *shapes, "--hw", "node.toml"),
    ):
        assert main([*arguments, "--plugins", f"{PLUGINS},simulator"]) == 0
        said = capsys.readouterr()
        assert said.err.splitlines().count(note) == 1, arguments
        assert "without effect" not in said.out
    assert main(["draw", "small.prototxt"]) == 0
    assert capsys.readouterr().err.splitlines() == [note]
    json_file = ("--json", "t.json")
    for command in ("time", "simulate"):
        hw = ("--hw", "node.toml", *shapes) if command == "simulate" else ()
        given = (command, "small_solver.prototxt", *hw, "--plugins", f"{PLUGINS},simulator")
        assert main([*given, *json_file]) == 0
        told = json.loads((folder.path / "t.json").read_text())["notes"]
        assert note.removeprefix("demitasse: ") in told


def test_mistakes_are_one_line(folder: Folder) -> None:
    for arguments, words in (
        (["train", "small_solvr.prototxt"], "small_solver.prototxt"),
        (["train", "small_solver.prototxt", "--set", "base_lrr=1"], "'base_lr'"),
        (["train", "small_solver.prototxt", "--plugins", "cafe"], "'caffe'"),
        (["train", "small_solver.prototxt", "--hw", "nowhere.toml"], "nowhere.toml"),
    ):
        if "--plugins" not in arguments:
            arguments += ["--plugins", PLUGINS]
        done = folder.run(*arguments, status=2)
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("demitasse: ")
        assert words in done.stderr


ENDLESS = ("train", "small_solver.prototxt", "--plugins", PLUGINS, "--iterations", "1000000")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_saves_says_where_and_can_go_on(
    number: signal.Signals, status: int, folder: Folder
) -> None:
    with subprocess.Popen(
        folder.command(*ENDLESS, "--json", "result.json"),
        cwd=folder.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = iter(process.stdout)
        assert next(line for line in lines if line.startswith("iteration 50  loss"))
        process.send_signal(number)
        last = list(lines)[-1]
        assert process.wait(30) == status
        assert "interrupt again to stop at once" in process.stderr.read()
    result = json.loads((folder.path / "result.json").read_text())
    assert result["interrupted"] is True
    assert (folder.path / result["snapshot"]).is_file()
    assert last.startswith(f"interrupted: {result['iterations']} iterations")
    assert last.endswith(f"snapshot {result['snapshot']}\n")
    more = str(result["iterations"] + 5)
    done = folder.run(*ENDLESS[:-1], more, "--resume", "auto")
    assert f"from iteration {result['iterations']} ({result['snapshot']}) to {more}" in done.stdout


def test_a_closed_standard_output_is_no_fault(folder: Folder) -> None:
    line = ["train", "small_solver.prototxt", "--plugins", PLUGINS, "--iterations", "2"]
    closing = "import os, sys; os.close(1); os.execv(sys.argv[1], sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", closing, *folder.command(*line)],
        cwd=folder.path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder.path / "saved/small_iter_2.demitasse").is_file()


class Session:
    """A command on a terminal of its own, as a person would run it."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.main, child = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
        owning = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
        owning += "os.execv(sys.argv[1], sys.argv[1:])"
        self.process = subprocess.Popen(
            [sys.executable, "-c", owning, *command],
            cwd=folder,
            env=environment,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        os.close(child)
        self.text = ""

    def read(self) -> Iterator[str]:
        """Yield everything shown so far, repeatedly, until the command ends."""
        while True:
            try:
                block = os.read(self.main, 65536)
            except OSError:  # on Linux: nobody has the terminal open any more
                return
            if not block:
                return
            self.text += block.decode(errors="replace")
            yield self.text

    def type(self, keys: bytes) -> None:
        os.write(self.main, keys)

    def close(self) -> int:
        for _ in self.read():
            pass
        os.close(self.main)
        return self.process.wait(30)


def test_on_a_terminal_it_is_live_and_control_c_saves(folder: Folder) -> None:
    session = Session(folder.command(*ENDLESS), folder.path)
    assert any(re.search(r"/1000000 .*samples/s", text) for text in session.read())
    session.type(b"\x03")
    assert session.close() == 130
    assert "\x1b[?25l" in session.text
    assert session.text.rindex("\x1b[?25h") > session.text.rindex("\x1b[?25l")
    found = re.search(r"interrupted: (\d+) iterations .* snapshot (\S+)", session.text)
    assert found is not None
    assert (folder.path / found[2]).is_file()
    assert re.search(r"iteration 0  test  accuracy 0\.\d+", session.text)
