"""The figures that S-Caffe prints as numbers, in Table 2 and in its text, each with a prediction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from demitasse_allreduce.reproduction.cluster import (
    BINOMIAL,
    CALIBRATED,
    CB,
    CC,
    DEVICE_BANDWIDTH,
    MB,
    STAGED,
    Constants,
    Reduction,
    chain_crossover,
    chains_ahead,
    ideal_chain,
    ideal_chains,
    mvapich2,
    reduction_crossover,
    tuned,
    upper_ratio,
)
from demitasse_allreduce.reproduction.training import (
    CAFFENET,
    CIFAR_QUICK,
    FIXED,
    GOOGLENET,
    UPDATE,
    Net,
    broadcast_gain,
    reduction_gain,
    speedup,
)

PAPER = "s-caffe"
GPUS = 160
ROWS: Mapping[str, tuple[float, float, float, float] | None] = {
    "N/A": (40.6, 113.6, 1, 1),
    "CC-8": (28.6, 101.6, 1.47, 1.11),
    "CB-4": None,
    "CB-8": (17.6, 90.6, 2.3, 1.25),
}
"""Table 2: aggregation and total time in seconds, and the speedups of both. CB-4 is withheld."""

COLUMNS = ("Aggregation Time", "Total Time", "Speedup for Aggregation", "Overall Speedup")
CALIBRATES = {
    ("CB-8", COLUMNS[0]): "number of reductions",
    ("CB-8", COLUMNS[1]): "time besides aggregation",
    ("CC-8", COLUMNS[0]): "forwarding between nodes",
    ("N/A", COLUMNS[0]): "a step between hosts",
}
"""The cells that calibrated a constant, and which one. The table's other printed cells follow from
these: they only check that the paper's figures agree with each other."""

FOLLOWS = "follows from calibrated cells"
AGAINST = "contradicts section 6.3"

BATCHES = {GOOGLENET: 32 * 32, CAFFENET: 256}
"""Images on all devices together. Section 6.2's example has 1,024 for 32 devices, 32 each; CaffeNet's
own solver says 256."""

EACH = 32
"""Images on each device in GoogLeNet's baselines."""

DEVICE_COUNTS = (2, 4, 8, 16, 32, 64, 128, 160)
CIFAR_BATCH = 8192

NEAR = 0.1
"""Relative error above which the notes list a prediction as off."""

LARGEST = 256 * MB
"""The large message of section 3.4, in bytes."""


def reduction(row: str, constants: Constants = CALIBRATED) -> float:
    """Return the seconds of one reduction of GoogLeNet's gradients on 160 devices, for a row of Table
    2."""
    if row == "N/A":
        return mvapich2(GPUS, GOOGLENET.size, constants)
    level, chain = row.split("-")
    return {"CC": CC, "CB": CB}[level][int(chain)].seconds(GPUS, GOOGLENET.size, constants)


def reductions() -> float:
    """Return how many reductions Table 2's times are for. The paper does not say; it is derived from the
    cell of CB-8."""
    cell = ROWS["CB-8"]
    assert cell is not None
    return cell[0] / reduction("CB-8")


def rest() -> float:
    """Return the seconds of Table 2's runs that are not aggregation, from row CB-8; all printed rows
    have the same."""
    cell = ROWS["CB-8"]
    assert cell is not None
    return cell[1] - cell[0]


def table_2() -> Iterator[dict[str, Any]]:
    """Yield the cells of Table 2."""
    count, other = reductions(), rest()
    basic = count * reduction("N/A")
    for row, printed in ROWS.items():
        seconds = count * reduction(row)
        total = seconds + other
        values = (seconds, total, basic / seconds, (basic + other) / total)
        for i, (column, value) in enumerate(zip(COLUMNS, values, strict=True)):
            paper = None if printed is None else printed[i]
            what = CALIBRATES.get((row, column))
            role = f"calibration ({what})" if what else FOLLOWS if printed else "withheld"
            unit = "s" if i < 2 else "x"
            yield _cell("Table 2", row, column, unit, paper, value, role)


