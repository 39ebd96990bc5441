"""The comparison with other frameworks (tools/bench): its nets, its counting and its verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from bench import floors, prototxt, values
from bench.comparison import (
    Agreement,
    Start,
    Task,
    Timing,
    apart,
    as_others_round,
    furthest,
    tasks,
    turn,
)
from bench.floors import Rates
from bench.layers import Net
from bench.nets import NETS
from bench.report import (
    PEERS,
    TARGETS,
    Row,
    agreement_table,
    memory_table,
    row,
    speed_table,
    start_table,
)
from processor_distance import Distance, told

import demitasse
from demitasse import Runtime

# As published, or added up by hand: weights and biases, of ResNet-50 also gamma and beta.
PARAMETERS = {
    "lenet": 431_080,
    "cifar10_quick": 145_578,
    "alexnet": 60_965_224,
    "vgg16": 138_357_544,
    "resnet50": 25_557_032,
    "googlenet": 13_378_280,
    "resnet18": 11_689_512,
    "mobilenet": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "squeezenet": 1_235_496,
}
RATES = Rates(matrix_product=100.0, triad=10.0)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with demitasse.compose() as runtime:
        yield runtime


def tiny() -> Net:
    """Two channels of 4x4, a convolution to three, pooling, two classes."""
    net = Net("tiny", 5, (2, 4, 4), 2, rate=0.1)
    blob = net.relu(net.convolution("data", "conv", 3, 3, pad=1), "relu")
    blob = net.pool(blob, "pool", "max_pool", 2, 2)
    net.loss(net.inner_product(blob, "ip", 2), "loss")
    return net


@pytest.mark.parametrize("name", NETS)
def test_a_net_has_its_published_number_of_parameters(name: str) -> None:
    assert NETS[name]().parameters == PARAMETERS[name]


SLOW = dict.fromkeys(("vgg16", "resnet50", "alexnet", "resnet18"), pytest.mark.slow)  # 3 to 10 s each


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in NETS])
def test_a_net_of_the_bench_is_read_with_the_same_blobs_and_parameters(
    name: str, runtime: Runtime, tmp_path: Path
) -> None:
    net = NETS[name]()
    net.batch = 2
    prototxt.write(net, tmp_path)
    data = {"test": values.samples(net, 2)}
    trained = runtime.net(tmp_path / "train.prototxt", data=data)
    expected = {blob: (2, *net.shape(blob)) for layer in net.layers for blob in layer.bottoms}
    assert {blob: trained.blobs[blob].shape for blob in expected} == expected
    assert (
        sum(sum(array.size for array in trained.params[name]) for name in owners(net))
        == (PARAMETERS[name])
    )


def owners(net: Net) -> list[str]:
    """The layers of a net's prototxt that have trained parameters."""
    return [
        layer.numbers["scale"] if layer.kind == "batch_norm" else layer.name
        for layer in net.layers
        if layer.parameters
    ]


@pytest.mark.parametrize("name", ["lenet", "cifar10_quick"])
def test_a_deploy_net_gives_probabilities_with_the_weights_of_the_bench(
    name: str, runtime: Runtime, tmp_path: Path
) -> None:
    net = NETS[name]()
    prototxt.write(net, tmp_path)
    arrays = values.weights(net)
    layers = [layer for layer in net.layers if layer.parameters]
    parameters = {layer.name: [arrays[f"{layer.name}.{i}"] for i in (0, 1)] for layer in layers}
    weights = runtime.write(tmp_path / "w.caffemodel", demitasse.Weights(parameters))
    deployed = runtime.net(tmp_path / "deploy.prototxt", weights=weights)
    output = deployed.forward(data=values.samples(net, 3)["data"])["prob"]
    assert output.shape == (3, 10)
    np.testing.assert_allclose(output.sum(axis=1), 1.0, rtol=1e-5)
    assert output.std() > 0


def test_vgg16_has_15_47_billion_multiply_and_adds() -> None:
    sides = {64: 224, 128: 112, 256: 56, 512: 28}
    pairs = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 256)]
    pairs += [(256, 512), (512, 512), (512, 512)]
    convolutions = sum(9 * a * b * sides[b] ** 2 for a, b in pairs) + 3 * 9 * 512 * 512 * 14**2
    products = 25_088 * 4096 + 4096 * 4096 + 4096 * 1000
    assert NETS["vgg16"]().macs == convolutions + products == 15_470_264_320


