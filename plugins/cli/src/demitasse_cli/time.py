"""``demitasse time``: how long each layer takes, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import check_writable, write_json
from demitasse_cli import flags, report
from demitasse_cli import options as shared
from demitasse_cli.models import notes_of, solver_of, state_of, tell_notes

if TYPE_CHECKING:
    from demitasse import Entry, NetDefinition, Runtime, Solver


@dataclass
class Row:
    """One layer in one phase: seconds, floating-point operations and bytes per iteration."""

    layer: str
    phase: str
    kernels: dict[str, None]
    plugins: dict[str, None]
    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def bandwidth(self) -> float:
        """GB/s of operands read and written."""
        return self.bytes / self.seconds / 1e9 if self.seconds else 0.0


@click.command(
    "time",
    epilog="Example: demitasse time net.prototxt --iterations 20",
    cls=flags.FlagCommand,
    help="Time each layer of MODEL (a solver or a net) on this machine.",
)
@click.argument("model", type=shared.file, required=False)
@click.option("--model", "model_flag", type=shared.file, metavar="FILE", help="MODEL, as a flag.")
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="Iterations to average over, after one that is not counted.",
)
@click.option(
    "--weights",
    metavar="FILE",
    expose_value=False,
    help="Accepted for Caffe's scripts, but has no effect: times do not depend on weights.",
)
@shared.runtime_options
@flags.state_options
@flags.gpu_option
@flags.log_options
@shared.precision_option
@shared.overrides_option
@shared.samples_option
@shared.json_option("the result")
def command(
    model: Path | None,
    model_flag: Path | None,
    iterations: int,
    hw: str,
    plugins: str | None,
    options: tuple[tuple[str, str, Any], ...],
    phase: str | None,
    level: int | None,
    stage: str | None,
    gpu: str | None,
    log_dir: Path | None,
    log_to_stderr: bool,
    precision: str | None,
    settings: tuple[tuple[str, str], ...],
    samples: tuple[str, ...],
    json_path: str | None,
) -> None:
    """Print a row a layer and phase, and the total. Weights are not changed. With several workers it is
    the first one's share that is timed, which says nothing of what all do together."""
    model = flags.named(model, model_flag, "model")
    flags.tell_without_effect(gpu)
    check_writable({"--json": json_path})
    given = dict(settings)
    with shared.compose(hw, plugins, options) as runtime:
        if phase == "TEST":
            in_test = {**flags.state(level, stage, state_of(runtime, model, "test_net.")), **given}
            subject, batch = forward_only(
                runtime, runtime.read(model).net("test", in_test), precision, samples
            )
        else:
            in_train = {**flags.state(level, stage, state_of(runtime, model, "train_net.")), **given}
            subject, batch = timed(runtime, model, in_train, precision, samples)
        about = getattr(subject, "solver", None) or subject.definition
        tell_notes(about)
        workers = getattr(subject, "workers", 1)
        subject.profile(1)
        rows = by_layer(subject.profile(iterations))
        if places := flags.logs(log_dir, log_to_stderr):
            runtime.program("caffe_log", places).times(both_passes(rows), iterations)
        composition, simulated = runtime.composition.to_dict(), runtime.machine.simulated
    total = sum(row.seconds for row in rows)
    speed = batch / total if total else 0.0
    what = f"{report.pace(speed)} samples/s" if batch else "inputs are given, not read"
    if workers > 1:
        what = f"the first of {workers} workers, its share of a batch of {batch}"
    phases = {row.phase: 0.0 for row in rows}
    for row in rows:
        phases[row.phase] += row.seconds
    try:
        if json_path is not None:
            write_json(
                json_path,
                {
                    "model": str(model),
                    "iterations": iterations,
                    "seconds": total,
                    "samples_per_second": speed if workers == 1 and batch else None,
                    "batch": batch,
                    "workers": workers,
                    "phases": phases,
                    "source": "measured",
                    "layers": [
                        {
                            "layer": row.layer,
                            "phase": row.phase,
                            "kernels": list(row.kernels),
                            "plugins": list(row.plugins),
                            "seconds": row.seconds,
                            "flops": row.flops,
                            "bytes": row.bytes,
                        }
                        for row in rows
                    ],
                    "notes": notes_of(about),
                    "composition": composition,
                },
            )
    finally:
        if json_path != "-":
            click.echo(show(rows, total))
            split = "  ".join(f"{phase} {seconds * 1e3:.3f} ms" for phase, seconds in phases.items())
            click.echo(
                f"total {total * 1e3:.3f} ms ({split})  {what}  "
                f"measured{' here, not on the machine described' if simulated else ''}, "
                f"mean of {report.counted(iterations, 'iteration')}"
            )


