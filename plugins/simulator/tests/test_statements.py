"""What a synchronisation states about itself is checked, and a mistake in it names plugin and method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import demitasse
from demitasse import GradientSync, PluginError, hookimpl
from demitasse_simulator.program import Simulation

HOSTS = """
[[level]]
name = "host"
count = 2
workers = "%s"
link = { latency = "60 us", bandwidth = "400 Mbit/s", source = "assumed" }
memory = [{ space = "host", capacity = "8 GB", bandwidth = "6 GB/s", source = "assumed" }]
peak = "50 GFLOP/s (assumed)"
sync = { plugin = "stranger" }
"""

Machines = Callable[[str], Path]


def predict(solver: Path, hw: Path, made: Callable[[Any], Any]) -> Simulation:
    manifest = {"name": "stranger", "api": ">=0", "roles": {"gradient_sync": {"priority": 1}}}
    stranger = SimpleNamespace(manifest=manifest, gradient_sync=hookimpl(made))
    plugins = ["caffe", "training", "reference", "allreduce", "simulator", stranger]
    with demitasse.compose(hw, plugins) as runtime:
        found = runtime.simulate(solver, samples={"data": (1, 12, 12), "label": ()})
    assert isinstance(found, Simulation)
    return found


class Threads(GradientSync):
    def __init__(self, group: Any, **said: Any) -> None:
        self.index, self.size = group.index, group.team.size
        vars(self).update(said)

    def reduce(self, bucket: Any, span: Any) -> Any:
        return lambda: None


class Nodes(GradientSync):
    """Stands for a node; each message is a letter of so many seconds for a bucket, once it is final."""

    collective: Any = None

    def __init__(self, **said: Any) -> None:
        vars(self).update(said)

    def described(self) -> Any:
        return self

    def messages(self, buckets: Any, reads: Any) -> Any:
        return ((0.5, [each.index], ("final", each.index), "end") for each in buckets)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            {"costs": lambda bucket, span: 0.1},
            r"Threads of .*: costs returned 0\.1 \(valid: two numbers",
        ),
        ({"costs": lambda bucket, span: (-1.0, 0)}, r"costs returned \(-1\.0, 0\) .*: -1\.0 is not"),
        ({"costs": lambda bucket, span: (0, float("nan"))}, r"costs returned .*: nan is not a finite"),
        ({"costs": lambda bucket: (0, 0)}, r"Threads of .*: raised TypeError in costs: .* 2 were given"),
        ({"workspace_bytes": lambda elements: None}, r"workspace_bytes returned None \(valid: a number"),
        ({"stages": lambda buckets, ready: None}, r"stages returned None \(valid: \(indices, stages"),
        (
            {"stages": lambda buckets, ready: [([7], [], [])]},
            r"stages returned .*: there is no bucket 7",
        ),
        ({"sources": "a text"}, r"sources is 'a text' \(valid: a list of strings\)"),
    ],
)
def test_a_mistake_among_threads_names_the_method(
    said: Any, told: str, solver: Path, machine: Machines
) -> None:
    with pytest.raises(PluginError, match=told):
        predict(solver, machine(HOSTS % "threads"), lambda group: Threads(group, **said))


def one(goal: Any = 1.0, indices: Any = (0,), start: Any = "begin", wait: Any = "end") -> Any:
    return lambda buckets, reads: [(goal, indices, start, wait)]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"described": lambda: None}, r"described returned None \(valid: a GradientSync with a method"),
        ({"described": GradientSync}, r"described returned .* \(valid: a GradientSync with a"),
        ({"taking_part": lambda: None}, r"Nodes of .*: raised TypeError in taking_part: "),
        ({"messages": lambda buckets, reads: None}, r"messages returned None \(valid: \(goal, indices"),
        (
            {"messages": lambda buckets, reads: [(1.0, [0], "end")]},
            r"messages returned .*not enough val",
        ),
        (
            {"messages": one(start=("finale", 0))},
            r"messages returned .*: \('finale', 0\) is no moment \(",
        ),
        ({"messages": one(wait=("read", 7))}, r"messages returned .*: \('read', 7\) is no moment \("),
        ({"messages": one(wait="ending")}, r"messages returned .*: 'ending' is no moment \('begin', "),
        ({"messages": one(indices=[7])}, r"messages returned .*: there is no bucket 7, only 0 to 1"),
        (
            {"messages": one(-1.0)},
            r"messages returned .*: -1\.0 is not a finite number of seconds from 0",
        ),
        ({"messages": one("allreduce")}, r"messages returned .*: 'allreduce' is a collective, but"),
        ({"sources": [1]}, r"sources is \[1\] \(valid: a list of strings\)"),
    ],
)
def test_a_mistake_among_nodes_names_the_method(
    said: Any, told: str, solver: Path, machine: Machines
) -> None:
    with pytest.raises(PluginError, match=told):
        predict(solver, machine(HOSTS % "mpi"), lambda group: Nodes(**said))


def test_seconds_stated_for_each_bucket_are_those_of_the_step(solver: Path, machine: Machines) -> None:
    """Two letters of 0.5 s go one after the other, the first beside the rest of the backward pass; and
    memory that a node states counts."""
    made = Nodes(workspace_bytes=lambda elements: 8 * elements, sources=["letters"])
    done = predict(solver, machine(HOSTS % "mpi"), lambda group: made)
    assert 0.999 < done.phases["synchronise"] < 1.01
    assert done.memory["exchange"] == 8 * (done.memory["gradients"] // 4)
    assert "letters" in done.sources and not any("agree by" in line for line in done.sources)
    assert not done.exchange


def test_a_synchronisation_that_states_nothing_is_said_to(solver: Path, machine: Machines) -> None:
    done = predict(solver, machine(HOSTS % "mpi"), lambda group: GradientSync())
    (line,) = [line for line in done.sources if "agree by" in line]
    assert "(assumed: plugin 'stranger' does not state what it sends)" in line
