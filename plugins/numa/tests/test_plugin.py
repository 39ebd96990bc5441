"""The plugin is found, its manifest is true, its command runs, and a net trains with its sync."""

from __future__ import annotations

import inspect
import json
import tomllib
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import demitasse
from demitasse import Level, Machine, MemorySpace, SyncSpec
from demitasse_numa import pages
from demitasse_numa.machine import this_machine

NAMES = ["caffe", "training", "datasets", "reference", "snapshots", "numa"]
NET = """
layer { name: "numbers" type: "Data" top: "data" top: "label" data_param { source: "x" batch_size: 12 } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1"
        inner_product_param { num_output: 300 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""


def plugin() -> Any:
    (entry,) = entry_points(group="demitasse.plugins", name="numa")
    return entry.load()


def test_manifest_declares_the_hooks_that_are_implemented() -> None:
    manifest = tomllib.loads(files("demitasse_numa").joinpath("plugin.toml").read_text("utf-8"))
    implemented = {
        name
        for name, member in inspect.getmembers(plugin(), inspect.isfunction)
        if hasattr(member, "demitasse_impl")
    }
    assert manifest["name"] == "numa"
    assert set(manifest["roles"]) == implemented


def test_the_hooks_leave_to_others_what_is_theirs() -> None:
    assert plugin().allocator("host", {}) is None
    assert plugin().reproductions("swcaffe") is None
    if len(this_machine().domains) == 1:
        assert tuple(plugin().probe((Level("node"),))) == ()


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    """A small solver with momentum and weight decay."""
    (tmp_path / "net.prototxt").write_text(NET)
    path = tmp_path / "solver.prototxt"
    path.write_text(
        'net: "net.prototxt" base_lr: 0.1 momentum: 0.9 weight_decay: 0.001 lr_policy: "fixed" '
        "max_iter: 5 random_seed: 5 snapshot_after_train: false"
    )
    return path


def trained(solver: Path, domains: int, **about: Any) -> tuple[list[float], Any, Any]:
    """Return the losses of five iterations, a parameter, and where the arrays of each worker are."""
    random = np.random.default_rng(0)
    data = {
        "data": random.normal(size=(24, 40)).astype(np.float32),
        "label": random.integers(0, 4, 24).astype(np.float32),
    }
    level = Level(
        "numa",
        domains,
        workers="threads",
        memory=(MemorySpace("host", at="numa:0" if pages.available() else None),),
        sync=SyncSpec("numa", about.pop("sync", {})),
    )
    machine = Machine("here", (level,), plugins=tuple(NAMES), fingerprint="any")
    with demitasse.compose(machine) as runtime:
        trainer = runtime.trainer(solver, data={"train": data}, precision="f64", **about)
        losses = [trainer.step(1).loss for _ in range(5)]
        arrays = [(worker, name, array.ctypes.data) for worker, name, array in trainer.arrays()]
        return losses, trainer.net.params["ip1"][0].copy(), arrays


@pytest.mark.parametrize("sync", [{}, {"root": "first", "arity": 3}, {"arity": 1}])
def test_four_solvers_train_as_one_does(solver: Path, sync: dict[str, Any]) -> None:
    losses, weights, _ = trained(solver, 1)
    several, theirs, _ = trained(solver, 4, sync=sync)
    np.testing.assert_allclose(several, losses, rtol=1e-10)
    np.testing.assert_allclose(theirs, weights, rtol=0, atol=1e-10)
    assert trained(solver, 4, sync=sync)[1].tobytes() == theirs.tobytes()


def test_norms_of_whole_gradients_are_summed_over_domains(solver: Path) -> None:
    clipped = {"overrides": {"clip_gradients": 0.05}}
    losses, weights, _ = trained(solver, 1, **clipped)
    several, theirs, _ = trained(solver, 3, **clipped)
    np.testing.assert_allclose(several, losses, rtol=1e-10)
    np.testing.assert_allclose(theirs, weights, rtol=0, atol=1e-10)


def test_each_solver_has_parameters_of_its_own(solver: Path) -> None:
    _, _, arrays = trained(solver, 3)
    places = [where for _, name, where in arrays if name == "parameters"]
    assert len(set(places)) == 3


@pytest.mark.skipif(not pages.available(), reason=str(pages.why_not()))
def test_the_command_shows_domains_and_where_a_training_lies(tmp_path: Path) -> None:
    from demitasse_numa.commands import numa

    done = CliRunner().invoke(numa, ["--json", str(tmp_path / "numa.json")], catch_exceptions=False)
    assert done.exit_code == 0
    assert "numa:0 (node" in done.output
    record = json.loads((tmp_path / "numa.json").read_text())
    assert len(record["domains"]) == len(this_machine().domains) + len(this_machine().others)
    assert record["domains"][0]["space"] == "numa:0"


@pytest.mark.skipif(not pages.available(), reason=str(pages.why_not()))
@pytest.mark.parametrize(("fingerprint", "simulated"), [("any", False), ("elsewhere", True)])
def test_the_command_says_where_nothing_is_bound(
    tmp_path: Path, fingerprint: str, simulated: bool
) -> None:
    pytest.importorskip("sklearn")
    from demitasse_numa.commands import numa

    machine = tmp_path / "two.toml"
    machine.write_text(
        f'schema = 1\nname = "two"\nfingerprint = "{fingerprint}"\nplugins = {json.dumps(NAMES)}\n'
        '[[level]]\nname = "numa"\ncount = 2\nworkers = "threads"\n'
        'memory = [{ space = "host", at = "numa:0" }]\nsync = { plugin = "numa" }\n'
    )
    digits = Path(__file__).parents[3] / "examples/digits/digits_solver.prototxt"
    asked = [str(digits), "--hw", str(machine)]
    done = CliRunner().invoke(numa, asked, catch_exceptions=False)
    assert (f"note: {machine} describes another machine" in done.output) is simulated
    record = json.loads(CliRunner().invoke(numa, [*asked, "--json", "-"]).output)
    assert record["placement"]["simulated"] is simulated