def crossovers() -> Iterator[dict[str, Any]]:
    """Yield the crossovers of section 5, and those of the schedules by their cost on the cluster."""
    ideal, table = ideal_chain(), "Section 5"
    yield _cell(
        table,
        "chunked chain below binomial tree, 8 processes",
        "buffer from which it is quicker",
        "MB",
        8,
        chain_crossover() / MB,
        "calibration (time of a step)",
    )
    yield _cell(
        table, "chunked chain", "ideal P", "processes", 8, ideal, "calibration (number of chunks)"
    )
    row = "chain of chains"
    yield _cell(table, row, "scales to (ideal P, squared)", "processes", 64, ideal**2, FOLLOWS)
    yield _cell(table, row, "ideal P (equations 1, 2)", "processes", 64, ideal_chains(), "check")
    column = "no slower than chain-binomial (cost)"
    yield _cell(table, row, column, "processes", None, chains_ahead(), "not printed")
    for processes in (16, 32, 64, 128, GPUS):
        for better, other in ((CB[8], BINOMIAL), (CC[8], BINOMIAL), (CC[8], CB[8])):
            size = reduction_crossover(better, other, processes)
            if size is not None:
                column = f"buffer from which {better} is quicker than {other}"
                row = f"{processes} processes"
                yield _cell(table, row, column, "MB", None, size / MB, "not printed")


def microbenchmark() -> Iterator[dict[str, Any]]:
    """Yield the cells of figures 11 and 12, with 160 processes."""
    sizes = (1 * MB, 8 * MB, 64 * MB, LARGEST)
    gain = max(mvapich2(GPUS, size) / tuned(GPUS, size)[0] for size in sizes)
    yield _cell("Section 6.5", "HR (Tuned), 160 GPUs", "over MVAPICH2, at most", "x", 2.6, gain, "check")
    for size in sizes:
        row = f"{size / MB:g} MB"
        ways: list[Reduction] = [CC[4], CC[8], CB[4], CB[8]]
        seconds = {"MV2": mvapich2(GPUS, size), **{str(w): w.seconds(GPUS, size) for w in ways}}
        for way, value in {**seconds, "HR (Tuned)": tuned(GPUS, size)[0]}.items():
            yield _cell("Figure 11", row, way, "ms", None, 1e3 * value, "drawn, not printed")


def largest_broadcast_gain() -> tuple[float, str, int]:
    """Return the largest gain of SC-OB over SC-B in per cent among section 6's nets, with its net and
    number of devices."""
    return max(
        (broadcast_gain(net, batch, devices), net.name, devices)
        for net, batch in BATCHES.items()
        for devices in DEVICE_COUNTS
    )


def training() -> Iterator[dict[str, Any]]:
    """Yield the cells of sections 6.3 and 6.6."""

    def scaled(net: Net, batch: int, few: int, many: int) -> tuple[str, str, float]:
        row = f"{net.name}, {many} GPUs" if many > 1 else net.name
        what = f"over {few} GPU" + ("s" if few > 1 else "")
        return row, what, speedup(net, batch, few, many)

    for few, many, paper in ((32, 160, 2.5), (16, 128, 3.3)):
        row, column, value = scaled(GOOGLENET, EACH * few, few, many)
        yield _cell("Figure 8", row, column, "x", paper, value, "check")
        value = speedup(GOOGLENET, EACH * few, few, many, overlapped=True)
        yield _cell("Figure 8", row, f"{column}, all overlapped", "x", None, value, "not printed")
    row, column, value = scaled(CIFAR_QUICK, CIFAR_BATCH, 1, 64)
    yield _cell("Figure 9", row, column, "x", 32, value, "calibration (fixed time)")
    gain = largest_broadcast_gain()[0]
    yield _cell("Figure 13", "up to", "SC-OB over SC-B", "%", 15, gain, "check")
    for devices, paper in ((8, 20), (16, 12)):
        gain = reduction_gain(CAFFENET, BATCHES[CAFFENET], devices)
        row = f"CaffeNet, {devices} GPUs"
        yield _cell("Section 6.6", row, "SC-OBR over SC-B", "%", paper, gain, "check")


