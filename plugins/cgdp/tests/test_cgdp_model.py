"""Predictions of what CGDP takes: the definitions, chunks, a machine's figures, and ``simulate``."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import demitasse
from demitasse import CompositionError, DescriptionError, Group, Team, load_machine
from demitasse_cgdp.chunks import chunks
from demitasse_cgdp.gradient_sync import sync_of
from demitasse_cgdp.model import definitions
from demitasse_cgdp.model.definitions import LayerTimes, in_turn, joined
from demitasse_cgdp.model.prediction import Predicted
from demitasse_cgdp.model.rates import Hop, Rates, Tree

POWER8 = Path(__file__).parents[3] / "hwdesc/power8-4xp100.toml"

THREE = (LayerTimes(4, 1, 10, 3, 6), LayerTimes(2, 1, 1, 1), LayerTimes(3, 1, 0.5, 0.25))
"""Layers 3, 2 and 1, in the order of backward."""

PLUGINS = ["caffe", "training", "reference", "cgdp", "simulator"]
IMAGES = {"data": (3, 32, 32), "label": ()}

times = st.integers(0, 40).map(float)  # whole numbers, so that sums are exact
layers = st.lists(
    st.builds(
        lambda bp, sync, down, add, back: LayerTimes(bp, sync, down + add, back, down),
        *(times,) * 5,
    ),
    min_size=1,
    max_size=12,
)


def test_the_definitions_by_hand() -> None:
    assert definitions.backward(THREE) == 4 + 2 + 3
    assert definitions.processing(THREE) == [5 + 13, 8 + 2, 12 + 0.75]
    assert definitions.cgdp(THREE) == 18
    assert definitions.typical_overhead(THREE) == 13 + 2 + 0.75
    assert definitions.typical(THREE) == 9 + 15.75
    assert definitions.cgdp_overhead(THREE) == 3 + 0.75
    assert definitions.pays(THREE)


def test_in_turn_by_hand() -> None:
    # Copied to the host from 5 to 11, added until 15, back at 18; layers 2 and 1 wait in each queue.
    assert in_turn(THREE) == 18 + 1 + 0.25


def test_synchronising_may_cost_more_than_it_hides() -> None:
    flat = [LayerTimes(1, 2, 0.5, 0.5)] * 10
    assert not definitions.pays(flat)
    assert definitions.cgdp(flat) > definitions.typical(flat)
    assert definitions.pays(joined(flat, 4))


@given(layers)
def test_it_pays_where_the_sums_of_section_3_2_say_so(some: list[LayerTimes]) -> None:
    waiting = sum(layer.sync for layer in some)
    hidden = sum(layer.sum + layer.back for layer in some[:-1])
    assert definitions.pays(some) == (waiting < hidden)


def test_a_chunk_is_a_layer_with_one_synchronisation() -> None:
    six = [LayerTimes(1 << i, 0.5, 2 << i, 4 << i, 1 << i) for i in range(6)]
    three = joined(six, 2)
    assert [chunk.bp for chunk in three] == [3, 12, 16, 32]  # the last of backward stand alone
    assert [chunk.sync for chunk in three] == [0.5] * 4
    assert [chunk.sum for chunk in three] == [6, 24, 32, 64]
    assert [chunk.back for chunk in three] == [12, 48, 64, 128]


@pytest.mark.parametrize("count", range(1, 10))
def test_proposition_4_1_counts_the_ways_to_place_delimiters(count: int) -> None:
    placed = [delimiters for delimiters in product((False, True), repeat=count - 1) if any(delimiters)]
    assert definitions.ways(count) == len(placed)


def by_events(some: Sequence[LayerTimes]) -> float:
    """Return when everything is over, by simulating events: each queue serves whoever came first, one at
    a time."""
    lines = ("compute", "d2h", "host", "h2d")
    takes = [
        dict(zip(lines, (x.bp + x.sync, x.down, x.sum - x.down, x.back), strict=True)) for x in some
    ]
    free, waiting = dict.fromkeys(lines, True), {line: list[int]() for line in lines}
    waiting["compute"] = list(range(len(some)))
    now, under_way = 0.0, list[tuple[float, int, int, str]]()
    while any(waiting.values()) or under_way:
        for place, line in enumerate(lines):
            if free[line] and waiting[line]:
                layer = waiting[line].pop(0)
                free[line] = False
                heapq.heappush(under_way, (now + takes[layer][line], place, layer, line))
        now, place, layer, line = heapq.heappop(under_way)
        free[line] = True
        if place + 1 < len(lines):
            waiting[lines[place + 1]].append(layer)
    return now


@given(layers)
def test_in_turn_is_what_events_come_to(some: list[LayerTimes]) -> None:
    assert in_turn(some) == by_events(some)


@given(layers)
def test_one_transfer_at_a_time_is_never_quicker(some: list[LayerTimes]) -> None:
    waiting = sum(layer.sync for layer in some)
    assert in_turn(some) >= definitions.cgdp(some) >= definitions.backward(some) + waiting
    assert in_turn(some) <= definitions.typical(some) + waiting


@given(layers, st.integers(1, 14))
def test_chunks_keep_all_but_synchronisations(some: list[LayerTimes], size: int) -> None:
    found = joined(some, size)
    for name in ("bp", "sum", "back", "down"):
        assert sum(getattr(x, name) for x in found) == sum(getattr(x, name) for x in some)
    assert len(found) == len(chunks(some, size))


@given(layers)
def test_the_best_chunk_is_the_best_of_all(some: list[LayerTimes]) -> None:
    size, seconds = definitions.best_chunk(some)
    assert seconds == in_turn(joined(some, size))
    assert seconds == min(in_turn(joined(some, other)) for other in range(1, 2 * len(some)))


def test_a_tree_adds_and_copies_round_by_round() -> None:
    tree = Tree((Hop(0.1, 10), Hop(0.2, 5)), 100)
    assert tree.broadcast(20) == pytest.approx(0.1 + 2 + 0.2 + 4)
    assert tree.collect(20) == pytest.approx(tree.broadcast(20) + 2 * 3 * 0.2 + 2 * 0.2)
    assert tree.room(20) == 2 * 20  # the root collects from one child in each round


def test_each_replica_has_a_link_and_all_share_the_host() -> None:
    assert Rates(10, 20, 40).transfers(100, 4) == (10, 10, 5)
    assert Rates(10, 20, 40).transfers(100, 2) == (10, 5, 5)


def predicted(sync: str = "", found: str = "", left: str = "", path: Path | None = None) -> Predicted:
    """Return the first replica of the machine with other options, and with something in its description
    replaced."""
    text = POWER8.read_text(encoding="utf-8")
    head, _, _ = text.partition("[level.sync]")
    assert path is not None and found in head
    path.write_text(f'{head.replace(found, left)}[level.sync]\nplugin = "cgdp"\n{sync}\n')
    machine = load_machine(path)
    (spec, levels), *_ = machine.sync_groups()
    names = tuple(level.name for level in levels)
    group = Group(names, 0, Team(4), "float32", spec.options, machine=machine)
    made = sync_of(group)
    assert isinstance(made, Predicted)
    return made


def test_what_a_sync_does_not_say_is_the_links_and_the_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hw.toml"
    rates = predicted("", path=path).rates
    assert rates is not None
    assert (rates.d2h, rates.h2d) == (34e9, 34e9)
    assert rates.accumulate == pytest.approx(2 * 115e9 / 3)  # both processors', in three passes
    assert rates.synchronise == 10e-6 and rates.interference == rates.adding == 0
    told = "\n".join(rates.sources)
    for name in ("d2h", "h2d", "accumulate", "synchronise"):
        assert f"{name} is not given" in told
    assert "interference 0 (assumed)" in told
    assert "interference_adding is not given: interference" in told


@pytest.mark.parametrize(
    ("sync", "seconds"),
    [
        ("interference = 0.1", 0.1 * (1 + 2 + 4)),
        ("interference = 0.1\ninterference_adding = 0.5", 0.1 * (1 + 4) + 0.5 * 2),
        ("interference_adding = 0.5", 0.5 * 2),
    ],
)
def test_backward_is_longer_beside_copies_and_beside_additions(
    tmp_path: Path, sync: str, seconds: float
) -> None:
    """4 GB from each of four replicas: 1 s to the host, 2 s of additions, 4 s back."""
    rates = 'd2h = "4 GB/s"\nh2d = "1 GB/s"\naccumulate = "8 GB/s"\n'
    made = predicted(rates + sync, path=tmp_path / "hw.toml")
    assert made.rates is not None
    assert made.rates.slower(4e9, 4) == pytest.approx(seconds)


def test_the_tree_joins_the_nearest_first(tmp_path: Path) -> None:
    tree = predicted('scheme = "typical"', path=tmp_path / "hw.toml").tree
    assert tree is not None
    assert tree.hops == (Hop(10e-6, 34e9), Hop(10e-6, 19e9)) and tree.memory == 732e9


@pytest.mark.parametrize(
    ("sync", "found", "key"),
    [
        ("", ', bandwidth = "34 GB/s (paper)"', "d2h in its sync, nor a link.bandwidth"),
        ("", ', bandwidth = "115 GB/s (assumed)"', "accumulate in its sync"),
        ("", 'latency = "10 us (assumed)", bandwidth = "34', "synchronise in its sync"),
        ('scheme = "typical"', ', bandwidth = "19 GB/s (paper)"', "link.bandwidth"),
        ('scheme = "typical"', ', bandwidth = "732 GB/s (vendor)"', "memory.bandwidth"),
    ],
)
def test_a_number_that_lacks_is_asked_for(tmp_path: Path, sync: str, found: str, key: str) -> None:
    left = 'bandwidth = "34' if "latency" in found else ""
    with pytest.raises(DescriptionError, match=rf"hw.toml:\d+: level '\w+' has no {key}"):
        predicted(sync, found, left, tmp_path / "hw.toml")


@pytest.mark.parametrize(
    ("sync", "error"),
    [
        ('d2h = "14 GB"', "sync: d2h = '14 GB'"),
        ("d2h = 14", "sync: d2h = 14 .valid: a string like '15 GB/s'"),
        ('d2 = "14 GB/s"', "unknown option 'd2'; did you mean 'd2h'"),
        ("interference = -1", "interference = -1 .valid: a number, 0 or more"),
        (
            "interference_adding = 1e3",
            "interference_adding = 1000.0 .valid: a number, 0 or more and below 100",
        ),
        ('synchronise = "1 GB/s"', "synchronise = '1 GB/s'"),
    ],
)
def test_a_rate_that_is_none_is_named(tmp_path: Path, sync: str, error: str) -> None:
    with pytest.raises(DescriptionError, match=error):
        predicted(sync, path=tmp_path / "hw.toml")


def test_a_prediction_is_not_trained_with(tmp_path: Path) -> None:
    made = predicted(path=tmp_path / "hw.toml")
    with pytest.raises(CompositionError, match="only predicts"):
        made.bind(SimpleNamespace())  # type: ignore[arg-type]


NET = """
name: "net"
layer { name: "data" type: "Data" top: "data" top: "label"
        data_param { source: "none" batch_size: 512 } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
        convolution_param { num_output: 64 kernel_size: 5 } }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"
        convolution_param { num_output: 64 kernel_size: 5 } }
