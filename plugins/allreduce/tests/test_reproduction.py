"""S-Caffe's figures: the equations equal the schedules' cost, the cluster is as described, and errors
are reported."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import demitasse_allreduce
from demitasse import Tier, Topology, cost, load_machine
from demitasse_allreduce.algorithms import algorithm
from demitasse_allreduce.choice import network_of
from demitasse_allreduce.plugin import reproductions
from demitasse_allreduce.reproduction import tables
from demitasse_allreduce.reproduction.cluster import (
    BINOMIAL,
    CALIBRATED,
    CB,
    CC,
    CHAIN,
    DEVICE_BANDWIDTH,
    MB,
    MEMORY,
    PEAK,
    STAGED,
    Constants,
    chain_crossover,
    equation_1,
    equation_2,
    ideal_chain,
    ideal_chains,
    kesch,
    mvapich2,
    reduction_crossover,
    step_seconds,
    upper_ratio,
)
from demitasse_allreduce.reproduction.training import (
    CAFFENET,
    CIFAR_QUICK,
    GOOGLENET,
    iteration,
)

KESCH = Path(__file__).resolve().parents[3] / "hwdesc" / "kesch-cs-storm.toml"
ALPHA, BETA, GAMMA = 3e-5, 1e-10, 2e-11


def seconds(name: str, ranks: int, elements: int, **options: int) -> float:
    """Return the seconds of a reduction by ranks with equal links."""
    network = Topology((Tier("network", ranks, ALPHA, 1 / BETA),))
    rounds = algorithm(name).rounds(ranks, elements, goal="reduce", **options)
    return cost(rounds, network, network.place(ranks), 4, GAMMA).seconds


def t(elements: int) -> float:
    """Return the equations' t: the seconds to send and add so many elements."""
    return ALPHA + 4 * elements * (BETA + GAMMA)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 13, 16, 64, 160])
def test_equation_1_is_the_cost_of_the_binomial_tree(ranks: int) -> None:
    assert seconds("binomial", ranks, 10**6) == pytest.approx(equation_1(ranks, t(10**6)), rel=1e-9)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 13, 64])
