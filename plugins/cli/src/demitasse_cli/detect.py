"""``demitasse detect``: this machine as a hardware description."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse_cli import options as shared
from demitasse_cli.report import check_writable, write_text

if TYPE_CHECKING:
    from demitasse import Machine, Runtime


@click.command("detect", help="Describe this machine as a TOML file for --hw.")
@click.option(
    "--output", type=shared.file, metavar="FILE", help="Write the description here; else print it."
)
@click.option("--measure", is_flag=True, help="Measure bandwidth and peak too; takes some seconds.")
@shared.plugins_option
def command(output: Path | None, measure: bool, plugins: str | None) -> None:
    """Probe and print."""
    check_writable(output)
    with shared.compose("auto", plugins) as runtime:
        machine = measured(runtime) if measure else runtime.machine
    text = str(machine).rstrip() + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
        click.echo(f"wrote {output}")


def measured(runtime: Runtime) -> Machine:
    """The runtime's machine with measured numbers, by the first plugin whose programs have a
    ``measure``: a function of the runtime. Raises CompositionError when there is none."""
    from demitasse import CompositionError

    for _, programs in runtime.composition.serving("programs"):
        if (measure := programs().get("measure")) is not None:
            machine: Machine = measure(runtime)
            return machine
    raise CompositionError("no composed plugin has a program 'measure'; leave --measure out")
