"""The script for a machine with a GPU runs its parts, on a stand-in here, and keeps what it has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def check(target: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "gpu_check"), "--stand-in", "--json", str(target)]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


def test_parts_run_in_order_and_what_comes_of_them_is_written(tmp_path: Path) -> None:
    done = check(tmp_path / "found" / "check.json", "--parts", "about,copies")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found" / "check.json").read_text())
    assert found["about"]["device"]["name"] == "CUDA on this CPU"
    assert set(found["copies"]["rates"]) == {"h2d", "d2h", "d2d", "both ways"}
    assert found["seconds"] > 0
    assert "all parts passed" in done.stdout


def test_parts_for_which_no_time_is_left_are_named(tmp_path: Path) -> None:
    done = check(tmp_path / "check.json", "--parts", "speed", "--seconds", "10")
    assert done.returncode == 0
    assert json.loads((tmp_path / "check.json").read_text())["speed"] == {"skipped": "5 s were left"}


def test_a_part_that_there_is_not_is_named_with_those_there_are(tmp_path: Path) -> None:
    done = check(tmp_path / "check.json", "--parts", "speeds")
    assert done.returncode == 2
    assert "unknown part 'speeds' (valid: preparing, about, engine" in done.stderr
