"""``demitasse detect``: this machine as a hardware description."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from demitasse import check_writable, write_text
from demitasse_cli import options as shared

if TYPE_CHECKING:
    from demitasse import Machine, Runtime


@click.command(
    "detect",
    help="Describe this machine as a TOML file for --hw.",
    epilog="Example: demitasse detect --measure --output mine.toml",
)
@click.option(
    "--output",
    type=shared.file,
    metavar="FILE",
    help="Write the description to FILE, not to the terminal.",
)
@click.option("--measure", is_flag=True, help="Measure bandwidth and rates too; takes half a minute.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@shared.plugins_option
def command(output: Path | None, measure: bool, force: bool, plugins: str | None) -> None:
    """Probe and print; a description that is written is called as its file."""
    from demitasse import DescriptionError

    if output is not None and output.exists() and not force:
        raise DescriptionError(f"{output} already exists; --force overwrites it")
    check_writable({"--output": output})
    with shared.compose("auto", plugins) as runtime:
        if measure:
            click.echo("demitasse: measuring; keep this machine idle for half a minute", err=True)
        machine = measured(runtime) if measure else runtime.machine
    if output is not None:
        machine = replace(machine, name=output.stem)
    text = str(machine).rstrip() + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        write_text(output, text)
        click.echo(f"wrote {output}")


def measured(runtime: Runtime) -> Machine:
    """Return the runtime's machine with measured numbers, by the first plugin that has a program
    ``measure`` (a function of the runtime). Raises CompositionError if there is none."""
    from demitasse import CompositionError, uninstalled

    for _, programs in runtime.composition.serving("programs"):
        if (measure := programs().get("measure")) is not None:
            machine: Machine = measure(runtime)
            return machine
    lacking = uninstalled("programs", "measure")
    raise CompositionError(f"no composed plugin has a program 'measure'{lacking}; leave --measure out")
