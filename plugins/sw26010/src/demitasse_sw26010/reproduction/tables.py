"""Table II by layer, Table III by net, and the figures in the text about them, of Fang et al., swCaffe
(2018)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from demitasse_sw26010.model.figures import CPES, DMA_BANDWIDTH, PEAK
from demitasse_sw26010.reproduction import neighbours, nets
from demitasse_sw26010.reproduction.notes import notes
from demitasse_sw26010.reproduction.training import CORE_GROUPS, PricedNet, offers, spec

TABLE_II, TABLE_III = "Table II", "Table III"
BATCH = 128
PASSES = ("forward", "weight_diff backward", "in_diff backward")
STRATEGIES = ("implicit", "explicit")

LAYERS = (
    *(("1_1", 3, 64, 224), ("1_2", 64, 64, 224), ("2_1", 64, 128, 112), ("2_2", 128, 128, 112)),
    *(("3_1", 128, 256, 56), ("3_2", 256, 256, 56), ("3_3", 256, 256, 56)),
    *(("4_1", 256, 512, 28), ("4_2", 512, 512, 28), ("4_3", 512, 512, 28)),
    *(("5_1", 512, 512, 14), ("5_2", 512, 512, 14), ("5_3", 512, 512, 14)),
)
"""Name, channels in and out, rows and columns."""

Row = tuple[float | None, float | None, float | None]
PRINTED: dict[str, tuple[Row, Row, Row]] = {
    "1_1": ((None, 4.19, 5.29), (None, 1.10, 20.18), (None, None, None)),
    "1_2": ((4.30, 7.79, 110.83), (None, 5.22, 90.49), (None, 14.97, 31.63)),
    "2_1": ((1.63, 2.45, 146.68), (None, 1.33, 176.70), (None, 3.61, 65.65)),
    "3_1": ((1.06, 0.73, 323.10), (0.92, 0.68, 351.07), (0.95, 1.69, 248.92)),
    "4_1": ((0.84, 0.69, 344.42), (0.70, 0.71, 336.32), (0.85, 0.95, 277.64)),
    "5_1": ((0.40, 0.62, 293.58), (0.31, 0.65, 376.94), (0.43, 0.80, 274.26)),
}
"""For each pass, the seconds of implicit and of explicit GEMM, and the Gflops of the faster; None if not
printed."""

NETS: tuple[tuple[str, Callable[[PricedNet], None], int, float | None], ...] = (
    ("AlexNet", nets.alexnet, *neighbours.RATES["AlexNet"]),
    ("VGG-16", nets.vgg16, *neighbours.RATES["VGG-16"]),
    ("VGG-19", nets.vgg19, 64, None),
    ("ResNet-50", nets.resnet50, 32, None),
    ("GoogleNet", nets.googlenet, 128, None),
)
"""Name, net, a node's batch, and the images per second printed for SW."""

OTHERS: Mapping[str, Mapping[str, tuple[float, float | None]]] = {
    "SW/NV": {
        "AlexNet": (79.25, 1.19),
        "VGG-16": (13.79, 0.45),
        "VGG-19": (11.2, None),
        "ResNet-50": (25.45, None),
        "GoogleNet": (66.09, None),
    },
    "SW/CPU": {
        "AlexNet": (12.01, 7.84),
        "VGG-16": (1.06, 5.13),
        "VGG-19": (1.07, None),
        "ResNet-50": (1.99, None),
        "GoogleNet": (4.92, None),
    },
}
"""For each column of Table III, the other processor's printed images per second, and the printed
ratio."""

SUB_BATCHES: Mapping[str, tuple[int, ...]] = {"AlexNet": (256, 128, 64), "ResNet-50": (32, 64)}
"""A node's images in figure 10."""

MIB = 2**20


def cell(
    table: str, row: str, column: str, unit: str, paper: float | None, predicted: float | None
) -> dict[str, Any]:
    """Return one cell, in the form that ``demitasse reproduce`` takes."""
    names = ("table", "row", "column", "unit", "paper", "predicted")
    return dict(zip(names, (table, row, column, unit, paper, predicted), strict=True))


def convolution_seconds(
    inputs: int, outputs: int, extent: int, batch: int = BATCH
) -> list[dict[str, float]]:
    """Return the seconds of each strategy offered for a 3 x 3 convolution with pad 1, for each pass."""
    x, y = spec((batch, inputs, extent, extent)), spec((batch, outputs, extent, extent))
    w, b = spec((outputs, inputs, 3, 3)), spec((outputs,))
    about = {"pad": (1, 1)}
    found = (
        offers("convolution", (x, w, b), (y,), about),
        offers("convolution_backward_weights", (y, x), (w, b), {**about, "shape": w.shape}),
        offers("convolution_backward_data", (y, w), (x,), {**about, "shape": x.shape}),
    )
    return [{each.kernel.split()[0]: each.seconds or 0.0 for each in row} for row in found]


