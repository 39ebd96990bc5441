"""NUMA-Caffe's figures: servers as in hwdesc, nets with their known counts, bounded errors."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from demitasse import load_machine
from demitasse_numa.reproduction import reproduce
from demitasse_numa.reproduction.model import Case
from demitasse_numa.reproduction.nets import NETS
from demitasse_numa.reproduction.servers import SERVERS
from demitasse_numa.reproduction.tables import FIGURES, accesses, calibrating, checking, error

HWDESC = Path(__file__).parents[3] / "hwdesc"


@pytest.mark.parametrize("name", SERVERS)
def test_servers_are_as_described(name: str) -> None:
    server = SERVERS[name]
    level = load_machine(HWDESC / server.file).level("numa")
    assert level.clock and level.peak and level.link and level.link.bandwidth
    assert (level.count, level.cores) == (server.domains, server.cores)
    assert level.clock.value == server.clock
    assert level.peak.value == pytest.approx(server.peak)
    assert level.link.bandwidth.value == server.links
    memory = [each.bandwidth.value for each in level.memory if each.bandwidth]
    assert memory == [each for each in (server.bandwidth, server.high_bandwidth) if each]


@pytest.mark.parametrize(
    ("net", "parameters", "multiplications"),
    [
        # Caffe's own counts of its CIFAR-10 model and CaffeNet; GoogLeNet's 7.0 million and 1.5 billion
        # multiplications (table 1 of its paper, without side losses).
        ("CIFAR", 89_578, 12.3e6),
        ("AlexNet", 60_965_224, 724e6),
        ("GoogLeNet", 6_998_552, 1.58e9),
    ],
)
def test_nets_are_counted_as_they_are_known(net: str, parameters: int, multiplications: float) -> None:
    counted = NETS[net]()
    assert counted.parameters == parameters
    assert counted.flops / 2 == pytest.approx(multiplications, rel=0.02)


def test_half_of_the_figures_calibrate_and_the_other_half_check() -> None:
    assert sorted([*calibrating(), *checking()]) == sorted(FIGURES)
    assert abs(len(calibrating()) - len(checking())) <= 1
    assert median(abs(error(figure)) for figure in checking()) <= 0.20
    assert median(abs(error(figure)) for figure in calibrating()) <= 0.20


def test_every_cell_is_labelled_and_has_a_prediction() -> None:
    answer = reproduce("numa-caffe")
    assert answer is not None
    cells = answer["cells"]
    roles = {"calibration", "check", "check outside the split", "drawn, not printed"}
    assert {cell["role"] for cell in cells} == roles
    outside = [cell for cell in cells if cell["role"] == "check outside the split"]
    assert sum(cell["paper"] is not None for cell in cells) == len(FIGURES) + len(outside)
    tables = ["Table 3", *["Table 5"] * 3, *["Table 6"] * 4, "Section 5.2"]
    assert [cell["table"] for cell in outside] == tables
    assert all(cell["predicted"] > 0 for cell in cells)
    assert len({(c["table"], c["row"], c["column"]) for c in cells if c["paper"] is None}) == sum(
        c["paper"] is None for c in cells
    )
    assert any("the split" in note for note in answer["notes"])
    assert reproduce("swcaffe") is None


def test_bytes_are_counted_by_hand() -> None:
    case = Case(SERVERS["Broadwell"], NETS["CIFAR"](), 4)
    weights = 4 * 89_578
    # Three domains hand gradients up and copy weights; three quarters of 128 images go to them.
    assert case.remote == (2 * 3 * weights, 128 * 3 * 32 * 32 * 4 * 3 / 4)
    written = case.net.numbers * 4 * 128
    assert case.moved == pytest.approx(case.constants.passes * written + 3 * 4 * weights)
    # BVLC's threads: three quarters of layers' numbers, of unfolded images in four passes, of weights.
    unfolded = 4 * 128 * 4 * (75 * 32 * 32 + 800 * 16 * 16 + 800 * 8 * 8)
    far = 3 / 4 * (case.constants.passes * written + unfolded + 3 * weights)
    assert case.remote_bvlc == pytest.approx(far)


def test_remote_accesses_and_bandwidths_are_of_the_measured_size() -> None:
    """Nothing was fitted to these: they agree within a half; most remote accesses are gradients and
    weights."""
    bandwidths = [c for c in accesses() if c["unit"] == "GB/s"]
    assert all(c["predicted"] == pytest.approx(c["paper"], rel=0.5) for c in bandwidths)
    reductions = [c for c in accesses() if c["table"] == "Table 5"]
    assert len(reductions) == 3
    assert all(90 < c["predicted"] == pytest.approx(c["paper"], abs=8) for c in reductions)
    (share,) = [c for c in accesses() if c["table"] == "Section 5.2"]
    assert share["predicted"] == pytest.approx(share["paper"], rel=0.15)


def test_only_numa_caffe_gains_by_more_domains_as_it_should() -> None:
    """Section 5.1.5: BVLC does not scale, NUMA-Caffe does, and on one domain it is Intel-Caffe."""
    for server in SERVERS.values():
        for net in NETS.values():
            one, all_ = (Case(server, net(), n) for n in (1, server.domains))
            assert one.numa() == pytest.approx(one.intel())
            assert all_.numa() < all_.intel() < all_.bvlc() == one.bvlc()
            assert all_.numa() < one.numa()
