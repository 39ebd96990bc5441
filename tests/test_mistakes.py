"""Mistakes on the command line: one line that says what was asked, and what is valid; status 2."""

from __future__ import annotations

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
    assert line == f"{tmp_path} is a folder; a file is needed here: name one in it"
