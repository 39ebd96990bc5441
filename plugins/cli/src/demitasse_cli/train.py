"""``demitasse train``: compose, show what and why, run, report."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse_cli import options as shared
from demitasse_cli import report
from demitasse_cli.interrupts import Interrupts
from demitasse_cli.progress import Live, Meter, shown
from demitasse_cli.timeline import Timeline

if TYPE_CHECKING:
    from demitasse import Composition, Event, Runtime, Solver

HISTORY = 10_000
"""Losses kept for the report; a longer run keeps every second, then every fourth, and so on."""


class History:
    """Losses, test scores and the last snapshot of a run, as its events tell them."""

    def __init__(self) -> None:
        self.losses: list[tuple[int, float]] = []
        self.tests: list[dict[str, Any]] = []
        self.snapshot: Path | None = None
        self._every = 1

    def __call__(self, event: Event) -> None:
        if event.kind == "iteration" and event.iteration % self._every == 0:
            self.losses.append((event.iteration, float(event.values["loss"])))
            if len(self.losses) > HISTORY:
                self._every *= 2
                self.losses = [row for row in self.losses if row[0] % self._every == 0]
        elif event.kind == "test":
            scores = dict(event.values["scores"])
            self.tests.append({"iteration": event.iteration, "scores": scores})
        elif event.kind == "snapshot":
            self.snapshot = Path(event.values["path"])

    @property
    def scores(self) -> Mapping[str, Any]:
        """Those of the last test; empty when there was none."""
        return self.tests[-1]["scores"] if self.tests else {}


@click.command("train", help="Train a net from a SOLVER file.")
@click.argument("solver", type=shared.file)
@shared.runtime_options
@click.option("--weights", metavar="FILE[,FILE]", help="Start from these weights, by layer name.")
@click.option(
    "--resume",
    metavar="FILE",
    help="Continue from a snapshot; auto takes the newest one with the solver's prefix.",
)
@click.option(
    "--iterations",
    type=click.IntRange(min=0),
    metavar="N",
    help="Train up to iteration N instead of the solver's last.",
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    default="strong",
    show_default=True,
    help="strong: the solver's batch is shared by all workers; weak: each worker has one.",
)
@shared.precision_option
@shared.overrides_option
@click.option(
    "--timeline",
    type=shared.file,
    metavar="FILE",
    help="Write a timeline for chrome://tracing or Perfetto.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the result as JSON; - is standard output."
)
@click.option("--no-progress", "--quiet", "quiet", is_flag=True, help="Show no progress.")
def command(
    solver: Path,
    hw: str,
    plugins: str | None,
    options: tuple[tuple[str, str, Any], ...],
    weights: str | None,
    resume: str | None,
    iterations: int | None,
    scaling: str,
    precision: str,
    settings: tuple[tuple[str, str], ...],
    timeline: Path | None,
    json_path: str | None,
    quiet: bool,
) -> int:
    """Train; the exit status is 0, or 128 and the signal's number after an interruption."""
    overrides: dict[str, Any] = dict(settings)
    if iterations is not None:
        overrides["max_iter"] = iterations
    stream = report.lines_to(json_path)
    report.check_writable(json_path, timeline)
    with shared.compose(hw, plugins, options) as runtime:
        if not quiet:
            print(composed(runtime.composition), file=stream, flush=True)
        if resume == "auto":
            resume = newest_snapshot(runtime.read(solver).solver(overrides))
        trainer = runtime.trainer(
            solver,
            weights=weights,
            resume=resume,
            overrides=overrides,
            scaling=scaling,
            precision=precision,
        )
        if not quiet:
            print(effective(trainer, scaling, resume), file=stream, flush=True)
        about = {"solver": str(solver), "scaling": scaling, "precision": precision}
        return run(runtime, trainer, about, quiet, timeline, json_path)


