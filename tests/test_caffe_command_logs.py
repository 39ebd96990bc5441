"""What ``test`` and ``time`` write for scripts that read Caffe's log of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse_cli.main import main

NET = """
name: "scored"
layer { name: "data" type: "Data" top: "data" top: "label"
        data_param { source: "digits:test" batch_size: 40 } }
layer { name: "fc" type: "InnerProduct" bottom: "data" top: "fc"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc" bottom: "label" top: "loss" loss_weight: 2 }
layer { name: "accuracy" type: "Accuracy" bottom: "fc" bottom: "label" top: "accuracy" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 1 snapshot_prefix: "s"'
HEAD = re.compile(r"I\d{4} [\d:.]{15} +\d+ caffe\.cpp:\d+\] ")
LINE = r"^loss \d+\.\d+  accuracy \d\.\d+  \(3 batches, 120 samples, [\d.]+ s\)$"
SCORES = ["test", "-model", "net.prototxt", "-weights", "s_iter_1.demitasse", "-iterations", "3"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    with demitasse.compose() as runtime:
        trainer = runtime.trainer("solver.prototxt")
        trainer.step(1)
        trainer.snapshot()
    return tmp_path


def lines(text: str) -> list[str]:
    """What is said behind glog's heads, which every line has."""
    found = text.splitlines()
    assert all(HEAD.match(line) for line in found)
    return [HEAD.sub("", line) for line in found]


def test_scores_are_logged_batch_by_batch_and_their_means_at_the_end(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SCORES, "-logtostderr", "--json", "scores.json"]) == 0
    captured = capsys.readouterr()
    assert re.search(LINE, captured.out)
    first, *batches, loss, accuracy, weighted = lines(captured.err)
    assert first == "Running for 3 iterations."
    told: dict[str, list[float]] = {"accuracy": [], "loss": []}
    for line in batches:
        number, name, value = re.fullmatch(r"Batch (\d+), (\w+) = (\S+)", line).groups()
        assert int(number) == len(told[name])
        told[name].append(float(value))
    means = {name: np.mean(values) for name, values in told.items()}
    assert {len(values) for values in told.values()} == {3}
    assert float(accuracy.removeprefix("accuracy = ")) == pytest.approx(means["accuracy"], abs=1e-5)
    mean, part = re.fullmatch(r"loss = (\S+) \(\* 2 = (\S+) loss\)", weighted).groups()
    assert float(mean) == pytest.approx(means["loss"], rel=1e-5)
    assert float(part) == pytest.approx(2 * means["loss"], rel=1e-5)
    assert float(loss.removeprefix("Loss: ")) == pytest.approx(2 * means["loss"], rel=1e-5)
    scores = json.loads(Path("scores.json").read_text())["scores"]
    assert scores == {name: pytest.approx(value, rel=1e-5) for name, value in means.items()}


def test_a_log_in_a_folder_leaves_standard_error_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SCORES, "-log_dir", "logs"]) == 0
    captured = capsys.readouterr()
    assert re.search(LINE, captured.out)
    assert captured.err == ""
    assert "Batch 2, accuracy = " in Path("logs/caffe.INFO").read_text()


def test_the_time_of_each_layer_and_of_both_passes_is_logged(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["time", "-model", "net.prototxt", "-iterations", "2", "-logtostderr"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"^fc +forward +\d", captured.out, re.MULTILINE)
    begins, count, head, *rows, ahead, back, both, total, ends = lines(captured.err)
    assert (begins, count) == ("*** Benchmark begins ***", "Testing for 2 iterations.")
    assert (head, ends) == ("Average time per layer: ", "*** Benchmark ends ***")
    seconds: dict[str, list[float]] = {"forward": [], "backward": []}
    layers = []
    for row in rows:
        name, phase, value = re.fullmatch(r" *(\w+)\t(\w+): (\S+) ms\.", row).groups()
        layers.append(name)
        seconds[phase].append(float(value))
    assert {"fc", "loss"} <= set(layers)
    assert layers[::2] == layers[1::2]
    sums = {phase: sum(values) for phase, values in seconds.items()}
    for line, name, value in (
        (ahead, "Average Forward pass", sums["forward"]),
        (back, "Average Backward pass", sums["backward"]),
        (both, "Average Forward-Backward", sum(sums.values())),
        (total, "Total Time", 2 * sum(sums.values())),
    ):
        said, number = re.fullmatch(r"(.*): (\S+) ms\.", line).groups()
        assert said == name
        assert float(number) == pytest.approx(value, rel=1e-4)
        assert value > 0


def test_a_net_tells_each_batch_while_it_is_scored(folder: Path) -> None:
    with demitasse.compose() as runtime:
        net = runtime.net("net.prototxt", weights="s_iter_1.demitasse")
        heard: list[tuple[int, float]] = []
        means = net.test(4, lambda number, outputs: heard.append((number, float(outputs["loss"]))))
        assert [number for number, _ in heard] == [0, 1, 2, 3]
        assert means["loss"] == pytest.approx(np.mean([loss for _, loss in heard]))
        assert net.loss_weights == {"loss": 2.0}
