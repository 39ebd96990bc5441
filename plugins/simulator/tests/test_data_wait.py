"""The cost of reading a step's samples, and when a step waits for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import demitasse
from demitasse import CompositionError
from demitasse_simulator.program import Simulation
from demitasse_simulator.report import show

SAMPLES = {"data": (1, 12, 12), "label": ()}
BATCH = 16 * (144 * 4 + 4)
"""Bytes of the solver's batch: 16 float32 images of 144 pixels, and their labels as int32."""

CLUSTER = """
[[level]]
name = "site"
storage = [{ space = "array", count = 8, bandwidth = "%s", source = "assumed" }]

[[level]]
name = "node"
count = 64
workers = "mpi"
link = { latency = "1 us", bandwidth = "10 GB/s", source = "assumed" }
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
peak = "100 GFLOP/s"
sync = { plugin = "simulator", algorithm = "ring" }
"""

INSIDE = CLUSTER.replace("storage", "#storage").replace("memory", "%s\nmemory")

PLUGINS = ["caffe", "training", "datasets", "reference", "simulator", "allreduce"]
STRIPED = [*PLUGINS, "striped_io"]


def simulated(solver: Path, hw: Path, plugins: Any, **options: Any) -> Simulation:
    with demitasse.compose(hw, plugins) as runtime:
        result = runtime.simulate(solver, samples=SAMPLES, scaling="weak", **options)
    assert isinstance(result, Simulation)
    return result


def test_one_target_for_all_makes_the_step_wait_and_stripes_do_not(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    hw = machine(CLUSTER % "100 MB/s")
    one, many = (simulated(solver, hw, STRIPED, stripes=stripes) for stripes in (1, 8))
    assert one.data["processes"] == one.data["readers"] == 64
    assert one.data["seconds"] == pytest.approx(64 * BATCH / 100e6)
    assert one.seconds == pytest.approx(one.data["seconds"])
    busy = one.seconds - one.data["wait"]
    assert many.seconds - many.data["wait"] == pytest.approx(busy)
    assert 0.5 * 800e6 < many.data["aggregate"] <= 800e6
    assert many.data["wait"] < one.data["wait"] / 4


def test_stripes_are_as_many_as_targets_unless_told(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    done = simulated(solver, machine(CLUSTER % "1 GB/s"), STRIPED)
    assert done.data["stripes"] == 8
    assert any(re.search(r"'array' 1 GB/s \(assumed\), files on 8 of 8", line) for line in done.sources)
    assert "data wait 0.000 ms (0.0% of the step) (simulated)" in show(done)
    assert "64 processes share" in show(done)
    assert done.to_dict()["data"] == dict(done.data)


def test_storage_of_a_node_is_its_own(solver: Path, machine: Callable[[str], Path]) -> None:
    disk = 'storage = [{ space = "disk", bandwidth = "100 MB/s", source = "assumed" }]'
    for plugins in (PLUGINS, STRIPED):
        done = simulated(solver, machine(INSIDE % ("1 GB/s", disk)), plugins)
        assert done.data["processes"] == 1
        assert done.data["seconds"] == pytest.approx(BATCH / 100e6)


def test_without_striped_io_targets_are_read_evenly(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    hw = machine(CLUSTER % "100 MB/s")
    done = simulated(solver, hw, PLUGINS)
    assert done.data["seconds"] == pytest.approx(64 * BATCH / 800e6)
    with pytest.raises(CompositionError, match=r"'reading_cost'; compose striped_io"):
        simulated(solver, hw, PLUGINS, stripes=4)


def test_only_the_nodes_that_take_part_read(solver: Path, machine: Callable[[str], Path]) -> None:
    done = simulated(solver, machine(CLUSTER % "100 MB/s"), STRIPED, nodes=4, stripes=1)
    assert done.data["processes"] == 4
    assert done.data["seconds"] == pytest.approx(4 * BATCH / 100e6)