def conclusion() -> Iterator[dict[str, Any]]:
    """Yield the cells of section 8, as far as it adds to or contradicts the earlier sections."""
    count, other = reductions(), rest()
    basic, best = (count * reduction(row) + other for row in ("N/A", "CB-8"))
    row, column = f"GoogLeNet, {GPUS} GPUs", "SC-OBR and HR over SC-B"
    yield _cell("Section 8", row, column, "%", 20, 100 * (1 - best / basic), FOLLOWS)
    value = speedup(CIFAR_QUICK, CIFAR_BATCH, 1, 64)
    yield _cell("Section 8", "CIFAR10 quick, 64 GPUs", "over 1 GPU", "x", 33, value, FOLLOWS)
    value = speedup(CAFFENET, EACH * 32, 32, 128)
    yield _cell("Section 8", "CaffeNet, 128 GPUs", "over 32 GPUs", "x", None, value, AGAINST)


def _cell(
    table: str, row: str, column: str, unit: str, paper: float | None, predicted: float, role: str
) -> dict[str, Any]:
    return {
        "table": table,
        "row": row,
        "column": column,
        "unit": unit,
        "paper": paper,
        "predicted": float(predicted),
        "role": role,
    }


def cells() -> list[dict[str, Any]]:
    """Return all cells, those of Table 2 first."""
    return [*table_2(), *crossovers(), *microbenchmark(), *training(), *conclusion()]


def notes() -> list[str]:
    """Return notes: the source of each constant, which figures calibrate and which check, and what
    remains unexplained."""
    c, found = CALIBRATED, cells()
    gain, net, devices = largest_broadcast_gain()
    caffenet = max(broadcast_gain(CAFFENET, BATCHES[CAFFENET], each) for each in DEVICE_COUNTS)
    eight = mvapich2(8, CAFFENET.size)
    staged = STAGED * CAFFENET.size / DEVICE_BANDWIDTH / eight
    known = [cell for cell in found if cell["paper"] is not None]
    roles = [str(cell["role"]).split(" (")[0] for cell in known]
    far = [cell for cell in known if abs(cell["predicted"] / cell["paper"] - 1) > NEAR]
    off = "; ".join(
        f"{each['table']}, {each['row']}, {each['column']}: {each['predicted'] / each['paper'] - 1:+.0%}"
        for each in far
    )
    return [
        "all predictions are simulated. They come from equations 1 and 2 and from this plugin's own "
        f"schedules, costed on the network of hwdesc/kesch-cs-storm.toml ({DEVICE_BANDWIDTH / 1e9:g} "
        "GB/s between devices: assumed)",
        f"of {len(known)} printed figures, {roles.count('calibration')} calibrate one constant each, "
        f"{roles.count(FOLLOWS)} follow from those, and {roles.count('check')} are checks. The role of "
        "a cell (in --json) says which",
        "the form of the model, the assumed batches and Figure 13's nets were chosen with all printed "
        "figures in view, which weakens the checks. Constants were fitted to the calibration cells "
        "alone",
        f"a chain has n = {c.chunks} chunks. With this number, equations 1 and 2 give section 5's "
        "ideal length of 8",
        f"a step takes {c.step * 1e6:g} us in addition to its message. This gives section 5's "
        "crossover at 8 MB",
        *_notes_of_table_2(),
        f"training: layers reach {GOOGLENET.share:.1%} (GoogLeNet) and {CAFFENET.share:.1%} (CaffeNet) "
        "of a device's peak, as in Caffe's published times with cuDNN on a K40. No time is published "
        "for CIFAR10 quick, so it has GoogLeNet's share",
        f"training: {FIXED * 1e3:g} ms of the forward and backward passes are not divided among GPUs "
        "(fitted to Figure 9's 32 times)",
        f"training: batches that are not printed are assumed. GoogLeNet's baselines have {EACH} images "
        f"per GPU (section 6.2's example). CaffeNet has {BATCHES[CAFFENET]} images on all GPUs "
        "together (its own solver's batch)",
        "Figure 8 does not say which stage ran. The predicted speedups are for phases that run one "
        "after the other, with HR. They would be larger if everything that can overlap did (rows 'all "
        "overlapped'). The stage was chosen with both printed figures in view, but nothing is fitted "
        "to them",
        "section 6.6 and Figure 13: the backward pass hides reductions, and the forward pass hides "
        "broadcasts, each up to its own duration. One reduction per layer has one set of latencies per "
        "layer. The first layer has no gradient with respect to data. The root's update reads and "
        f"writes all parameters {UPDATE} times",
        "Figure 13 names neither the net nor the number of GPUs. The largest gain is shown: "
        f"{gain:.1f}% for {net} on {devices} GPUs ({caffenet:.1f}% for CaffeNet alone)",
        f"not within 10%: {off or 'none'}",
        "section 6.6: the errors of CaffeNet's two gains are close to 10%. At most the backward pass "
        "can be hidden, and with 16 GPUs it takes about half as long as with 8. Gains of 20% and 12% "
        "therefore require communication that takes hardly longer on 16 GPUs than on 8. The simulation "
        f"agrees as far as communication consists of MVAPICH2's copies ({staged:.0%} of its reduction "
        "on 8 GPUs), and as launching kernels takes as long for fewer images",
        "the paper contradicts itself: section 6.3 prints 3.3 times over 16 GPUs for GoogLeNet and 32 "
        "times for CIFAR10. The conclusion prints 3.3 times over 32 GPUs for CaffeNet, and 33 times "
        "for CIFAR10. Section 6.5 prints 'almost 3X' where the abstract prints 2.6 times over MVAPICH2",
        "section 8: CaffeNet's 3.3 times is taken to be GoogLeNet's figure. CaffeNet cannot reach it "
        f"here: on four times as many GPUs, {EACH} images per GPU become {EACH // 4}, and exchanging "
        f"{CAFFENET.size / MB:.0f} MB takes longer than both passes over them",
        "not predicted: 133 times over Open MPI, 14% and 9% over Nvidia's Caffe, and 1,395 samples/s "
        "on Cluster-B. Nothing describes the other side of these comparisons, or that machine",
    ]