layer { name: "fc3" type: "InnerProduct" bottom: "conv2" top: "fc3"
        inner_product_param { num_output: 512 } }
layer { name: "fc4" type: "InnerProduct" bottom: "fc3" top: "fc4"
        inner_product_param { num_output: 100 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "fc4" bottom: "label" top: "loss" }
"""
PARAMETERS = 64 * (75 + 1) + 64 * (1600 + 1) + 512 * (64 * 24 * 24 + 1) + 100 * 513

Simulate = Callable[..., Any]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """``simulate(scheme, found="", left="", **options)`` on the machine, with something in it
    replaced."""
    (tmp_path / "net.prototxt").write_text(NET)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(
        'net: "net.prototxt"\nbase_lr: 0.01\nlr_policy: "fixed"\nmomentum: 0.9\nmax_iter: 1\n'
    )

    def run(scheme: str, found: str = "", left: str = "", **options: Any) -> Any:
        text = POWER8.read_text(encoding="utf-8")
        assert found in text and 'scheme = "cgdp"' in text
        path = tmp_path / "power8.toml"
        path.write_text(
            text.replace('scheme = "cgdp"', f'scheme = "{scheme}"').replace(found, left or found)
        )
        with demitasse.compose(path, PLUGINS) as runtime:
            return runtime.simulate(solver, samples=IMAGES, scaling="weak", **options)

    return run


SLOW = ('d2h = "14.6 GB/s (paper)"', 'd2h = "0.5 GB/s (assumed)"')


@pytest.mark.parametrize(("change", "better"), [(("", ""), "cgdp"), (SLOW, "typical")])
def test_simulate_tells_beforehand_which_scheme_pays(
    simulate: Simulate, change: tuple[str, str], better: str
) -> None:
    steps = {scheme: simulate(scheme, *change) for scheme in ("cgdp", "typical")}
    assert min(steps, key=lambda scheme: steps[scheme].seconds) == better
    for step in steps.values():
        (line,) = (line for line in step.sources if line.startswith("cost model"))
        assert f"{better} pays" in line
    beyond = {scheme: step.phases["synchronise"] for scheme, step in steps.items()}
    assert beyond[better] < min(v for k, v in beyond.items() if k != better)


def test_the_typical_step_is_one_after_the_other(simulate: Simulate) -> None:
    step = simulate("typical")
    tree = Tree((Hop(10e-6, 34e9), Hop(10e-6, 19e9)), 732e9)
    spent = {each.name: each.seconds for each in step.timeline if each.source == "description"}
    assert spent["collect gradients"] == pytest.approx(tree.collect(4 * PARAMETERS))
    assert spent["broadcast"] == pytest.approx(tree.broadcast(4 * PARAMETERS))
    assert {each.resource for each in step.timeline} <= {"compute", "storage"}
    assert step.seconds == pytest.approx(sum(step.phases.values()))


def test_copies_and_additions_are_beside_backward_one_at_a_time(simulate: Simulate) -> None:
    step = simulate("cgdp", 'plugin = "cgdp"\n', 'plugin = "cgdp"\nchunk = 1\n')
    lines = {name: [e for e in step.timeline if e.resource == name] for name in ("d2h", "host", "h2d")}
    for mine in lines.values():
        assert len(mine) == 4
        assert all(a.stop <= b.start + 1e-12 for a, b in pairwise(mine))
    for copied, added, back in zip(*lines.values(), strict=True):
        assert copied.stop <= added.start + 1e-12 and added.stop <= back.start + 1e-12
    backward = [each for each in step.timeline if each.phase == "backward"]
    began, ended = lines["d2h"][0].start, max(each.stop for each in backward)
    assert backward[0].start < began < ended  # the first copy overlaps with the rest of backward
    updates = [each for each in step.timeline if each.name.startswith("update")]
    assert len(updates) == 4 and {each.resource for each in updates} == {"compute"}
    assert all(each.start >= lines["h2d"][-1].stop - 1e-12 for each in updates)  # step B-5-2


def test_a_step_with_cgdp_is_the_models(simulate: Simulate) -> None:
    step = simulate("cgdp", 'plugin = "cgdp"\n', 'plugin = "cgdp"\nchunk = 1\n')
    (line,) = (line for line in step.sources if line.startswith("cost model"))
    said = float(line.split("cgdp takes ")[1].split(" ms")[0]) * 1e-3
    updates = sum(each.seconds for each in step.timeline if each.name.startswith("update"))
    # The line is in whole microseconds.
    assert step.phases["synchronise"] == pytest.approx(said + updates, abs=1e-6)


def test_the_size_of_chunks_is_the_best_or_the_one_that_was_asked_for(simulate: Simulate) -> None:
    free = simulate("cgdp", 'synchronise = "35 us (assumed)"', 'synchronise = "5 ms (assumed)"')
    asked = [
        simulate("cgdp", 'plugin = "cgdp"\n', f'plugin = "cgdp"\nchunk = {size}\n').seconds
        for size in (1, 2)
    ]
    waits = [each for each in free.timeline if each.name.startswith("synchronise ")]
    assert len(waits) < 4 and asked[0] != asked[1]
    (line,) = (line for line in free.sources if "the best of 4 sizes" in line)
    size = int(line.split(":")[0].removeprefix("chunks of "))
    assert len(waits) == len(chunks(range(4), size))
    assert f"Algorithm 1 (step 10, range 5) finds {size}" in line


def test_the_typical_scheme_needs_twice_the_parameters_more(simulate: Simulate) -> None:
    ours, theirs = simulate("cgdp").memory, simulate("typical").memory
    assert ours["exchange"] == 0
    assert theirs["exchange"] == theirs["worker"] - ours["worker"]
    assert theirs["exchange"] == pytest.approx(
        2 * 4 * PARAMETERS, rel=1e-5
    )  # layers begin at round times


def test_a_batch_that_only_cgdp_has_room_for_is_known_beforehand(simulate: Simulate) -> None:
    room = ours = simulate("cgdp").memory["worker"]
    change = 'capacity = "16 GB (paper)"', f'capacity = "{(room + 4 * PARAMETERS) / 1e9:.6f} GB (paper)"'
    assert ours == simulate("cgdp", *change).memory["worker"]
    assert simulate("cgdp", *change).fits is True
    assert simulate("typical", *change).fits is False


def test_clipped_gradients_are_awaited_one_by_one(simulate: Simulate) -> None:
    free, clipped = (
        simulate("cgdp", overrides={"clip_gradients": str(limit)} if limit else {}) for limit in (0, 1)
    )
    assert {each.resource for each in clipped.timeline} <= {"compute", "storage"}
    assert clipped.seconds > free.seconds
