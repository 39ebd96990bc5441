"""``demitasse train`` with a runtime that only halves its loss."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from demitasse import Event, NumericsError
from demitasse_cli.main import main
from demitasse_cli.train import HISTORY, History, newest_snapshot


def test_options_reach_the_runtime(runtime: Any) -> None:
    line = (
        "train lenet_solver.prototxt --hw box.toml --plugins cpu,+null --weights a.caffemodel "
        "--resume b.demitasse --iterations 6 --scaling weak --precision f64 --set base_lr=0.5 "
        "--set layer.mnist.data_param.source=x=y --option cpu.threads=2 --option cpu.name=one"
    )
    assert main(line.split()) == 0
    assert runtime.asked == {
        "hw": "box.toml",
        "plugins": ["cpu", "+null"],
        "options": {"cpu": {"threads": 2, "name": "one"}},
        "weights": "a.caffemodel",
        "resume": "b.demitasse",
        "overrides": {"base_lr": "0.5", "layer.mnist.data_param.source": "x=y", "max_iter": 6},
        "scaling": "weak",
        "precision": "f64",
    }
    assert runtime.closed


def test_it_says_what_was_composed_then_how_it_goes(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "lenet_solver.prototxt"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "machine  abacus"
    assert lines[2].split("  ") == ["arithmetic", "automatic, priority 50", "kernels"]
    assert lines[3] == "not used  torch: only used when named"
    assert lines[4] == (
        "batch 32 on 2 workers (strong scaling)  learning rate 0.25  from iteration 0 to 4"
    )
    assert lines[5].startswith(
        "iteration 2  loss 0.25  rate 0.25  320 samples/s  data wait 10.0%  left 0:00:0"
    )
    assert lines[6] == "iteration 2  test  accuracy 0.5000  loss 0.2500"
    assert lines[-2] == "iteration 4  snapshot lenet_solver_iter_4.demitasse"
    assert lines[-1].startswith("done: 4 iterations  loss 0.0625  test accuracy 0.5000  loss 0.0625  ")
    assert lines[-1].endswith("snapshot lenet_solver_iter_4.demitasse")


def test_quiet_says_nothing(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "s.prototxt", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_the_report_has_every_key(runtime: Any, tmp_path: Path) -> None:
    assert main(["train", "s.prototxt", "--json", "out/result.json"]) == 0
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["iterations"] == 4
    assert result["loss"] == 0.0625
    assert result["scores"] == {"accuracy": 0.5, "loss": 0.0625}
    assert result["samples_per_second"] == pytest.approx(320)
    assert result["seconds"] >= 0
    assert result["composition"]["plugins"] == {"arithmetic": "2.5"}
    assert result["history"] == [[1, 0.5], [2, 0.25], [3, 0.125], [4, 0.0625]]
    assert [test["iteration"] for test in result["tests"]] == [2, 4]
    assert result["snapshot"] == "s_iter_4.demitasse"
    assert result["interrupted"] is False
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["result.json"]


def test_a_report_on_standard_output_stands_there_alone(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "s.prototxt", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["iterations"] == 4
    assert "iteration 2  loss 0.25" in captured.err


def test_a_report_that_cannot_be_written_is_told_before_training(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file")
    assert main(["train", "s.prototxt", "--json", "taken/result.json"]) == 2
    assert runtime.made is None
    assert "taken" in capsys.readouterr().err


def test_a_run_that_fails_still_reports_what_it_had(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(iteration: int) -> None:
        if iteration == 3:
            raise NumericsError("iteration 3: the loss is nan; the first layer is 'conv1'")

    def prepare(trainer: Any) -> None:
        trainer.before_iteration = explode

    runtime.prepare = prepare
    assert main(["train", "s.prototxt", "--json", "result.json"]) == 2
    assert "conv1" in capsys.readouterr().err
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["iterations"] == 3
    assert result["history"][-1] == [3, 0.125]
    assert result["error"].startswith("NumericsError: iteration 3")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_stops(
    number: signal.Signals,
    status: int,
    runtime: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}

    def prepare(trainer: Any) -> None:
        trainer.before_iteration = lambda i: os.kill(os.getpid(), number) if i == 1 else None

    runtime.prepare = prepare
    assert main(["train", "s.prototxt", "--json", "result.json"]) == status
    captured = capfd.readouterr()
    assert "interrupt again to stop at once" in captured.err
    last = captured.out.splitlines()[-1]
    assert last.startswith("interrupted: 2 iterations")
    assert last.endswith("snapshot s_iter_2.demitasse")
    assert json.loads((tmp_path / "result.json").read_text())["interrupted"] is True
    assert {each: signal.getsignal(each) for each in before} == before


def test_resume_auto_takes_the_newest_snapshot(runtime: Any, tmp_path: Path) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for name in (
        "lenet_iter_900.demitasse",
        "lenet_iter_1000.demitasse",
        "lenet_iter_1000.demitasse.part",
        "lenet_big_iter_5000.demitasse",
        "lenet_iter_2000.caffemodel",
    ):
        (folder / name).write_text("")
    assert main(["train", "solver.prototxt", "--resume", "auto"]) == 0
    assert runtime.asked["resume"] == "snapshots/lenet_iter_1000.demitasse"


def test_resume_auto_without_a_snapshot_starts_anew(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "solver.prototxt", "--resume", "auto"]) == 0
    assert runtime.asked["resume"] is None
    assert "from iteration 0 to 4" in capsys.readouterr().out


def test_the_newest_snapshot_of_a_prefix_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "snapshot_iter_7.solverstate").write_text("")

    class Solver:
        snapshot_prefix = ""

    assert newest_snapshot(Solver()) == "snapshot_iter_7.solverstate"  # type: ignore[arg-type]


def test_a_long_history_is_thinned_evenly() -> None:
    history = History()
    for iteration in range(1, 3 * HISTORY + 1):
        history(Event("iteration", iteration, {"loss": float(iteration)}))
    numbers = [number for number, _ in history.losses]
    assert len(numbers) <= HISTORY
    assert numbers == list(range(4, 3 * HISTORY + 1, 4))
    assert all(number == loss for number, loss in history.losses)
