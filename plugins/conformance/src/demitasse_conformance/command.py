"""``demitasse check``: does a plugin do what its roles promise?"""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import check_writable, shortened, write_json
from demitasse_conformance.machines import BASE, PROMISES

if TYPE_CHECKING:
    from demitasse_conformance.inquiry import Outcome

HELP = """Hold PLUGIN to what its roles promise.

Kernels are compared with the reference plugin's, on arrays between guards; gradients of layers with
slopes; siblings of a synchronisation with one worker; collectives are proved and run; streams, memory,
samples and files are held to their protocols. The exit status is 1 if a promise is broken."""


def setting(text: str) -> tuple[str, Any]:
    """Return ``KEY=VALUE`` as a pair; the value is TOML or else a string. Raises BadParameter."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()
    except (ValueError, RecursionError) as error:
        wrong = "is nested too deeply" if isinstance(error, RecursionError) else "is not a number"
        raise click.BadParameter(f"{shortened(value.strip(), 20)} {wrong}") from error


file = click.Path(dir_okay=False, path_type=Path)


@click.command(
    "check", help=HELP, epilog="Example: demitasse check softcap --precision f32 --net net.prototxt"
)
@click.argument("plugin")
@click.option(
    "--hw", metavar="MACHINE", help="A machine with what the plugin needs; default: one is made up."
)
@click.option(
    "--plugins",
    metavar="A,B",
    help="Further plugins to compose, besides those it requires.",
)
@click.option(
    "--option",
    "options",
    multiple=True,
    type=setting,
    metavar="KEY=VALUE",
    help="An option of the plugin.",
)
@click.option(
    "--sync", "sync", multiple=True, type=setting, metavar="KEY=VALUE", help="An option of its sync."
)
@click.option(
    "--promise",
    type=click.Choice(PROMISES),
    default="exact",
    show_default=True,
    help="What its synchronisation promises: one worker's parameters, the same ones everywhere, or a "
    "loss that falls.",
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["f64", "f32", "tf32", "bf16"]),
    help="The precision of kernels; may be repeated.  [default: f64, f32, bf16]",
)
@click.option(
    "--net",
    "nets",
    multiple=True,
    type=file,
    metavar="FILE",
    help="Another net to try; may be repeated.",
)
@click.option(
    "--source", "sources", multiple=True, metavar="PATH", help="Samples that the plugin reads."
)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the outcomes as JSON; - is standard output."
)
def check(
    plugin: str,
    hw: str | None,
    plugins: str | None,
    options: tuple[tuple[str, Any], ...],
    sync: tuple[tuple[str, Any], ...],
    promise: str,
    precisions: tuple[str, ...],
    nets: tuple[Path, ...],
    sources: tuple[str, ...],
    json_path: str | None,
) -> int:
    """Print each outcome as soon as it is known, and a summary at the end."""
    from demitasse import ModelError, load_machine, nearest_path
    from demitasse_conformance.inquiry import BROKEN, KEPT, PRECISIONS, Inquiry, composed_with
    from demitasse_conformance.roles import outcomes

    check_writable({"--json": json_path})
    for path in nets:
        if not path.is_file():
            raise ModelError(f"no such file: {path}{nearest_path(path)}")
    if plugins is not None:
        names = [name.strip() for name in plugins.split(",") if name.strip()]
    else:
        names = [*BASE, *((load_machine(hw).plugins or ()) if hw is not None else ())]
    asked = Inquiry(
        plugin,
        composed_with(plugin, names),
        hw,
        dict(options),
        dict(sync),
        precisions or PRECISIONS,
        nets,
        sources,
        promise,
    )
    for option, given, role in (
        ("--source", sources, "data_source"),
        ("--sync", sync, "gradient_sync"),
        ("--promise", promise != PROMISES[0], "gradient_sync"),
        ("--precision", precisions, "kernels"),
    ):
        if given and role not in asked.roles:
            raise click.UsageError(f"{option} does not apply to {plugin!r}, which has no role {role}")
    found = []
    for outcome in outcomes(asked):
        found.append(outcome)
        if json_path != "-":
            click.echo(_row(outcome))
    counts = Counter(outcome.status for outcome in found)
    if json_path is not None:
        write_json(
            json_path, {"plugin": plugin, "broken": counts[BROKEN], "outcomes": [*map(asdict, found)]}
        )
    if json_path != "-":
        untried = counts.total() - counts[KEPT] - counts[BROKEN]
        click.echo(f"{counts[KEPT]} kept, {counts[BROKEN]} broken, {untried} untried")
    return 1 if counts[BROKEN] else 0


def _row(outcome: Outcome) -> str:
    row = f"{outcome.status:8} {outcome.role:14} {outcome.subject:32} {outcome.detail}"
    return row.rstrip()