def _notes_of_table_2() -> list[str]:
    c, equations = CALIBRATED, Constants(passing_on=1)
    at_most, of_two = upper_ratio(c.chunks), upper_ratio(2)
    return [
        "Table 2 is taken to be GoogLeNet on 160 GPUs, for which the conclusion reports its 20%. The "
        f"gradients are {GOOGLENET.size / MB:.1f} MB in one buffer",
        f"Table 2 has {reductions():.0f} reductions, fitted to CB-8. Another {rest():.1f} s are not "
        "aggregation; this is the same in each printed row",
        "Table 2, SC-B: by its published source (reduce_osu.c), MVAPICH2 copies both buffers of a "
        f"device to the host, reduces there, and copies the result back. That makes {STAGED} whole "
        "copies, however many devices there are",
        f"Table 2, SC-B: a step between hosts takes {c.host:g} times as long as a step between devices "
        "(fitted to that cell). Section 6.5's 2.6 times checks this",
        f"Table 2, CC-8: a message takes {c.passing_on:g} times as long if a device receives and sends "
        "at the same time, and one of the two messages is to or from another node (fitted to that "
        "cell). Taking turns explains a factor of 2; the rest is a residual. By equation 2 as printed, "
        f"CC-8 would take {reductions() * reduction('CC-8', equations):.1f} s, less than CB-8",
        "Table 2, CB-4 (withheld) hardly depends on the constants. Its upper tree has one round more "
        "than CB-8's, and its chains have four steps fewer. It is slower than CB-8, which section 6.6 "
        "calls optimal",
        "Table 2 prints a speedup of 1.47 for CC-8; its times give 40.6 / 28.6 = 1.42",
        "section 5: a chain of chains scales to 64 processes, by the paper's argument because 64 is "
        "the square of the ideal length. By equations 1 and 2, 64 is also where it leads a binomial "
        "tree most, as 8 is for a single chain",
        "section 5: the paper does not print up to which number of processes a chain of chains is no "
        f"slower than chain-binomial. By the equations it is still ahead at {chains_ahead(equations)} "
        f"({LARGEST / MB:g} MB). With the factor that Table 2's CC-8 needs, it never is (8: both are "
        "the same single chain)",
        "section 5: if a chain of chains is no slower at 64, then at 160 it takes at most "
        f"{at_most:.2f} times as long as chain-binomial (n = {c.chunks}; {of_two:.2f} with two "
        "chunks). Table 2 says 1.63",
    ]


def reproduce(paper: str) -> dict[str, Any] | None:
    """Return ``{"paper", "cells", "notes"}`` for s-caffe; None for other papers."""
    if paper != PAPER:
        return None
    return {"paper": paper, "cells": cells(), "notes": notes()}
