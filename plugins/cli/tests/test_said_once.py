"""An error that all processes meet is reported in one line; one that only some meet, by each of
these."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launchers import let_survive, mpiexec

from demitasse import Processes, WorkerError
from demitasse_cli import command_line, launch

COMMAND = str(Path(sys.executable).with_name("demitasse"))
SOLVER = str(Path("examples/digits/digits_solver.prototxt").resolve())
SURVIVORS_SPEAK = ["sh", "-c", 'trap "" USR1; "$0" "$@"; status=$?; echo "ended $status"; exit $status']

NAMELESS = """
net: "net.prototxt"
base_lr: 0.01 lr_policy: "fixed" max_iter: 2 snapshot_prefix: "out"
"""


class Met(Processes):
    """Processes that have all arrived with the same message."""

    def __init__(self, rank: int, order: list[str]) -> None:
        self.rank, self.size, self._order = rank, 3, order

    def gather(self, value: object) -> list[object]:
        self._order.append("parted")
        return [value] * 3


@pytest.mark.parametrize(("rank", "said"), [(0, "demitasse: no such thing\n"), (2, "")])
def test_of_processes_that_have_met_the_first_speaks(
    rank: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", str(rank))
    monkeypatch.setattr(launch, "_meet", lambda words: Met(rank, order))
    assert command_line._say("no  such\nthing", 2) == 2
    assert capsys.readouterr().err == said
    assert order == ["parted"], "nobody ends before the first has spoken"


def test_whoever_meets_nobody_speaks_for_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setattr(launch, "_meet", lambda words: None)
    command_line._say("no such thing", 2)
    assert capsys.readouterr().err == "demitasse, rank 1: no such thing\n"


def test_what_keeps_processes_from_meeting_is_not_the_error_that_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> object:
        raise WorkerError("the others are at other things")

    monkeypatch.setenv("PMI_SIZE", "3")
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setattr("demitasse.discover", refuse)
    command_line._say("no such thing", 2)
    assert capsys.readouterr().err == "demitasse, rank 1: no such thing\n"


def run(*parts: list[str], folder: Path, cleanup: bool = False) -> tuple[int, list[str]]:
    """Run parts with mpiexec, or as processes that are not killed when one has ended with an error.
    Returns the exit status and the lines that were printed."""
    words = [mpiexec(), *([] if cleanup else let_survive())]
    for part in parts:
        words += [*([":"] if part is not parts[0] else []), *part]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=folder)
    told = (done.stdout + done.stderr).splitlines()
    statuses = {int(line.split()[1]) for line in told if line.startswith("ended ")}
    status = done.returncode if cleanup else max(statuses)
    return status, [line for line in told if line.startswith("demitasse")]


def command(ranks: int, *words: str) -> list[str]:
    return ["-n", str(ranks), *SURVIVORS_SPEAK, COMMAND, *words]


@pytest.mark.parametrize(
    ("ranks", "words", "told"),
    [
        (3, ["train", SOLVER, "--nosuch"], "unknown option '--nosuch'"),
        (2, ["train", "nosuch.prototxt"], "no such file: nosuch.prototxt"),
        (2, ["train", "solver.prototxt"], "unknown field 'num_outpt'"),
    ],
)
def test_a_mistake_of_all_is_one_line(ranks: int, words: list[str], told: str, tmp_path: Path) -> None:
    """A mistake in the command, before processes have met, and one in the net, after they have."""
    (tmp_path / "solver.prototxt").write_text(NAMELESS)
    layer = 'layer { name: "a" type: "InnerProduct" inner_product_param { num_outpt: 3 } }'
    (tmp_path / "net.prototxt").write_text(layer)
    status, lines = run(command(ranks, *words), folder=tmp_path)
    assert status == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith("demitasse: ")
    assert told in lines[0]


@pytest.mark.parametrize(
    ("ranks", "words", "told"),
    [
        (3, ["train", SOLVER, "--set", "layer.digits.data_param.batch_size=2"], "a batch of 2 does not"),
        (2, ["train", SOLVER, "--set", "layer.digits.data_param.source=far"], "no such file or folder"),
        (2, ["simulate", "nosuch.prototxt"], "no such file: nosuch.prototxt"),
    ],
)
def test_all_who_meet_one_mistake_end_together(
    ranks: int, words: list[str], told: str, tmp_path: Path
) -> None:
    """Nobody is killed before MPI has ended, so the exit status is that of the mistake."""
    status, lines = run(command(ranks, *words), folder=tmp_path, cleanup=True)
    assert status == 2
    assert len(lines) == 1 and lines[0].startswith("demitasse: ") and told in lines[0], lines


def test_processes_that_differ_tell_it_in_one_line(tmp_path: Path) -> None:
    other = ["--set", "layer.conv1.convolution_param.num_output=7"]
    parts = command(2, "train", SOLVER), command(1, "train", SOLVER, *other)
    status, lines = run(*parts, folder=tmp_path)
    assert status == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith("demitasse: rank 2 of 3: layer 'conv1' is ")
    assert "num_output: 7 " in lines[0]


def test_a_mistake_of_one_is_told_by_it_and_named_by_the_others(tmp_path: Path) -> None:
    status, lines = run(
        command(1, "train", SOLVER), command(1, "train", SOLVER, "--nosuch"), folder=tmp_path
    )
    assert status == 2
    first, second = sorted(lines)
    assert first.startswith("demitasse, rank 0: rank 1 of 2 (host ")
    assert "failed before it met the others: unknown option '--nosuch'" in first
    assert second.startswith("demitasse, rank 1: unknown option '--nosuch'")


def test_different_mistakes_are_each_told(tmp_path: Path) -> None:
    _, lines = run(command(1, "train", "--one"), command(1, "train", "--two"), folder=tmp_path)
    first, second = sorted(lines)
    assert first.startswith("demitasse, rank 0: unknown option '--one'")
    assert second.startswith("demitasse, rank 1: unknown option '--two'")
