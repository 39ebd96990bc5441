"""A run that is killed and resumed ends with the same bits as one that was not."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import demitasse

SOLVER = Path(__file__).parents[1] / "examples" / "digits" / "digits_solver.prototxt"

RUN = """
import sys
import demitasse
solver, prefix, resume = sys.argv[1:]
overrides = {"snapshot_prefix": prefix, "snapshot": 20, "max_iter": 50, "test_interval": 1000}
first = {"tuning": {"tune": "first"}}  # a choice made while others have the cores is made again
with demitasse.compose(options=first) as runtime, runtime.trainer(
    solver, overrides=overrides, resume=resume or None
) as trainer:
    trainer.listeners.append(lambda event: print(event.kind, event.iteration, flush=True))
    trainer.run()
"""


def run_to_the_end(prefix: Path, resume: str = "") -> dict[str, list[np.ndarray]]:
    arguments = [sys.executable, "-c", RUN, str(SOLVER), str(prefix), resume]
    subprocess.run(arguments, check=True, capture_output=True, timeout=240)
    return weights(Path(f"{prefix}_iter_50.demitasse"))


def weights(path: Path) -> dict[str, list[np.ndarray]]:
    with demitasse.compose() as runtime:
        saved = runtime.read(path).weights()
    return saved.parameters | {f"{k} {s}": v for s, by in saved.state.items() for k, v in by.items()}


def same_bits(one: dict[str, list[np.ndarray]], two: dict[str, list[np.ndarray]]) -> bool:
    return one.keys() == two.keys() and all(
        a.tobytes() == b.tobytes() for k in one for a, b in zip(one[k], two[k], strict=True)
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[np.ndarray]]:
    return run_to_the_end(tmp_path_factory.mktemp("whole") / "digits")


def test_two_runs_with_one_seed_have_the_same_bits(tmp_path, uninterrupted):
    assert same_bits(run_to_the_end(tmp_path / "digits"), uninterrupted)


def test_a_run_killed_between_snapshots_resumes_to_the_same_bits(tmp_path, uninterrupted):
    prefix = tmp_path / "digits"
    victim = subprocess.Popen(
        [sys.executable, "-c", RUN, str(SOLVER), str(prefix), ""], stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    for line in victim.stdout:
        if line.split() == ["iteration", "27"]:
            victim.send_signal(signal.SIGKILL)
            break
    victim.stdout.close()
    assert victim.wait(timeout=60) == -signal.SIGKILL
    last = f"{prefix}_iter_20.demitasse"
    assert [path.name for path in tmp_path.glob("*.demitasse")] == [Path(last).name]
    assert same_bits(run_to_the_end(prefix, resume=last), uninterrupted)
