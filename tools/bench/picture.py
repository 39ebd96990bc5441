"""A plot of a comparison: for each net, the times of the contenders' best settings and of the floor, as
multiples of our own time. The bars begin at zero, so their lengths compare."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bench.contenders import OWN
from bench.report import PEERS, Row

COLOURS = {OWN: "#2a6f97", "pytorch": "#d1495b", "tensorflow": "#edae49", "floor": "#8d99ae"}


def draw(rows: Sequence[Row], output: Path) -> None:
    """Draw a panel for each task, precision and batch size; training steps of all nets share one."""

    def panel_of(row: Row) -> tuple[str, str, int]:
        task = row.task
        return task.what, task.precision, task.batch if task.what == "inference" else 0

    groups = [(key, list(each)) for key, each in groupby(sorted(rows, key=panel_of), key=panel_of)]
    figure, panels = plt.subplots(
        len(groups), 1, figsize=(9, 3.2 * len(groups)), squeeze=False, layout="constrained"
    )
    for panel, ((what, precision, batch), members) in zip(panels[:, 0], groups, strict=True):
        for number, name in enumerate((OWN, *PEERS, "floor")):
            times = [1e3 * _seconds(row, name) for row in members]
            own = [1e3 * _seconds(row, OWN) for row in members]
            heights = [t / ours if ours else 0.0 for t, ours in zip(times, own, strict=True)]
            places = [i + (number - 1.5) * 0.2 for i in range(len(members))]
            bars = panel.bar(places, heights, 0.19, color=COLOURS[name], label=name)
            words = [(f"{t:.3g} ms" if t < 100 else f"{t:,.0f} ms") if t else "" for t in times]
            panel.bar_label(bars, words, fontsize=7, rotation=90, padding=2)
        labels = [f"{row.task.net}\nb{row.task.batch}" for row in members]
        panel.set_xticks(range(len(members)), labels)
        panel.margins(y=0.3)
        panel.set_ylabel(f"time over {OWN}'s")
        title = "a training step" if what == "train" else f"inference at batch {batch}"
        panel.set_title(f"{title}, {precision}", loc="left", fontsize=11)
        panel.spines[["top", "right"]].set_visible(False)
    handles, names = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, ncols=4, loc="outside upper right", fontsize=8)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)
    plt.close(figure)


def _seconds(row: Row, name: str) -> float:
    if name == "floor":
        return row.floor.arithmetic
    return row.best[name][0] if name in row.best else 0.0
