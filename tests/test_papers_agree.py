"""Two plugins give swCaffe's tables: what they both know of the paper is the same."""

from __future__ import annotations

import pytest

from demitasse_simulator import scalability
from demitasse_simulator.papers import gather
from demitasse_sw26010.reproduction import neighbours


def test_printed_cells_that_two_plugins_know_are_the_same() -> None:
    assert neighbours.NODES == scalability.NODES
    for net, speedup in neighbours.SPEEDUPS.items():
        batch = {"AlexNet": 256, "ResNet-50": 32}[net]
        assert scalability.SPEEDUPS[net, batch] == speedup
        assert scalability.GRADIENTS[net] == pytest.approx(neighbours.SIZES[net] * 2**20)
    assert scalability.SHARES["ResNet-50", 32] == 100 * neighbours.SHARE
    assert neighbours.RATES["AlexNet"] == (256, scalability.PRINTED_RATES["AlexNet"])


def test_figures_10_and_11_meet_the_cells_that_they_are_fitted_on() -> None:
    """AlexNet's speedup and what it leaves, exactly; ResNet-50's two, which leave 9.36% and 10.65%, from
    both sides. A smaller batch of a net exchanges as much beside less, so its share is larger."""
    cells = gather("swcaffe", ["+sw26010", "+simulator", "+allreduce"])["cells"]
    told = {(c["table"], c["row"]): c for c in cells if c["column"] != "one node"}
    speedup = told["Figure 10", "AlexNet, sub-mini-batch 256"]
    share = told["Figure 11", "AlexNet, sub-mini-batch 256"]
    assert speedup["predicted"] == pytest.approx(speedup["paper"])
    assert share["predicted"] == pytest.approx(share["paper"], abs=0.01)
    share = told["Figure 11", "ResNet-50, sub-mini-batch 32"]
    assert 100 * (1 - 928.15 / 1024) < share["predicted"] < share["paper"]
    more = told["Figure 11", "ResNet-50, sub-mini-batch 64"]["predicted"]
    assert share["predicted"] / 2 < more < 0.6 * share["predicted"]
    shares = [
        told["Figure 11", f"AlexNet, sub-mini-batch {batch}"]["predicted"] for batch in (256, 128, 64)
    ]
    assert shares == sorted(shares)
    # Were all of a step the images': what else there is keeps the shares of smaller batches below that.
    compute = [(1 - each / 100) / (each / 100) for each in shares]
    assert compute[0] / 2 < compute[1] and compute[0] / 4 < compute[2]
