"""``demitasse train`` with a runtime that only halves its loss."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import demitasse
from demitasse import PRECISIONS, Event, ModelError, NumericsError
from demitasse_cli import options
from demitasse_cli.beginning import untuned
from demitasse_cli.history import HISTORY, History, came_to
from demitasse_cli.main import main
from demitasse_cli.newest import snapshots

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


def test_options_reach_the_runtime(runtime: Any) -> None:
    line = (
        "train lenet_solver.prototxt --hw box.toml --plugins cpu,+null "
        "--resume b.demitasse --iterations 6 --scaling weak --statistics local --precision f64 "
        "--set base_lr=0.5 "
        "--set layer.mnist.data_param.source=x=y --option cpu.threads=2 --option cpu.name=one"
    )
    assert main(line.split()) == 0
    assert runtime.asked == {
        "hw": "box.toml",
        "plugins": ["cpu", "+null"],
        "options": {"cpu": {"threads": 2, "name": "one"}},
        "weights": None,
        "resume": "b.demitasse",
        "overrides": {"base_lr": "0.5", "layer.mnist.data_param.source": "x=y", "max_iter": 6},
        "scaling": "weak",
        "statistics": "local",
        "precision": "f64",
        "partial": False,
    }
    assert runtime.closed


def test_a_description_without_a_tuner_is_told(tmp_path: Path) -> None:
    """Only if it names its plugins, and nobody has left the tuner out."""
    head = 'schema = 1\nname = "mine"\nfingerprint = "any"\n'
    machine = tmp_path / "mine.toml"

    def told(plugins: list[str] | None, more: str = "") -> str:
        machine.write_text(f'{head}{more}[[level]]\nname = "machine"\n')
        with demitasse.compose(machine, plugins) as runtime:
            return untuned(runtime)

    named = 'plugins = ["caffe", "training", "cpu", "reference"]\n'
    assert told(None, named) == (
        "kernels are taken untried, which may be slow: machine 'mine' names no plugin that tries them "
        "(--plugins +tuning)"
    )
    assert told(["+tuning"], named) == told(["-tuning"], named) == told(None) == ""
    assert told(None, named.replace('"cpu"', '"cpu", "tuning"')) == ""


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


def test_quiet_says_only_what_it_came_to(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "s.prototxt", "--quiet"]) == 0
    said, error = capsys.readouterr()
    assert said.startswith("done: 4 iterations  loss 0.0625")
    assert (said.count("\n"), error) == (1, "")


def test_a_machine_that_is_not_this_one_is_said_first(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.machine = replace(runtime.machine, simulated=True)
    assert main(["train", "s.prototxt"]) == 0
    assert capsys.readouterr().out.startswith(
        "machine  abacus (described elsewhere: threads and memory are not bound)\n"
    )


def test_a_start_that_fails_is_one_line(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(trainer: Any) -> None:
        raise ModelError("s.prototxt:3: no")

    runtime.prepare = refuse
    assert main(["train", "s.prototxt"]) == 2
    assert capsys.readouterr() == ("", "demitasse: s.prototxt:3: no\n")


@pytest.mark.parametrize("resume", ["a.demitasse", "auto"])
def test_weights_and_a_snapshot_are_not_both_taken(
    resume: str, runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "s.prototxt", "--weights", "w.caffemodel", "--resume", resume]) == 2
    assert "--weights" in capsys.readouterr().err
    assert runtime.made is None


def test_inputs_that_nobody_fills_are_told(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def prepare(trainer: Any) -> None:
        trainer.net.graph.inputs = {"data": None, "label": None}

    assert main(["train", "s.prototxt"]) == 0
    assert "stay zero" not in capsys.readouterr().err
    runtime.prepare = prepare
    assert main(["train", "s.prototxt"]) == 0
    told = "demitasse: the train net's inputs get no data here and stay zero: 'data', 'label'"
    assert told in capsys.readouterr().err


def test_a_snapshot_at_the_end_leaves_nothing_to_do(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(trainer: Any) -> None:
        trainer.iteration = 9

    runtime.prepare = prepare
    assert main(["train", "s.prototxt", "--resume", "a.demitasse", "--json", "r.json"]) == 0
    said = capsys.readouterr().out
    last = "nothing to do: the snapshot is at iteration 9, the solver ends at 4\n"
    assert said.endswith(last)
    assert "nan" not in said
    told = json.loads((tmp_path / "r.json").read_text())
    assert (told["iterations"], told["interrupted"], told["phases"]) == (9, False, {})
    assert told["snapshot"] == told["resumed"] == "a.demitasse"


def test_an_output_that_nobody_reads_does_not_lose_the_run(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))

    def prepare(trainer: Any) -> None:
        trainer.before_iteration = lambda i: os.close(reader) if i == 0 else None

    runtime.prepare = prepare
    assert main(["train", "s.prototxt", "--json", "r.json"]) == 141
    result = json.loads((tmp_path / "r.json").read_text())
    # The second iteration's line is the first that cannot be written.
    assert (result["iterations"], result["interrupted"]) == (2, True)
    assert result["snapshot"] == "s_iter_2.demitasse"
    sys.stdout.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
def test_an_output_on_a_full_disk_does_not_lose_the_run_and_is_told(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = (tmp_path / "log").open("w")
    monkeypatch.setattr(sys, "stdout", log)

    def fill(iteration: int) -> None:
        if iteration == 0:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, log.fileno())
            os.close(full)

    runtime.prepare = lambda trainer: setattr(trainer, "before_iteration", fill)
    assert main(["train", "s.prototxt", "--json", "r.json"]) == 2
    assert capsys.readouterr().err == (
        "demitasse: the output cannot be written: No space left on device; stopped after snapshot "
        "s_iter_2.demitasse\n"
    )
    assert json.loads((tmp_path / "r.json").read_text())["snapshot"] == "s_iter_2.demitasse"
    log.close()


def test_resume_auto_falls_back_from_what_is_damaged(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    (folder / "lenet_iter_9.demitasse").write_text("good")
    (folder / "lenet_iter_10.demitasse").write_text("damaged")
    assert main(["train", "solver.prototxt", "--resume", "auto"]) == 0
    assert runtime.asked["resume"] == "snapshots/lenet_iter_9.demitasse"
    error = capsys.readouterr().err
    assert "lenet_iter_10.demitasse" in error
    assert error.count("\n") == 1
    (folder / "lenet_iter_9.demitasse").write_text("damaged")
    assert main(["train", "solver.prototxt", "--resume", "auto"]) == 2
    assert "can be read (2 files)" in capsys.readouterr().err


def test_the_report_has_every_key(runtime: Any, tmp_path: Path) -> None:
    assert main(["train", "s.prototxt", "--json", "out/result.json"]) == 0
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert result["synchronisation"] == ["Ring: two ranks add"]
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
    error = capsys.readouterr().err
    assert error.startswith("demitasse: --json taken/result.json cannot be written: ")


def test_a_run_that_fails_still_reports_what_it_had(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(iteration: int) -> None:
        if iteration == 3:
            raise NumericsError("iteration 3: the loss is nan; the first layer is 'conv1'")

    def prepare(trainer: Any) -> None:
        trainer.before_iteration = explode

    runtime.prepare = prepare
    assert main(["train", "s.prototxt", "--json", "result.json", "--timeline", "t.json"]) == 2
    assert "conv1" in capsys.readouterr().err
    names = [each["name"] for each in json.loads((tmp_path / "t.json").read_text())["traceEvents"]]
    assert "iteration 3" in names and "iteration 4" not in names
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["iterations"] == 3
    assert result["history"][-1] == [3, 0.125]
    assert result["error"].startswith("NumericsError: iteration 3")


def test_a_report_that_fails_with_the_run_does_not_hide_why(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(iteration: int) -> None:
        if iteration == 3:
            (tmp_path / "result.json").mkdir()
            raise NumericsError("iteration 3: the loss is nan")

    runtime.prepare = lambda trainer: setattr(trainer, "before_iteration", explode)
    assert main(["train", "s.prototxt", "--json", "result.json"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("demitasse: result.json could not be written: ")
    assert second == "demitasse: iteration 3: the loss is nan"


def test_a_report_is_written_though_the_timeline_cannot_be(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def block(iteration: int) -> None:
        if iteration == 1:
            (tmp_path / "t.json").mkdir()

    runtime.prepare = lambda trainer: setattr(trainer, "before_iteration", block)
    assert main(["train", "s.prototxt", "--json", "result.json", "--timeline", "t.json"]) == 2
    assert "t.json could not be written" in capsys.readouterr().err
    assert json.loads((tmp_path / "result.json").read_text())["iterations"] == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_report_goes_into_a_pipe_that_stays_one(runtime: Any, tmp_path: Path) -> None:
    pipe = tmp_path / "result.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main(["train", "s.prototxt", "--json", "result.json"]) == 0
    assert json.loads(os.read(reader, 1 << 16))["iterations"] == 4
    os.close(reader)
    assert pipe.is_fifo()


@pytest.fixture
def heard() -> Iterator[None]:
    """Ensure that no signal is ignored, even if nohup or a shell's & has started the tests."""
    before = {number: signal.getsignal(number) for number, _ in SIGNALS}
    for number in before:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_saves_and_stops(
    number: signal.Signals,
    status: int,
    runtime: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGHUP)}

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


