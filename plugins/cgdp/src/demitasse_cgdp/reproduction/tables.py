"""Tables 1 to 5, Figures 2 and 5, and the numbers in the text of section 5, each with a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from demitasse_cgdp.reproduction import memory
from demitasse_cgdp.reproduction.machine import MS, calibrated
from demitasse_cgdp.reproduction.nets import NETS, googlenet
from demitasse_cgdp.reproduction.notes import notes
from demitasse_cgdp.reproduction.printed import (
    ADD,
    BEST_CHUNK,
    BVLC,
    DOWN,
    GPUS,
    LARGEST,
    LAYERS,
    LONG_RUN,
    RUN,
    SEARCHES,
    SPEEDUPS,
    TABLE_1,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TABLE_5,
    TEST,
    TEST_BATCH,
    TEST_SECONDS,
    TESTS,
    TRL,
    UP,
)
from demitasse_cgdp.reproduction.training import (
    alone,
    best_chunk,
    cgdp_overhead,
    exchanged,
    iteration,
    last_sum,
    phases,
    search_length,
    searched,
    test_seconds,
)

PAPER = "cgdp"
CALIBRATES = {
    ("Table 2", BVLC, "AlexNet 2"): "copies within a processor",
    ("Table 2", BVLC, "GoogLeNet-v1 4"): "waiting for the slowest",
    ("Table 3", BVLC, "broadcast"): "both copies of the tree",
    ("Table 2", TRL, "AlexNet 2"): "interference, with the cell for 4 GPUs",
    ("Table 2", TRL, "AlexNet 4"): "interference, with the cell for 2 GPUs",
}
FIGURE_2 = (1, 2, 4, 6, 8, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
ALIKE = (3, 6, 9, 20)
"""Sizes that Algorithm 1 found with other steps and ranges, all equally fast (section 5.3)."""

TEN = 10
"""Iterations per point of Figure 2."""

FIGURE_2_BATCH, DEEP = 16, "ResNet-152"


def _cell(
    table: str,
    row: str,
    column: str,
    unit: str,
    paper: float | None,
    predicted: float,
    role: str = "check",
) -> dict[str, Any]:
    if paper is None and role == "check":
        role = "withheld"
    what = CALIBRATES.get((table, row, column))
    return {
        "table": table,
        "row": row,
        "column": column,
        "unit": unit,
        "paper": paper,
        "predicted": predicted,
        "role": f"calibration ({what})" if what else role,
    }


def table_1() -> Iterator[dict[str, Any]]:
    """Yield layers and parameters as counted, GoogLeNet's without its further losses, as printed."""
    for name, (deep, paper) in TABLE_1.items():
        net = googlenet(further=False) if name == "GoogLeNet-v1" else NETS[name]()
        yield _cell("Table 1", name, "Layers", "layers", deep, net.depth, "count")
        value = net.parameters / 1e6
        yield _cell("Table 1", name, "Parameters (million)", "million", paper, value, "count")


def table_2() -> Iterator[dict[str, Any]]:
    """Yield times of an iteration. With one GPU they are as printed: they turn counts into seconds."""
    for (framework, name), row in TABLE_2.items():
        for gpus, paper in zip(GPUS, row, strict=True):
            value = iteration(framework, name, gpus) / MS
            role = "calibration (one GPU)" if gpus == 1 else "check"
            yield _cell("Table 2", framework, f"{name} {gpus}", "ms", paper, value, role)


def table_3() -> Iterator[dict[str, Any]]:
    """Yield the phases of AlexNet with four GPUs. Waiting for the slowest is part of backward."""
    name, gpus, machine = "AlexNet", 4, calibrated()
    net, tree, size = NETS[name](), machine.tree(gpus), float(NETS[name]().gradients)
    forward, backward, update = phases(net)
    last, waiting = last_sum(name, gpus), machine.waiting(net, gpus)
    predicted = {
        BVLC: {
            "broadcast": tree.broadcast(size),
            "forward": forward,
            "backward": backward + waiting,
            "grad-acc": tree.collect(size),
        },
        TRL: {
            "forward": forward,
            "backward": backward + cgdp_overhead(name, gpus) - last,
            "broadcast remaining gradients from CPUs": last,
        },
    }
    for framework, row in TABLE_3.items():
        total = iteration(framework, name, gpus)
        values = {**predicted[framework], "update-param": update, "total time": total}
        for column, paper in row.items():
            yield _cell("Table 3", framework, column, "ms", paper, values[column] / MS)


def table_4() -> Iterator[dict[str, Any]]:
    """Yield the layers of AlexNet at the rates given by the sums of the printed rows."""
    rates, layers = calibrated().rates, exchanged(NETS["AlexNet"]())
    for number, (column, (_, size)) in enumerate(zip(LAYERS, layers, strict=True)):
        row = "no. of parameters (million)"
        yield _cell("Table 4", row, column, "million", TABLE_4[row][number], size / 4e6, "count")
        for row, seconds in zip((DOWN, ADD, UP), rates.transfers(size, 4), strict=True):
            role = "calibration (the row's sum)"
            yield _cell("Table 4", row, column, "ms", TABLE_4[row][number], seconds / MS, role)


