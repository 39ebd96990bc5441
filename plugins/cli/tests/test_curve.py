"""``demitasse curve``: what is plotted from reports of trainings."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse_cli.curve import COLOURS, Run, running_mean
from demitasse_cli.main import main

pytest.importorskip("matplotlib", reason="Matplotlib, which draws pictures, is not installed")

Capture = pytest.CaptureFixture[str]


def record(path: Path, first: int = 1, score: str = "accuracy", **changes: Any) -> Path:
    """Write a file as train --json does, of 100 iterations and two tests."""
    history = [[first + i, None if i == 50 else 2.0 / (first + i)] for i in range(100)]
    tests = [{"iteration": first + i, "scores": {"loss": 0.5, score: 0.25 + i / 200}} for i in (0, 99)]
    whole = {"solver": "a/lenet_solver.prototxt", "history": history, "tests": tests, "seconds": 3.2}
    path.write_text(json.dumps({**whole, **changes}))
    return path


def texts(picture: Path) -> set[str]:
    """Return the texts in an SVG picture; Matplotlib draws them as shapes, each with a comment."""
    return set(re.findall(r"<!-- (.*?) -->", picture.read_text()))


def test_runs_that_continue_each_other_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    first, then = record(tmp_path / "one.json"), record(tmp_path / "two.json", first=101)
    assert main(["curve", str(first), str(then), "-o", str(tmp_path / "both.svg")]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/both.svg\n"
    drawn = texts(tmp_path / "both.svg")
    assert {"lenet_solver, 6 s", "each iteration", "mean of the last 4", "test accuracy"} <= drawn
    assert "74.50%" in drawn
    joined = Run.joined([Run.read(first), Run.read(then)])
    assert [iteration for iteration, _ in joined.history] == [*range(1, 201)]
    assert joined.scored("accuracy") == [(1, 0.25), (100, 0.745), (101, 0.25), (200, 0.745)]


def test_a_run_that_went_on_from_before_another_s_end_takes_its_place(tmp_path: Path) -> None:
    named = {1: "run-2", 81: "run-10", 181: "run-9"}  # a shell's pattern puts 10 first
    runs = [Run.read(record(tmp_path / f"{name}.json", first=first)) for first, name in named.items()]
    joined = Run.joined([runs[1], runs[0], runs[2]])
    assert [iteration for iteration, _ in joined.history] == [*range(1, 281)]
    assert joined.history[79:81] == [(80, 2 / 80), (81, 2 / 81)]
    assert [iteration for iteration, _ in joined.tests] == [1, 81, 180, 181, 280]
    assert joined.file == "run-9"


def test_runs_that_begin_alike_do_not_continue_each_other(tmp_path: Path, capsys: Capture) -> None:
    runs = [str(record(tmp_path / name)) for name in ("a.json", "b.json")]
    assert main(["curve", *runs]) == 2
    assert capsys.readouterr().err == (
        "demitasse: a and b both begin at iteration 1, so neither continues the other; --compare draws "
        "each by itself\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_runs_that_are_compared_have_lines_of_their_own(tmp_path: Path) -> None:
    runs = [record(tmp_path / "slow.json"), record(tmp_path / "fast.json", score="recall")]
    picture = tmp_path / "both.svg"
    assert main(["curve", *map(str, runs), "--compare", "-o", str(picture), "--score", "recall"]) == 0
    assert {"slow, 3 s", "fast, 3 s, 0.745", "test recall"} <= texts(picture)


def drawn(tmp_path: Path, **changes: Any) -> set[str]:
    """Return the texts of the picture of a run."""
    picture = tmp_path / "run.svg"
    assert main(["curve", str(record(tmp_path / "run.json", **changes)), "-o", str(picture)]) == 0
    return texts(picture)


def test_losses_that_a_logarithm_would_hide_are_drawn(tmp_path: Path) -> None:
    """A margin or a likelihood may be negative, and any loss zero."""
    below = drawn(tmp_path, history=[[i, i - 50.0] for i in range(100)])
    assert {"−40", "0", "40"} <= below
    assert "0.00" in drawn(tmp_path, history=[[i, 0.0] for i in range(100)])
    assert "no loss is finite" in drawn(tmp_path, history=[[i, None] for i in range(100)])


def test_one_iteration_is_a_point_at_a_whole_number(tmp_path: Path) -> None:
    said = drawn(tmp_path, history=[[1, 2.0]], tests=[])
    assert {"0", "1", "2", "each iteration"} <= said
    assert not any("." in text or "mean of" in text for text in said)
    assert re.search(f"<use [^>]*{COLOURS[0]}", (tmp_path / "run.svg").read_text())


def test_a_run_without_tests_has_no_panel_for_them(tmp_path: Path) -> None:
    assert not any("test" in text for text in drawn(tmp_path, tests=[]))


def test_the_axis_goes_on_where_losses_are_no_longer_finite(tmp_path: Path) -> None:
    history = [[i, 1.0 / i if i < 20 else None] for i in range(1, 1000)]
    assert "800" in drawn(tmp_path, history=history, tests=[])


def test_a_history_of_some_iterations_says_of_how_many(tmp_path: Path) -> None:
    """Long runs keep every second loss, or fewer."""
    said = drawn(tmp_path, history=[[i * 500, 1.0] for i in range(1, 1001)])
    assert {"one of 500 iterations", "mean of the last 10,000", "200,000"} <= said


def test_long_names_lose_their_middle_and_many_runs_differ(tmp_path: Path) -> None:
    runs = [str(record(tmp_path / f"{'long' * 30}_{i}.json")) for i in range(9)]
    picture = tmp_path / "all.svg"
    assert main(["curve", *runs, "--compare", "-o", str(picture)]) == 0
    names = [text for text in texts(picture) if "long" in text]
    assert len(names) == 9 and max(map(len, names)) < 90
    styles = set(re.findall(r'style="(fill: none;[^"]*stroke-width: 1.5[^"]*)"', picture.read_text()))
    assert len(styles) >= 9


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_the_same_run_gives_the_same_file(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(record(tmp_path / "run.json"))
    for year in ("1", "2"):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", year * 9)  # what the clock would say
        assert main(["curve", run, "-o", str(tmp_path / f"{year}.{kind}")]) == 0
    assert (tmp_path / f"1.{kind}").read_bytes() == (tmp_path / f"2.{kind}").read_bytes()


def test_a_picture_stands_beside_its_run(tmp_path: Path) -> None:
    run = record(tmp_path / "run.json", tests=[])
    assert main(["curve", str(run)]) == 0
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_finds_no_room_is_named_and_nothing_stays(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    run, picture = record(tmp_path / "run.json"), tmp_path / "run.png"
    assert main(["curve", str(run)]) == 2
    told = f"demitasse: {picture} could not be written: No space left on device\n"
    assert capsys.readouterr().err == told
    assert [*tmp_path.iterdir()] == [run]


@pytest.mark.parametrize(
    "changes",
    [
        {"history": [[1, [2.0]], [2, 3.0]]},
        {"history": [[1, "2"]]},
        {"history": [[1e999, 2.0]]},
        {"history": [[10**30, 2.0]]},
        {"history": [[0, 1.0], [(1 << 63) - 1, 2.0]]},
        {"history": [[1, 10**400]]},
        {"tests": [{"iteration": 1, "scores": {"accuracy": 10**400}}]},
        {"tests": [{"iteration": 1, "scores": {"accuracy": "0.5"}}]},
        {"tests": [{"iteration": 1, "scores": 3}]},
        {"seconds": 10**400},
        {"solver": 5},
    ],
)
def test_what_is_no_record_of_a_training_is_told_so(
    tmp_path: Path, capsys: Capture, changes: dict[str, Any]
) -> None:
    run = record(tmp_path / "run.json", **changes)
    assert main(["curve", str(run)]) == 2
    told = f"demitasse: {run}: is not the record of a run, as train --json writes it\n"
    assert capsys.readouterr().err == told


def test_text_that_is_nested_too_deep_is_no_json(tmp_path: Path, capsys: Capture) -> None:
    run = tmp_path / "run.json"
    run.write_text("[" * 100_000)
    assert main(["curve", str(run)]) == 2
    assert capsys.readouterr().err.startswith(f"demitasse: {run}: is not JSON: ")


def test_an_accuracy_of_each_class_is_not_drawn(tmp_path: Path) -> None:
    tests = [{"iteration": i, "scores": {"classes": [0.1, 0.2], "accuracy": 0.5}} for i in (1, 2)]
    run, picture = record(tmp_path / "run.json", tests=tests), tmp_path / "run.svg"
    assert main(["curve", str(run), "-o", str(picture)]) == 0
    assert "test accuracy" in texts(picture)


def test_the_mean_is_of_the_last_values_that_are_numbers() -> None:
    values = np.random.default_rng(1).standard_normal(40)
    values[[0, 7, 8, 9, 10]] = np.nan
    found = running_mean(values, 3)
    for end in range(1, 41):
        last = values[max(0, end - 3) : end]
        known = last[np.isfinite(last)]
        assert found[end - 1] == pytest.approx(known.mean() if known.size else np.nan, nan_ok=True)


def test_records_of_jobs_that_came_to_nothing_are_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """A job that is queued again may find nothing to do, or fail before it writes a snapshot."""
    monkeypatch.chdir(tmp_path)
    for name, first, last, resumed in (
        ("run-0", 0, 10, None),
        ("run-1", 10, 30, "a_iter_10.demitasse"),  # failed
        ("run-2", 10, 20, "a_iter_10.demitasse"),
        ("run-3", 20, 40, "a_iter_20.demitasse"),
    ):
        losses = [[i, 1.0 / (i + 1)] for i in range(first, last)]
        record(Path(f"{name}.json"), history=losses, tests=[], resumed=resumed)
    record(Path("run-4.json"), history=[], tests=[])
    record(Path("run-5.json"), history=[[0, 1.0], [1, 0.5]], tests=[], error="DataError: gone")
    runs = [Path(f"run-{number}.json") for number in range(6)]
    assert main(["curve", *map(str, runs)]) == 0
    assert "run-4.json: the run has no iterations; left out" in capsys.readouterr().err
    joined = Run.joined([Run.read(path) for path in (*runs[:4], runs[5])])
    assert [iteration for iteration, _ in joined.history] == [*range(40)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run.jsn"], "run.jsn: cannot be read: No such file or directory; did you mean"),
        (["pipe"], "pipe is a pipe or a device; a file is needed here"),
        (["text.json"], "text.json: is not JSON: "),
        (["binary.json"], "binary.json: is neither JSON nor any other text"),
        (["other.json"], "other.json: is not the record of a run, as train --json writes it"),
        (["empty.json"], "empty.json: the run has no iterations"),
        (["run.json", "--score", "acuracy"], "unknown score 'acuracy'; did you mean 'accuracy'?"),
        (["run.json", "-o", "a.gif"], "a.gif: unknown picture format (valid: .png, .svg, .pdf)"),
        (["run.json", "-o", "run.json/a.png"], "--output run.json/a.png cannot be written"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    record(Path("run.json"))
    record(Path("empty.json"), history=[])
    Path("text.json").write_text("no")
    Path("binary.json").write_bytes(b"{\xff")
    os.mkfifo("pipe")
    Path("other.json").write_text('{"history": 3}')
    assert main(["curve", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
