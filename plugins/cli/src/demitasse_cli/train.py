"""``demitasse train``: compose, show what and why, run, report."""

from __future__ import annotations

import errno
import math
import re
import signal
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from demitasse_cli import flags, garbage, launch, report
from demitasse_cli import options as shared
from demitasse_cli.interrupts import Interrupts
from demitasse_cli.main import BROKEN_PIPE
from demitasse_cli.models import tell_notes
from demitasse_cli.outlets import Outlet
from demitasse_cli.progress import CHOOSING, Live, Meter, said_if_long, shown
from demitasse_cli.timeline import Timeline
from demitasse_cli.until import Until

if TYPE_CHECKING:
    from demitasse import Event, Runtime, Solver

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


@click.command(
    "train",
    cls=flags.FlagCommand,
    help="Train a net from a SOLVER file.",
    epilog="Example: demitasse train solver.prototxt --set base_lr=0.02 --json run.json",
)
@click.argument("solver", type=shared.file, required=False)
@click.option("--solver", "solver_flag", type=shared.file, metavar="FILE", help="SOLVER, as a flag.")
@shared.runtime_options
@click.option(
    "--weights",
    type=shared.named,
    metavar="FILE[,FILE]",
    help="Start from these weights, by layer name.",
)
@click.option(
    "--partial",
    is_flag=True,
    help="Let layers whose shapes the weights do not fit start as the net has them.",
)
@click.option(
    "--resume",
    "--snapshot",
    type=shared.named,
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
    "--until",
    type=Until.parse,
    metavar="SCORE>=X",
    help="Stop at the first test whose score is that good, like 'accuracy>=0.99'.",
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    default="strong",
    show_default=True,
    help="strong: the solver's batch is shared by all workers; weak: each worker has one.",
)
@flags.state_options
@flags.gpu_option
@flags.effect_options
@flags.log_options
@shared.precision_option
@shared.overrides_option
@click.option(
    "--timeline",
    type=shared.file,
    metavar="FILE",
    help="Write a timeline for chrome://tracing or Perfetto.",
)
@shared.json_option("the result")
@click.option("--no-progress", "--quiet", "quiet", is_flag=True, help="Show no progress.")
def command(
    solver: Path | None,
    solver_flag: Path | None,
    hw: str,
    plugins: str | None,
    options: tuple[tuple[str, str, Any], ...],
    weights: str | None,
    partial: bool,
    resume: str | None,
    iterations: int | None,
    until: Until | None,
    scaling: str,
    phase: str | None,
    level: int | None,
    stage: str | None,
    gpu: str | None,
    sigint_effect: str,
    sighup_effect: str,
    log_dir: Path | None,
    log_to_stderr: bool,
    precision: str | None,
    settings: tuple[tuple[str, str], ...],
    timeline: Path | None,
    json_path: str | None,
    quiet: bool,
) -> int:
    """Train; the exit status is 0, or 128 and the signal's number after an interruption, which for an
    output that nobody reads any more is SIGPIPE's. Raises OSError where it cannot be written."""
    solver = flags.named(solver, solver_flag, "solver")
    if resume is not None and weights is not None:
        raise click.UsageError(
            "--resume has the weights of the snapshot; leave --weights out, or --resume"
        )
    from demitasse import ModelError

    flags.tell_without_effect(gpu, phase, "TRAIN")
    # The level is the solver's, which has the last word; stages add to those that the solver has.
    overrides: dict[str, Any] = {
        **flags.state(level, stage, "train_net.state", "train_state"),
        **dict(settings),
    }
    if iterations is not None:
        overrides["max_iter"] = iterations
    stream = report.lines_to(json_path)
    report.check_writable({"--json": json_path, "--timeline": timeline})
    quiet = quiet or log_to_stderr
    places = flags.logs(log_dir, log_to_stderr)
    logged = [("caffe", "log", places)] if places else []
    with shared.compose(hw, plugins, [*options, *logged]) as runtime:
        launch.check_together(runtime)
        launch.outlive_others()
        if resume == "auto":
            resume = newest_for_all(runtime, runtime.read(solver).solver(overrides))
        with nullcontext() if quiet or launch.rank() else said_if_long(CHOOSING, stream):
            trainer = runtime.trainer(
                solver,
                weights=weights,
                resume=resume,
                overrides=overrides,
                scaling=scaling,
                precision=precision,
                partial=partial,
            )
        if not trainer.solver.max_iterations and "max_iter" not in overrides:
            raise ModelError(
                f"{solver}: max_iter is not given, or 0, so nothing would be trained; give it, or "
                f"--iterations N (0 to test alone)"
            )
        if until is not None and not (trainer.solver.tests and trainer.solver.test_interval):
            raise click.UsageError(
                "--until needs tests: give the solver a test net and --set test_interval=N"
            )
        first = trainer.processes.rank == 0
        if first:
            trainer.check_snapshots()
            if inputs := ", ".join(map(repr, trainer.net.graph.inputs)):
                told = f"nothing is given here to the train net's inputs, {inputs}: they stay zero"
                click.echo(f"{launch.name()}: {told}", err=True)
        if not quiet and first:
            print(composed(runtime), file=stream)
            for path, loaded in trainer.loaded.items():
                print(f"weights {path}: {loaded}", file=stream)
            tell_notes(trainer.solver, *trainer.loaded.values())
            print(effective(trainer, scaling, resume), file=stream, flush=True)
            if told := launch.counted_otherwise(runtime.machine, trainer.processes.size):
                print(told, file=stream, flush=True)
            if told := launch.bound_narrowly():
                print(told, file=stream, flush=True)
        about: dict[str, Any] = {"solver": str(solver), "scaling": scaling}
        about |= {"precision": trainer.precision, "resumed": resume}
        effects = {int(signal.SIGINT): sigint_effect}
        if hasattr(signal, "SIGHUP"):
            effects[int(signal.SIGHUP)] = sighup_effect
        if first:
            return run(runtime, trainer, about, quiet, timeline, json_path, effects, until)
        return run(runtime, trainer, about, quiet=True, effects=effects, until=until)


