"""The plugin: its manifest, what descriptions may say, and training on stand-ins."""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import (
    CompositionError,
    DescriptionError,
    Level,
    Link,
    Machine,
    MemorySpace,
    Quantity,
    SyncSpec,
    load_machine,
)
from demitasse_host_streams.description import engine_of, rates_of
from demitasse_host_streams.engine import HostEngine
from demitasse_host_streams.link import Rate
from demitasse_host_streams.memory import REGISTRY

HWDESC = Path(__file__).parents[3] / "hwdesc"
NAMES = ["caffe", "training", "datasets", "cpu", "reference", "host_streams"]
NET = """
layer { name: "rows" type: "Data" top: "data" top: "label" data_param { source: "x" batch_size: 12 } }
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1"
        inner_product_param { num_output: 30 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
        inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""


def plugin() -> Any:
    (entry,) = entry_points(group="demitasse.plugins", name="host_streams")
    return entry.load()


def stand_ins(count: int, at: str | None = "accelerator:*", **about: Any) -> Machine:
    """Return a machine with ``count`` stand-ins, whose gradients the reference plugin sums."""
    memory = (MemorySpace("host", at=at),)
    sync = SyncSpec("reference") if count > 1 else None
    level = Level("accelerator", count, workers="streams", memory=memory, sync=sync, **about)
    return Machine("here", (Level("node", cores=2), level), plugins=tuple(NAMES), fingerprint="any")


def test_manifest_declares_the_hooks_that_are_implemented() -> None:
    text = files("demitasse_host_streams").joinpath("plugin.toml").read_text("utf-8")
    manifest = tomllib.loads(text)
    implemented = {
        name
        for name, member in inspect.getmembers(plugin(), inspect.isfunction)
        if hasattr(member, "demitasse_impl")
    }
    assert manifest["name"] == "host_streams"
    assert set(manifest["roles"]) == implemented


def test_memory_of_others_is_left_to_them() -> None:
    assert plugin().allocator("host", {}) is None
    assert plugin().allocator("gpu:0", {}) is None
    assert plugin().allocator("accelerator:1", {}).space == "accelerator:1"


# What a description says.

LINK = Link(Quantity(1e-5, "s"), Quantity(2e9, "B/s"))


@pytest.mark.parametrize(
    ("link", "options", "d2h", "h2d"),
    [
        (None, {}, Rate(), Rate()),
        (LINK, {}, Rate(1e-5, 2e9), Rate(1e-5, 2e9)),
        (LINK, {"bandwidth": "4 GB/s"}, Rate(1e-5, 4e9), Rate(1e-5, 4e9)),
        (LINK, {"d2h": "1 GiB/s", "latency": "2 us"}, Rate(2e-6, 2**30), Rate(2e-6, 2e9)),
        (LINK, {"bandwidth": "unlimited", "h2d": "8 Gbit/s"}, Rate(1e-5), Rate(1e-5, 1e9)),
        (None, {"h2d": "3 GB/s (paper)"}, Rate(), Rate(0.0, 3e9)),
        (Link(bandwidth=Quantity(2e9, "B/s")), {}, Rate(0.0, 2e9), Rate(0.0, 2e9)),
    ],
)
def test_rates_are_the_links_unless_options_say_otherwise(
    link: Link | None, options: dict[str, str], d2h: Rate, h2d: Rate
) -> None:
    rates = rates_of(stand_ins(2, link=link), options)
    assert (rates.d2h, rates.h2d) == (d2h, h2d)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"bandwith": "2 GB/s"},
            "options.host_streams: unknown option 'bandwith'; did you mean 'bandwidth'",
        ),
        ({"d2h": 2}, r"d2h = 2 \(valid: a string like '2 GB/s'\)"),
        ({"latency": 2}, r"latency = 2 \(valid: a string like '10 us'\)"),
        ({"h2d": "2 GB"}, "h2d = '2 GB'; did you mean|h2d = '2 GB'"),
        ({"latency": "unlimited"}, "latency = 'unlimited'"),
        ({"bandwidth": "0 B/s"}, "bandwidth = '0 B/s'"),
    ],
)
def test_an_option_that_is_none_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        engine_of("accelerator:0", stand_ins(2), options)


def test_stand_ins_that_share_one_memory_are_refused_with_the_remedy() -> None:
    machine = stand_ins(2, at=None)
    with pytest.raises(CompositionError, match=r"2 workers have streams.*at = \"accelerator:\*\""):
        engine_of("host", machine, {})
    alone = engine_of("host", stand_ins(1, at=None), {})
    assert alone.place == "host"
    alone.close()


# Training.


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    """A small solver with momentum and weight decay."""
    (tmp_path / "net.prototxt").write_text(NET)
    path = tmp_path / "solver.prototxt"
    path.write_text(
        'net: "net.prototxt" base_lr: 0.1 momentum: 0.9 weight_decay: 0.001 lr_policy: "fixed" '
        "max_iter: 10 random_seed: 5 snapshot_after_train: false"
    )
    return path


SAMPLES = {
    "data": np.random.default_rng(0).normal(size=(24, 40)).astype(np.float32),
    "label": np.random.default_rng(1).integers(0, 4, 24).astype(np.float32),
}


def trained(solver: Path, machine: Machine, **about: Any) -> tuple[list[float], Any, set[str | None]]:
    """Train for ten iterations; return losses, parameters, and the spaces that the workers' arrays lie
    in."""
    with demitasse.compose(machine) as runtime:
        trainer = runtime.trainer(solver, data={"train": SAMPLES}, precision="f64", **about)
        losses = [trainer.step(1).loss for _ in range(10)]
        spaces = {REGISTRY.space(np.asarray(array)) for _, _, array in trainer.arrays()}
        return losses, trainer.net.params["ip1"][0].copy(), spaces


@pytest.mark.usefixtures("no_threads_left")
@pytest.mark.parametrize("count", [2, 4])
def test_stand_ins_train_as_one_worker_does(solver: Path, count: int) -> None:
    one = Machine("here", (Level("node", cores=2),), plugins=tuple(NAMES), fingerprint="any")
    losses, weights, _ = trained(solver, one)
    several, theirs, spaces = trained(solver, stand_ins(count))
    np.testing.assert_allclose(several, losses, rtol=1e-10)
    np.testing.assert_allclose(theirs, weights, rtol=0, atol=1e-10)
    assert {f"accelerator:{number}" for number in range(count)} <= spaces


@pytest.mark.usefixtures("no_threads_left")
def test_one_alone_updates_neighbouring_layers_at_once(solver: Path) -> None:
    """On a device, a launch takes longer than the update of a small layer. The numbers are the same."""
    found = []
    for machine in (Machine("here", (Level("node", cores=2),)), stand_ins(1)):
        machine = replace(machine, plugins=tuple(NAMES), fingerprint="any")
        with demitasse.compose(machine) as runtime:
            plan = runtime.trainer(solver, data={"train": SAMPLES}, precision="f64").plan
            found.append([bucket.layers for bucket in plan.buckets])
        found.append(trained(solver, machine)[:2])
    by_layer, (losses, weights), together, (theirs, their_weights) = found
    assert len(by_layer) > 1
    assert together == [tuple(name for layers in by_layer for name in layers)]
    assert theirs == losses
    assert np.array_equal(their_weights, weights)


def shipped(sync: str) -> Machine:
    """Return the shipped description of two stand-ins, whose gradients the plugin ``sync`` sums."""
    machine = load_machine(HWDESC / "two-accelerators.toml")
    *around, level = machine.levels
    chosen = (*(name for name in machine.plugins or () if name != "cgdp"), sync)
    return replace(
        machine,
        levels=(*around, replace(level, sync=SyncSpec(sync))),
        plugins=tuple(dict.fromkeys(chosen)),
    )


def test_the_shipped_description_makes_two_engines_at_its_links_pace() -> None:
    machine = shipped("reference")
    places = demitasse.arrange(machine, "float32")
    with demitasse.compose(machine) as runtime:
        engines = [runtime.engine(place) for place in places]
        assert [engine.place for engine in engines if engine] == ["accelerator:0", "accelerator:1"]
        assert runtime.engine(places[0]) is engines[0]
        for engine in engines:
            assert isinstance(engine, HostEngine)
            assert engine.rates == {"d2h": Rate(1e-5, 2e9), "h2d": Rate(1e-5, 2e9)}
        assert "stream_engine" in str(runtime.explain())
    with pytest.raises(RuntimeError, match="were closed"):
        engines[0].stream("d2h")  # type: ignore[union-attr]


@pytest.mark.parametrize("sync", ["reference", "cgdp"])
def test_the_shipped_description_trains_as_one_worker_does(solver: Path, sync: str) -> None:
    if sync not in {manifest.name for manifest in demitasse.discover()}:
        pytest.skip(f"the plugin {sync} is not installed")
    one = Machine("here", (Level("node", cores=2),), plugins=tuple(NAMES), fingerprint="any")
    losses, weights, _ = trained(solver, one)
    two, theirs, _ = trained(solver, shipped(sync))
    np.testing.assert_allclose(two, losses, rtol=1e-10)
    np.testing.assert_allclose(theirs, weights, rtol=0, atol=1e-10)