def table_two() -> Iterator[dict[str, Any]]:
    """Yield all 13 layers, with three passes, both strategies and the rate of the faster one. Printed
    cells are next to what is simulated. Withheld ones are simulated, times the ratio of printed to
    simulated in the most similar printed layer."""
    simulated = {name: convolution_seconds(*shape) for name, *shape in LAYERS}
    for name, inputs, outputs, extent in LAYERS:
        flops = 2.0 * BATCH * inputs * outputs * 9 * extent * extent
        for number, (which, seconds) in enumerate(zip(PASSES, simulated[name], strict=True)):
            if name == "1_1" and which.startswith("in_diff"):
                continue  # the data has no gradient
            paper: Row = (None,) * 3
            if name in PRINTED:
                paper = PRINTED[name][number]
            else:
                miss = misses(simulated, number)
                seconds = {by: s * neighbours.layer(name, by, miss) for by, s in seconds.items()}
            for strategy, value in zip(STRATEGIES, paper, strict=False):
                if strategy in seconds:
                    yield cell(TABLE_II, name, f"{which} {strategy}", "s", value, seconds[strategy])
            rate = flops / min(seconds.values()) / 1e9
            yield cell(TABLE_II, name, f"{which} Gflops", "Gflops", paper[2], rate)


def misses(simulated: Mapping[str, list[dict[str, float]]], number: int) -> dict[tuple[str, str], float]:
    """Return the ratio of printed to simulated seconds in one pass, by printed layer and strategy."""
    return {
        (name, strategy): value / simulated[name][number][strategy]
        for name, passes in PRINTED.items()
        for strategy, value in zip(STRATEGIES, passes[number], strict=False)
        if value is not None
    }


def priced() -> dict[str, PricedNet]:
    """Return the five nets, each with a quarter of a node's batch."""
    found = {}
    for name, build, batch, _ in NETS:
        found[name] = net = PricedNet(batch // CORE_GROUPS)
        build(net)
    return found


def table_three(rates: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Yield a node's images per second, and their ratios to those printed for the two other
    processors."""
    for name, _, _, paper in NETS:
        yield cell(TABLE_III, name, "SW", "img/sec", paper, rates[name])
        for column, others in OTHERS.items():
            other, ratio = others[name]
            yield cell(TABLE_III, name, column, "x", ratio, rates[name] / other)


def figure_ten(levels: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Yield a single node's images per second, to which figure 10's speedups refer: simulated, times the
    ratio of printed to simulated for the same net. What does not shrink with the batch (reading weights,
    summing their gradients, the update) weighs more in smaller batches."""
    for name, build, _, _ in NETS:
        for batch in SUB_BATCHES.get(name, ()):
            net = PricedNet(batch // CORE_GROUPS)
            build(net)
            row, rate = f"{name}, sub-mini-batch {batch}", batch / (net.step() * levels[name])
            yield cell("Figure 10", row, "one node", "img/sec", None, rate)


def text(rates: Mapping[str, float], nets: Mapping[str, PricedNet]) -> Iterator[dict[str, Any]]:
    """Yield the figures that the abstract and the sections print besides the tables."""
    over = {
        column: {name: rates[name] / other for name, (other, _) in others.items()}
        for column, others in OTHERS.items()
    }
    nv, cpu = over["SW/NV"], over["SW/CPU"]
    for row, chosen, percent, times in (
        ("least of five", min, None, None),
        ("most of five", max, 119, 7.84),
    ):
        yield cell("Abstract", row, "SW/NV", "%", percent, 100 * chosen(nv.values()))
        yield cell("Abstract", row, "SW/CPU", "x", times, chosen(cpu.values()))
    for name, share in (("VGG-16", 45), ("VGG-19", 49), ("ResNet-50", None), ("GoogleNet", None)):
        yield cell("Section VI.B", name, "SW/NV", "%", share, 100 * nv[name])
    for name, size in neighbours.SIZES.items():
        net = nets[name]
        counted = 4 * (net.parameters + net.statistics) / MIB
        yield cell("Section VI.C", name, "model parameter size", "MB", size, counted)
    vgg = nets["VGG-16"].weights
    for row, unit, size, number in (
        ("first fully-connected layer", "MB", 102, max(vgg) / 1e6),
        ("first convolutional layer", "KB", 1.7, vgg[0] / 1e3),
    ):
        yield cell("Section V.A", f"VGG-16, {row}", "gradients", unit, size, number)
    whole = CORE_GROUPS * (PEAK + PEAK / CPES) / 1e12  # an MPE is as fast as a CPE
    for column in ("float perf.", "double perf."):
        yield cell("Table I", "SW26010", column, "TFlops", 3.02, whole)
    balance = PEAK / DMA_BANDWIDTH
    yield cell("Section III.A", "SW26010", "flop-per-byte ratio", "FLOP/B", 26.5, balance)
    yield cell("Section VI.A", "GEMM", "m from which it is compute-bound", "", 160, 6 * balance)
    samples = 4.0 * 256 * 3 * 256 * 256 / MIB
    yield cell("Section V.B", "256 ImageNet images", "mini-batch data size", "MB", 192, samples)


def reproduce(paper: str) -> dict[str, Any] | None:
    """Return ``{"paper", "cells", "notes"}`` for swcaffe, or None for other papers."""
    if paper != "swcaffe":
        return None
    nets = priced()
    steps = {name: net.step() for name, net in nets.items()}
    levels = neighbours.levels(steps)
    rates = {
        name: batch / (steps[name] * (levels[name] if printed is None else 1.0))
        for name, _, batch, printed in NETS
    }
    cells = [*table_two(), *table_three(rates), *figure_ten(levels), *text(rates, nets)]
    return {"paper": paper, "cells": cells, "notes": notes(steps)}