def run(
    runtime: Runtime,
    trainer: Any,
    about: Mapping[str, Any],
    quiet: bool = False,
    timeline: Path | None = None,
    json_path: str | None = None,
    effects: Mapping[int, str] = MappingProxyType({}),
    until: Until | None = None,
) -> int:
    """Train to the end or to a signal, and report; ``effects`` are those of signals that do not stop.
    A run that fails still writes its report, with the error in it."""
    stream: Any = Outlet(report.lines_to(json_path))
    history, started = History(), time.perf_counter()
    meter = Meter(trainer.iteration, trainer.solver.max_iterations)
    show = shown(meter, trainer.solver.display_interval, stream, quiet)
    trainer.listeners += [show, history, lambda event: garbage.settle()]
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
                "synchronisation": trainer.notes,
            },
        )

    last = trainer.solver.max_iterations
    if trainer.iteration > 0 and trainer.iteration >= last:
        show.close()
        record |= {"phases": {}, "interrupted": False}
        history.snapshot = Path(about["resumed"]) if about.get("resumed") else None
        write_report()
        at = f"the snapshot is at iteration {trainer.iteration}"
        print(f"nothing to do: {at}, the solver ends at {last}", file=stream, flush=True)
        return 0
    terminal = stream.fileno() if isinstance(show, Live) else None
    try:
        with closing(show), Interrupts(terminal, effects) as interrupts:

            def stop() -> bool:
                return interrupts.stop() or stream.lost is not None

            result = trainer.run(stop=stop, save=interrupts.snapshot, until=until)
    except BaseException as error:
        if history.losses:
            record |= {"loss": history.losses[-1][1], "error": f"{type(error).__name__}: {error}"}
            try:
                write_report()
            except OSError as other:  # a full disk, maybe, which is why the run has failed
                click.echo(f"{launch.name()}: {other}", err=True)
        raise
    stopped = interrupts.stop() or stream.lost is not None or trainer.stopped
    record |= {"loss": result.loss, "phases": result.phases, "interrupted": stopped}
    try:
        if timeline is not None:
            if not stopped:
                recorder.profile(trainer.profile(1))
            recorder.write(timeline)
    finally:
        write_report()
    word = "interrupted" if stopped else "done"
    line = came_to(trainer.iteration, result.loss, history, time.perf_counter() - started)
    print(f"{word}: {line}", file=stream, flush=True)
    return interrupts.status or unheard(stream.lost, history.snapshot)


