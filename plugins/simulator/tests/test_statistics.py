"""What the statistics of all workers cost: a step waits for each sum within a pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from machine_files import NESTED

import demitasse

FORWARD, BACKWARD = 2 * 8 + 1, 2 * 8  # numbers that a worker adds: of eight channels


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    """A solver of a net with a normalisation, whose samples do not exist."""
    (tmp_path / "net.prototxt").write_text(
        """
        layer { name: "data" type: "Data" top: "data" top: "label"
          data_param { source: "none" batch_size: 16 } }
        layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
          convolution_param { num_output: 8 kernel_size: 3 } }
        layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "conv" }
        layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
        layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
          inner_product_param { num_output: 10 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
        """
    )
    path = tmp_path / "solver.prototxt"
    path.write_text('net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 10')
    return path


def simulated(solver: Path, hw: Path, **options: Any) -> Any:
    with demitasse.compose(hw) as runtime:
        return runtime.simulate(solver, samples={"data": (1, 12, 12), "label": ()}, **options)


def sums(done: Any) -> list[Any]:
    return [each for each in done.timeline if each.resource == "statistics"]


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_the_step_waits_for_each_sum(
    solver: Path, machine: Callable[[str], Path], precision: str
) -> None:
    """A binomial tree of four nodes takes two rounds up and two down, of 8 bytes a number."""
    made = machine(NESTED)
    done = simulated(solver, made, precision=precision)
    found = sums(done)
    assert [each.name for each in found] == ["binomial statistics of norm"] * 2
    for each, numbers in zip(found, (FORWARD, BACKWARD), strict=True):
        travel = 4 * (1e-6 + 8 * numbers / 1e9)
        assert each.seconds - each.facts["reduction"] == pytest.approx(travel)
        wait = next(
            w for w in done.timeline if w.name == "wait for statistics of norm" and w.stop == each.stop
        )
        assert wait.resource == "compute" and wait.seconds == pytest.approx(each.seconds)
    local = simulated(solver, made, precision=precision, statistics="local")
    assert sums(local) == []
    more = done.phases["synchronise"] - local.phases["synchronise"]
    assert more == pytest.approx(sum(each.seconds for each in found))


def test_one_process_exchanges_nothing(solver: Path, machine: Callable[[str], Path]) -> None:
    assert sums(simulated(solver, machine(NESTED), nodes=1)) == []


def test_an_algorithm_that_gives_the_sum_to_one_gives_way_to_those_that_give_it_to_all(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    """S-Caffe's reductions go to the root."""
    rooted = NESTED.replace(
        'plugin = "simulator", algorithm = "binomial"', 'plugin = "allreduce", stage = "SC-B"'
    ).replace("count = 2", "count = 1")
    done = simulated(solver, machine(rooted))
    assert len(sums(done)) == 2
    assert all(each.seconds >= 2e-6 for each in sums(done)), "at least two rounds"


def test_a_gradient_under_way_does_not_hold_up_a_sum(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    """Messages of parameters take long here; those of statistics are small."""
    slow = NESTED.replace('bandwidth = "1 GB/s"', 'bandwidth = "1 MB/s"').replace(
        'algorithm = "binomial"', 'algorithm = "binomial", packed = false, overlap = true'
    )
    done = simulated(solver, machine(slow))
    _, backward = sums(done)
    gradients = [each for each in done.timeline if each.resource == "network"]
    first = min(gradients, key=lambda each: each.start)
    assert backward.seconds < first.seconds
    assert first.start < backward.stop and backward.start < first.stop, "at the same time"
