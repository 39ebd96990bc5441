"""Machines that are described but are not here: the project's own, and some that lack a plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from machine_files import RACKS

import demitasse
from demitasse import CompositionError, load_machine
from demitasse_simulator.commands import simulate
from demitasse_simulator.described import standing_in
from demitasse_simulator.report import show

SAMPLES = {"data": (1, 12, 12), "label": ()}
ROOT = Path(__file__).parents[3]
CLUSTER = RACKS % 'algorithm = "ring"%s'


def described_elsewhere() -> list[Path]:
    """The descriptions of machines that are not here, except those whose kernels sw26010's tests
    plan."""
    files = sorted((ROOT / "hwdesc").glob("*.toml"))
    machines = ((path, load_machine(path)) for path in files)
    return [path for path, m in machines if m.simulated and "sw26010" not in (m.plugins or ())]


DESCRIBED = described_elsewhere()


def test_most_descriptions_of_the_house_are_of_machines_that_are_not_here() -> None:
    assert len(DESCRIBED) >= 8


@pytest.mark.parametrize("path", DESCRIBED, ids=lambda path: path.stem)
def test_every_described_machine_of_the_house_can_be_simulated(path: Path, solver: Path) -> None:
    described = load_machine(path)
    machine, _ = standing_in(described)
    with demitasse.compose(machine) as runtime:
        done = runtime.simulate(solver, samples=SAMPLES, scaling="weak")
    assert done.seconds > 0 and done.fits
    for level in described.levels:
        for memory in level.memory:
            assert memory.capacity is not None and memory.bandwidth is not None


def test_a_solver_with_a_test_net_is_planned_with_the_tuner_too() -> None:
    """A description that lists no plugins has all automatic ones, the tuner among them."""
    elsewhere = demitasse.Machine("plain", (demitasse.Level("node", cores=2),))
    with demitasse.compose(elsewhere) as runtime:
        assert runtime.machine.simulated and runtime.serving("tuner")
        made = runtime.program("planned").trainer(
            ROOT / "examples" / "digits" / "digits_solver.prototxt"
        )
        assert {"conv1", "ip1"} <= {entry.layer for entry in made.plan.entries}


def test_a_plugin_that_is_not_installed_is_stood_in_for(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    text = (CLUSTER % "").replace('"simulator"', '"horovod"')
    described = load_machine(machine(text))
    made, lines = standing_in(described)
    assert made.levels[1].sync is not None and made.levels[1].sync.plugin == "simulator"
    assert "horovod is not installed: its work at level 'node' is simulated" in lines[0]
    misspelled = load_machine(machine((CLUSTER % "").replace('"simulator"', '"alreduce"')))
    assert "alreduce is not installed (did you mean 'allreduce'?): its" in standing_in(misspelled)[1][0]
    with demitasse.compose(made) as runtime:
        assert runtime.simulate(solver, samples=SAMPLES, scaling="weak").exchange["seconds"] > 0
    words = [str(solver), "--hw", str(machine(text)), "--samples", "1x12x12", "--scaling", "weak"]
    assert f"\nnote: {lines[0]}\n" in CliRunner().invoke(simulate, words).output


def test_a_machine_of_accelerators_that_are_not_here_is_simulated_without_their_libraries() -> None:
    """Its description fits any machine that has such an accelerator."""
    machine, _ = standing_in(load_machine(ROOT / "hwdesc" / "one-gpu.toml"))
    with demitasse.compose(machine) as runtime:
        solver = ROOT / "examples" / "digits" / "digits_solver.prototxt"
        found = runtime.simulate(solver)
    assert {"conv1", "loss"} <= {each.name for each in found.timeline}
    assert found.seconds > 0


def test_what_the_network_joins_has_its_levels_name(solver: Path) -> None:
    """KESCH has 12 nodes of 16 devices (S-Caffe, section 6.1), which MPI joins."""
    machine, _ = standing_in(load_machine(ROOT / "hwdesc/kesch-cs-storm.toml"))
    with demitasse.compose(machine) as runtime:
        made = runtime.simulate(solver, samples=SAMPLES, scaling="weak")
        with pytest.raises(CompositionError, match=r"193 gpus of .*1 to 192; .*node x 12, gpu x 16"):
            runtime.simulate(solver, samples=SAMPLES, nodes=193)
    assert (made.workers, made.nodes, made.joined) == (192, 192, "192 gpus")
    assert not any(" 1 workers" in line for line in made.sources)
    assert "192 workers on 192 gpus, batch" in show(made)
    assert "exchange of all gradients among 192 gpus " in show(made)
    assert any(line.startswith("192 gpus agree by chain and binomial") for line in made.sources)
