"""The script for a machine with a GPU runs its parts, here on a stand-in, and keeps its results."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    """Any of its threads may get the signal: not the first one if two signals come at once."""
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


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the script as a module."""
    for folder in ("tools", "tools/gpu_check"):
        monkeypatch.syspath_prepend(str(ROOT / folder))
    place = ROOT / "tools" / "gpu_check" / "__main__.py"
    spec = importlib.util.spec_from_file_location("gpu_check_main", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_warned_of_is_kept_and_no_part_with_it_is_said_to_have_passed(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning may be all that shows that a kernel is wrong: if a library has replaced it, for
    example."""
    import isolated
    import parts

    def warns(*arguments: Any) -> Any:
        yield {"passed": 1}
        logging.getLogger("demitasse.gpu").warning("our kernel %r is wrong", "tiles")

    monkeypatch.setitem(parts.RUN, "engine", warns)
    monkeypatch.setattr(script.faulthandler, "register", lambda number: None)  # it needs a real stderr
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--part", "engine"])
    assert script.main() == 0
    found: dict[str, Any] = {}
    for line in capsys.readouterr().out.splitlines():
        isolated.merge(found, line)
    assert found == {"passed": 1, "warnings": ["our kernel 'tiles' is wrong"]}
    assert script.state(found) == "passed, with warnings"
    assert "our kernel 'tiles' is wrong" in script.summary(found)
    assert script.state({"warnings": ["one"], "skipped": ["two"]}) == (
        "passed, with warnings, but for what was skipped"
    )


def test_a_kernel_that_a_library_took_the_place_of_fails_its_test(script: Any) -> None:
    import on_device

    for said, ends in ((), StopIteration), (("our kernel is wrong",), AssertionError):
        test = on_device.pytest_runtest_call()
        next(test)
        for message in said:
            logging.getLogger("demitasse.gpu").warning(message)
        with pytest.raises(ends) as raised:
            test.send(None)
        assert str(raised.value).startswith("".join(said))


def test_engines_are_measured_and_held_anew_whatever_was_kept(script: Any) -> None:
    import ours

    with ours.on_gpu(True) as runtime:
        assert not runtime.allocator("gpu:0").device.remember
    assert ours.driver(False) == {"remember": False}


def test_parts_that_measure_leave_those_behind_them_what_they_need(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given: dict[str, float] = {}

    def part(command: Any, limit: float, found: Any, *rest: Any, **about: Any) -> None:
        given[command((), limit)[command((), limit).index("--part") + 1]] = limit

    monkeypatch.setattr(script.isolated, "part", part)
    for number, parts in enumerate(("speed,small", "speed")):
        told = ["--parts", parts, "--seconds", "200", "--json", str(tmp_path / "check.json")]
        monkeypatch.setattr(sys, "argv", ["gpu_check", *told])
        (tmp_path / str(number)).mkdir()
        script.Run(script.options(), tmp_path / str(number)).all()
        assert (given["speed"] < 151) == (parts == "speed,small")
    assert 185 < given["speed"] < 196 and 80 < given["small"] <= 90


def parts_of(run: int) -> list[int]:
    """Return the processes that a run has started for its parts."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = (place / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == run and b"\0--part\0" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found
