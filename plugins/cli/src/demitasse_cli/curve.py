"""``demitasse curve``: plot how trainings went."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from demitasse import check_writable
from demitasse_cli import options as shared
from demitasse_cli.report import human_time, replaced

FORMATS = (".png", ".svg", ".pdf")
GREY, COLOURS = "#8d99ae", ("#2a6f97", "#d1495b", "#e69f00", "#009e73", "#7b2cbf", "#56b4e9", "#3d405b")
STYLES = ("-", "--", "-.", ":")
"""Colours and styles of lines have no common period, so that 28 runs can be told apart, and the first
four in print without colours."""
_LONGEST = 64
"""The number of characters of a run's name that are shown."""
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
    """Plot each iteration's loss and its running mean above, and a score of each test, if there was
    one, below. Raises DataError if Matplotlib is not installed."""
    from demitasse import DataError

    try:
        import matplotlib as mpl
        import numpy as np
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator, PercentFormatter, StrMethodFormatter
    except ImportError as error:
        raise DataError(f"pictures need Matplotlib ({error}); pip install matplotlib") from error
    several, tested = len(runs) > 1, any(run.scored(score) for run in runs)
    below = 0.22 * (len(runs) + 1) if several else 0.0  # inches for the names of runs
    figure = Figure(figsize=(8, (5 if tested else 3.4) + below), layout="constrained")
    panels = figure.subplots(1 + tested, 1, sharex=True, squeeze=False)[:, 0]
    upper = panels[0]
    if tested:
        panels[0].get_gridspec().set_height_ratios([3, 2])
    lowest, highest = math.inf, -math.inf
    for number, run in enumerate(runs):
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
        iterations, losses = np.array(run.history, dtype=float).T
        finite = losses[np.isfinite(losses)]
        lowest, highest = min([lowest, *finite]), max([highest, *finite])
        width = max(1, len(losses) // _POINTS)
        apart = (iterations[-1] - iterations[0]) / max(1, len(losses) - 1)
        if not several and width > 1:
            label = "each iteration" if apart == 1 else f"one of {apart:,.0f} iterations"
            upper.plot(iterations, losses, color=GREY, alpha=0.35, linewidth=0.6, label=label)
        label = f"mean of the last {width * apart:,.0f}" if width > 1 else "each iteration"
        if several:
            label = ", ".join([_shortened(run.file), _duration(run.seconds), *_last(run, score)])
        mean = running_mean(losses, width)
        # A point without neighbours has no line.
        point = "o" if len(finite) == 1 else None
        upper.plot(iterations, mean, style, color=colour, label=label, marker=point)
        if tests := run.scored(score):
            about: dict[str, Any] = {"marker": "o", "markersize": 3, "linestyle": style}
            shade = colour if several else COLOURS[1]
            panels[1].plot(*zip(*tests, strict=True), color=shade, label=_last(run, score)[0], **about)
    # A logarithm would hide what is not positive.
    upper.set_yscale("log" if 0 <= lowest < highest or 0 < lowest == highest else "linear")
    upper.set_ylabel("training loss")
    if not math.isfinite(lowest):
        upper.text(0.5, 0.5, "no loss is finite", transform=upper.transAxes, ha="center")
    every = [iteration for run in runs for iteration, _ in run.history]
    every += [iteration for run in runs for iteration, _ in run.scored(score)]
    margin = max(1.0, 0.02 * (max(every) - min(every)))
    upper.set_xlim(min(every) - margin, max(every) + margin)
    if several:
        figure.legend(handles=upper.lines, frameon=False, loc="outside lower left")
    else:
        upper.legend(frameon=False, loc="upper right")
    if tested:
        if not several:
            panels[1].legend(frameon=False, loc="lower right")
        panels[1].set_ylabel(f"test {score}")
        if _is_share(score):
            panels[1].yaxis.set_major_formatter(PercentFormatter(1.0))
    panels[-1].set_xlabel("iteration")
    panels[-1].xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    panels[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    default = "" if several else f"{_shortened(runs[0].solver)}, {_duration(runs[0].seconds)}"
    upper.set_title(title or default, loc="left", fontsize=11)
    # Without these, no two files of the same picture would be the same.
    kind = target.suffix[1:].lower()
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with replaced(target) as partial, mpl.rc_context({"svg.hashsalt": "demitasse"}):
        figure.savefig(partial, dpi=110, format=kind, metadata=undated)


def _last(run: Run, score: str) -> list[str]:
    """Return a run's last score as text; nothing if it was not tested."""
    tests = run.scored(score)
    return [f"{tests[-1][1]:.2%}" if _is_share(score) else f"{tests[-1][1]:.4g}"] if tests else []


def _duration(seconds: float) -> str:
    """Return seconds as text; hours and minutes if they are many."""
    return f"{seconds:.0f} s" if not seconds >= 600 else human_time(seconds)


def _shortened(name: str) -> str:
    """Return a name without its middle, if it is long: runs often differ at the end."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"


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