def test_groups_divide_the_arithmetic() -> None:
    grouped, whole = Net("a", 1, (4, 9, 9), 2, 0.1), Net("b", 1, (4, 9, 9), 2, 0.1)
    grouped.convolution("data", "conv", 6, 3, groups=2)
    whole.convolution("data", "conv", 6, 3)
    assert 2 * grouped.macs == whole.macs == 6 * 7 * 7 * 4 * 9


def test_the_last_window_of_a_pooling_may_overhang_as_in_caffe() -> None:
    net = Net("net", 1, (3, 32, 32), 2, 0.1)
    assert net.shape(net.pool("data", "pool", "max_pool", 3, 2)) == (3, 16, 16)


def test_training_triples_the_arithmetic_but_for_the_first_gradient_of_data() -> None:
    net = tiny()
    convolution, product = 3 * 4 * 4 * 2 * 9, 3 * 2 * 2 * 2
    assert floors.flops(net, training=False) == 2 * 5 * (convolution + product)
    assert floors.flops(net, training=True) == 2 * 5 * (2 * convolution + 3 * product)


def test_the_memory_model_counts_blobs_and_parameters() -> None:
    net = tiny()
    blobs = 5 * (2 * 16 + 3 * 16 + 3 * 4 + 2 + 1)  # data, conv, pool, ip, loss
    parameters = 3 * 2 * 9 + 3 + 12 * 2 + 2
    assert floors.traffic(net, True, "f32") == 5 * 4 * blobs + 8 * 4 * parameters
    assert floors.traffic(net, True, "bf16") == 5 * 2 * blobs + (2 * 2 + 6 * 4) * parameters


def test_floors_are_work_over_rates() -> None:
    found = floors.floor(tiny(), True, "f32", RATES)
    assert found.arithmetic == floors.flops(tiny(), True) / 100e9
    assert found.memory == floors.traffic(tiny(), True, "f32") / 10e9


def test_a_floor_whose_rate_nobody_measured_is_0() -> None:
    assert floors.floor(tiny(), True, "f32", Rates(100.0, 0.0)).memory == 0.0


def test_the_deploy_net_has_neither_losses_nor_dropout_nor_other_heads() -> None:
    layers = NETS["googlenet"]().deploy().layers
    assert layers[-1].kind == "softmax"
    assert not [x.name for x in layers if x.kind in ("dropout", "softmax_loss")]
    assert not [x.name for x in layers if x.name.startswith(("loss1", "loss2"))]


def timing(contender: str, setting: str, rounds: list[float], peak: int = 0) -> Timing:
    task = Task("train", "lenet", "f32", 64)
    return Timing(task, contender, setting, rounds=rounds, peak=peak)


def lenet_row(*timings: Timing) -> Row:
    return row(Task("train", "lenet", "f32", 64), timings, RATES)


def test_the_best_setting_of_the_best_peer_counts_by_its_median() -> None:
    found = lenet_row(
        timing("demitasse", "default", [2.0, 9.0, 1.0]),
        timing("pytorch", "eager-nchw", [8.0]),
        timing("pytorch", "compiled-nchw", [5.0, 4.0, 1.0]),
        timing("tensorflow", "graph", [6.0]),
    )
    assert found.best["pytorch"] == (4.0, "compiled-nchw")
    assert found.ratio == 2.0
    assert found.target == TARGETS["f32"]["lenet"]


def test_memory_is_compared_with_the_leaner_peer() -> None:
    found = lenet_row(
        timing("demitasse", "default", [1.0], peak=300),
        timing("pytorch", "eager-nchw", [1.0], peak=900),
        timing("pytorch", "compiled-nchw", [], peak=400),
        timing("tensorflow", "graph", [1.0], peak=600),
    )
    assert found.memory_ratio == 0.75
    assert "0.75" in memory_table([found])


