"""``demitasse test``: the scores of trained weights."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import check_writable, write_json
from demitasse_cli import flags, progress, report
from demitasse_cli import options as shared
from demitasse_cli.models import solver_of, tell_notes

if TYPE_CHECKING:
    from demitasse import NetDefinition, Runtime, Solver
    from demitasse_cli.progress import Batches


@click.command(
    "test",
    epilog="Example: demitasse test solver.prototxt --weights lenet.caffemodel",
    cls=flags.FlagCommand,
    help="Score MODEL (a net, or a solver's test nets) with its weights.",
)
@click.argument("model", type=shared.file, required=False)
@click.option("--model", "model_flag", type=shared.file, metavar="FILE", help="MODEL, as a flag.")
@click.option(
    "--weights",
    required=True,
    type=shared.named,
    metavar="FILE[,FILE]",
    help="The weights, by layer name.",
)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    metavar="N",
    help="Batches to average over; default: the solver's test_iter, or all samples, "
    "some of them twice if the last batch is not full.",
)
@shared.runtime_options
@flags.state_options
@flags.gpu_option
@flags.log_options
@shared.precision_option
@shared.overrides_option
@shared.json_option("the result")
def command(
    model: Path | None,
    model_flag: Path | None,
    weights: str,
    iterations: int | None,
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
    json_path: str | None,
) -> None:
    """Print the mean scores; a second test net's have its number in front."""
    model = flags.named(model, model_flag, "model")
    flags.tell_without_effect(gpu, phase, "TEST")
    check_writable({"--json": json_path})
    stream = report.lines_to(json_path)
    in_solver = {**flags.state(level, stage, "test_net.state"), **dict(settings)}
    in_net = {**flags.state(level, stage, "state"), **dict(settings)}
    with shared.compose(hw, plugins, options) as runtime:
        solver, todo = _to_score(runtime, model, in_solver, in_net)
        given: dict[str, Any] = {"weights": weights, "phase": "test", "precision": precision}
        made = [(runtime.net(definition, **given), asked) for definition, asked in todo]
        _check_samples(model, [(net, iterations or asked) for net, asked in made])
        nets = [(net, iterations or asked or _all(net)) for net, asked in made]
        batches = sum(count for _, count in nets)
        places = flags.logs(log_dir, log_to_stderr)
        log = runtime.program("caffe_log", places) if places else None
        for path, loaded in nets[0][0].loaded.items():
            if loaded.missing:
                print(f"weights {path}: {loaded}", file=stream)
        read = [*([solver] if solver else []), *(definition for definition, _ in todo)]
        tell_notes(*read, *nets[0][0].loaded.values())
        start = time.perf_counter()
        with progress.batches(batches, sys.stderr, quiet=log_to_stderr) as shown:
            scores = _scored(nets, shown, log)
        seconds = time.perf_counter() - start
        composition = runtime.composition.to_dict()
    samples = sum(count * _batch(net) for net, count in nets)
    noun = "1 batch" if batches == 1 else f"{batches} batches"
    twice = sum(_twice(net) for net, count in nets if net.graph.feeds and count == _all(net))
    again = f", {twice} of them twice to fill the last batch" if twice else ""
    told = f"{noun}, {samples:,} samples{again}" if samples else noun  # else a user's layer makes them
    print(
        f"{report.scores_text(scores)}  ({told}, {seconds:.1f} s)",
        file=stream,
        flush=True,
    )
    if json_path is not None:
        write_json(
            json_path,
            {
                "iterations": batches,
                "loss": scores.get("loss"),
                "scores": scores,
                "seconds": seconds,
                "samples_per_second": samples / seconds if seconds else 0.0,
                "composition": composition,
                "model": str(model),
                "weights": weights,
                "precision": nets[0][0].precision,
                "samples": samples,
                "samples_twice": twice,
            },
        )


def _to_score(
    runtime: Runtime, model: Path, in_solver: dict[str, Any], in_net: dict[str, Any]
) -> tuple[Solver | None, list[tuple[NetDefinition, int | None]]]:
    """Return the solver in a file (None if the file is a net), and the nets to score, each with the
    number of batches that the solver sets."""
    from demitasse import ModelError

    solver = solver_of(runtime, model, in_solver)
    if solver is None:
        return None, [(runtime.read(model).net("test", in_net), None)]
    if not solver.tests:
        raise ModelError(f"{model}: the solver has no test net to score; give a net instead")
    return solver, list(zip(solver.tests, solver.test_iterations, strict=True))


def _check_samples(model: Path, nets: list[tuple[Any, int | None]]) -> None:
    """Raise ModelError for a net without samples, or if their number is unknown: a user's layer in
    Python can make samples without end."""
    from demitasse import ModelError

    for net, count in nets:
        if net.graph.feeds:
            continue
        makers = [layer.name for layer in net.definition.layers if not layer.bottoms]
        if net.graph.inputs or not makers:
            raise ModelError(
                f"{model}: the net has no data to score: none of its layers reads samples; "
                f"give a net with such a layer (a train_test net), or the solver"
            )
        if not count:
            raise ModelError(
                f"{model}: layer {makers[0]!r} does not say how many samples it has; give --iterations"
            )


def _scored(nets: list[tuple[Any, int]], shown: Batches, log: Any) -> dict[str, Any]:
    """Return the mean scores of nets by blob, each over its number of batches; names of a second net's
    scores begin with its number. Batches are shown and, if Caffe's log is requested, logged."""
    scores: dict[str, Any] = {}
    weights: dict[str, float] = {}
    before = 0
    if log is not None:
        log.batches(sum(count for _, count in nets))
    for number, (net, count) in enumerate(nets):
        front = f"{number}." if number else ""

        def told(batch: int, outputs: Any, front: str = front, before: int = before) -> None:
            shown.done(before + batch + 1)
            if log is not None:
                log.batch(before + batch, {front + name: value for name, value in outputs.items()})

        scores |= {front + name: value for name, value in net.test(count, told).items()}
        weights |= {front + name: value for name, value in net.loss_weights.items()}
        before += count
    if log is not None:
        log.scores(scores, weights)
    return scores


def _batch(net: Any) -> int:
    return int(net.graph.feeds[0].batch) if net.graph.feeds else 0


def _twice(net: Any) -> int:
    """Return how many samples are used twice, to fill the last batch."""
    return _all(net) * _batch(net) - int(net.graph.feeds[0].source.size)


def _all(net: Any) -> int:
    """Return the number of batches for all samples; the last one is filled from the start."""
    feed = net.graph.feeds[0]
    return math.ceil(int(feed.source.size) / int(feed.batch))
