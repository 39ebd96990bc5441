"""Simulated steps: time, memory, overlaps, and what a description must say."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from machine_files import NESTED, RACKS

import demitasse
from demitasse import CompositionError, DescriptionError, GradientSync, hookimpl
from demitasse_simulator.program import Simulation
from demitasse_simulator.report import by_layer, human_bytes, show

SAMPLES = {"data": (1, 12, 12), "label": ()}

NODE = """
[[level]]
name = "node"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
peak = "100 GFLOP/s"
"""

CLUSTER = RACKS % 'algorithm = "ring"%s'


def simulated(solver: Path, hw: Path, plugins: Any = None, **options: Any) -> Simulation:
    with demitasse.compose(hw, plugins) as runtime:
        result = runtime.simulate(solver, samples=SAMPLES, **options)
    assert isinstance(result, Simulation)
    return result


def test_a_roofline_is_what_the_plan_does_over_what_the_machine_can(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    done = simulated(solver, machine(NODE))
    computed = [each for each in done.timeline if "flops" in each.facts]
    for each in computed:
        bound = max(each.facts["flops"] / 100e9, each.facts["bytes"] / 10e9)
        assert each.seconds == pytest.approx(bound) and each.source == "roofline"
    forward = sum(each.seconds for each in computed if each.phase == "forward")
    assert done.phases["forward"] == pytest.approx(forward)
    assert done.seconds == pytest.approx(sum(done.phases.values()))
    assert done.samples_per_second == pytest.approx(16 / done.seconds)
    assert any("100 GFLOP/s (assumed)" in line for line in done.sources)


def test_nothing_overlaps_on_one_resource(solver: Path, machine: Callable[[str], Path]) -> None:
    done = simulated(solver, machine(CLUSTER % ", overlap = true"), scaling="weak")
    for resource in {each.resource for each in done.timeline}:
        mine = sorted((e for e in done.timeline if e.resource == resource), key=lambda e: e.start)
        assert all(a.stop <= b.start + 1e-12 for a, b in pairwise(mine)), resource


def test_memory_is_what_training_takes(solver: Path) -> None:
    taken: list[int] = []
    with demitasse.compose(
        plugins=["caffe", "training", "reference", "simulator", "datasets"]
    ) as runtime:
        said = runtime.simulate(solver, samples=SAMPLES).memory
        allocator = runtime.allocator("host")
        real = type(allocator).allocate

        def counted(self: Any, nbytes: int) -> Any:
            memory = real(self, nbytes)
            taken.append(nbytes)
            close = memory.close
            memory.close = lambda: (taken.append(-nbytes), close())[1]
            return memory

        data = {"data": np.zeros((16, 1, 12, 12), np.float32), "label": np.zeros(16, np.int64)}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(allocator), "allocate", counted)
            trainer = runtime.trainer(solver, data={"train": data})
            held = sum(taken)
            trainer.step(1)
        plan = trainer.plan
    assert said["worker"] == said["process"] == held
    assert said["arena"] == plan.arena_bytes and said["fixed"] == plan.fixed_bytes
    assert said["parameters"] == 4 * plan.parameters


def test_arrays_for_test_nets_too_are_taken_as_a_trainer_takes_them(solver: Path) -> None:
    solver.write_text(solver.read_text() + "test_iter: 1 test_interval: 5\n")
    data = {"data": np.zeros((16, 1, 12, 12), np.float32), "label": np.zeros(16, np.int64)}
    plugins = ["caffe", "training", "reference", "simulator", "datasets"]
    with demitasse.compose(plugins=plugins) as runtime:
        alone = runtime.simulate(solver, data={"train": data})
        assert runtime.simulate(solver, data={"train": data, "test": data}).memory == alone.memory


def test_a_batch_that_does_not_fit_is_known_beforehand(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    small = machine(NODE.replace("1 GB", "10 MB"))
    batch = {"layer.data.data_param.batch_size": "4096"}
    assert simulated(solver, small).fits is True
    whole = simulated(solver, small, overrides=batch)
    assert whole.fits is False and whole.memory["worker"] > 10e6


def test_what_layers_sustain_takes_the_place_of_the_peak(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    """At a hundredth of the balance of bandwidth only arithmetic counts, so a fifth of the rate takes
    five times as long."""
    slow = NODE.replace("100 GFLOP/s", "10 MFLOP/s")
    bound = simulated(solver, machine(slow))
    real = simulated(solver, machine(slow + 'sustained = "2 MFLOP/s (measured)"\n'))
    for phase in ("forward", "backward"):
        assert real.phases[phase] == pytest.approx(5 * bound.phases[phase], rel=0.02)
    assert "sustained 2 MFLOP/s (measured) x 1 at level 'node'" in real.sources
    assert any(line.startswith("peak 10 MFLOP/s (assumed)") for line in bound.sources)


def test_a_time_by_a_peak_alone_is_called_a_bound(solver: Path, machine: Callable[[str], Path]) -> None:
    slow = NODE.replace("100 GFLOP/s", "10 MFLOP/s")
    bound = simulated(solver, machine(slow))
    (note,) = bound.notes
    assert note.startswith("this time is a lower bound") and "peak 10 MFLOP/s (assumed)" in note
    assert "`sustained`" in note
    assert f"note: {note}" in show(bound).splitlines() and note in bound.to_dict()["notes"]
    assert not simulated(solver, machine(slow + 'sustained = "2 MFLOP/s"\n')).notes
    quick = NODE.replace("100 GFLOP/s", "1 EFLOP/s")  # here only the memory's bandwidth counts
    assert not simulated(solver, machine(quick)).notes


def test_an_absurd_batch_takes_no_memory_to_predict(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    batch = {"layer.data.data_param.batch_size": "1000000"}
    done = simulated(solver, machine(NODE), overrides=batch)
    assert done.fits is False and done.memory["arena"] > 3e9


def test_each_kernel_takes_a_launch_besides(solver: Path, machine: Callable[[str], Path]) -> None:
    quick, slow = (simulated(solver, machine(NODE + text)) for text in ("", 'launch = "1 ms"\n'))
    rows = {(row["layer"], row["phase"]): row for row in by_layer(quick)}
    for row in by_layer(slow):
        besides = row["seconds"] - rows[row["layer"], row["phase"]]["seconds"]
        assert besides == pytest.approx(1e-3 * len(row["kernels"]))
    updates = [each for each in slow.timeline if each.resource == "compute" and each.name == "update"]
    assert all(each.seconds >= 1e-3 for each in updates)
    assert "each kernel 1 ms (assumed) besides" in slow.sources


@pytest.mark.parametrize(
    ("found", "left", "key"),
    [
        ('peak = "100 GFLOP/s"\n', "", "peak"),
        (
            ', bandwidth = "10 GB/s", source = "assumed" }]',
            ', source = "assumed" }]',
            "memory.bandwidth",
        ),
    ],
)
def test_a_number_that_lacks_is_named(
    solver: Path, machine: Callable[[str], Path], found: str, left: str, key: str
) -> None:
    path = machine(NODE.replace(found, left))
    with pytest.raises(DescriptionError, match=f"made-up.toml:\\d+: level 'node' has no {key}"):
        simulated(solver, path)


@pytest.mark.parametrize(
    ("found", "key"),
    [
        ('link = { latency = "1 us", bandwidth = "10 GB/s", source = "assumed" }', "link"),
        ('latency = "2 us", ', "link.latency"),
        ('"2 us", bandwidth = "10 GB/s"', "link.bandwidth"),
    ],
)
def test_a_number_of_the_network_that_lacks_is_named(
    solver: Path, machine: Callable[[str], Path], found: str, key: str
) -> None:
    text = CLUSTER % ""
    left = text.replace(found, '"2 us"' if key == "link.bandwidth" else "")
    with pytest.raises(DescriptionError, match=f"made-up.toml:\\d+: level '.*' has no {key}"):
        simulated(solver, machine(left), scaling="weak")


def test_a_latency_between_threads_that_nothing_reads_is_not_asked_for(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    def done(latency: str) -> Simulation:
        link = f'link = {{ {latency}bandwidth = "5 GB/s", source = "assumed" }}\n'
        return simulated(solver, machine(NESTED.replace('peak = "100', link + 'peak = "100')))

    without = done("")
    assert "core link: bandwidth 5 GB/s (assumed)" in without.sources
    assert without.seconds == done('latency = "200 ns", ').seconds


def test_only_nodes_that_are_there_take_part(solver: Path, machine: Callable[[str], Path]) -> None:
    with pytest.raises(
        CompositionError, match=r"17 nodes .*valid: 1 to 16; its network: rack x 2, node"
    ):
        simulated(solver, machine(CLUSTER % ""), nodes=17)
    one = simulated(solver, machine(CLUSTER % ""), nodes=1)
    assert one.workers == 1 and not one.exchange


def test_strong_scaling_divides_the_batch_and_weak_scaling_multiplies_it(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    hw = machine(CLUSTER % "")
    strong, weak = (simulated(solver, hw, scaling=how, nodes=8) for how in ("strong", "weak"))
    assert (strong.batch, strong.share) == (16, 2)
    assert (weak.batch, weak.share) == (128, 16)
    assert strong.phases["forward"] < weak.phases["forward"]
    assert "no sample" not in show(strong) + show(weak)


def test_the_first_workers_share_is_of_samples_whatever_else_is_fed(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    """A mean is stored next to the samples, and comes before them in the plan."""
    alone = simulated(solver, machine(NODE))
    with_mean = simulated(
        solver, machine(NODE), overrides={"layer.data.transform_param.mean_value": "3"}
    )
    assert with_mean.share == alone.share == alone.batch


def test_more_workers_than_samples_are_told(solver: Path, machine: Callable[[str], Path]) -> None:
    few = {"layer.data.data_param.batch_size": "4"}
    done = simulated(solver, machine(CLUSTER % ""), nodes=8, overrides=few)
    assert "4 of the workers have no sample, and training rejects such a batch: " in show(done)


def test_a_net_whose_inputs_are_given_is_no_batch_without_samples(
    tmp_path: Path, machine: Callable[[str], Path]
) -> None:
    """Each worker has the inputs that the net declares; a note that it has no sample would be false."""
    (tmp_path / "given.prototxt").write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 8 dim: 6 } } }\n'
        'layer { name: "y" type: "Input" top: "y" input_param { shape { dim: 8 } } }\n'
        'layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip"\n'
        "  inner_product_param { num_output: 3 } }\n"
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "y" top: "loss" }\n'
    )
    solver = tmp_path / "given_solver.prototxt"
    solver.write_text('net: "given.prototxt"\nbase_lr: 0.01\nlr_policy: "fixed"\nmax_iter: 2\n')
    done = simulated(solver, machine(CLUSTER % ""), nodes=2)
    assert done.batch == 0 < done.seconds
    told = show(done)
    assert "no data layer: each worker's inputs have the size that the net says" in told
    assert "have no sample" not in told


def test_an_exchange_beside_the_computation_hides_time(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    apart = simulated(solver, machine(CLUSTER % ", packed = false"), scaling="weak")
    beside = simulated(solver, machine(CLUSTER % ", packed = false, overlap = true"), scaling="weak")
    computed = apart.phases["forward"] + apart.phases["backward"] + apart.phases["read"]
    assert apart.seconds == pytest.approx(computed + apart.phases["synchronise"])
    assert beside.seconds < apart.seconds
    assert beside.phases["synchronise"] < apart.phases["synchronise"]
    assert beside.seconds >= computed


def test_two_levels_nest(solver: Path, machine: Callable[[str], Path]) -> None:
    done = simulated(solver, machine(NESTED))
    assert (done.workers, done.nodes, done.share) == (8, 4, 2)
    names = [each.name for each in done.timeline if each.phase == "synchronise"]
    first = {word: names.index(next(n for n in names if n.startswith(word))) for word in
             ("reduce", "binomial", "update", "give")}  # fmt: skip
    assert first["reduce"] < first["binomial"] < first["update"] < first["give"]
    alone = simulated(solver, machine(NESTED), nodes=1)
    assert alone.phases["synchronise"] < done.phases["synchronise"] - 0.9 * done.exchange["seconds"]


class Overlapping(GradientSync):
    """A third-party synchronisation that works beside the step, and waits before parameters are
    read."""

    def __init__(self, group: Any) -> None:
        self.index, self.size = group.index, group.team.size

    def costs(self, bucket: Any, span: Any) -> tuple[float, float]:
        return 1e-5, 1e-5


class Later(Overlapping):
    def schedule(self, bucket: Any, chain: Any) -> Any:
        return chain

    def before_forward(self, bucket: Any) -> Any:
        return lambda: None


@pytest.mark.parametrize("kind", [Overlapping, Later])
def test_the_overlap_is_the_one_that_the_plugin_has(
    solver: Path, machine: Callable[[str], Path], kind: type
) -> None:
    manifest = {"name": "stranger", "api": ">=0", "roles": {"gradient_sync": {"priority": 1}}}

    def offered(group: Any) -> GradientSync:
        made: GradientSync = kind(group)
        return made

    stranger = SimpleNamespace(manifest=manifest, gradient_sync=hookimpl(offered))
    hw = machine(NESTED.replace('"reference"', '"stranger"').replace("count = 4\n", "count = 1\n"))
    done = simulated(solver, hw, ["caffe", "training", "reference", "simulator", stranger])
    beside = {each.resource for each in done.timeline if each.name.startswith("reduce")}
    assert beside == ({"sync"} if kind is Later else {"compute"})
    costs = [each.seconds for each in done.timeline if each.name.startswith("reduce")]
    assert costs == pytest.approx([1e-5] * len(costs)) and costs


class InStages(Overlapping):
    """A third-party synchronisation that states its stages: all layers together, by way of a lift."""

    sources = ("a lift of 3 ms",)

    def stages(self, buckets: Any, ready: Any) -> Any:
        assert list(ready) == sorted(ready)
        every = tuple(bucket.index for bucket in buckets)
        up = [("compute", "ring for the lift", 1e-3), ("lift", "up", 3e-3), ("attic", "add", 2e-3)]
        return [(every, up, [("compute", "thank the lift", 4e-3)])]

    def workspace_bytes(self, elements: int) -> int:
        return 16 * elements

    def bind(self, memory: Any) -> None:
        raise AssertionError("nothing is there to be bound")


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_synchronisation_in_stages_is_walked_as_it_says(
    solver: Path, machine: Callable[[str], Path], nodes: int
) -> None:
    manifest = {"name": "stranger", "api": ">=0", "roles": {"gradient_sync": {"priority": 1}}}

    def offered(group: Any) -> GradientSync:
        return InStages(group)

    stranger = SimpleNamespace(manifest=manifest, gradient_sync=hookimpl(offered))
    text = NESTED.replace('"reference"', '"stranger"').replace('"threads"', '"streams"')
    plugins = ["caffe", "training", "reference", "allreduce", "simulator", stranger]
    done = simulated(solver, machine(text), plugins, nodes=nodes)
    bare = simulated(solver, machine(text.replace('"stranger"', '"reference"')), plugins, nodes=nodes)
    found = {each.name: each for each in done.timeline}
    ring, up, add = (found[name] for name in ("ring for the lift", "up", "add"))
    backward = max(each.stop for each in done.timeline if each.phase == "backward")
    assert (ring.resource, ring.start) == ("compute", pytest.approx(backward))
    assert (up.resource, up.start) == ("lift", ring.stop)
    assert (add.resource, add.start) == ("attic", up.stop)
    updates = [each for each in done.timeline if each.name.startswith("update")]
    messages = [each for each in done.timeline if each.resource == "network"]
    assert len(messages) == (1 if nodes > 1 else 0)  # packed: all gradients in one message
    after = messages[0].stop if messages else add.stop
    assert all(each.start >= after - 1e-12 for each in updates)
    assert found["thank the lift"].start >= max(each.stop for each in updates) - 1e-12
    assert done.seconds == pytest.approx(sum(done.phases.values()))
    assert "a lift of 3 ms" in done.sources
    elements = done.memory["gradients"] // 4
    assert done.memory["exchange"] == 16 * elements
    assert done.memory["worker"] == bare.memory["worker"] + 16 * elements


def test_here_rates_are_measured_and_remembered_and_the_step_is_not_run(
    solver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any, **options: Any) -> None:
        raise AssertionError("the step was bound")

    monkeypatch.setattr(demitasse.step.Step, "__init__", never)
    for taken in (True, False):
        with demitasse.compose(
            plugins=["caffe", "training", "reference", "simulator", "system"]
        ) as runtime:
            done = runtime.simulate(solver, samples=SAMPLES)
        assert done.seconds > 0 and done.fits and done.memory["runtime"] > 0
        (line,) = (each for each in done.sources if "measured" in each)
        count = int(re.findall(r"(\d+) taken now", line)[0])
        assert (count > 0) is taken


def test_an_unknown_algorithm_of_a_description_says_where(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    hw = machine((CLUSTER % "").replace('"ring"', '"rign"'))
    with pytest.raises(CompositionError, match=r"made-up.toml:.*unknown algorithm 'rign'; did you mean"):
        simulated(solver, hw, scaling="weak")


def test_memory_of_this_machine_that_nobody_allocates_is_told(solver: Path, tmp_path: Path) -> None:
    path = tmp_path / "made-up.toml"
    path.write_text(f'schema = 1\nname = "made-up"\nfingerprint = "any"\n{NODE.replace("host", "hots")}')
    with pytest.raises(demitasse.PlanError, match=r"made-up.toml:7: .*'hots'; did you mean 'host'"):
        simulated(solver, path)


def test_samples_that_are_not_here_need_only_a_shape(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    path = machine(NODE)
    with (
        demitasse.compose(path, ["caffe", "training", "reference", "simulator", "datasets"]) as runtime,
        pytest.raises(demitasse.DataError, match="needs only their shapes"),
    ):
        runtime.simulate(solver)


def test_a_mean_that_is_not_here_is_as_large_as_a_sample(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    net = solver.parent / "net.prototxt"
    net.write_text(net.read_text().replace('type: "Data"', 'type: "Data" transform_param { scale: 1 }'))
    path = machine(NODE)
    without = simulated(solver, path).memory["fixed"]
    net.write_text(net.read_text().replace("scale: 1", 'mean_file: "far/mean.binaryproto"'))
    assert simulated(solver, path).memory["fixed"] - without == pytest.approx(4 * 12 * 12, abs=64)


def test_samples_that_are_no_images_are_not_cropped(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    net = solver.parent / "net.prototxt"
    crop = 'type: "Data" transform_param { crop_size: 10 }'
    net.write_text(net.read_text().replace('type: "Data"', crop))
    with (
        demitasse.compose(machine(NODE)) as runtime,
        pytest.raises(demitasse.DemitasseError, match=r"a crop of 10 does not fit images of \(3, 12\)"),
    ):
        runtime.simulate(solver, samples={"data": (3, 12), "label": ()})


def test_bytes_are_told_in_a_unit_that_people_read() -> None:
    told = [human_bytes(count) for count in (0, 1023, 2**20, 2**40, 2**51)]
    assert told == ["0 B", "1023 B", "1.00 MiB", "1.00 TiB", "2048.00 TiB"]


def test_an_infogain_matrix_that_is_not_here_is_as_large_as_its_classes_say(
    solver: Path, machine: Callable[[str], Path]
) -> None:
    net = solver.parent / "net.prototxt"
    loss = 'type: "InfogainLoss" infogain_loss_param { source: "far/infogain.binaryproto" }'
    net.write_text(net.read_text().replace('type: "SoftmaxWithLoss"', loss))
    assert simulated(solver, machine(NODE)).seconds > 0
