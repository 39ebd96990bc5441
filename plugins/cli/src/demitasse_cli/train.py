"""``demitasse train``: compose, show what and why, run, report."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import check_writable
from demitasse_cli import flags, launch, report
from demitasse_cli import options as shared
from demitasse_cli.beginning import tell_beginning
from demitasse_cli.newest import newest_for_all
from demitasse_cli.progress import CHOOSING, said_if_long
from demitasse_cli.running import run
from demitasse_cli.until import Until

if TYPE_CHECKING:
    from demitasse import Solver


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
    help="Initialise layers as the net says, if the weights' shapes do not fit.",
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
@click.option(
    "--statistics",
    type=click.Choice(["global", "local"]),
    default="global",
    show_default=True,
    help="global: batch normalisation by the samples of all workers; local: of each worker's own.",
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
    statistics: str,
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
        raise click.UsageError("--resume takes the snapshot's weights; leave out --weights or --resume")
    flags.tell_without_effect(gpu, phase, "TRAIN")
    # The solver's level has the last word; stages are added to those that the solver has.
    overrides: dict[str, Any] = {
        **flags.state(level, stage, "train_net.state", "train_state"),
        **dict(settings),
    }
    if iterations is not None:
        overrides["max_iter"] = iterations
    stream = report.lines_to(json_path)
    check_writable({"--json": json_path, "--timeline": timeline})
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
                statistics=statistics,
                precision=precision,
                partial=partial,
            )
        _check_asked(solver, trainer.solver, overrides, until)
        first = trainer.processes.rank == 0
        if first:
            trainer.check_snapshots()
            if inputs := ", ".join(map(repr, trainer.net.graph.inputs)):
                told = f"the train net's inputs get no data here and stay zero: {inputs}"
                click.echo(f"{launch.name()}: {told}", err=True)
            if not trainer.solver.max_iterations and "max_iter" not in overrides:
                told = "max_iter is missing or 0: nothing is trained, only tested"
                click.echo(f"{launch.name()}: {solver}: {told}", err=True)
        if not quiet and first:
            tell_beginning(runtime, trainer, scaling, resume, stream)
        about: dict[str, Any] = {"solver": str(solver), "scaling": scaling}
        about |= {"statistics": statistics, "precision": trainer.precision, "resumed": resume}
        effects = {int(signal.SIGINT): sigint_effect}
        if hasattr(signal, "SIGHUP"):
            effects[int(signal.SIGHUP)] = sighup_effect
        if first:
            return run(runtime, trainer, about, quiet, timeline, json_path, effects, until)
        return run(runtime, trainer, about, quiet=True, effects=effects, until=until)


def _check_asked(path: Path, solver: Solver, overrides: Mapping[str, Any], until: Until | None) -> None:
    """Raise an error for a run that would neither train nor test, or whose ``until`` would never be
    tested."""
    from demitasse import ModelError

    def tested() -> bool:
        return bool(solver.tests and solver.test_interval)

    if not solver.max_iterations and "max_iter" not in overrides and not tested():
        raise ModelError(
            f"{path}: max_iter is missing or 0, so nothing would be trained; give it, or "
            f"--iterations N (0 to test only)"
        )
    if until is not None and not tested():
        raise click.UsageError(
            "--until needs tests: give the solver a test net and --set test_interval=N"
        )
