"""Stages of a synchronisation between nodes: messages are sent when the plugin says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench import nets, prototxt

import demitasse
from demitasse import CompositionError, GradientSync, hookimpl
from demitasse_simulator.program import Simulation

LAB = """
[[level]]
name = "host"
count = {ranks}
workers = "mpi"
link = {{ latency = "60 us", bandwidth = "400 Mbit/s", source = "assumed" }}
memory = [{{ space = "host", capacity = "8 GB", bandwidth = "{bandwidth} GB/s", source = "assumed" }}]
peak = "{peak} GFLOP/s (assumed)"
sync = {{ plugin = "{plugin}"{options} }}
"""

MEASURED = {
    4: {"buckets": 12.74, "overlap": 9.51, "SC-B": 15.58, "SC-OBR": 10.61},
    3: {"buckets": 12.23, "overlap": 8.88, "SC-B": 15.35, "SC-OBR": 10.41},
}
"""Measured seconds of an iteration by ranks: tools/bench_overlap.py at 400 Mbit/s, AlexNet, batch 256
in all."""

STAGES = ("packed", "buckets", "overlap", "SC-B", "naive", "SC-OB", "SC-OBR")

SAMPLES = {"data": (1, 12, 12), "label": ()}


def lab(stage: str = "", plugin: str = "allreduce", more: str = "", **numbers: Any) -> str:
    options = f', stage = "{stage}"' * bool(stage) + more
    given = {"ranks": 4, "bandwidth": 6, "peak": 53, **numbers}
    return LAB.format(options=options, plugin=plugin, **given)


def predict(solver: Path, hw: Path, plugins: Any = None, **options: Any) -> Simulation:
    with demitasse.compose(hw, plugins) as runtime:
        found = runtime.simulate(solver, **{"samples": SAMPLES, **options})
    assert isinstance(found, Simulation)
    return found


@pytest.fixture(scope="module")
def alexnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    net = nets.alexnet()
    net.batch = 256
    return prototxt.write(net, tmp_path_factory.mktemp("alexnet"))


@pytest.mark.parametrize(("ranks", "peak"), [pytest.param(4, 53, marks=pytest.mark.slow), (3, 70)])
def test_stages_take_what_was_measured_of_each_other(
    ranks: int, peak: int, alexnet: Path, machine: Callable[[str], Path]
) -> None:
    """Each rank has its share of two cores. The rate that backward reaches on them is the only fitted
    number."""
    shapes = {"data": (3, 227, 227), "label": ()}
    found = {
        stage: predict(
            alexnet, machine(lab(stage, ranks=ranks, peak=peak, bandwidth=24 / ranks)), samples=shapes
        ).seconds
        for stage in MEASURED[ranks]
    }
    for stage, seconds in MEASURED[ranks].items():
        measured = seconds / MEASURED[ranks]["buckets"]
        assert found[stage] / found["buckets"] == pytest.approx(measured, rel=0.07), stage
        assert found[stage] == pytest.approx(seconds, rel=0.07), stage


def when(done: Simulation) -> Callable[[str], Any]:
    """Return the first happening whose name begins with a text."""
    return lambda name: next(each for each in done.timeline if each.name.startswith(name))


def test_each_stage_sends_what_it_says_when_it_says_it(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    done = {
        stage: predict(solver, machine(lab(stage, more=', bucket = "1 B"', peak=0.1)))
        for stage in STAGES
    }
    first = {stage: when(each) for stage, each in done.items()}
    sent = {
        stage: [each.name for each in one.timeline if each.resource == "network"]
        for stage, one in done.items()
    }
    cast = ["cheapest broadcast conv", "cheapest broadcast ip"]
    assert sent == {
        "packed": ["cheapest ip to conv"],
        "buckets": ["cheapest ip", "cheapest conv"],
        "overlap": ["cheapest ip", "cheapest conv"],
        "SC-B": ["cheapest broadcast ip to conv", "cheapest reduce ip to conv"],
        "naive": [*cast, "cheapest reduce ip to conv"],
        "SC-OB": [*cast, "cheapest reduce ip to conv"],
        "SC-OBR": [*cast, "cheapest reduce ip", "cheapest reduce conv"],
    }
    # conv runs once its parameters have arrived; those of ip are sent at once, or only then.
    for stage in ("naive", "SC-OB", "SC-OBR"):
        arrived = first[stage](cast[0]).stop
        assert first[stage]("conv").start >= arrived > 0
        assert first[stage](cast[1]).start == pytest.approx(arrived)
        assert first[stage]("ip").start >= first[stage](cast[1]).stop
    ends = {
        stage: max(e.stop for e in one.timeline if e.phase == "backward") for stage, one in done.items()
    }
    assert first["overlap"]("cheapest ip").start < ends["overlap"]
    assert first["SC-OBR"]("cheapest reduce ip").start < ends["SC-OBR"]
    for stage in ("SC-B", "naive", "SC-OB", "packed"):
        name = sent[stage][-1]
        assert first[stage](name).start == pytest.approx(ends[stage])
    # The worker continues with backward once a bucket is summed and updated.
    later = [e for e in done["buckets"].timeline if (e.name, e.phase) == ("conv", "backward")]
    assert min(each.start for each in later) >= first["buckets"]("update ip").stop - 1e-12
    for stage, one in done.items():
        assert one.seconds == pytest.approx(sum(one.phases.values())), stage
        assert any(line.startswith(f"stage {stage}: ") for line in one.sources)
    assert done["SC-OBR"].seconds < done["SC-OB"].seconds < done["SC-B"].seconds
    assert done["SC-OB"].seconds <= done["naive"].seconds <= done["SC-B"].seconds
    assert done["overlap"].seconds < done["buckets"].seconds
    assert done["SC-B"].exchange["seconds"] > done["packed"].exchange["seconds"]


def test_among_many_ranks_each_sum_takes_what_is_cheapest_for_its_own_size(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    """A ring of 300 has 579 latencies of 60 us more than Rabenseifner's halving, which sends about twice
    as many bytes: they are equal at 220,000 elements. The last layer's 105,000 are summed
    first, the first layer's 507,500 then."""
    layers = "".join(
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "{bottom}" top: "{name}" '
        f"inner_product_param {{ num_output: {count} }} }}\n"
        for name, bottom, count in (("large", "data", 3500), ("small", "large", 30))
    )
    (solver.parent / "net.prototxt").write_text(
        'layer { name: "data" type: "Data" top: "data" top: "label"\n'
        '  data_param { source: "none" batch_size: 1 } }\n'
        f'{layers}layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "small" bottom: "label" }}\n'
    )

    def sums(algorithm: str) -> list[float]:
        more = f', bucket = "1 B", algorithm = "{algorithm}"'
        done = predict(solver, machine(lab("buckets", more=more, ranks=300)), scaling="weak")
        return [each.seconds for each in done.timeline if each.resource == "network"]

    small, large = sums("auto")
    ring, halving = sums("ring"), sums("rabenseifner")
    assert halving[0] < 0.8 * ring[0] and ring[1] < 0.8 * halving[1]
    assert (small, large) == pytest.approx((halving[0], ring[1]))


