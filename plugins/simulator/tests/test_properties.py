"""What every prediction must have, whatever the machine: right units, and times within their bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_simulator.program import Simulation

RATES = ("memory", "peak", "inner", "outer", "disk")
TIMES = ("launch", "near", "far")

LEVELS = """
[[level]]
name = "node"
count = {nodes}
workers = "mpi"
storage = [{{ space = "disk", bandwidth = "{disk} B/s", source = "assumed" }}]
sync = {{ {outside} }}

[level.link]
latency = "{far} s"
bandwidth = "{outer} B/s"
oversubscription = {over}
source = "assumed"

[[level]]
name = "domain"
count = {domains}
workers = "threads"
memory = [{{ space = "host", bandwidth = "{memory} B/s", source = "assumed" }}]
peak = "{peak} FLOP/s"
launch = "{launch} s"
link = {{ latency = "{near} s", bandwidth = "{inner} B/s", source = "assumed" }}
sync = {{ plugin = "{inside}" }}
"""

OUTSIDE = [
    'plugin = "allreduce", stage = "packed"',
    'plugin = "allreduce", stage = "overlap", bucket = "1 B"',
    'plugin = "allreduce", stage = "buckets", algorithm = "two-level"',
    'plugin = "parameter_server", model = "bsp"',
    'plugin = "simulator", algorithm = "ring", overlap = true',
]


@st.composite
def machines(draw: Any) -> dict[str, Any]:
    """The numbers and names of a description, over several orders of magnitude."""

    def size(low: int, high: int) -> float:
        return float(f"{10 ** draw(st.floats(low, high)):.3g}")

    return {
        "nodes": draw(st.integers(2, 6)),
        "domains": draw(st.integers(1, 3)),
        "over": draw(st.sampled_from([1, 1.5, 4])),
        "outside": draw(st.sampled_from(OUTSIDE)),
        "inside": draw(st.sampled_from(["numa", "parameter_server", "reference"])),
        **{name: size(7, 12) for name in RATES},
        **{name: size(-7, -4) for name in TIMES},
    }


@pytest.fixture
def predict(solver: Path, machine: Callable[[str], Path]) -> Callable[..., Simulation]:
    """Return a function of a description's numbers."""

    def predicted(given: dict[str, Any], **more: Any) -> Simulation:
        plugins = [
            "caffe",
            "training",
            "reference",
            "allreduce",
            "parameter_server",
            "numa",
            "simulator",
        ]
        with demitasse.compose(machine(LEVELS.format(**given)), plugins) as runtime:
            samples = {"data": (1, 12, 12), "label": ()}
            found = runtime.simulate(solver, samples=samples, scaling="weak", **more)
        assert isinstance(found, Simulation)
        return found

    return predicted


drawn = settings(
    max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@given(given=machines())
@drawn
def test_a_machine_that_does_everything_eight_times_as_fast_takes_an_eighth(
    predict: Callable[..., Simulation], given: dict[str, Any]
) -> None:
    quick = {name: 8 * given[name] for name in RATES} | {name: given[name] / 8 for name in TIMES}
    slow, fast = predict(given), predict(given | quick)
    assert fast.seconds == pytest.approx(slow.seconds / 8)
    for name, seconds in slow.phases.items():
        assert fast.phases[name] == pytest.approx(seconds / 8, abs=1e-9 * slow.seconds)


@given(given=machines(), name=st.sampled_from(RATES + TIMES))
@drawn
def test_nothing_that_is_faster_makes_a_step_longer(
    predict: Callable[..., Simulation], given: dict[str, Any], name: str
) -> None:
    better = given[name] * 3 if name in RATES else given[name] / 3
    assert predict(given | {name: better}).seconds <= predict(given).seconds * (1 + 1e-9)


@given(given=machines())
@drawn
def test_a_step_takes_as_long_as_its_busiest_resource_and_at_most_as_all_in_turn(
    predict: Callable[..., Simulation], given: dict[str, Any]
) -> None:
    done = predict(given)
    assert done.seconds == pytest.approx(sum(done.phases.values()))
    busy: dict[str, float] = {}
    for each in done.timeline:
        if each.source != "wait":
            busy[each.resource] = busy.get(each.resource, 0.0) + each.seconds
    assert max(busy.values()) <= done.seconds * (1 + 1e-9)
    assert done.seconds <= sum(busy.values()) * (1 + 1e-9)


@given(given=machines())
@drawn
def test_no_node_is_faster_among_others_and_larger_batches_take_no_more_time_a_sample(
    predict: Callable[..., Simulation], given: dict[str, Any]
) -> None:
    """Except that nodes may divide the update."""
    done, alone = predict(given), predict(given, nodes=1)
    assert done.seconds >= (alone.seconds - alone.phases["synchronise"]) * (1 - 1e-9)
    twice = predict(given, overrides={"layer.data.data_param.batch_size": "32"})
    assert twice.samples_per_second >= done.samples_per_second * (1 - 1e-9)