def test_the_last_line_says_of_which_iteration_its_scores_are() -> None:
    history = History()
    history(Event("test", 0, {"scores": {"accuracy": 0.1}}))
    assert "test of iteration 0: accuracy 0.1" in came_to(578, 0.5, history, 6.2)
    history(Event("test", 578, {"scores": {"accuracy": 0.9}}))
    assert "  test accuracy 0.9" in came_to(578, 0.5, history, 6.2)


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


@pytest.mark.parametrize("rank", [0, 1])
def test_resume_auto_takes_what_process_0_finds(
    runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Another process may not see the newest snapshot in a shared folder yet, or only an older one."""
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots" / "lenet_iter_900.demitasse").write_text("")
    given = list[Any]()

    def gather(value: Any) -> list[Any]:
        given.append(value)
        return [value if rank == 0 else "snapshots/lenet_iter_1000.demitasse", None]

    runtime.processes.rank = rank
    monkeypatch.setattr(runtime.processes, "gather", gather)
    assert main(["train", "solver.prototxt", "--resume", "auto"]) == 0
    here = "snapshots/lenet_iter_900.demitasse"
    assert given == [here if rank == 0 else None]
    assert runtime.asked["resume"] == (here if rank == 0 else "snapshots/lenet_iter_1000.demitasse")


def test_resume_auto_takes_ours_of_an_iteration_for_its_place_in_the_data(
    runtime: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    for suffix in ("demitasse", "caffemodel.h5", "solverstate.h5", "solverstate"):
        (folder / f"lenet_iter_1000.{suffix}").write_text("")
    assert main(["train", "solver.prototxt", "--resume", "auto"]) == 0
    assert runtime.asked["resume"] == "snapshots/lenet_iter_1000.demitasse"


def test_resume_auto_tells_of_a_later_run_that_got_less_far(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    names = ("iter_500.demitasse", "iter_900.demitasse", "iter_1000.demitasse", "iter_1000.solverstate")
    for when, name in enumerate(names):
        (folder / f"lenet_{name}").write_text("")
        os.utime(folder / f"lenet_{name}", (1000 + when, 1000 + when))
    assert main(["train", "solver.prototxt", "--resume", "auto"]) == 0
    assert capsys.readouterr().err == ""
    os.utime(folder / "lenet_iter_500.demitasse", (2000, 2000))
    assert main(["train", "solver.prototxt", "--resume", "auto"]) == 0
    assert runtime.asked["resume"] == "snapshots/lenet_iter_1000.demitasse"
    assert capsys.readouterr().err == (
        "demitasse: continuing from snapshots/lenet_iter_1000.demitasse, but lenet_iter_500.demitasse "
        "was written later; if you mean that one: --resume snapshots/lenet_iter_500.demitasse\n"
    )


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

    assert snapshots(Solver()) == ["snapshot_iter_7.solverstate"]  # type: ignore[arg-type]


def test_a_long_history_is_thinned_evenly() -> None:
    history = History()
    for iteration in range(1, 3 * HISTORY + 1):
        history(Event("iteration", iteration, {"loss": float(iteration)}))
    numbers = [number for number, _ in history.losses]
    assert len(numbers) <= HISTORY
    assert numbers == list(range(4, 3 * HISTORY + 1, 4))
    assert all(number == loss for number, loss in history.losses)


def test_the_precisions_offered_are_those_that_there_are() -> None:
    assert set(options.PRECISIONS) == set(PRECISIONS)