def test_more_ranks_than_any_algorithm_takes_are_told(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    with pytest.raises(CompositionError, match=r"made-up.toml:\d+: 2,000,000 ranks .*1 to 1,048,576"):
        predict(solver, machine(lab("buckets", ranks=2_000_000)), scaling="weak")


def test_two_levels_of_communicators_take_turns(solver: Path, machine: Callable[[str], Path]) -> None:
    """Eight ranks in rows of four: two rounds up in a row, an exchange of everything between two of
    them, two rounds down."""
    wide = "layer.ip.inner_product_param.num_output"
    more = ', lower = "binomial", upper = "recursive-halving-doubling", chain = 4'
    done = predict(
        solver, machine(lab("packed", more=more, ranks=8, bandwidth=1000)), overrides={wide: "40000"}
    )
    n = done.memory["gradients"] / 50e6
    assert done.exchange["transfer"] == pytest.approx((2 + 1 + 2) * n, rel=0.01)
    assert "8 hosts agree by binomial and recursive-halving-doubling, ranks auto" in done.sources
    assert any(
        ": binomial by 4 ranks and recursive-halving-doubling by 2, " in line for line in done.sources
    )
    with pytest.raises(CompositionError, match="'ring' has no reduction to one rank"):
        predict(solver, machine(lab("packed", more=', lower = "ring"')))


def test_gradients_that_are_measured_before_an_update_are_awaited_where_they_are_final(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    solver.write_text(solver.read_text() + "clip_gradients: 1\n")
    done = predict(solver, machine(lab("SC-OBR")))
    names = [each.name for each in done.timeline if each.name.startswith(("cheapest reduce", "update"))]
    assert names == ["cheapest reduce ip", "cheapest reduce conv", "update ip", "update conv"]


def test_without_a_stage_the_plugins_own_default_is_predicted(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    done = predict(solver, machine(lab()))
    assert any(line.startswith("stage overlap: ") for line in done.sources)
    assert any(line == "4 hosts agree by auto, ranks auto" for line in done.sources)


def test_an_option_that_training_refuses_a_simulation_refuses_too(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    with pytest.raises(CompositionError, match="unknown option of sync 'packed'"):
        predict(solver, machine(lab(more=", packed = true")))
    with pytest.raises(CompositionError, match="unknown stage 'SC-BO'; did you mean"):
        predict(solver, machine(lab("SC-BO")))


class Postal(GradientSync):
    """A third-party synchronisation: letters of 3 ms before forward, and a sum for each layer."""

    sources = ("letters of 3 ms",)
    collective = {"algorithm": "ring", "ranks": "natural"}

    def described(self) -> GradientSync:
        return self

    def messages(self, buckets: Any, reads: Any) -> Any:
        every = [bucket.index for bucket in buckets]
        assert sorted(every) == sorted(reads)
        letter = 3e-3, tuple(every), "begin", ("read", reads[0])
        return [letter, *(("allreduce", (index,), ("final", index), "end") for index in every)]


def test_a_strangers_synchronisation_says_itself_what_it_sends(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    manifest = {"name": "stranger", "api": ">=0", "roles": {"gradient_sync": {"priority": 1}}}
    stranger = SimpleNamespace(manifest=manifest, gradient_sync=hookimpl(lambda group: Postal()))
    plugins = ["caffe", "training", "reference", "allreduce", "simulator", stranger]
    done = predict(solver, machine(lab(plugin="stranger")), plugins)
    first = when(done)
    assert first("exchange").seconds == pytest.approx(3e-3)
    assert first("conv").start >= first("exchange").stop
    assert [e.name for e in done.timeline if e.resource == "network"][1:] == ["ring ip", "ring conv"]
    assert "letters of 3 ms" in done.sources


PACE = """
[[level]]
name = "host"
count = 4
workers = "mpi"
link = { latency = "60 us", bandwidth = "400 Mbit/s", source = "assumed" }
memory = [{ space = "host", capacity = "8 GB", bandwidth = "6 GB/s", source = "assumed" }]
peak = "0.1 GFLOP/s (assumed)"
sync = { plugin = "simulator", algorithm = "ring", overlap = %s }
"""

LARS = 'type: "LARS"\nlars_trust: 0.001\n'


@pytest.mark.parametrize("update", [LARS, "clip_gradients: 1\n"])
def test_an_update_that_reads_whole_sizes_lets_no_sum_go_on_beside_backward(
    update: str, solver: Path, machine: Callable[[str], Path]
) -> None:
    """What is hidden with momentum is waited for in this case, in every stage and by a description's
    options."""
    stages = [lab(stage, more=', bucket = "1 B"', peak=0.1) for stage in ("overlap", "SC-OBR")]
    stages += [PACE % "true", PACE % "false"]
    plain = [predict(solver, machine(text)) for text in stages]
    solver.write_text(solver.read_text() + update)
    for text, before in zip(stages, plain, strict=True):
        done = predict(solver, machine(text))
        busy = [(e.start, e.stop) for e in done.timeline if e.phase in ("forward", "backward")]
        sums = [e for e in done.timeline if e.resource == "network" and "broadcast" not in e.name]
        assert sums
        for each in sums:
            assert all(stop <= each.start + 1e-12 or start >= each.stop - 1e-12 for start, stop in busy)
        measured = [e.name for e in done.timeline if e.name.startswith("measure ")]
        updated = [e.name for e in done.timeline if e.name.startswith("update ")]
        assert len(measured) == len(updated) > 0
        names = [each.name for each in done.timeline]
        assert names.index(measured[-1]) < names.index(updated[0])
        sent = sum(each.seconds for each in sums)
        assert done.seconds >= sum(stop - start for start, stop in busy) + sent - 1e-12
        assert done.seconds > before.seconds
        assert done.seconds == pytest.approx(sum(done.phases.values()))
        assert any("no sum overlaps with backward" in line for line in done.sources)
        assert not any("beside the computation" in line for line in done.sources)


@pytest.mark.parametrize("update", [LARS, "clip_gradients: 1\n"])
def test_measuring_is_counted_for_one_worker_too(
    update: str, solver: Path, machine: Callable[[str], Path]
) -> None:
    """Parameters and gradients are read once more, over the memory's bandwidth."""
    node = lab(ranks=1)
    solver.write_text(solver.read_text() + update)
    done = predict(solver, machine(node))
    measured = [each for each in done.timeline if each.name.startswith("measure ")]
    parameters = done.memory["parameters"]
    assert sum(e.seconds for e in measured) == pytest.approx(2 * parameters / 6e9, rel=0.05)
    assert done.seconds == pytest.approx(sum(done.phases.values()))
    assert not any("overlaps with backward" in line for line in done.sources)
