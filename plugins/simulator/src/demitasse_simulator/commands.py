"""``demitasse simulate`` and ``demitasse reproduce``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

PATIENCE = 10.0
"""Seconds after which someone who has no terminal hears what is done."""


class _Progress:
    """One line on a terminal, written over; elsewhere one now and then, of what takes long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._wide, self._clock, self._told = 0, clock, clock()
        self._there = sys.stderr.isatty()

    def __call__(self, line: str) -> None:
        if not self._there:
            if self._clock() - self._told > PATIENCE:
                self._told = self._clock()
                click.echo(line, err=True)
        else:
            text = line[:78].ljust(self._wide)
            self._wide = min(len(line), 78)
            click.echo(f"\r{text}", nl=False, err=True)

    def end(self) -> None:
        """Leave the terminal's line empty."""
        if self._there and self._wide:
            click.echo(f"\r{' ' * self._wide}\r", nl=False, err=True)
            self._wide = 0


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Fields with their shapes: ``3x227x227`` for an image with a label, or ``NAME=SHAPE`` each.
    Raises click's BadParameter."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, sign, extents = text.rpartition("=")
        words = extents.split("x") if extents else []
        if not all(word.isdigit() and 0 < int(word) < 2**20 for word in words) or (
            not words and not sign
        ):
            raise click.BadParameter(f"{text!r} is not a shape like 3x227x227, or NAME=3x227x227")
        shape = tuple(map(int, words))
        found |= {name: shape} if sign else {"data": shape, "label": ()}
    return found


@click.command(
    "simulate", help="Predict the time and memory of a step of SOLVER on a described machine."
)
@click.argument("solver", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--hw",
    default="auto",
    show_default=True,
    metavar="FILE",
    help="The hardware description; auto is this machine.",
)
@click.option(
    "--plugins", metavar="A,B", help="The plugins, preferred first; +A adds one, -A drops one."
)
@click.option(
    "--nodes",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many take part of what the network joins: nodes or, on some machines, GPUs; default: all.",
)
@click.option(
    "--stripes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Storage targets that the samples lie on; default: 32, or all where there are fewer.",
)
@click.option(
    "--scaling",
    type=click.Choice(["strong", "weak"]),
    default="strong",
    show_default=True,
    help="Whether the solver's batch is that of all workers, or of each.",
)
@click.option(
    "--precision", type=click.Choice(["f32", "tf32", "bf16", "f64"]), help="default: the description's"
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    type=_setting,
    metavar="KEY=VALUE",
    help="A solver field, or a layer's (layer.NAME.data_param.batch_size=64); may be repeated.",
)
@click.option(
    "--samples",
    multiple=True,
    metavar="SHAPE",
    help="The shape of a sample (3x227x227, with a label), where the data are not here.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write it as JSON; - is standard output.")
@click.option("--timeline", metavar="FILE", help="Write the step as a trace for Chrome or Perfetto.")
@click.option("--picture", metavar="FILE", help="Write the step as an SVG picture.")
def simulate(
    solver: Path,
    hw: str,
    plugins: str | None,
    nodes: int | None,
    stripes: int | None,
    scaling: str,
    precision: str | None,
    settings: tuple[tuple[str, str], ...],
    samples: tuple[str, ...],
    json_path: str | None,
    timeline: str | None,
    picture: str | None,
) -> None:
    """Simulate, print, write what is asked for."""
    from demitasse import CompositionError, Machine, compose, load_machine
    from demitasse_simulator import drawing, report
    from demitasse_simulator.described import standing_in

    if picture is not None and picture != "-" and Path(picture).suffix != ".svg":
        raise CompositionError(f"--picture {picture}: it is SVG; give a name that ends in .svg")
    progress, fields = _Progress(), shapes(samples)
    names = None if plugins is None else [each.strip() for each in plugins.split(",") if each.strip()]
    machine: str | Machine
    notes: list[str]
    machine, notes = (hw, []) if hw == "auto" else standing_in(load_machine(hw))
    try:
        with compose(machine, names) as runtime:
            done = runtime.simulate(
                solver,
                overrides=dict(settings),
                precision=precision,
                scaling=scaling,
                nodes=nodes,
                stripes=stripes,
                samples=fields,
                progress=progress,
            )
            composition = runtime.composition.to_dict()
    finally:
        progress.end()
    for note in done.passed_over:
        click.echo(f"demitasse: {note}", err=True)
    done = replace(done, sources=(*done.sources, *notes))
    title = f"{done.net} on {done.machine}, {report.human_seconds(done.seconds)} a step (simulated)"
    if timeline is not None:
        report.write(timeline, drawing.trace(done.timeline, title))
    if picture is not None:
        report.write(picture, drawing.picture(done.timeline, title))
    if json_path is not None:
        whole = {
            "model": str(solver),
            **done.to_dict(),
            "layers": report.by_layer(done),
            "composition": composition,
        }
        report.write(json_path, report.as_json(whole))
    if json_path != "-":
        click.echo(report.show(done))


@click.command("reproduce", help="Print the tables of PAPER beside what the descriptions predict.")
@click.argument("paper")
@click.option(
    "--plugins", metavar="A,B", help="The plugins that are asked; default: all that know papers."
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the cells as JSON; - is standard output."
)
def reproduce(paper: str, plugins: str | None, json_path: str | None) -> None:
    """Ask all who know the paper, join their cells, compare."""
    from demitasse_simulator import report
    from demitasse_simulator.papers import gather

    progress = _Progress()
    names = None if plugins is None else [each.strip() for each in plugins.split(",") if each.strip()]
    try:
        found: Mapping[str, Any] = gather(paper, names, progress)
    finally:
        progress.end()
    if json_path is not None:
        report.write(json_path, report.as_json(found))
    if json_path != "-":
        click.echo(report.compared(found["cells"]))
        for note in found["notes"]:
            click.echo(f"note: {note}")
        click.echo("paper: as printed there, - where it is withheld; simulated: predicted here")
