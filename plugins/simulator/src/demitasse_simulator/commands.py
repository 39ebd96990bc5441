"""``demitasse simulate`` and ``demitasse reproduce``."""

from __future__ import annotations

import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click

from demitasse import check_writable, write_json

if TYPE_CHECKING:
    from demitasse import Machine
    from demitasse_simulator.program import Simulation

PATIENCE = 10.0
"""Seconds after which progress is printed if the output is not a terminal."""


class _Progress:
    """Progress as one line that is overwritten on a terminal; otherwise as a line from time to time, if
    something takes long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._wide, self._clock, self._told = 0, clock, clock()
        self._there = sys.stderr.isatty()
        self._line, self._late = "", None if self._there else self._alarm()

    def __call__(self, line: str) -> None:
        self._line = line
        if not self._there:
            if self._clock() - self._told > PATIENCE:
                self._tell()
        else:
            text = line[:78].ljust(self._wide)
            self._wide = min(len(line), 78)
            click.echo(f"\r{text}", nl=False, err=True)

    def _tell(self) -> None:
        self._told = self._clock()
        click.echo(self._line, err=True)

    def _alarm(self) -> threading.Timer:
        """Start a timer that prints the line even if no other one follows: the first step may itself
        take long."""

        def tell() -> None:
            with suppress(OSError, ValueError):  # the next print meets the same error, and reports it
                if self._line:
                    self._tell()

        late = threading.Timer(PATIENCE, tell)
        late.daemon = True
        late.start()
        return late

    def end(self) -> None:
        """Clear the terminal's line and stop the timer."""
        if self._late is not None:
            self._late.cancel()
            self._late.join()
        if self._there and self._wide:
            click.echo(f"\r{' ' * self._wide}\r", nl=False, err=True)
            self._wide = 0