def unheard(lost: OSError | None, snapshot: Path | None) -> int:
    """The exit status of a run by its output: SIGPIPE's where the reader went away. Raises OSError where
    it was lost otherwise, as on a full disk."""
    if lost is None:
        return 0
    if lost.errno in (errno.EPIPE, errno.EIO):  # EIO: the terminal is gone
        return BROKEN_PIPE
    raise OSError(f"the output cannot be written: {lost.strerror}; stopped after snapshot {snapshot}")


def came_to(iteration: int, loss: float, history: History, seconds: float) -> str:
    """What the run came to."""
    parts = [report.counted(iteration, "iteration")]
    if not math.isnan(loss):
        parts.append(f"loss {loss:.4g}")
    if history.scores:
        parts.append(f"test {report.scores_text(history.scores)}")
    parts.append(f"{seconds:.1f} s")
    if history.snapshot is not None:
        parts.append(f"snapshot {history.snapshot}")
    return "  ".join(parts)


def composed(runtime: Runtime) -> str:
    """The plugins and why, a line each."""
    composition = runtime.composition
    elsewhere = ""
    if runtime.machine.simulated:
        elsewhere = " (described elsewhere: threads and memory are not bound)"
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
            f"machine  {composition.machine}{elsewhere}",
            report.table(("plugin", "because", "for"), rows),
            *(f"not used  {', '.join(names)}: {reason}" for reason, names in unused.items()),
        ]
    )


def effective(trainer: Any, scaling: str, resume: str | None) -> str:
    """The batch and learning rate that the workers make together, and where the run begins. Under weak
    scaling also what the linear rule would make of the rate: that is the user's decision."""
    workers = report.counted(trainer.workers, "worker")
    if trainer.processes.size > 1:
        workers += f" in {trainer.processes.size} processes"
    begin = f"from iteration {trainer.iteration}"
    if resume is not None:
        begin += f" ({resume})"
    rate, rule = trainer.solver.rate(trainer.iteration), ""
    if scaling == "weak" and trainer.workers > 1:
        scaled = rate * trainer.workers
        rule = f" as the solver says (by the linear rule {scaled:.4g} for {trainer.workers} batches)"
    batch = f"batch {trainer.batch} on " if trainer.batch else ""  # samples may be a user's layer's
    return (
        f"{batch}{workers} ({scaling} scaling)  "
        f"learning rate {trainer.solver.rate(trainer.iteration):.4g}{rule}  "
        f"{begin} to {trainer.solver.max_iterations}"
    )


def newest_for_all(runtime: Runtime, solver: Solver) -> str | None:
    """The snapshot that all processes go on from: process 0, which wrote it, looks. On a file system
    that hosts share others may not see the newest one yet in its folder, though they can open it."""
    first = runtime.processes.rank == 0
    found: list[str | None] = runtime.processes.gather(newest_good(runtime, solver) if first else None)
    return found[0]


def newest_good(runtime: Runtime, solver: Solver) -> str | None:
    """The newest snapshot that can be read, None when there is none at all; a line for each that is
    damaged. Raises SnapshotError when all are."""
    from demitasse import ModelError, SnapshotError

    found = snapshots(solver)
    for path in found:
        try:
            runtime.read(path).weights()
        except (SnapshotError, ModelError, OSError) as error:
            click.echo(f"demitasse: {' '.join(str(error).split())}; trying an older one", err=True)
        else:
            return path
    if found:
        raise SnapshotError(
            f"no snapshot of {report.counted(len(found), 'file')} with the prefix "
            f"{solver.snapshot_prefix!r} can be read; without --resume the training starts anew"
        )
    return None


def snapshots(solver: Solver) -> list[str]:
    """The snapshots with the solver's prefix, that of the highest iteration first; of those of one
    iteration ours, which alone has the place in the data."""
    prefix = Path(solver.snapshot_prefix or "snapshot")
    pattern = re.compile(
        re.escape(prefix.name) + r"_iter_(\d+)\.(demitasse|solverstate|solverstate\.h5)"
    )
    folder = prefix.parent
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    found = [
        (int(match[1]), match[2] == "demitasse", name)
        for name in names
        if (match := pattern.fullmatch(name))
    ]
    return [str(folder / name) for *_, name in sorted(found, reverse=True)]
