"""Draw the curve of one or several training runs from the JSON that ``demitasse train --json`` writes.

    python tools/plot_curve.py out/digits.json -o out/digits.png

Runs that continue each other (a lower learning rate from a snapshot) are drawn as one line. The upper
panel has the loss of every iteration and its running mean, the lower one the accuracy of each test.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE, GREY = "#2a6f97", "#d1495b", "#8d99ae"


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean over the last ``width`` values, over fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return (sums[ends] - sums[starts]) / (ends - starts)


def draw(paths: list[Path], output: Path, title: str | None) -> None:
    """One picture of the runs in ``paths``, in order."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    losses = np.array([point for run in runs for point in run["history"]], dtype=float)
    tests = [test for run in runs for test in run["tests"]]
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(8, 5), sharex=True, height_ratios=[3, 2], layout="constrained"
    )
    width = max(1, len(losses) // 50)
    upper.plot(losses[:, 0], losses[:, 1], color=GREY, alpha=0.35, linewidth=0.6, label="each iteration")
    upper.plot(
        losses[:, 0], running_mean(losses[:, 1], width), color=BLUE, label=f"mean of the last {width}"
    )
    upper.set_yscale("log")
    upper.set_ylabel("training loss")
    upper.legend(frameon=False, loc="upper right")
    scores = [(t["iteration"], t["scores"]["accuracy"]) for t in tests if "accuracy" in t["scores"]]
    if scores:
        iterations, accuracy = zip(*scores, strict=True)
        lower.plot(iterations, np.array(accuracy) * 100, color=ORANGE, marker="o", markersize=3)
        lower.annotate(
            f"{accuracy[-1]:.2%}",
            (iterations[-1], accuracy[-1] * 100),
            textcoords="offset points",
            xytext=(-4, -14),
            ha="right",
        )
    lower.set_ylabel("test accuracy, %")
    lower.set_xlabel("iteration")
    for panel in (upper, lower):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    seconds = sum(run["seconds"] for run in runs)
    upper.set_title(
        title or f"{Path(runs[-1]['solver']).stem}, {seconds:.0f} s", loc="left", fontsize=11
    )
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)
    plt.close(figure)
    print(f"wrote {output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="JSON of demitasse train, in order")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a .png, .svg or .pdf file")
    parser.add_argument("--title")
    arguments = parser.parse_args()
    draw(arguments.runs, arguments.output, arguments.title)


if __name__ == "__main__":
    main()
