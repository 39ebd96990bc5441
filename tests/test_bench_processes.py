"""The comparison of training in several processes (tools/bench_processes): its verdicts, and a run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_processes.__main__ import TOOLS, Result, disagreements, fastest, options, table


def result(contender: str, ranks: int, rounds: list[float], losses: list[float]) -> Result:
    setting = "default" if contender == "demitasse" else "eager-nchw"
    return Result("lenet", contender, setting, ranks, losses, rounds=rounds)


def test_the_table_compares_the_same_number_of_processes() -> None:
    found = [
        result("demitasse", 1, [0.002, 0.009, 0.003], [2.0]),
        result("demitasse", 2, [0.0015], [2.0]),
        result("pytorch", 1, [0.012], [2.0]),
        result("pytorch", 2, [0.006], [2.0]),
        Result("lenet", "pytorch", "compiled-channels_last", 2, [2.0], rounds=[0.0045]),
        Result("lenet", "pytorch", "compiled-channels_last", 1, note="failed: no compiler"),
    ]
    assert table(found).splitlines()[2:] == [
        "| lenet | 1 | 3.00 | 1.00 | 12.00 | 1.00 | eager-nchw | 4.00 |",
        "| lenet | 2 | 1.50 | 2.00 | 4.50 | 2.67 | compiled-channels_last | 3.00 |",
    ]
    assert fastest(found, "lenet", False, 3) is None


def test_a_table_without_peers_has_no_ratio() -> None:
    assert table([result("demitasse", 1, [0.002], [2.0])]).splitlines()[-1] == (
        "| lenet | 1 | 2.00 | 1.00 |  |  |  |  |"
    )


@pytest.mark.parametrize(
    ("loss", "said"), [(2.001, []), (2.01, ["pytorch eager-nchw x 1's by 5.0e-03"])]
)
def test_losses_are_compared_with_the_peers_in_one_process(loss: float, said: list[str]) -> None:
    found = [
        result("demitasse", 1, [], [3.0, 2.0]),
        result("demitasse", 2, [], [3.0, loss]),
        result("pytorch", 2, [], [3.0, 2.0]),
        result("pytorch", 1, [], [3.0, 2.0]),
    ]
    lines = list(disagreements(found, "f32"))
    assert [line.partition("differ from ")[2] for line in lines] == said
    assert all(line.startswith("lenet: the losses of demitasse x 2 ") for line in lines)


def test_losses_that_are_not_finite_disagree() -> None:
    found = [result("demitasse", 1, [], [2.0]), result("demitasse", 2, [], [float("nan")])]
    assert len(list(disagreements(found, "f32"))) == 1


@pytest.mark.all_cores
def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    path = tmp_path / "out" / "processes.json"
    command = [sys.executable, str(TOOLS / "bench_processes"), "--nets", "lenet", "--ranks", "2"]
    done = subprocess.run(
        [*command, "--settings", "", "--rounds", "1", "--json", str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = json.loads(path.read_text())["results"]
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert one["losses"] == pytest.approx(two["losses"], rel=1e-5)
    assert one["losses"][-1] != one["losses"][0]
    assert one["seconds"] > 0 and two["seconds"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nets", "lenett"), "--nets: unknown 'lenett' (valid: lenet, cifar10_quick, "),
        (("--settings", "eager"), "--settings: unknown 'eager' (valid: eager-nchw, "),
        (("--ranks", "0"), "--ranks must be at least 1; given 0"),
    ],
)
def test_what_is_valid_is_told(
    words: tuple[str, str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_processes", *words])
    with pytest.raises(SystemExit, match="2"):
        options()
    assert said in capsys.readouterr().err
