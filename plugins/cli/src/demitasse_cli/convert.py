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
    arrays = [array for layer in weights.parameters.values() for array in layer]
    layers = report.counted(len(weights.parameters), "layer")
    parts = [f"{layers}, {sum(array.size for array in arrays):,} parameters"]
    if weights.iteration is not None:
        parts.append(f"iteration {weights.iteration}")
    if weights.state:
        parts.append(f"solver state {', '.join(weights.state)}")
    click.echo(f"wrote {written}: {'; '.join(parts)}; {report.human_bytes(written.stat().st_size)}")