def test_a_row_without_ours_or_without_peers_has_no_ratio() -> None:
    alone = lenet_row(timing("demitasse", "default", [1.0]))
    absent = lenet_row(timing("pytorch", "eager-nchw", [1.0]))
    assert alone.ratio is None
    assert absent.ratio is None
    assert speed_table([alone]).count("none") == len(PEERS)


def test_the_table_says_whether_a_target_is_met() -> None:
    fast = lenet_row(timing("demitasse", "d", [1.0]), timing("tensorflow", "xla", [1.7]))
    slow = lenet_row(timing("demitasse", "d", [1.0]), timing("tensorflow", "xla", [1.5]))
    assert speed_table([fast]).endswith("met")
    assert speed_table([slow]).endswith("below")
    assert "xla 1700.00" in speed_table([fast])


def test_differences_are_relative_and_never_hidden_by_what_is_no_number() -> None:
    wanted = np.array([2.0, 4.0])
    assert apart(np.array([2.0, 4.4]), wanted, per_value=True) == pytest.approx(0.1)
    assert apart(np.array([2.4, 4.0]), wanted, per_value=False) == pytest.approx(0.1)
    assert apart(np.array([np.nan, 4.0]), wanted, per_value=True) == float("inf")
    assert apart(np.array([2.0]), wanted, per_value=True) == float("inf")


@pytest.mark.parametrize(("difference", "holds"), [(1e-4, True), (1e-2, False), (None, False)])
def test_who_differs_or_fails_disagrees(difference: float | None, holds: bool) -> None:
    task = Task("train", "lenet", "f32", 64)
    note = "" if difference else "no kernel"
    agreement = Agreement(task, "demitasse", "pytorch", difference, 1e-3, note)
    assert agreement.holds is holds
    assert ("DISAGREES" in agreement_table([agreement])) is not holds


def test_inference_is_timed_at_1_and_16_and_training_at_the_nets_batch() -> None:
    assert [task.batch for task in tasks("inference", "vgg16", "bf16")] == [1, 16]
    assert [task.batch for task in tasks("train", "vgg16", "bf16")] == [8]


def test_a_turn_has_at_least_one_step_and_fills_half_a_second() -> None:
    assert turn(3.0) == 1
    assert turn(0.01) == 50


def test_weights_are_the_same_each_time_and_of_the_parameters_shapes() -> None:
    net = tiny()
    first, again = values.weights(net), values.weights(net)
    assert all((first[key] == again[key]).all() for key in first)
    assert first["conv.0"].shape == (3, 2, 3, 3)
    assert first["ip.0"].shape == (2, 12)
    assert not first["ip.1"].any()


def agreement(contender: str, difference: float | None, precision: str = "bf16") -> Agreement:
    task = Task("train", "resnet50", precision, 8)
    return Agreement(task, contender, "pytorch", difference, 3e-2)


@pytest.mark.parametrize(
    ("precision", "ours", "others", "holds"),
    [
        ("bf16", 0.06, (0.06, 0.055), True),
        ("bf16", 0.08, (0.06, 0.055), False),
        ("bf16", 0.08, (0.9, 0.055), False),
        ("bf16", 0.02, (0.001, 0.002), True),
        ("bf16", 0.06, (float("inf"), float("inf")), False),
        ("bf16", 0.06, (None, None), False),
        ("f32", 0.06, (0.06, 0.06), False),
    ],
)
def test_in_bf16_one_may_be_as_far_as_another_is(
    precision: str, ours: float, others: tuple[float | None, ...], holds: bool
) -> None:
    found = [agreement("demitasse", ours, precision)]
    found += [agreement(peer, each, precision) for peer, each in zip(PEERS, others, strict=True)]
    assert as_others_round(found)[0].holds is holds