@pytest.mark.parametrize("chunks", [1, 2, 10, 50])
def test_equation_2_is_the_cost_of_the_chunked_chain(ranks: int, chunks: int) -> None:
    expected = equation_2(ranks, chunks, t(10**6 // chunks))
    assert seconds("chain", ranks, 10**6, chunks=chunks) == pytest.approx(expected, rel=1e-9)


def test_two_levels_are_one_equation_after_the_other() -> None:
    size, chunks, part = 10**6, 10, t(10**5)
    lower = equation_2(8, chunks, part)
    assert seconds("chain-chain", 160, size, chunks=chunks, groups=8) == pytest.approx(
        lower + equation_2(20, chunks, part), rel=1e-9
    )
    assert seconds("chain-binomial", 160, size, chunks=chunks, groups=8) == pytest.approx(
        lower + equation_1(20, t(size)), rel=1e-9
    )


def test_inside_a_node_of_the_cluster_the_equations_hold_as_well() -> None:
    size = 44 * MB
    chunk = step_seconds(size / CALIBRATED.chunks)
    assert CHAIN.seconds(8, size) == pytest.approx(equation_2(8, CALIBRATED.chunks, chunk), rel=1e-6)
    assert BINOMIAL.seconds(16, size) == pytest.approx(equation_1(16, step_seconds(size)), rel=1e-6)


def test_only_chains_between_nodes_pass_on_slowly() -> None:
    """If no device receives and sends at the same time, the constant has no effect."""
    equations = Constants(passing_on=1)
    for way in (BINOMIAL, CB[8], CB[4], CC[16]):
        same = way.seconds(32, 8 * MB) == way.seconds(32, 8 * MB, equations)
        assert same, str(way)
    assert CC[8].seconds(160, 8 * MB) > 2 * CC[8].seconds(160, 8 * MB, equations)


def test_the_cluster_is_as_described() -> None:
    machine = load_machine(KESCH)
    assert kesch().tiers == network_of(machine).tiers
    device = machine.level("gpu")
    assert device.peak and device.memory[0].bandwidth
    assert (device.peak.value, device.memory[0].bandwidth.value) == pytest.approx((PEAK, MEMORY))


def test_nets_have_the_parameters_of_caffes_models() -> None:
    cifar = 3 * 25 * 32 + 32 + 32 * 25 * 32 + 32 + 32 * 25 * 64 + 64 + 1024 * 64 + 64 + 64 * 10 + 10
    assert CIFAR_QUICK.parameters == cifar
    convolutions = ((3 * 121, 96), (48 * 25, 256), (256 * 9, 384), (192 * 9, 384), (192 * 9, 256))
    products = ((9216, 4096), (4096, 4096), (4096, 1000))
    assert CAFFENET.parameters == sum((i + 1) * o for i, o in (*convolutions, *products))
    # Inputs, then 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, projection: table 1 of GoogLeNet's paper.
    modules = (
        (192, 64, 96, 128, 16, 32, 32),
        (256, 128, 128, 192, 32, 96, 64),
        (480, 192, 96, 208, 16, 48, 64),
        (512, 160, 112, 224, 24, 64, 64),
        (512, 128, 128, 256, 24, 64, 64),
        (512, 112, 144, 288, 32, 64, 64),
        (528, 256, 160, 320, 32, 128, 128),
        (832, 256, 160, 320, 32, 128, 128),
        (832, 384, 192, 384, 48, 128, 128),
    )
    layers = [(3 * 49, 64), (64, 64), (64 * 9, 192), (1024, 1000)]
    for x, one, narrow3, three, narrow5, five, project in modules:
        layers += [(x, one), (x, narrow3), (narrow3 * 9, three), (x, narrow5), (narrow5 * 25, five)]
        layers.append((x, project))
    for x in (512, 528):  # the side losses
        layers += [(x, 128), (2048, 1024), (1024, 1000)]
    assert GOOGLENET.parameters == sum((i + 1) * o for i, o in layers)


def test_section_5_gives_the_number_of_chunks_and_the_seconds_of_a_step() -> None:
    assert [n for n in range(2, 40) if ideal_chain(Constants(chunks=n)) == 8] == [10, CALIBRATED.chunks]
    assert chain_crossover() == pytest.approx(8 * MB, rel=0.01)
    by_cost = reduction_crossover(CHAIN, BINOMIAL, 8)
    assert by_cost == pytest.approx(chain_crossover(), rel=0.01)


def test_small_chains_and_large_buffers_favour_chains() -> None:
    """Section 5 makes these two statements below its equations."""
    for size, processes, chain_wins in ((256 * MB, 4, True), (MB / 4, 160, False)):
        rounds = equation_1(processes, step_seconds(size))
        chained = equation_2(processes, CALIBRATED.chunks, step_seconds(size / CALIBRATED.chunks))
        assert (chained < rounds) == chain_wins


def printed() -> list[dict[str, object]]:
    return [cell for cell in tables.cells() if cell["paper"] is not None]


def test_table_2_is_predicted_within_ten_per_cent_of_each_printed_cell() -> None:
    rows = [cell for cell in tables.cells() if cell["table"] == "Table 2"]
    assert len(rows) == 16
    for cell in rows:
        if cell["paper"] is not None:
            assert cell["predicted"] == pytest.approx(cell["paper"], rel=0.1), cell
    withheld = {cell["column"]: cell["predicted"] for cell in rows if cell["row"] == "CB-4"}
    assert all(cell["paper"] is None for cell in rows if cell["row"] == "CB-4")
    # "with optimal chain-size and communicator selection (CB-8)": section 6.6.
    assert 17.6 < withheld["Aggregation Time"] < 28.6
    assert withheld["Total Time"] == pytest.approx(withheld["Aggregation Time"] + 73.0)


def test_the_withheld_row_hardly_depends_on_what_was_calibrated() -> None:
    size = GOOGLENET.size
    for chunks in range(6, 19):
        for passing_on in (1.0, 3.4):
            constants = Constants(chunks=chunks, passing_on=passing_on)
            ratio = CB[4].seconds(160, size, constants) / CB[8].seconds(160, size, constants)
            assert 1.03 < ratio < 1.13, constants


def test_chains_of_chains_lead_most_where_the_paper_ends_them() -> None:
    """Section 5: "can only scale to a process count of 64 (eight being the ideal size of one chain)"."""
    assert [ideal_chains(Constants(chunks=n)) for n in (10, CALIBRATED.chunks)] == [64, 64]


def test_mvapich2_copies_as_much_whatever_the_number_of_devices() -> None:
    size = CAFFENET.size
    copies = STAGED * size / DEVICE_BANDWIDTH
    among_hosts = [mvapich2(devices, size) - copies for devices in (8, 16)]
    assert among_hosts == pytest.approx(
        [CALIBRATED.host * equation_1(devices, step_seconds(size)) for devices in (8, 16)], rel=1e-6
    )


def test_who_is_no_slower_at_64_processes_cannot_be_as_slow_at_160_as_table_2_says() -> None:
    """If CC is no slower at 64 processes, no number of chunks gives Table 2's ratio of CC-8 to CB-8."""
    assert all(upper_ratio(chunks) < 28.6 / 17.6 for chunks in range(2, 1000))


def test_all_printed_cells_are_predicted_within_ten_per_cent() -> None:
    for cell in printed():
        assert cell["predicted"] == pytest.approx(cell["paper"], rel=0.1), cell
    (note,) = (note for note in tables.notes() if note.startswith("not within 10%"))
    assert note.startswith("not within 10%: none")


def test_the_conclusion_is_beside_predictions_too() -> None:
    """20% of Table 2's time; 33 times; CaffeNet's 3.3 is what section 6.3 says of GoogLeNet: with 1,024
    images, 128 GPUs exchange for longer than they compute."""
    cells = {cell["row"]: cell for cell in tables.conclusion()}
    assert cells["GoogLeNet, 160 GPUs"]["predicted"] == pytest.approx(20, abs=0.5)
    assert cells["CIFAR10 quick, 64 GPUs"]["predicted"] == pytest.approx(33, rel=0.05)
    other = cells["CaffeNet, 128 GPUs"]
    assert other["role"] == tables.AGAINST and other["paper"] is None
    assert other["predicted"] < 2
    many = iteration(CAFFENET, 1024, 128, hierarchical=True)
    assert many.broadcast + many.reduce > 2 * (many.forward + many.backward)


def test_shares_of_the_peak_are_those_of_published_times() -> None:
    """Caffe's K40: 76 images of GoogLeNet per second, and 267 of CaffeNet."""
    for net, rate, peak in ((GOOGLENET, 128 / 1.6888, 4.29e12), (CAFFENET, 5120 / 19.2, 5.04e12)):
        assert net.share == pytest.approx((3 * net.flops - net.first) * rate / peak, rel=1e-3)


def test_each_layer_s_reduction_has_each_layer_s_latencies() -> None:
    """If backward hides the whole reduction, the latencies of more messages are hidden too; otherwise
    they remain."""
    step = iteration(CAFFENET, 256, 16, hierarchical=False)
    assert step.layered == pytest.approx(7 * mvapich2(16, 4))
    assert step.reductions_beside() == pytest.approx(step.basic() + step.layered - step.backward)
    long = iteration(CAFFENET, 2560, 16, hierarchical=False)
    assert long.reductions_beside() == pytest.approx(long.basic() - long.reduce)


def test_conv1_has_no_gradient_by_data() -> None:
    step = iteration(CAFFENET, 256, 8, hierarchical=False)
    assert step.backward / step.forward == pytest.approx(2 - CAFFENET.first / CAFFENET.flops)


def test_every_cell_says_what_it_is_for() -> None:
    roles = {str(cell["role"]).split(" (")[0] for cell in tables.cells()}
    assert roles == {
        "calibration",
        tables.FOLLOWS,
        "check",
        "withheld",
        "not printed",
        "drawn, not printed",
        tables.AGAINST,
    }
    calibrations = [cell["role"] for cell in printed() if str(cell["role"]).startswith("calibration")]
    assert len(calibrations) == len(set(calibrations)) == 7
    assert all(float(str(cell["predicted"])) > 0 for cell in tables.cells())
    keys = [(cell["table"], cell["row"], cell["column"]) for cell in tables.cells()]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("devices", [2, 4, 16, 64, 160])
def test_overlap_hides_no_more_than_there_is(devices: int) -> None:
    step = iteration(GOOGLENET, 1024, devices, hierarchical=False)
    computing, communicating = step.forward + step.backward, step.broadcast + step.reduce
    least = max(computing, communicating)
    assert least < step.overlapped() < step.reductions_beside() < step.basic() + step.layered
    assert step.broadcasts_first() < step.basic()


def test_the_plugin_knows_the_paper_and_says_so() -> None:
    answer = reproductions(paper="s-caffe")
    assert answer is not None and answer["paper"] == "s-caffe"
    assert answer["cells"] == tables.cells()
    assert reproductions(paper="swcaffe") is None
    manifest = Path(demitasse_allreduce.__file__).with_name("plugin.toml")
    assert tomllib.loads(manifest.read_text())["roles"]["reproductions"]["papers"] == ["s-caffe"]
