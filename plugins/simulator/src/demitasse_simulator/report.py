"""Printing predictions as tables for people, and writing files atomically."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import click

from demitasse import write_text
from demitasse_simulator.program import Simulation

LAYERS = 12
"""Number of layers shown, the costliest ones; the timeline and the JSON file have all layers."""


def write(path: str, text: str) -> None:
    """Write a file, as a whole or not at all; ``-`` is standard output. Raises OSError, which names the
    file."""
    if path == "-":
        click.echo(text, nl=False)
        return
    write_text(path, text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: int = 1) -> str:
    """Return aligned columns; those from number ``right`` on are aligned to the right."""
    cells = [tuple(head), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i >= right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def human_bytes(count: float) -> str:
    """Return bytes as text with a unit, such as ``3.52 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"


def human_seconds(seconds: float) -> str:
    """Return seconds as text, in milliseconds if below one second."""
    return f"{seconds:.3f} s" if seconds >= 1 else f"{seconds * 1e3:.3f} ms"


def by_layer(simulation: Simulation) -> list[dict[str, Any]]:
    """Return the seconds by layer and phase, summed over operations, in the order of first use."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for each in simulation.timeline:
        if "kernel" in each.facts:
            row = rows.setdefault(
                (each.name, each.phase),
                {"layer": each.name, "phase": each.phase, "seconds": 0.0, "kernels": [], "sources": []},
            )
            row["seconds"] += each.seconds
            for key, value in (("kernels", each.facts["kernel"]), ("sources", each.source)):
                if value not in row[key]:
                    row[key].append(value)
    return list(rows.values())


def without_samples(s: Simulation) -> str:
    """Return advice if some workers have no sample, or if the net has no data layer; else an empty
    text."""
    if not s.batch:
        return (
            "the net has no data layer: each worker's inputs have the size that the net says, and no "
            "samples are counted"
        )
    if s.workers <= s.batch:
        return ""
    return (
        f"{s.workers - s.batch:,} of the workers have no sample, and training rejects such a "
        "batch: --scaling weak gives each worker its own, --nodes says how many take part"
    )


def show(simulation: Simulation) -> str:
    """Return a simulation as text for people."""
    s = simulation
    workers = f"{s.workers:,} worker{'s' * (s.workers > 1)}"
    nodes = f" on {s.joined}" if s.nodes > 1 else ""
    parts = [
        f"{s.net} on {s.machine}: {workers}{nodes}, batch {s.batch:,} ({s.share} of the first worker), "
        f"{s.precision}"
    ]
    if short := without_samples(s):
        parts[-1] += f"\n{short}"
    parts[-1] += "".join(f"\nnote: {note}" for note in s.notes)
    layers = sorted(by_layer(s), key=lambda row: -row["seconds"])
    rows = [
        (
            row["layer"],
            row["phase"],
            "+".join(row["kernels"]),
            "+".join(row["sources"]),
            f"{row['seconds'] * 1e3:.3f}",
            f"{row['seconds'] / s.seconds:.1%}",
        )
        for row in layers[:LAYERS]
    ]
    head = ("layer", "phase", "kernel", "time of", "ms", "of the step")
    parts.append(table(head, rows, right=4))
    if len(layers) > LAYERS:
        rest = sum(row["seconds"] for row in layers[LAYERS:])
        parts[-1] += f"\nand {len(layers) - LAYERS} more, {human_seconds(rest)}"
    phases = [(name, human_seconds(value)) for name, value in s.phases.items()]
    parts.append(table(("phase", "simulated"), [*phases, ("step", human_seconds(s.seconds))]))
    if s.exchange:
        cost = {name: human_seconds(value) for name, value in s.exchange.items()}
        parts.append(
            f"exchange of all gradients among {s.joined} {cost['seconds']}: latency {cost['latency']}, "
            f"transfer {cost['transfer']}, additions {cost['reduction']} (simulated)"
        )
    if s.data:
        parts.append(_data(s))
    parts.append(f"{s.samples_per_second:,.1f} samples/s (simulated)")
    used = {k: v for k, v in s.memory.items() if k not in ("worker", "process", "runtime") and v}
    detail = ", ".join(f"{name} {human_bytes(count)}" for name, count in used.items())
    own = s.memory.get("runtime")
    if s.capacity is None:
        fits = "its capacity is not described"
        fits += f"; a process itself has {human_bytes(own)} (measured)" if own else ""
    else:
        fits = f"the batch {'fits' if s.fits else 'does not fit'} in {human_bytes(s.capacity)}"
        fits += f" with the {human_bytes(own)} of a process itself (measured)" if own else ""
    parts.append(f"memory of a worker {human_bytes(s.memory['worker'])} (simulated; {detail}); {fits}")
    parts.append("\n".join(f"from: {line}" for line in s.sources))
    return "\n\n".join(parts)


def _data(s: Simulation) -> str:
    """Return a line about the cost of a step's samples."""
    d, shared = s.data, ""
    if "stripes" in d:
        many = f"{d['processes']:,} processes share" if d["processes"] > 1 else "one process has"
        shared = (
            f": {many} {human_bytes(d['aggregate'])}/s of {d['stripes']} of {d['targets']} "
            f"{d['space']!r}, at most {d['readers']:,.0f} on one"
        )
    wait = f"{human_seconds(d['wait'])} ({d['wait'] / s.seconds:.1%} of the step)"
    return f"samples read ahead in {human_seconds(d['seconds'])}{shared}; data wait {wait} (simulated)"


def compared(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return a paper's tables beside predictions as text: a line for each row and column, and a
    summary."""
    parts = []
    for name in dict.fromkeys(cell["table"] for cell in cells):
        rows = []
        for cell in (each for each in cells if each["table"] == name):
            rows.append(
                (
                    str(cell["row"]),
                    str(cell["column"]),
                    _number(cell["paper"]),
                    _number(cell["predicted"]),
                    str(cell["unit"]),
                    _error(cell),
                )
            )
        head = ("row", "column", "paper", "simulated", "unit", "error")
        parts.append(f"{name}\n{table(head, rows, right=2)}")
    parts.append(summary(cells))
    return "\n\n".join(parts)


def summary(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the errors of predictions of printed cells as text, by table and overall."""
    lines = []
    names = list(dict.fromkeys(cell["table"] for cell in cells))
    for name in [*names, None]:
        mine = [cell for cell in cells if name in (cell["table"], None)]
        known = [abs(e) for cell in mine if (e := error_of(cell)) is not None]
        label = name or "all tables"
        if not known:
            lines.append(f"{label}: no printed cell to compare; {len(mine)} predicted")
            continue
        near = [sum(e <= limit for e in known) / len(known) for limit in (0.15, 0.35)]
        lines.append(
            f"{label}: median error {median(known):.1%}, {near[0]:.0%} within 15%, {near[1]:.0%} within "
            f"35% of {len(known)} printed cells; {len(mine) - len(known)} more predicted"
        )
    return "\n".join(lines if len(names) > 1 else lines[:1])


def error_of(cell: Mapping[str, Any]) -> float | None:
    """Return the relative error of a prediction; None if the paper prints no number."""
    paper, predicted = cell["paper"], cell["predicted"]
    if not isinstance(paper, int | float) or not isinstance(predicted, int | float) or not paper:
        return None
    return float(predicted / paper - 1)


def _error(cell: Mapping[str, Any]) -> str:
    error = error_of(cell)
    return "" if error is None else f"{error:+.1%}"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