def timed(
    runtime: Runtime,
    model: Path,
    overrides: dict[str, Any],
    precision: str | None,
    samples: tuple[str, ...],
) -> tuple[Any, int]:
    """Return an object with ``profile``, and its batch size: a trainer, or a net that only runs forward
    if there is nothing to train."""
    from demitasse import ModelError

    def trainer_of(solver: Solver) -> Any:
        with shared.standing_in(samples, "train", *["test"] * bool(solver.tests)) as data:
            return runtime.trainer(solver, precision=precision, data=data)

    solver = solver_of(runtime, model, overrides)
    if solver is None:
        reader: Any = runtime.read(model)
        try:
            trainer = trainer_of(idle(reader.net("train", overrides)))
        except ModelError as error:
            made = forward_only(runtime, reader.net("test", overrides), precision, samples)
            click.echo(f"demitasse: forward only, since the net cannot be trained: {error}", err=True)
            return made
    else:
        trainer = trainer_of(solver)
    return trainer, trainer.batch // trainer.solver.passes


def forward_only(
    runtime: Runtime, definition: NetDefinition, precision: str | None, samples: tuple[str, ...]
) -> tuple[Any, int]:
    """Return a net in phase test, and its batch size: 0 if no layer reads samples."""
    with shared.standing_in(samples, "test") as data:
        net = runtime.net(definition, phase="test", precision=precision, data=data)
    feeds = net.graph.feeds
    return net, feeds[0].batch if feeds else 0


def idle(definition: NetDefinition) -> Solver:
    """Return a solver with which a net runs forward and backward without changing anything."""
    from demitasse import Solver

    return Solver(
        train=definition,
        tests=(),
        update="momentum_update",
        update_attributes={},
        rate=lambda iteration: 0.0,
        max_iterations=0,
    )


def by_layer(profile: Iterable[tuple[Entry, float]]) -> list[Row]:
    """Return rows in the order of first use; a layer's operations in one phase are added up."""
    rows: dict[tuple[str, str], Row] = {}
    for entry, seconds in profile:
        row = rows.setdefault((entry.layer, entry.phase), Row(entry.layer, entry.phase, {}, {}))
        row.kernels[entry.kernel] = row.plugins[entry.plugin] = None
        row.seconds += seconds
        row.flops += entry.flops
        row.bytes += entry.bytes
    return list(rows.values())


def both_passes(rows: Iterable[Row]) -> list[tuple[str, float, float]]:
    """Return each layer's seconds, forward and in all later phases, in the order of first use."""
    seconds: dict[str, list[float]] = {}
    for row in rows:
        seconds.setdefault(row.layer, [0.0, 0.0])[row.phase != "forward"] += row.seconds
    return [(layer, forward, back) for layer, (forward, back) in seconds.items()]


def show(rows: list[Row], total: float) -> str:
    """Return the table."""
    return report.table(
        ("layer", "phase", "ms", "share", "GFLOP/s", "GB/s", "plugin", "kernel"),
        [
            (
                report.layer_name(row.layer),
                row.phase,
                f"{row.seconds * 1e3:.3f}",
                f"{row.seconds / total if total else 0:.1%}",
                f"{row.gflops:.2f}",
                f"{row.bandwidth:.2f}",
                "+".join(row.plugins),
                "+".join(row.kernels),
            )
            for row in rows
        ],
        right="<<>>>>",
    )
