"""``demitasse curve``: plot how trainings went."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from demitasse_cli import options as shared
from demitasse_cli.report import check_writable, replaced

FORMATS = (".png", ".svg", ".pdf")
GREY, COLOURS = "#8d99ae", ("#2a6f97", "#d1495b", "#2b9348", "#e09f3e", "#7b2cbf", "#3d405b")
_POINTS = 50
"""Each point of the running mean of the loss covers one of this many parts of a run."""
_LAST = 1 << 31
"""The largest iteration of a training; axis ticks fail for numbers of 64 bits."""


@click.command(
    "curve",
    epilog="Example: demitasse curve run.json other.json --compare -o both.png",
    help="Draw the loss and the test scores of runs: RUNS are files that demitasse train --json wrote. "
    "Runs that continue each other form one line; with --compare each run is drawn by itself.",
)
@click.argument("runs", metavar="RUNS...", nargs=-1, required=True, type=shared.file)
@click.option(
    "-o",
    "--output",
    type=shared.file,
    metavar="FILE",
    help=f"The picture ({', '.join(FORMATS)}); default: the first run's name with .png.",
)
@click.option("--compare", is_flag=True, help="Draw each run by itself.")
@click.option("--score", metavar="NAME", help="The test score; default: accuracy, or else any other.")
@click.option("--title", metavar="TEXT", help="Default: the solver's name and the time taken.")
def command(
    runs: tuple[Path, ...], output: Path | None, compare: bool, score: str | None, title: str | None
) -> None:
    """Draw, and say what was written."""
    from demitasse import DataError

    target = output or runs[0].with_suffix(".png")
    if target.suffix.lower() not in FORMATS:
        raise click.UsageError(f"{target}: unknown picture format (valid: {', '.join(FORMATS)})")
    check_writable({"--output": target})
    read = []
    for path in runs:
        if (run := Run.read(path)).history:
            read.append(run)
        elif len(runs) > 1:  # a job that was queued again and had nothing to do, or no time
            click.echo(f"{path}: the run has no iterations; left out", err=True)
    if not read:
        raise DataError(f"{runs[0]}: the run has no iterations")
    lines = read if compare and len(read) > 1 else [Run.joined(read)]
    draw(lines, target, _score(lines, score), title)
    click.echo(f"wrote {target}")


@dataclass(frozen=True)
class Run:
    """A training: the names of its solver and of its file, (iteration, loss) of each iteration (NaN: not
    reported), (iteration, scores) of each test, the snapshot from which it resumed, and whether it
    failed."""

    solver: str
    file: str
    history: Sequence[tuple[int, float]]
    tests: Sequence[tuple[int, Mapping[str, float]]]
    seconds: float
    resumed: str = ""
    failed: bool = False

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read a report of ``demitasse train --json``. Raises DataError for any other file, or if there
        is none; ModelError for a folder, a pipe or a device."""
        from demitasse import DataError, check_file, is_there, nearest_path

        if is_there(path):
            check_file(path)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{path}: cannot be read: {reason}{nearest_path(path)}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: is neither JSON nor any other text") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: is not JSON: {error}") from error
        try:
            history = [(_whole(iteration), _number(loss)) for iteration, loss in record["history"]]
            tests = [(_whole(test["iteration"]), _scores(test["scores"])) for test in record["tests"]]
            name, seconds = Path(record["solver"]).stem, _number(record["seconds"])
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise DataError(f"{path}: is not the record of a run, as train --json writes it") from error
        resumed, failed = str(record.get("resumed") or ""), "error" in record
        return cls(name, path.stem, history, tests, seconds, resumed, failed)

    @classmethod
    def joined(cls, runs: Sequence[Run]) -> Run:
        """Join runs that continue each other, given in any order, into one with the last one's names. If
        a run resumed from before its predecessor's end, its own iterations count. Two runs may have
        begun from the same snapshot, or from nothing, because the first failed before it wrote a
        snapshot; then those of the run that came further count. Raises DataError for any other two runs
        that begin at the same iteration."""
        from demitasse import DataError

        *before, last = sorted(runs, key=lambda run: (run.history[0][0], run.history[-1][0]))
        history, tests, later = [*last.history], [*last.tests], last
        for run in reversed(before):
            if (start := later.history[0][0]) == run.history[0][0]:
                again = (run.failed or later.failed) and run.solver == later.solver
                if run.resumed == later.resumed and (run.resumed or again):
                    continue
                raise DataError(
                    f"{run.file} and {later.file} both begin at iteration {start}, so neither continues "
                    f"the other; --compare draws each by itself"
                )
            history = [*(point for point in run.history if point[0] < start), *history]
            tests = [*(test for test in run.tests if test[0] < start), *tests]
            later = run
        return cls(last.solver, last.file, history, tests, sum(run.seconds for run in runs))

    def scored(self, name: str) -> list[tuple[int, float]]:
        """Return (iteration, score) for the tests that have this score."""
        return [(iteration, scores[name]) for iteration, scores in self.tests if name in scores]


