"""``demitasse machines``: the described machines that are installed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from demitasse import DescribedMachine


@click.command(
    "machines",
    help="List the machines that --hw knows by name; or print the description of NAME, to begin one's "
    "own from.",
    epilog="Example: demitasse machines laptop",
)
@click.argument("name", required=False)
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the list as JSON; - is standard output."
)
def machines(name: str | None, json_path: str | None) -> None:
    """List the descriptions in installed packages, each with the first sentence of the comment at its
    head and the levels of which it has several, or print one of them."""
    from demitasse import check_writable, described_machines, find_machine, write_json

    if name is not None:
        if json_path is not None:
            raise click.UsageError("--json writes the list: leave out NAME, or --json")
        if name == "auto":
            raise click.UsageError("auto is this machine; 'demitasse detect' describes it")
        click.echo(find_machine(name).read_text(encoding="utf-8"), nl=False)
        return
    check_writable({"--json": json_path})
    rows = [about(known) for known in described_machines().values()]
    if json_path is not None:
        write_json(json_path, {"machines": rows})
    if json_path != "-":
        click.echo(table([(row["name"], row["problem"] or row["summary"]) for row in rows]))


def about(known: DescribedMachine) -> dict[str, Any]:
    """Return a row of the list. A description that cannot be read has a ``problem`` and no levels."""
    from demitasse import DescriptionError, load_machine

    row = {"name": known.name, "distribution": known.distribution, "path": str(known.path)}
    try:
        levels = [
            {"name": each.name, "count": each.count, "workers": each.workers}
            for each in load_machine(known.path).levels
        ]
        return {**row, "summary": summary(known.path), "levels": levels, "problem": None}
    except DescriptionError as error:
        return {**row, "summary": "", "levels": [], "problem": f"PROBLEM: {error}"}


def summary(path: Path) -> str:
    """Return the first sentence of the comment at the head of a description."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip("# ") or not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return re.split(r"(?<=\.) ", " ".join(lines), maxsplit=1)[0].rstrip(".")


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Return lines with the names in a column as wide as the widest."""
    wide = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{wide}}  {text}".rstrip() for name, text in rows)
