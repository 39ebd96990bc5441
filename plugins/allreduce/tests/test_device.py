"""Gradients in a device's memory are summed like a host's: staged, or by messages from that memory."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from launchers import mpiexec

from demitasse import PlanError
from demitasse_allreduce import library
from demitasse_allreduce.algorithms import schedule
from demitasse_allreduce.stages.device import Reached, collective

NET = """
layer { name: "digits" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.0625 } data_param { source: "digits:train" batch_size: 24 } }
layer { name: "hidden" type: "InnerProduct" bottom: "data" top: "hidden"
  inner_product_param { num_output: 40 weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "hidden" top: "hidden" }
layer { name: "score" type: "InnerProduct" bottom: "hidden" top: "score"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.02 momentum: 0.9 weight_decay: 0.0005 lr_policy: "fixed"
display: 0 max_iter: 1000 random_seed: 1
"""
PARAMETERS = 64 * 40 + 40 + 40 * 10 + 10

SYNCS: list[dict[str, Any]] = [
    {"stage": "packed"},
    {"stage": "buckets", "bucket": 1024},
    {"stage": "overlap", "bucket": 1024},
    {"stage": "SC-B"},
    {"stage": "SC-OBR", "bucket": 1024},
    {"stage": "naive", "bucket": 1024},
    {"stage": "packed", "algorithm": "ring"},
    {"stage": "packed", "algorithm": "chain"},
    {"stage": "packed", "chain": 2, "lower": "chain", "upper": "binomial"},
]


class Enqueued:
    """An array of the device whose copies are made only once somebody waits for them; what MPI does to
    it is not delayed."""

    dtype, itemsize = np.dtype(np.float32), 4

    def __init__(self, shape: tuple[int, ...], pending: list[Any]) -> None:
        self.shape, self.made, self._pending = shape, True, pending

    def __getitem__(self, part: slice) -> Enqueued:
        return Enqueued((part.stop,), self._pending)

    def copy(self) -> Enqueued:
        copy = Enqueued(self.shape, self._pending)
        copy.made = False
        self._pending.append(copy)
        return copy


def test_spare_memory_is_made_before_mpi_may_write_to_it() -> None:
    pending: list[Any] = []

    def wait() -> None:
        while pending:
            pending.pop().made = True

    stream = SimpleNamespace(record=lambda: SimpleNamespace(wait=wait))
    engine: Any = SimpleNamespace(default=stream)
    spare = Reached(Enqueued((8,), pending), engine).spare(5)
    assert spare.shape == (5,) and spare.made


def trained(ranks: int, folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ``device_training.py`` reports for each of the jobs."""
    pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER)
    each = [{"iterations": 4, "prefix": f"{ranks}-{i}", **job} for i, job in enumerate(jobs)]
    script = str(Path(__file__).with_name("device_training.py"))
    launcher = [mpiexec(), "-n", str(ranks)]
    words = [*launcher, sys.executable, script, str(folder / "solver.prototxt"), json.dumps(each)]
    done = subprocess.run(
        words,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_devices_have_the_losses_of_hosts(ranks: int, tmp_path: Path) -> None:
    jobs = [{"sync": sync, "device": kind} for kind in ("staged", "reachable") for sync in SYNCS]
    host, *found = trained(ranks, tmp_path, [{"sync": {"shared": False}}, *jobs])
    for job, device in zip(jobs, found, strict=True):
        np.testing.assert_allclose(device["losses"], host["losses"], rtol=1e-10, err_msg=str(job))
        assert device["alike"], job
        # A helper thread's sums are the host's; all others are kernels of the device.
        beside = job["sync"]["stage"] in ("overlap", "SC-OBR", "naive")
        assert (device["added"] == 0) == beside, job
        if job["sync"] == {"stage": "packed", "algorithm": "ring"}:
            # Each rank's gradients to the sum, once, with the few elements between parameters.
            assert device["added"] == pytest.approx(4 * PARAMETERS * (ranks - 1), rel=0.01)


def test_memory_of_a_device_without_streams_is_refused() -> None:
    made = SimpleNamespace(shape=(4,), dtype=np.dtype("f4"), size=4)
    with pytest.raises(PlanError, match="type SimpleNamespace lie in a device's memory"):
        collective(schedule("ring", 1, 4), None, made, lambda: None, None, False, False)


class Asked:
    """A library that answers the query for device support."""

    def __init__(self, **answers: Any) -> None:
        vars(self).update(answers)


def mpich_says(yes: int, status: int = 0) -> Any:
    def query(kind: int, answer: Any) -> int:
        assert kind == 0  # CUDA
        ctypes.cast(answer, ctypes.POINTER(ctypes.c_int))[0] = yes
        return status

    return query


@pytest.mark.parametrize(
    ("vendor", "answers", "variables", "expected"),
    [
        ("Open MPI", {"MPIX_Query_cuda_support": lambda: 1}, {}, True),
        ("Open MPI", {"MPIX_Query_cuda_support": lambda: 0}, {}, False),
        ("Open MPI", {}, {}, False),
        ("MPICH", {"MPIX_GPU_query_support": mpich_says(1)}, {}, True),
        ("MPICH", {"MPIX_GPU_query_support": mpich_says(0)}, {}, False),
        ("MPICH", {"MPIX_GPU_query_support": mpich_says(1, 16)}, {}, False),
        ("MPICH", {}, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, True),
        ("MPICH", {}, {"MPICH_GPU_SUPPORT_ENABLED": "0"}, False),
        ("MVAPICH2", {}, {"MV2_USE_CUDA": "1"}, True),
        ("MPICH", {}, {"MV2_USE_CUDA": "1"}, False),
    ],
)
def test_the_library_says_whether_it_reaches_devices(
    vendor: str,
    answers: dict[str, Any],
    variables: dict[str, str],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in {name for switches in library.SWITCHES.values() for name in switches}:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(library, "_mapped", lambda: ["libmpi.so"])
    monkeypatch.setattr(library, "_opened", lambda name: Asked(**answers))
    mpi = SimpleNamespace(get_vendor=lambda: (vendor, (5, 0, 0)))
    assert library.device_aware(mpi) is expected


def test_this_library_is_asked_itself() -> None:
    """The mpich wheel has no device support, and reports this when it is asked."""
    pytest.importorskip("mpi4py", reason="no MPI")
    script = "from demitasse_allreduce import library; print(library.device_aware(library.start()))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() in ("True", "False"), done.stderr


LATE_KERNELS = """
import time
sys.path[:0] = sys.argv[1:]
from device_training import Engine, Line, Remote
from demitasse_allreduce.algorithms import schedule
from demitasse_allreduce.stages.device import Mirrored, Reached, Staged

class Late(Remote):
    # Kernels of the default stream, too, are done some time after they are enqueued.
    def __iadd__(self, other):
        mine, theirs = self.inside, other.inside
        do(lambda: np.add(mine, theirs, mine))
        return self
    def copy(self):
        made, mine = np.zeros_like(self.inside), self.inside
        do(lambda: np.copyto(made, mine))
        return Late(made)
    def fill(self, values):  # later than what other streams are late
        do(lambda: time.sleep(1e-2))
        do(lambda: np.copyto(self.inside, values))

engine = Engine("device")
engine.default = Line("default")
do = engine.default._line.put

def finish(course):
    for _ in course:
        time.sleep(1e-4)

n, array = 8, Late(np.zeros(8))
staged = Staged(schedule("ring", 1, n), MPI.COMM_SELF, array, None, engine)
mirrored, reached = Mirrored(array, engine), Reached(array, engine)
for turn in range(1, 4):
    values = np.arange(n) * 10.0**turn
    array.fill(values)
    staged.run()
    assert (array.inside == values).all()
    array.fill(2 * values)
    mirrored.begin()
    finish(mirrored.sendable(0, n))
    assert (mirrored.array == 2 * values).all()
    for each in (1.0, 2.0):
        mirrored.reduce(0, n, np.full(n, each))
    finish(mirrored.sendable(0, n))
    assert (mirrored.array == 2 * values + 3).all()
    mirrored.store(0, n, np.full(n, 7.0))
    finish(mirrored.finish())
    assert (array.inside == 7).all()
    array.fill(values)
    reached.begin()
    finish(reached.sendable(0, n))
    assert (array.inside == values).all()
    spare = reached.spare(n)
    spare.inside[:] = 5
    reached.reduce(0, n, spare)
    finish(reached.finish())
    assert (array.inside == values + 5).all()
engine.default.close()
engine.close()
print("right")
"""


def test_a_device_that_is_late_in_all_of_its_streams_is_waited_for(on_ranks: Callable[..., str]) -> None:
    tests = Path(__file__).parent, Path(__file__).parents[3] / "tests"
    assert "right" in on_ranks(1, LATE_KERNELS, *map(str, tests))