def draw(runs: Sequence[Run], target: Path, score: str, title: str | None) -> None:
    """Plot each iteration's loss and its running mean above, and a score of each test below. Raises
    DataError if Matplotlib is not installed."""
    from demitasse import DataError

    try:
        import numpy as np
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter
    except ImportError as error:
        raise DataError(f"pictures need Matplotlib ({error}); pip install matplotlib") from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    several = len(runs) > 1
    for run, colour in zip(runs, COLOURS * len(runs), strict=False):
        iterations, losses = np.array(run.history, dtype=float).T
        if not several:
            upper.plot(iterations, losses, color=GREY, alpha=0.35, linewidth=0.6, label="each iteration")
        width = max(1, len(losses) // _POINTS)
        label = f"{run.file}, {run.seconds:.0f} s" if several else f"mean of the last {width}"
        upper.plot(iterations, running_mean(losses, width), color=colour, label=label)
        if tests := run.scored(score):
            last = f"{tests[-1][1]:.2%}" if _is_share(score) else f"{tests[-1][1]:.4g}"
            label = f"{run.file}: {last}" if several else last
            about: dict[str, Any] = {"marker": "o", "markersize": 3, "label": label}
            lower.plot(*zip(*tests, strict=True), color=colour if several else COLOURS[1], **about)
            lower.legend(frameon=False, loc="lower right")
    upper.set_yscale("log")
    upper.set_ylabel("training loss")
    upper.legend(frameon=False, loc="upper right")
    lower.set_ylabel(f"test {score}")
    lower.set_xlabel("iteration")
    if _is_share(score):
        lower.yaxis.set_major_formatter(PercentFormatter(1.0))
    for panel in (upper, lower):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    default = "" if several else f"{runs[0].solver}, {runs[0].seconds:.0f} s"
    upper.set_title(title or default, loc="left", fontsize=11)
    with replaced(target) as partial:
        figure.savefig(partial, dpi=110, format=target.suffix[1:].lower())


def _whole(value: Any) -> int:
    """Check an iteration's number. Raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value < _LAST:
        raise ValueError(f"{value!r} is not an iteration")
    return value


def _number(value: Any) -> float:
    """Return a number; NaN for None. Raises TypeError or OverflowError for anything else."""
    if isinstance(value, (str, bool)):
        raise TypeError(f"{value!r} is not a number")
    return math.nan if value is None else float(value)


def _scores(scores: Any) -> dict[str, float]:
    """Return the scores of a test that are single numbers; per-class accuracies are lists."""
    return {name: _number(score) for name, score in scores.items() if not isinstance(score, list)}


def _is_share(score: str) -> bool:
    return "accuracy" in score


def running_mean(values: Any, width: int) -> Any:
    """Return the mean of the finite ones among the last ``width`` values; of fewer at the start."""
    import numpy as np

    known = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    counted = counts[ends] - counts[starts]
    return np.where(counted, (sums[ends] - sums[starts]) / np.maximum(counted, 1), np.nan)


def _score(runs: Sequence[Run], asked: str | None) -> str:
    """Return the name of the score to plot: the requested one, else accuracy, else any score that is not
    a loss, else the first. Raises DataError if no test has the requested one."""
    from demitasse import DataError, unknown

    names = list(dict.fromkeys(name for run in runs for _, scores in run.tests for name in scores))
    if asked is not None and asked not in names:
        raise DataError(unknown("score", asked, names))
    others = [name for name in names if "loss" not in name]
    accuracies = [name for name in others if _is_share(name)]
    return asked or next(iter([*accuracies, *others, *names]), "score")