def table_5() -> Iterator[dict[str, Any]]:
    """Yield memory sizes. What both schemes need is as printed for TRL/Caffe."""
    for name, (more, less) in TABLE_5.items():
        rooms = memory.rooms(NETS[name]()) / memory.MB
        role = "calibration (memory that both schemes need)"
        yield _cell("Table 5", BVLC, name, "MB", more, less + rooms)
        yield _cell("Table 5", TRL, name, "MB", less, less, role)
        yield _cell("Table 5", f"{BVLC} - {TRL}", name, "MB", more - less, rooms)
    for framework, paper in LARGEST.items():
        role = "calibration (memory available for training)" if framework == TRL else "check"
        value = memory.largest_batch(framework)
        yield _cell("Section 5.2.4", framework, "VGGNet-16", "images", paper, value, role)


def long_run() -> Iterator[dict[str, Any]]:
    """Yield the times to train AlexNet to 50% with four GPUs."""
    name, where = "AlexNet", "Section 5.2.5"
    test = test_seconds(name, TEST_BATCH, TEST)
    yield _cell(where, name, f"a test of {TEST} iterations", "s", TEST_SECONDS, test)
    minutes = {each: (RUN * iteration(each, name, 4) + TESTS * test) / 60 for each in LONG_RUN}
    for framework, paper in LONG_RUN.items():
        yield _cell(where, framework, "to 50% accuracy", "min", paper, minutes[framework])


def speedups() -> Iterator[dict[str, Any]]:
    """Yield speedups with four GPUs, for ResNet-152 with the best chunks."""
    for name, paper in SPEEDUPS.items():
        size = best_chunk(name)[0] if name == DEEP else 1
        value = iteration(BVLC, name, 4) / iteration(TRL, name, 4, size)
        where = "Section 5.3" if name == DEEP else "Section 5.2.1"
        yield _cell(where, name, f"{TRL} over {BVLC}, 4 GPUs", "x", paper, value)
    for name in NETS:
        if name != DEEP:
            value = 100 * alone(TRL, name) / iteration(TRL, name, 4)
            yield _cell(
                "Section 5.2.1",
                name,
                "efficiency of TRL/Caffe, 4 GPUs",
                "%",
                None,
                value,
                "printed: above 90",
            )


def figure_2() -> Iterator[dict[str, Any]]:
    """Yield ten iterations of ResNet-152 by chunk size, which the paper draws but does not print; then
    the statements of section 5.3."""
    drawn = "drawn, not printed"
    one = _deep(0.0)
    yield _cell("Figure 2", DEEP, "single GPU", "s", None, one, drawn)
    more = iteration(BVLC, DEEP, 4) - alone(BVLC, DEEP)
    yield _cell("Figure 2", DEEP, "TypDP", "s", None, _deep(more), drawn)
    for size in FIGURE_2:
        value = _deep(cgdp_overhead(DEEP, 4, size, FIGURE_2_BATCH))
        yield _cell("Figure 2", DEEP, f"chunk size {size}", "s", None, value, drawn)
    naive = iteration(TRL, DEEP, 4) / iteration(BVLC, DEEP, 4)
    role = "calibration (launch time; printed: slower)"
    yield _cell("Section 5.3", DEEP, "OrigCGDP over TypDP", "x", None, naive, role)
    best = iteration(TRL, DEEP, 4, best_chunk(DEEP)[0])
    for size in ALIKE:
        value = iteration(TRL, DEEP, 4, size) / best
        yield _cell(
            "Section 5.3", DEEP, f"chunk size {size} over the best", "x", None, value, "printed: alike"
        )
    found = searched(DEEP, 10, 5)
    yield _cell(
        "Section 5.3", DEEP, "best chunk size, step 10, range 5", "layers", BEST_CHUNK, found, "shape"
    )
    for (step, reach, size), length in SEARCHES.items():
        column = f"length of the search, step {step}, range {reach}, {size} best"
        value = search_length(step, reach, size)
        yield _cell("Section 5.3", DEEP, column, "iterations", length, value, "Algorithm 1")
    ways = {"single GPU": alone(BVLC, DEEP), "TypDP": iteration(BVLC, DEEP, 4)}
    ways |= {
        "OrigCGDP": iteration(TRL, DEEP, 4),
        f"chunk size {BEST_CHUNK}": iteration(TRL, DEEP, 4, BEST_CHUNK),
    }
    for column, seconds in ways.items():
        yield _cell("Figure 5", DEEP, column, "s", None, TEN * seconds, drawn)


def _deep(more: float) -> float:
    return TEN * (sum(phases(NETS[DEEP](FIGURE_2_BATCH))) + more)


def reproduce(paper: str) -> dict[str, Any] | None:
    """Return ``{"paper", "cells", "notes"}`` for cgdp; None for other papers."""
    if paper != PAPER:
        return None
    made = (table_1, table_2, table_3, table_4, table_5, long_run, speedups, figure_2)
    return {"paper": paper, "cells": [cell for table in made for cell in table()], "notes": notes()}
