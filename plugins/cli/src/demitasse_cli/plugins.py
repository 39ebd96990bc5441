"""``demitasse plugins``: list what is installed, from manifests alone."""

from __future__ import annotations

import click

from demitasse import check_writable, write_json
from demitasse_cli import options as shared
from demitasse_cli import report


@click.command(
    "plugins",
    help="List the installed plugins, without importing any of them.",
    epilog="Example: demitasse plugins --json plugins.json",
)
@shared.json_option("the list")
def command(json_path: str | None) -> None:
    """Name, version, roles and summary of each; or why it cannot be used."""
    from demitasse import discover

    check_writable({"--json": json_path})
    manifests = discover()
    if json_path is not None:
        rows = [
            {
                "name": manifest.name,
                "distribution": manifest.distribution,
                "version": manifest.version,
                "summary": manifest.summary,
                "api": manifest.api,
                "automatic": manifest.automatic,
                "requires": manifest.requires,
                "conflicts": manifest.conflicts,
                "roles": manifest.roles,
                "problem": manifest.problem or None,
            }
            for manifest in manifests
        ]
        write_json(json_path, {"plugins": rows})
    if json_path != "-":
        head = ("plugin", "version", "used", "roles", "summary")
        click.echo(
            report.table(
                head,
                [
                    (
                        manifest.name,
                        manifest.version,
                        "by default" if manifest.automatic else "when named",
                        " ".join(manifest.roles),
                        f"PROBLEM: {manifest.problem}" if manifest.problem else manifest.summary,
                    )
                    for manifest in manifests
                ],
            )
        )