def run(
    runtime: Runtime,
    trainer: Any,
    about: Mapping[str, Any],
    quiet: bool = False,
    timeline: Path | None = None,
    json_path: str | None = None,
) -> int:
    """Train to the end or to a signal, and report. A run that fails still writes its report, with
    the error in it."""
    stream = report.lines_to(json_path)
    history, started = History(), time.perf_counter()
    meter = Meter(trainer.iteration, trainer.solver.max_iterations)
    show = shown(meter, trainer.solver.display_interval, stream, quiet)
    trainer.listeners += [show, history]
    recorder = Timeline()
    if timeline is not None:
        trainer.listeners.append(recorder)
    record = {"iterations": trainer.iteration, "loss": None, **about}

    def write_report() -> None:
        if json_path is None:
            return
        seconds = time.perf_counter() - started
        report.write_json(
            json_path,
            record
            | {
                "iterations": trainer.iteration,
                "scores": history.scores,
                "seconds": seconds,
                "samples_per_second": meter.overall,
                "composition": runtime.composition.to_dict(),
                "history": history.losses,
                "tests": history.tests,
                "snapshot": history.snapshot,
                "batch": trainer.batch,
                "workers": trainer.workers,
            },
        )

    terminal = stream.fileno() if isinstance(show, Live) else None
    try:
        with closing(show), Interrupts(terminal) as interrupts:
            result = trainer.run(stop=interrupts.stop)
    except BaseException as error:
        if history.losses:
            record |= {"loss": history.losses[-1][1], "error": f"{type(error).__name__}: {error}"}
            write_report()
        raise
    record |= {"loss": result.loss, "phases": result.phases, "interrupted": interrupts.stop()}
    if timeline is not None:
        if not interrupts.stop():
            recorder.profile(trainer.profile(1))
        recorder.write(timeline)
    write_report()
    if not quiet or interrupts.stop():
        word = "interrupted" if interrupts.stop() else "done"
        line = came_to(trainer.iteration, result.loss, history, time.perf_counter() - started)
        print(f"{word}: {line}", file=sys.stderr if quiet else stream, flush=True)
    return interrupts.status


def came_to(iteration: int, loss: float, history: History, seconds: float) -> str:
    """What the run came to."""
    parts = [f"{iteration} iterations", f"loss {loss:.4g}"]
    if history.scores:
        parts.append(f"test {report.scores_text(history.scores)}")
    parts.append(f"{seconds:.1f} s")
    if history.snapshot is not None:
        parts.append(f"snapshot {history.snapshot}")
    return "  ".join(parts)


def composed(composition: Composition) -> str:
    """The plugins and why, a line each."""
    roles: dict[str, list[str]] = {manifest.name: [] for manifest in composition.plugins}
    reasons: dict[str, str] = {}
    for choice in composition.choices:
        roles.setdefault(choice.plugin, []).append(choice.role)
        reasons.setdefault(choice.plugin, choice.reason)
    rows = [
        (name, reasons.get(name, ""), ", ".join(dict.fromkeys(served))) for name, served in roles.items()
    ]
    unused: dict[str, list[str]] = {}
    for name, reason in composition.rejected:
        unused.setdefault(reason, []).append(name)
    return "\n".join(
        [
            f"machine  {composition.machine}",
            report.table(("plugin", "because", "for"), rows),
            *(f"not used  {', '.join(names)}: {reason}" for reason, names in unused.items()),
        ]
    )


def effective(trainer: Any, scaling: str, resume: str | None) -> str:
    """The batch and learning rate that the workers make together, and where the run begins."""
    workers = report.counted(trainer.workers, "worker")
    begin = f"from iteration {trainer.iteration}"
    if resume is not None:
        begin += f" ({resume})"
    return (
        f"batch {trainer.batch} on {workers} ({scaling} scaling)  "
        f"learning rate {trainer.solver.rate(trainer.iteration):.4g}  "
        f"{begin} to {trainer.solver.max_iterations}"
    )


def newest_snapshot(solver: Solver) -> str | None:
    """The snapshot of the highest iteration with the solver's prefix, None when there is none."""
    prefix = Path(solver.snapshot_prefix or "snapshot")
    pattern = re.compile(
        re.escape(prefix.name) + r"_iter_(\d+)\.(demitasse|solverstate|solverstate\.h5)"
    )
    folder = prefix.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    found = [(int(match[1]), name) for name in names if (match := pattern.fullmatch(name))]
    return str(folder / max(found)[1]) if found else None
