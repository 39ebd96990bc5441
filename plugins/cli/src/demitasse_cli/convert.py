"""``demitasse convert``: weights from one file format to another."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse_cli import options as shared
from demitasse_cli import report


@click.command("convert", help="Convert weights (and solver state) IN to OUT; suffixes name formats.")
@click.argument("source", metavar="IN", type=shared.file)
@click.argument("target", metavar="OUT", type=shared.file)
@shared.plugins_option
@click.option("--force", is_flag=True, help="Overwrite OUT if it is there.")
def command(source: Path, target: Path, plugins: str | None, force: bool) -> None:
    """Convert, and say what was written."""
    from demitasse import ModelError

    if target.exists() and not force:
        raise ModelError(f"{target} is there already; --force overwrites it")
    with shared.compose("auto", plugins) as runtime:
        weights = runtime.read(source).weights()
        written = runtime.write(target, weights)
        # What a format has no place for is only seen by looking at what came of it.
        kept = runtime.read(written).weights()
    arrays = [array for layer in kept.parameters.values() for array in layer]
    layers = report.counted(len(kept.parameters), "layer")
    parts = [f"{layers}, {sum(array.size for array in arrays):,} parameters"]
    left: list[str] = []
    if weights.iteration is not None:
        (parts if kept.iteration is not None else left).append(f"iteration {weights.iteration}")
    if weights.state:
        (parts if kept.state else left).append(f"solver state {', '.join(weights.state)}")
    parts.append(report.human_bytes(written.stat().st_size))
    if left:
        parts.append(f"left out, since the format has no place for it: {', '.join(left)}")
    click.echo(f"wrote {written}: {'; '.join(parts)}")
