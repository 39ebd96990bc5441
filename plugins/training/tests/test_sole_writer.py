"""Two trainings at the same time do not overwrite each other's snapshots."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from demitasse import SnapshotError, compose
from demitasse_training.sole_writer import sole_writer

ANOTHER = """
import sys
from types import SimpleNamespace
from demitasse_training.sole_writer import sole_writer
solver = SimpleNamespace(
    snapshot_interval=1, snapshot_last=True, snapshot_suffixes=(), snapshot_prefix=sys.argv[1]
)
with sole_writer(solver):
    print("writing", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(toy: ModuleType, tmp_path: Path) -> Callable[..., Any]:
    def run(prefix: str, **fields: Any) -> Any:
        about = {"max_iterations": 2, "snapshot_prefix": str(tmp_path / prefix), **fields}
        plugins = ["reference", "training", "snapshots", toy.toy()]
        with compose(toy.machine(), plugins) as runtime:
            return runtime.trainer(toy.solver(toy.classifier(), **about)).run()

    return run


def test_another_process_s_training_is_told_with_its_number(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    asked = [sys.executable, "-c", ANOTHER, str(tmp_path / "a")]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as another:
        assert another.stdout is not None
        assert another.stdout.readline() == "writing\n"
        with pytest.raises(SnapshotError) as caught:
            run("a")
        told = f"snapshots with prefix {str(tmp_path / 'a')!r} are being written by another run"
        assert str(caught.value).startswith(f"{told} (process {another.pid} on ")
        assert not list(tmp_path.glob("a_iter_*"))
        assert run("b").iteration == 2
        assert run("a", snapshot_last=False).iteration == 2, "which writes none"
        another.send_signal(signal.SIGKILL)
        another.wait()
    assert run("a").iteration == 2, "that of a killed process is free"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a_iter_2.demitasse", "b_iter_2.demitasse"]


@pytest.mark.parametrize("dies", [True, False])
def test_one_on_another_host_may_have_died_and_is_waited_for(
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dies: bool,
) -> None:
    """A shared file system notices a host's end later than the user who starts the job again."""
    asked = [sys.executable, "-c", ANOTHER, str(tmp_path / "a")]
    now = [0.0]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as another:
        assert another.stdout is not None
        assert another.stdout.readline() == "writing\n"

        def wait(seconds: float) -> None:
            now[0] += seconds
            if dies and now[0] > 2:
                another.kill()
                another.wait()

        own = SimpleNamespace(sleep=wait, monotonic=lambda: now[0])
        monkeypatch.setattr("demitasse_training.sole_writer.time", own)
        monkeypatch.setattr("platform.node", lambda: "here")
        if dies:
            assert run("a").iteration == 2
        else:
            with pytest.raises(SnapshotError, match="are being written by another run"):
                run("a")
            assert 120 <= now[0] < 122
        another.kill()
    (told,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert f"another run (process {another.pid} on " in told


def test_trainings_of_one_process_are_its_own(
    toy: ModuleType, run: Callable[..., Any], tmp_path: Path
) -> None:
    solver = toy.solver(toy.classifier(), max_iterations=2, snapshot_prefix=str(tmp_path / "a"))
    hidden = tmp_path / ".a_iter_0.lock"
    with sole_writer(solver):
        with sole_writer(solver):
            assert hidden.is_file()
        assert hidden.is_file(), "the first still writes"
        assert run("a").iteration == 2
        assert hidden.is_file()
    assert not hidden.exists()


def test_a_run_that_fails_leaves_no_lock(
    toy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = toy.solver(toy.classifier(), max_iterations=2, snapshot_prefix=str(tmp_path / "a"))
    with compose(toy.machine(), ["reference", "training", "snapshots", toy.toy()]) as runtime:
        trainer = runtime.trainer(solver)

        def fail(event: Any) -> None:
            assert list(tmp_path.glob(".a*.lock")) or event.kind == "start"
            raise ValueError("of a listener")

        trainer.listeners.append(fail)
        with pytest.raises(Exception, match="of a listener"):
            trainer.run()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_is_another_one(tmp_path: Path) -> None:
    """It inherits what its parent remembers, but does not treat it as its own."""
    forking = """
import os, signal
child = os.fork()
if child == 0:
    signal.alarm(30)
    try:
        with sole_writer(solver):
            os._exit(4)
    except Exception as error:
        os._exit(0 if f"(process {os.getppid()} on " in str(error) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    program = ANOTHER.replace('    print("writing", flush=True)\n    sys.stdin.read()', "    pass")
    program = program.replace("    pass", "\n".join(f"    {line}" for line in forking.splitlines()))
    asked = [sys.executable, "-c", program, str(tmp_path / "a")]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "0\n", done.stderr
