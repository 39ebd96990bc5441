"""The script for a machine with a GPU runs its parts, on a stand-in here, and keeps what it has."""

from __future__ import annotations

import contextlib
import ctypes
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert found["parts"] == {"about": "passed", "copies": "passed"}


def test_parts_for_which_no_time_is_left_are_named(tmp_path: Path) -> None:
    done = check(tmp_path / "check.json", "--parts", "speed", "--seconds", "10")
    assert done.returncode == 0
    found = json.loads((tmp_path / "check.json").read_text())
    assert found["speed"] == {"skipped": "5 s were left"}
    assert found["parts"] == {"speed": "skipped"}
    assert done.stdout.splitlines()[-1].startswith("skipped: speed; see ")


def test_a_part_that_there_is_not_is_named_with_those_there_are(tmp_path: Path) -> None:
    done = check(tmp_path / "check.json", "--parts", "speeds")
    assert done.returncode == 2
    assert "unknown part 'speeds' (valid: preparing, about, engine" in done.stderr


@pytest.mark.parametrize(("part", "waits"), [("agreement", "speed"), ("speed", "small")])
def test_a_run_that_is_asked_to_end_leaves_what_it_has_and_nobody_at_the_device(
    part: str, waits: str, tmp_path: Path
) -> None:
    """Whichever of its threads hears of it: another than the first where two signals come at once."""
    target = tmp_path / "check.json"
    command = [sys.executable, str(ROOT / "tools" / "gpu_check"), "--stand-in", "--json", str(target)]
    with subprocess.Popen([*command, "--parts", f"{part},{waits}"], stdout=subprocess.PIPE) as run:
        while not (started := parts_of(run.pid)):
            assert run.poll() is None
        threads = [int(place.name) for place in Path(f"/proc/{run.pid}/task").iterdir()]
        ctypes.CDLL(None).tgkill(run.pid, max(threads), signal.SIGTERM)
        assert run.wait(30) == 128 + signal.SIGTERM
    found = json.loads(target.read_text())
    assert found["parts"] == {part: "failed", waits: "waits"}
    assert "cut off with the whole run" in found[part]["error"]
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def test_kernels_are_skipped_where_nothing_compares_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("tools", "tools/gpu_check"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    import parts

    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)
    (said,) = parts.kernels(60.0, False, frozenset())
    assert said == {"skipped": ["kernels are compared by pytest, which is not here"]}


def parts_of(run: int) -> list[int]:
    """The processes that a run has started for its parts."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == run and b"\0--part\0" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found