def test_in_nets_of_files_one_may_be_as_far_as_another_is() -> None:
    task = Task("train", "SqueezeNext", "f32", 8)
    far = [("demitasse", 1.1e-3), ("tensorflow", 1.0e-3), ("pytorch", 1.3e-3)]
    found = [Agreement(task, who, "pytorch", apart, 1e-3) for who, apart in far]
    assert [each.holds for each in as_others_round(found)] == [True, True, False]


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_gradients_may_be_twice_as_far_as_the_nearest_others(precision: str) -> None:
    """Whatever the precision, as what a rounding switches weighs more than the rounding."""
    task = Task("train", "vgg16", precision, 8)
    far = [("demitasse", 0.39), ("tensorflow", 0.7), ("pytorch", 0.2)]
    found = [Agreement(task, who, "pytorch", apart, 1e-2, what="gradients") for who, apart in far]
    assert [each.holds for each in as_others_round(found)] == [True, False, True]


def test_the_furthest_gradient_counts_by_its_size() -> None:
    wanted = {"a": np.array([3.0, 4.0]), "b": np.array([30.0, 40.0]), "zero": np.zeros(2)}
    size = np.sqrt(12.5)
    found = {**wanted, "a": np.array([3.0, 4.5]), "b": np.array([30.5, 40.0])}
    assert furthest(found, wanted) == pytest.approx(0.5 / np.sqrt(2) / size)
    assert furthest({**wanted, "zero": np.array([1e-6, 0])}, wanted) < 1e-3
    assert furthest({**wanted, "b": np.array([30.0, np.nan])}, wanted) == float("inf")
    assert furthest({"a": wanted["a"], "b": wanted["b"]}, wanted) == float("inf")


def test_a_cold_start_is_what_trying_takes_of_a_hundred_steps() -> None:
    task = Task("train", "lenet", "f32", 64)
    begun = Start(task, cold=[1.5, 9.0, 1.4], remembered=[1.1, 1.0, 5.0], step=0.01)
    assert begun.share == pytest.approx(0.4)
    quick = Start(task, cold=[1.15], remembered=[1.1], step=0.01)
    lines = start_table([begun, quick, Start(task, note="failed: no file")]).splitlines()
    assert lines[1].endswith("40.0%                     10%  above")
    assert lines[2].endswith("5.0%                     10%  met")
    assert lines[3].endswith("failed: no file")


@pytest.mark.parametrize(("pairs", "ranks"), [(5, None), (6, (1, 6)), (11, (2, 10)), (31, (10, 22))])
def test_where_the_median_lies_is_told_by_pairs_of_either_side(
    pairs: int, ranks: tuple[int, int] | None
) -> None:
    """The ranks are those of tables of the sign test (Conover, Practical Nonparametric Statistics)."""
    cold = [1 + 0.001 * i for i in reversed(range(1, pairs + 1))]
    start = Start(Task("train", "lenet", "f32", 64), cold, [1.0] * pairs, step=0.0001)
    wanted = None if ranks is None else pytest.approx(tuple(0.1 * rank for rank in ranks))
    assert start.between == wanted
    assert ("and" in start_table([start]).splitlines()[1]) == (ranks is not None)


def test_a_table_says_how_far_apart_the_processors_were() -> None:
    timing = Timing(Task("train", "lenet", "f32", 64), "demitasse", "default", rounds=[0.002, 0.003])
    timing.trips += [60.0, 340.0]
    table = speed_table([row(timing.task, [timing], RATES)])
    assert table.splitlines()[-1] == "processors 200 ns there and back (far in 1 of 2)"
    assert told([]) == "one processor"
    assert told([61.0]) == "processors 61 ns there and back (near)"


def test_processors_pass_a_line_to_and_fro() -> None:
    trip = Distance().round_trip()
    assert trip is None or 5 < trip < 1e6


def test_the_picture_has_bars_from_zero_whose_lengths_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="Matplotlib, which draws pictures, is not installed")
    from bench import picture
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))
    )
    floor = floors.Floor(0.001, 0.0)
    best = {"demitasse": (0.002, "1 worker"), "pytorch": (0.005, "2 threads")}
    picture.draw([Row(Task("train", "lenet", "f32", 64), 1.0, floor, best)], tmp_path / "bench.png")
    (panel,) = figures[0].axes
    assert panel.get_yscale() == "linear" and panel.get_ylim()[0] == 0.0
    assert [bar.get_height() for bar in panel.patches] == [1.0, 2.5, 0.0, 0.5]
    assert {"2 ms", "5 ms", "1 ms"} <= {text.get_text() for text in panel.texts}
