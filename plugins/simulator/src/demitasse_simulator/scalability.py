"""swCaffe's speedups on 1,024 nodes (section VI.C, figures 10 and 11).

A step on p nodes takes a node's own step and the exchange. Equations 2, 5 and 6 give about 0.05 s for
the exchange of AlexNet's gradients; the paper's speedup implies 1.17 s. What they do not explain is a
named residual, so many seconds a byte of gradients, fitted on one printed cell and used for all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from demitasse import Algorithm, Tier, Topology, compose, cost, discover
from demitasse_simulator.exchange import offered

NODES, SUPERNODE = 1024, 256
ALPHA, BANDWIDTH, OVERSUBSCRIPTION = 1e-6, 12e9, 4
"""Section II.B: 12 GB/s by MPI, a latency of about a microsecond, a quarter between supernodes."""

ADDITION = 4 * 28e9 / 3
"""Bytes a second that four core groups add: each number is read twice and written once at the 28 GB/s of
DMA of each (section III.A, principle 2)."""

GRADIENTS = {"AlexNet": 232.6e6, "ResNet-50": 97.7e6}
"""Bytes of parameters (section VI.C; MB are taken as 10^6)."""

PRINTED_RATES = {"AlexNet": 94.17}
"""Images a second of one node that Table III prints, with the batch of 256."""

SPEEDUPS: Mapping[tuple[str, int], float | None] = {
    ("AlexNet", 256): 715.45,
    ("AlexNet", 128): None,
    ("AlexNet", 64): None,
    ("ResNet-50", 32): 928.15,
    ("ResNet-50", 64): None,
}
SHARES: Mapping[tuple[str, int], float | None] = {
    ("AlexNet", 64): None,
    ("AlexNet", 128): None,
    ("AlexNet", 256): 30.13,
    ("ResNet-50", 32): 10.65,
    ("ResNet-50", 64): None,
}
FITTED = ("AlexNet", 256)


def exchange(size: float, nodes: int = NODES) -> float:
    """Seconds of the schedule of equations 5 and 6, simulated, for ``size`` bytes of gradients."""
    tiers = (
        Tier("supernode", -(-nodes // SUPERNODE), ALPHA, BANDWIDTH, OVERSUBSCRIPTION),
        Tier("node", min(nodes, SUPERNODE), ALPHA, BANDWIDTH),
    )
    network = Topology(tiers)
    rounds = _schedule().rounds(nodes, int(size // 4))
    return cost(rounds, network, network.place(nodes, "round-robin"), 4, 1 / ADDITION).seconds


@cache
def _schedule() -> Algorithm:
    """Recursive halving and doubling, of whichever installed plugin has it."""
    names = [m.name for m in discover() if "collectives" in m.roles and not m.problem]
    with compose("auto", [f"+{name}" for name in names]) as runtime:
        return offered(runtime.composition, "swcaffe")["recursive-halving-doubling"]


def residual() -> float:
    """Seconds a byte of gradients that the equations do not explain: from the printed speedup and the
    printed images a second of AlexNet with 256 images a node."""
    net, batch = FITTED
    speedup = SPEEDUPS[FITTED]
    assert speedup is not None
    alone = batch / PRINTED_RATES[net]
    return (alone * (NODES / speedup - 1) - exchange(GRADIENTS[net])) / GRADIENTS[net]


def speedups(paper: str, cells: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any] | None:
    """The two figures' cells. ``cells`` are those of Table III, whose predicted images a second give a
    node's own step; without them, other installed plugins are asked for them."""
    if paper != "swcaffe":
        return None
    rates, from_ = _rates(_others(paper) if cells is None else cells)
    unexplained = residual()
    made, notes = [], []
    for table, column, unit, printed in (
        ("Figure 10", f"speedup with {NODES} nodes", "x", SPEEDUPS),
        ("Figure 11", "proportion of communication time", "%", SHARES),
    ):
        for (net, batch), value in printed.items():
            if net not in rates:
                continue
            alone = batch / rates[net]
            together = exchange(GRADIENTS[net]) + unexplained * GRADIENTS[net]
            speedup = NODES * alone / (alone + together)
            share = 100 * together / (alone + together)
            made.append(
                {
                    "table": table,
                    "row": f"{net}, sub-mini-batch {batch}",
                    "column": column,
                    "unit": unit,
                    "paper": value,
                    "predicted": speedup if unit == "x" else share,
                }
            )
    net = FITTED[0]
    notes.append(
        f"the schedule explains {exchange(GRADIENTS[net]):.3f} s of the exchange of {net}'s "
        f"{GRADIENTS[net] / 1e6:.1f} MB (simulated); residual {unexplained * 1e9:.2f} ns a byte of "
        f"gradients ({unexplained * GRADIENTS[net]:.3f} s there), fitted on the printed speedup "
        f"of {net} with {FITTED[1]} images a node and used unchanged for the other rows"
    )
    notes += from_
    left = [net for net in GRADIENTS if net not in rates]
    if left:
        notes.append(f"no prediction for {', '.join(left)}: nobody predicts its row of Table III")
    return {"paper": paper, "cells": made, "notes": notes}


def _others(paper: str) -> list[Mapping[str, Any]]:
    """The cells of the other installed plugins."""
    names = [
        m.name
        for m in discover()
        if "reproductions" in m.roles and not m.problem and m.name != "simulator"
    ]
    if not names:
        return []
    found: list[Mapping[str, Any]] = []
    with compose("auto", [f"+{name}" for name in names]) as runtime:
        for name, hook in runtime.composition.serving("reproductions"):
            if name in names and (answer := hook(paper=paper)) is not None:
                found += answer["cells"]
    return found


def _rates(cells: Sequence[Mapping[str, Any]]) -> tuple[dict[str, float], list[str]]:
    """Images a second of one node by net, and where they are from."""
    rates, lines = dict[str, float](), []
    for net in GRADIENTS:
        predicted = [
            cell["predicted"]
            for cell in cells
            if "III" in str(cell["table"]) and cell["row"] == net and cell["column"] == "SW"
        ]
        if predicted and isinstance(predicted[0], int | float) and predicted[0] > 0:
            rates[net] = float(predicted[0])
            lines.append(
                f"a node's own step of {net}: Table III as simulated, in proportion to the batch"
            )
        elif net in PRINTED_RATES:
            rates[net] = PRINTED_RATES[net]
            lines.append(f"a node's own step of {net}: Table III as printed, in proportion to the batch")
    return rates, lines
