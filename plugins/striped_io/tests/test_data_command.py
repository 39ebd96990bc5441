"""``demitasse data``: its output, as lines and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from demitasse import DataError
from demitasse_striped_io.data_command import Bytes, Progress, command
from demitasse_striped_io.index import INDEX


def run(*arguments: Any, fails: bool = False) -> Result:
    result = CliRunner().invoke(command, [str(a) for a in arguments], standalone_mode=False)
    if result.exception is not None and not fails:
        raise result.exception
    return result


def test_show_says_what_is_there_and_what_is_not(made: Any) -> None:
    output = run("show", made.path).output
    assert "101 samples, raw, from made up" in output and "runs of 3" in output
    assert "all stripes are complete" in output
    made.stripe(1).unlink()
    with made.stripe(2).open("r+b") as file:
        file.truncate(100)
    output = run("show", made.path).output
    assert f"stripe 1: {made.stripe(1)}: missing" in output and "cut off at 100" in output
    assert "2 stripes are incomplete" in output and "table" not in output
    table = made.path / made.index.table
    for spoil, state in ((lambda: table.write_bytes(b"x"), "cut off at 1"), (table.unlink, "missing")):
        spoil()
        assert f"{table}: {state}: without this table" in run("show", made.path / INDEX).output
        assert json.loads(run("show", made.path, "--json", "-").stdout)["table"]["state"] == state


def test_show_says_which_blocks_would_use_all_stripes(tmp_path: Path, columns: Any, write: Any) -> None:
    write(tmp_path / "set", columns(10), stripes=4, block=1 << 20)
    assert "on 1 of 4 stripes" in (output := run("show", tmp_path / "set").output)
    assert "blocks of 1.88 KiB would use all stripes" in output


def test_show_and_check_as_json(made: Any) -> None:
    shown = json.loads(run("show", made.path, "--json", "-").stdout)
    assert shown["samples"] == 101 and len(shown["stripes"]) == 4
    assert shown["fields"]["data"] == {"shape": [3, 16, 16], "dtype": "uint8", "in": "record"}
    checked = json.loads(run("check", made.path, "--json", "-").stdout)
    assert checked["samples"] == 101 and checked["faults"] == []


def test_check_names_faults_and_has_a_status(made: Any) -> None:
    assert run("check", made.path).return_value == 0
    made.stripe(2).unlink()
    result = run("check", made.path)
    assert result.return_value == 1
    assert "stripe 2, block 2, sample 12: the stripe is missing" in result.output
    assert "and 4 more" in result.output and "24 faults" in result.output


def test_convert_and_measure(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 10, (60, 3073), np.uint8)
    (tmp_path / "data_batch_1.bin").write_bytes(rows.tobytes())
    target = tmp_path / "set"
    result = run(
        *("convert", tmp_path / "data_batch_1.bin", target, "--stripes", 4, "--block", "10K"),
        *("--run", 3, "--order", "block"),
    )
    assert "60 samples" in result.output and "on 4 stripes, verified" in result.output
    assert "read with: order=block" in run("show", target).output
    with pytest.raises(DataError, match="already exists"):
        run("convert", tmp_path / "data_batch_1.bin", target)
    about = (
        "measure",
        target,
        "--batch",
        10,
        "--seconds",
        0,
        "--workers",
        2,
        "--readers",
        "--json",
        "-",
    )
    measured = json.loads(run(*about).stdout)["results"]
    assert [each["readers"] for each in measured] == ["own", "one"]
    assert all(each["samples"] >= 40 and each["samples_per_second"] > 0 for each in measured)
    with pytest.raises(DataError, match="a batch of 2 samples for 3 workers"):
        run("measure", target, "--batch", 2, "--workers", 3)


@pytest.mark.parametrize(
    "told", [{"PMI_SIZE": "3"}, {"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "3"}], ids=["PMI", "PMIx"]
)
def test_several_processes_do_not_convert_together(
    told: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the others would end because the set is being written, and --mpi would wait for them."""
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073))
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=r"one process writes a set.* 3 were started"):
        run("convert", tmp_path / "data_batch_1.bin", tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    "text, number", [("4M", 4 << 20), ("1.5k", 1536), ("2GiB", 2 << 30), ("77", 77)]
)
def test_numbers_of_bytes(text: str, number: int) -> None:
    assert Bytes().convert(text, None, None) == number


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "-inf", "much", ""])
def test_what_is_no_number_of_bytes_is_told(text: str) -> None:
    with pytest.raises(click.UsageError, match="is not a number of bytes such as 4M"):
        Bytes().convert(text, None, None)


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1"])
def test_measuring_ends(made: Any, seconds: str) -> None:
    with pytest.raises(DataError, match=rf"--seconds {seconds} .valid: 0 or more"):
        run("measure", made.path, "--seconds", seconds)
    with pytest.raises(click.BadParameter, match="not in the range"):
        run("measure", made.path, "--batch", 10**20)


def test_what_is_left_is_told_by_the_pace_since_the_first_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("demitasse_striped_io.data_command.time.monotonic", lambda: now)
    progress = Progress(["written", "verified"])
    for seconds, done in ((30, 1000), (2, 3000), (1, 5000), (3, 1000), (3, 4000)):
        now += seconds
        progress(done, 5000)
    assert capsys.readouterr().err.splitlines() == [
        "written 1,000 of 5,000",
        "written 3,000 of 5,000, 2 s left",
        "written 5,000 of 5,000",
        "verified 1,000 of 5,000",
        "verified 4,000 of 5,000, 1 s left",
    ]


def test_what_is_done_at_once_is_told_as_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A small set is written by one report, and verified by the next."""
    progress = Progress(["written", "verified"])
    progress(1438, 1438)
    progress(1438, 1438)
    assert capsys.readouterr().err == "written 1,438 of 1,438\nverified 1,438 of 1,438\n"
