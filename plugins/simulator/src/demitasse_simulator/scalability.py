"""swCaffe's speedups on 1,024 nodes (section VI.C, figures 10 and 11).

A step on p nodes takes a node's own step plus the exchange. Equations 2, 5 and 6 give about 0.05 s for
the exchange of AlexNet's gradients; the paper's speedup implies 1.17 s. The difference is modelled as a
residual in seconds per byte of gradients, fitted to one printed cell and used for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from demitasse import Algorithm, Tier, Topology, compose, cost, discover
from demitasse_simulator.exchange import offered

NODES, SUPERNODE = 1024, 256
ALPHA, BANDWIDTH, OVERSUBSCRIPTION = 1e-6, 12e9, 4
"""Section II.B: 12 GB/s by MPI, a latency of about 1 us, and a quarter of the bandwidth between
supernodes."""

ADDITION = 4 * 28e9 / 3
"""Bytes per second that four core groups add. Each addition reads two numbers and writes one, at the 28
GB/s of each group's DMA (section III.A, principle 2)."""

MIB = 2**20
GRADIENTS = {"AlexNet": 232.6 * MIB, "ResNet-50": 97.7 * MIB}
"""Bytes of parameters (section VI.C). The paper's MB are 2^20 bytes: AlexNet has 60,965,224 parameters,
and ResNet-50 has 25,557,032 and 53,173 numbers of normalisation statistics, of 4 bytes each."""

PRINTED_RATES = {"AlexNet": 94.17}
"""Images per second of one node as Table III prints them, for a batch of 256."""

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
ALONE = "one node"
"""The column of figure 10 in which another plugin may give a single node's images per second."""


def exchange(size: float, nodes: int = NODES) -> float:
    """Return the simulated seconds of the schedule of equations 5 and 6, for ``size`` bytes of
    gradients."""
    tiers = (
        Tier("supernode", -(-nodes // SUPERNODE), ALPHA, BANDWIDTH, OVERSUBSCRIPTION),
        Tier("node", min(nodes, SUPERNODE), ALPHA, BANDWIDTH),
    )
    network = Topology(tiers)
    rounds = _schedule().rounds(nodes, int(size // 4))
    return cost(rounds, network, network.place(nodes, "round-robin"), 4, 1 / ADDITION).seconds


@cache
def _schedule() -> Algorithm:
    """Return recursive halving and doubling from the installed plugin that has it."""
    names = [m.name for m in discover() if "collectives" in m.roles and not m.problem]
    with compose("auto", [f"+{name}" for name in names]) as runtime:
        return offered(runtime.composition, "swcaffe")["recursive-halving-doubling"]


def residual() -> float:
    """Return the seconds per byte of gradients that the equations do not explain, from the printed
    speedup and the printed images per second of AlexNet with 256 images a node."""
    net, batch = FITTED
    speedup = SPEEDUPS[FITTED]
    assert speedup is not None
    alone = batch / PRINTED_RATES[net]
    return (alone * (NODES / speedup - 1) - exchange(GRADIENTS[net])) / GRADIENTS[net]


def speedups(paper: str, cells: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any] | None:
    """Return the cells of both figures; None for another paper. ``cells`` are those of other plugins,
    whose predicted images per second give a node's own step. If they are not given, the other installed
    plugins are asked."""
    if paper != "swcaffe":
        return None
    found = _others(paper) if cells is None else cells
    unexplained = residual()
    steps = {point: _alone(found, *point) for point in SPEEDUPS}
    made = []
    for table, column, unit, printed in (
        ("Figure 10", f"speedup with {NODES} nodes", "x", SPEEDUPS),
        ("Figure 11", "proportion of communication time", "%", SHARES),
    ):
        for (net, batch), value in printed.items():
            step = steps[net, batch]
            if step is None:
                continue
            alone = step[0]
            together = exchange(GRADIENTS[net]) + unexplained * GRADIENTS[net]
            speedup = NODES * alone / (alone + together)
            share = 100 * together / (alone + together)
            made.append(
                {
                    "table": table,
                    "row": row_of(net, batch),
                    "column": column,
                    "unit": unit,
                    "paper": value,
                    "predicted": speedup if unit == "x" else share,
                }
            )
    return {"paper": paper, "cells": made, "notes": _notes(unexplained, steps)}


def row_of(net: str, batch: int) -> str:
    """Return the row of a point of figures 10 and 11, as other plugins name it too."""
    return f"{net}, sub-mini-batch {batch}"


Step = tuple[float, str]
"""The seconds of a node's own step, and their source."""


def _notes(unexplained: float, steps: Mapping[tuple[str, int], Step | None]) -> list[str]:
    """Return notes about the parts of the exchange, and about the source of each node's own step."""
    net = FITTED[0]
    notes = [
        f"the exchange of {net}'s {GRADIENTS[net] / MIB:.1f} MB (2^20 bytes each): the simulated "
        f"schedule explains {exchange(GRADIENTS[net]):.3f} s. The rest is a residual of "
        f"{unexplained * 1e9:.2f} ns per byte of gradients ({unexplained * GRADIENTS[net]:.3f} s for "
        f"{net}). It is fitted on the printed speedup of {net} with {FITTED[1]} images per node, and "
        "used unchanged for the other rows",
        "share of communication: it should be 1 - speedup / 1,024. For AlexNet, this gives the "
        "printed 30.13%, so that cell follows from the fit. For ResNet-50, the speedup of 928.15 "
        "gives 9.36%, but 10.65% is printed",
        "waiting for samples is not modelled. With 192 MB for each of 1,024 nodes, 32 disk arrays "
        "take as long as AlexNet's step if each delivers about 2.4 GB/s. The paper does not print "
        "their rate. If AlexNet's residual contained such waiting, ResNet-50's exchange would take "
        "less time, because its 32 images are read in time",
    ]
    for name in GRADIENTS:
        ways: dict[str, list[str]] = {}
        for (each, batch), step in steps.items():
            if each == name and step is not None:
                ways.setdefault(step[1], []).append(str(batch))
        notes += [
            f"one node's step of {name} ({', '.join(batches)} images): {way}"
            for way, batches in ways.items()
        ]
    left = [name for name in GRADIENTS if not any(step and n == name for (n, _), step in steps.items())]
    if left:
        notes.append(f"no prediction for {', '.join(left)}: no plugin predicts its row of Table III")
    return notes


def _others(paper: str) -> list[Mapping[str, Any]]:
    """Return the cells of the other installed plugins."""
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


def _alone(cells: Sequence[Mapping[str, Any]], net: str, batch: int) -> Step | None:
    """Return a node's own step with ``batch`` images: as simulated with this batch, else from Table III
    in proportion to the batch. None if no plugin predicts the net."""

    def rate(matches: Callable[[str, str], bool], column: str) -> float | None:
        for cell in cells:
            value = cell["predicted"]
            if matches(str(cell["table"]), str(cell["row"])) and cell["column"] == column:
                return float(value) if isinstance(value, int | float) and value > 0 else None
        return None

    if own := rate(lambda table, row: table == "Figure 10" and row == row_of(net, batch), ALONE):
        return batch / own, "simulated with that many images"
    if theirs := rate(lambda table, row: "III" in table and row == net, "SW"):
        return batch / theirs, "Table III as simulated, scaled in proportion to the batch"
    if net in PRINTED_RATES:
        return batch / PRINTED_RATES[net], "Table III as printed, scaled in proportion to the batch"
    return None