def _setting(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def _plugin_setting(text: str) -> tuple[str, str, Any]:
    """Parse ``PLUGIN.KEY=VALUE``. The value is a TOML number, truth value, list or quoted text, or else
    plain text."""
    path, value = _setting(text)
    plugin, _, key = path.partition(".")
    if not plugin or not key:
        raise click.BadParameter(f"{text!r} is not PLUGIN.KEY=VALUE")
    try:
        return plugin, key, tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return plugin, key, value


def shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse shapes of fields: ``3x227x227`` for an image with a label, or ``NAME=SHAPE`` for each field.
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


def node_counts(text: str) -> tuple[int, ...]:
    """Parse numbers of nodes: ``64``, ``1,4,16`` or ``1..1024``, which doubles up to its end. Raises
    click's BadParameter."""
    found: list[int] = []
    for part in text.split(","):
        first, sign, last = part.strip().partition("..")
        ends = [first, last] if sign else [first]
        if not all(end.isascii() and end.isdigit() and 0 < int(end) < 2**31 for end in ends):
            raise click.BadParameter(
                f"{text!r} is not a number of nodes, nor several like 1,4,16 or 1..1024"
            )
        count, stop = int(first), int(ends[-1])
        if count > stop:
            raise click.BadParameter(f"{part.strip()!r} begins after its end")
        while count < stop:
            found.append(count)
            count *= 2
        found.append(stop)
    return tuple(dict.fromkeys(found))


@click.command(
    "simulate",
    epilog="Example: demitasse simulate solver.prototxt --hw cluster.toml --nodes 1..64",
    help="Predict the time and memory of a training step of SOLVER on a described machine. With several "
    "machines, or several numbers of nodes, compare them.",
)
@click.argument("solver", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--hw",
    default=("auto",),
    show_default="auto",
    multiple=True,
    metavar="MACHINE",
    help="A hardware description: a file, or a name that 'demitasse machines' lists; auto: this "
    "machine; may be repeated.",
)
@click.option(
    "--plugins", metavar="A,B", help="The plugins, preferred first; +A adds one, -A leaves one out."
)
@click.option(
    "--option",
    "options",
    multiple=True,
    type=_plugin_setting,
    metavar="PLUGIN.KEY=VALUE",
    help="An option of a plugin; may be repeated.",
)
@click.option(
    "--nodes",
    type=node_counts,
    metavar="N[,N...]",
    help="The number of nodes (on some machines GPUs) that take part; default: all. Give several as "
    "1,4,16, or as 1..1024, which doubles.",
)
@click.option(
    "--stripes",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of storage targets that hold the samples; default: 32, or all if there are fewer.",
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
@click.option(
    "--precision",
    type=click.Choice(["f32", "tf32", "bf16", "f64"]),
    help="The precision of activations and weights; default: the description's.",
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
    help="The shape of a sample (3x227x227, with a label), if the data are not here.",
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the prediction as JSON; - is standard output."
)
@click.option("--timeline", metavar="FILE", help="Write the step as a trace for Chrome or Perfetto.")
@click.option(
    "--picture", metavar="FILE", help="Write the step as an SVG picture; with several, how they compare."
)
def simulate(
    solver: Path,
    hw: tuple[str, ...],
    plugins: str | None,
    options: tuple[tuple[str, str, Any], ...],
    nodes: tuple[int, ...] | None,
    stripes: int | None,
    scaling: str,
    statistics: str,
    precision: str | None,
    settings: tuple[tuple[str, str], ...],
    samples: tuple[str, ...],
    json_path: str | None,
    timeline: str | None,
    picture: str | None,
) -> None:
    """Simulate, print, write what is asked for."""
    from demitasse import CompositionError

    if picture is not None and picture != "-" and Path(picture).suffix != ".svg":
        raise CompositionError(f"--picture {picture}: pictures are SVG; give a name that ends in .svg")
    hw = tuple(dict.fromkeys(hw))
    several = len(hw) > 1 or (nodes is not None and len(nodes) > 1)
    if several and timeline is not None:
        raise CompositionError("--timeline shows one step; give one --hw and one number of --nodes")
    check_writable({"--timeline": timeline, "--picture": picture, "--json": json_path})
    asked = {
        "overrides": dict(settings),
        "precision": precision,
        "scaling": scaling,
        "statistics": statistics,
        "stripes": stripes,
        "samples": shapes(samples),
    }
    machines = _machines(hw, nodes)
    found = _predictions(solver, machines, plugins, options, nodes, asked)
    if several:
        _compare(solver, [each.label for each in machines], found, json_path, picture)
    else:
        _tell(solver, *next(found)[1:], json_path, timeline, picture)


class _Described(NamedTuple):
    """A machine, its name beside others (``label``), and notes about it."""

    label: str
    machine: str | Machine
    notes: Sequence[str]


def _machines(hw: Sequence[str], nodes: Sequence[int] | None) -> list[_Described]:
    """Load all machines, so that errors in descriptions are raised before anything is predicted."""
    from demitasse import load_machine
    from demitasse_simulator.described import standing_in
    from demitasse_simulator.program import taking_part

    found = []
    for each in hw:
        if each == "auto":
            found.append(_Described("auto", each, ()))
            continue
        machine, notes = standing_in(load_machine(each))
        for count in nodes or ():
            taking_part(machine, count)
        found.append(_Described(machine.name, machine, notes))
    if len({each.label for each in found}) < len(found):
        return [each._replace(label=name) for each, name in zip(found, hw, strict=True)]
    return found


Prediction: TypeAlias = "tuple[str, Simulation, Mapping[str, Any]]"
"""A machine's label, its prediction, and its composition."""


def _predictions(
    solver: Path,
    machines: Sequence[_Described],
    plugins: str | None,
    options: Sequence[tuple[str, str, Any]],
    nodes: Sequence[int] | None,
    asked: Mapping[str, Any],
) -> Iterator[Prediction]:
    """Yield the predictions one after the other. Each machine is composed once."""
    from demitasse import compose

    names = None if plugins is None else [each.strip() for each in plugins.split(",") if each.strip()]
    given: dict[str, dict[str, Any]] = {}
    for plugin, key, value in options:
        given.setdefault(plugin, {})[key] = value
    for label, machine, notes in machines:
        with compose(machine, names, given) as runtime:
            composition = runtime.composition.to_dict()
            for count in nodes or (None,):
                progress = _Progress()
                try:
                    done = runtime.simulate(solver, nodes=count, progress=progress, **asked)
                finally:
                    progress.end()
                yield label, replace(done, notes=(*done.notes, *notes)), composition


def _tell(
    solver: Path,
    done: Simulation,
    composition: Mapping[str, Any],
    json_path: str | None,
    timeline: str | None,
    picture: str | None,
) -> None:
    """Print one prediction in full, and write the requested files."""
    from demitasse_simulator import drawing, report

    for note in done.passed_over:
        click.echo(f"demitasse: {note}", err=True)
    title = f"{done.net} on {done.machine}, {report.human_seconds(done.seconds)} a step (simulated)"
    try:
        if timeline is not None:
            report.write(timeline, drawing.trace(done.timeline, title))
        if picture is not None:
            report.write(picture, drawing.picture(done.timeline, title, done.seconds))
        if json_path is not None:
            found = {**done.to_dict(), "layers": report.by_layer(done), "composition": composition}
            write_json(json_path, {"model": str(solver), **found})
    finally:
        if json_path != "-":
            click.echo(report.show(done))


def _compare(
    solver: Path,
    labels: Sequence[str],
    found: Iterator[Prediction],
    json_path: str | None,
    picture: str | None,
) -> None:
    """Print several predictions side by side, each as soon as it is known. If one fails, the files have
    those that are known."""
    from demitasse_simulator import comparing, report

    rows: list[comparing.Row] = []
    table, silent = comparing.Table(labels), json_path == "-"
    compositions: dict[str, Mapping[str, Any]] = {}
    told, idle = set[str](), set[str]()
    try:
        for label, done, composition in found:
            compositions[label] = composition
            rows.append(comparing.row(label, done, rows))
            if not silent and len(rows) == 1:
                click.echo(f"{done.net}, {done.precision} (simulated)\n\n{table.head()}")
            if not silent:
                click.echo(table.line(rows[-1]))
            short = report.without_samples(done)
            if short and label not in idle:
                idle.add(label)  # more nodes would say the same again
                click.echo(f"demitasse: {done.joined}: {short}", err=True)
            for note in (*done.passed_over, *done.notes):
                if note not in told:
                    told.add(note)
                    click.echo(f"demitasse: {note}", err=True)
    finally:
        if rows and picture is not None:
            report.write(picture, comparing.picture(rows, f"{rows[0].simulation.net} (simulated)"))
        if rows and json_path is not None:
            runs = [row.to_dict() for row in rows]
            whole = {"model": str(solver), "source": "simulated", "runs": runs}
            write_json(json_path, {**whole, "compositions": compositions})


@click.command(
    "reproduce",
    help="Print the tables of PAPER next to what the machine descriptions predict.",
    epilog="Example: demitasse reproduce swcaffe --json cells.json",
)
@click.argument("paper")
@click.option("--plugins", metavar="A,B", help="The plugins to ask; default: all that know papers.")
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the cells as JSON; - is standard output."
)
def reproduce(paper: str, plugins: str | None, json_path: str | None) -> None:
    """Ask all who know the paper, join their cells, compare."""
    from demitasse_simulator import report
    from demitasse_simulator.papers import gather

    check_writable({"--json": json_path})
    progress = _Progress()
    names = None if plugins is None else [each.strip() for each in plugins.split(",") if each.strip()]
    try:
        found: Mapping[str, Any] = gather(paper, names, progress)
    finally:
        progress.end()
    try:
        if json_path is not None:
            write_json(json_path, found)
    finally:
        if json_path != "-":
            click.echo(report.compared(found["cells"]))
            for note in found["notes"]:
                click.echo(f"note: {note}")
            click.echo("paper: the printed value (- where it is withheld); simulated: predicted here")
