"""``demitasse detect``: this machine as a hardware description."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse_cli import options as shared
from demitasse_cli.report import write_text


@click.command("detect", help="Describe this machine as a TOML file for --hw.")
@click.option(
    "--output", type=shared.file, metavar="FILE", help="Write the description here; else print it."
)
@click.option("--measure", is_flag=True, help="Measure bandwidth and peak too; takes some seconds.")
@shared.plugins_option
def command(output: Path | None, measure: bool, plugins: str | None) -> None:
    """Probe and print."""
    asked = [("system", "measure", True)] if measure else []
    with shared.compose("auto", plugins, asked) as runtime:
        text = str(runtime.machine).rstrip() + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
        click.echo(f"wrote {output}")
