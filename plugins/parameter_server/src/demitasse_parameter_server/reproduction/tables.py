"""Predictions for figures 6 to 10 of Wang et al., SingleCaffe (2018), beside the numbers that the text
prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from demitasse_parameter_server.reproduction.nets import CIFAR, SOLVERS, Count, Update, lenet
from demitasse_parameter_server.reproduction.node import THREADS, Node, calibrated

NODES = (1, 2, 4, 6, 8, 10, 12, 15, 18, 21, 24)
SPEEDUP, EQUAL = 16.0, 15.0
"""The printed figures: on CIFAR-10, 16 times as fast as native Caffe in the best case (section V.B),
and as fast as 15 nodes of DistCaffe with all three variants (sections V.D.1 and V.D.2)."""

RMSPROP_EQUAL = 5.0
"""Nodes of DistCaffe above which one node is slightly slower on MNIST with RMSProp (section V.D.2)."""

BATCHES = {"Cifar10": (100, 150, 200), "Mnist": (64, 96, 128)}

FIGURE_6, FIGURE_7, FIGURE_8, FIGURE_9, FIGURE_10 = (f"Figure {number}" for number in range(6, 11))


def cell(
    table: str, row: str, column: str, unit: str, predicted: float | None, paper: float | None = None
) -> dict[str, Any]:
    """Return one cell, in the form that ``demitasse reproduce`` expects."""
    names = ("table", "row", "column", "unit", "paper", "predicted")
    return dict(zip(names, (table, row, column, unit, paper, predicted), strict=True))


def node(of: Node | None = None) -> Node:
    """Return the node, with its efficiency fitted to the printed speedup."""
    nets = [net() for net in CIFAR.values()]
    return calibrated(SPEEDUP, nets, SOLVERS["native SGD"], of or Node())


def speedups(of: Node) -> Iterator[dict[str, Any]]:
    """Yield figures 6 and 7: speedups by threads, and the best of each figure."""
    sgd = SOLVERS["native SGD"]
    for threads in THREADS:
        for name, net in CIFAR.items():
            yield cell(FIGURE_6, str(threads), name, "times", of.speedup(net(), sgd, threads))
    best = max(of.best_speedup(net(), sgd) for net in CIFAR.values())
    yield cell(FIGURE_6, "best case", "Cifar10", "times", best, SPEEDUP)
    for threads in THREADS:
        for name, solver in SOLVERS.items():
            yield cell(FIGURE_7, str(threads), name, "times", of.speedup(lenet(), solver, threads))
    best = max(of.best_speedup(lenet(), solver) for solver in SOLVERS.values())
    yield cell(FIGURE_7, "best case", "Mnist", "times", best)


def batches(of: Node) -> Iterator[dict[str, Any]]:
    """Yield figure 8: samples per second by threads and batch."""
    for name, sizes in BATCHES.items():
        for size in sizes:
            for threads in THREADS[2:]:
                net = CIFAR["ReLU"]() if name == "Cifar10" else lenet()
                net.batch = size
                rate = size / of.single(net, SOLVERS["native SGD"], threads)
                yield cell(FIGURE_8, f"{threads} threads", f"{name} {size}", "samples/s", rate)


def against_distcaffe(of: Node) -> Iterator[dict[str, Any]]:
    """Yield figures 9 and 10: one node at its best over DistCaffe on several nodes, and the number of
    nodes on which DistCaffe is equally fast."""
    sgd = SOLVERS["native SGD"]
    compared: list[tuple[str, str, Count, Update, float | None]] = [
        (FIGURE_9, "Cifar10", CIFAR["ReLU"](), sgd, EQUAL),
        (FIGURE_9, "Mnist", lenet(), sgd, None),
        *((FIGURE_10, name, net(), sgd, EQUAL) for name, net in CIFAR.items()),
        *(
            (FIGURE_10, name, lenet(), solver, RMSPROP_EQUAL if name == "RMSProp" else None)
            for name, solver in SOLVERS.items()
        ),
    ]
    for table, column, net, solver, printed in compared:
        for nodes in NODES:
            ratio = of.distributed(net, solver, nodes) / of.best(net, solver)
            yield cell(table, f"{nodes} nodes", f"DistCaffe {column}", "times", ratio)
        equal = of.equal_nodes(net, solver)
        if equal is not None or printed is not None:
            yield cell(table, "equal to", f"DistCaffe {column}", "nodes", equal, printed)


def notes(of: Node) -> list[str]:
    """Return notes about the basis of the numbers."""
    return [
        "predicted: simulated, from hwdesc/tianhe2-node.toml and the nets' counts: products at a share "
        "of a core's peak, bytes at what a core alone draws (10 GB/s, assumed) or its part of the "
        "memory's bandwidth, the largest share of the batch, sum and pull by slices, the server's "
        "update by one worker, three meetings. A core that runs alone is 14% quicker (assumed, by the "
        "clocks of the E5-2695v2)",
        f"the text prints few figures, and two calibrate: 16, the best case on Cifar10, the share of "
        f"the peak ({of.efficiency:.0%}); RMSProp's 5 nodes of DistCaffe (Figure 10), the "
        f"{of.power:.0f} cycles of a power by the C library. The 15 nodes on Cifar10, of each variant, "
        f"check them, and what the text says of Figure 10's Mnist: ahead of all with SGD, behind by "
        f"little with RMSProp. With Adam the paper's node is ahead in most cases, this one below 8 "
        f"nodes. The figures print no numbers",
        "as DistCaffe's nodes are at best as many times as fast as one, a node that is 16 times as fast "
        "as native Caffe cannot be equal to fewer than 16: the printed 15 is the same to that accuracy. "
        "For the same reason RMSProp's speedup on Mnist is no more than 5",
        "Adam and RMSProp take one and two powers of each weight, and the update is one worker's and "
        "each of DistCaffe's nodes': so both end alike with more nodes, as the paper finds. This "
        "plugin's own workers divide the update, too",
        "AlexNet is taken for Caffe's cifar10_full, whose solver's 60,000 iterations the paper has. "
        "DistCaffe: native Caffe on each node's share, a reduction and a broadcast along binomial trees "
        "at 6 GB/s and 5 us (assumed); not predicted: Intel-Caffe and TensorFlow",
    ]


def reproduce(paper: str) -> dict[str, Any] | None:
    """Return ``{"paper", "cells", "notes"}`` for singlecaffe; None for other papers."""
    if paper != "singlecaffe":
        return None
    of = node()
    return {
        "paper": paper,
        "cells": [*speedups(of), *batches(of), *against_distcaffe(of)],
        "notes": notes(of),
    }
