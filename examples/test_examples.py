"""The examples train as their READMEs say, with the commands shown there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.all_cores

EXAMPLES = Path(__file__).parent
SHARED = Path(os.environ.get("DEMITASSE_SHARED", EXAMPLES.parents[1] / "shared")) / "data"


def train(folder: Path, solver: str, *arguments: str) -> dict[str, Any]:
    """Train in a folder, and return the run's report."""
    command = [sys.executable, "-m", "demitasse_cli", "train", str(EXAMPLES / solver)]
    done = subprocess.run(
        [*command, "--json", "-", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_digits_are_read_as_its_readme_says(tmp_path: Path) -> None:
    report = train(tmp_path, "digits/digits_solver.prototxt")
    assert report["scores"]["accuracy"] >= 0.97
    assert report["snapshot"] == "out/digits_iter_1000.demitasse"
    assert (tmp_path / report["snapshot"]).is_file()


def test_lenet_learns_mnist_from_files_where_its_readme_puts_them(tmp_path: Path) -> None:
    if not (SHARED / "mnist").is_dir():
        pytest.skip(f"MNIST's files are not in {SHARED / 'mnist'}")
    (tmp_path / "mnist").symlink_to(SHARED / "mnist")
    report = train(
        tmp_path,
        "mnist/lenet_solver.prototxt",
        *("--iterations", "60", "--set", "test_iter=5", "--set", "test_initialization=false"),
    )
    assert report["scores"]["accuracy"] > 0.7
    assert report["batch"] == 64


def test_strings_of_digits_are_made_and_learned_from(tmp_path: Path) -> None:
    if not (SHARED / "mnist").is_dir():
        pytest.skip(f"MNIST's files are not in {SHARED / 'mnist'}")
    made = [sys.executable, str(EXAMPLES / "strings" / "make_samples.py"), str(SHARED / "mnist")]
    done = subprocess.run(
        [*made, "--count", "800"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    report = train(
        tmp_path,
        "strings/strings_solver.prototxt",
        *("--iterations", "60", "--set", "test_iter=1", "--set", "test_initialization=false"),
        *("--set", "display=20"),
    )
    assert report["scores"]["loss"] < 15  # initially 68
    assert set(report["scores"]) == {"loss", "read.edit", "read.line"}


@pytest.mark.parametrize("solver", ["cifar10_quick_solver", "cifar10_quick_solver_lr1"])
def test_cifar10_quick_starts(solver: str, tmp_path: Path) -> None:
    batch = SHARED / "cifar10" / "test_batch.bin.xz"
    if not batch.is_file():
        pytest.skip(f"CIFAR-10's files are not in {batch.parent}")
    report = train(
        tmp_path,
        f"cifar10/{solver}.prototxt",
        *("--set", f"layer.cifar.data_param.source={batch}"),
        *("--set", f"layer.cifar_test.data_param.source={batch}"),
        *("--iterations", "3", "--set", "test_iter=1", "--set", "test_initialization=false"),
    )
    # Ten classes and small weights, so the first loss is near log(10) = 2.303.
    assert report["history"][0][1] == pytest.approx(2.303, abs=0.05)
    assert report["snapshot"] == "out/cifar10_quick_iter_3.demitasse"


def test_the_solver_of_ones_own_learns_the_digits(tmp_path: Path) -> None:
    program = [sys.executable, str(EXAMPLES / "own_solver" / "lion.py")]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    iteration, accuracy = re.fullmatch(r"iteration (\d+): accuracy ([\d.]+)\n", done.stdout).groups()
    assert iteration == "300"
    assert float(accuracy) > 0.95
