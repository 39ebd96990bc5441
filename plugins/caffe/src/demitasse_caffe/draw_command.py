"""``demitasse draw``: a net as an SVG picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import ModelError, check_writable, compose

if TYPE_CHECKING:
    from demitasse_caffe.net import NetFile


@click.command(
    "draw",
    epilog="Example: demitasse draw net.prototxt net.svg --phase test",
    help="Draw the net in NET as an SVG picture, OUT (default: NET's name with .svg).",
)
@click.argument("net", metavar="NET", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("target", metavar="[OUT.svg]", required=False)
@click.option(
    "--rankdir",
    type=click.Choice(["TB", "BT", "LR"], case_sensitive=False),
    default="TB",
    show_default=True,
    help="Where the data flows: to the bottom, to the top or to the right.",
)
@click.option(
    "--phase",
    type=click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False),
    default="ALL",
    show_default=True,
    help="The layers of one phase, or of both.",
)
def command(net: Path, target: str | None, rankdir: str, phase: str) -> None:
    """Draw the net and print what was written; - is standard output."""
    from demitasse_caffe.drawing import svg
    from demitasse_caffe.whole_file import write_whole

    path = Path(target) if target else Path(net.with_suffix(".svg").name)
    if target != "-" and path.suffix.lower() != ".svg":
        named = path.with_suffix(".svg") if path.name else path / net.with_suffix(".svg").name
        raise click.UsageError(
            f"{path}: nets are drawn as SVG; name {named}, which browsers show; "
            f"Inkscape or rsvg-convert make other formats of it"
        )
    check_writable({"OUT": target if target == "-" else path})
    with compose() as runtime:
        file = _net(runtime, net)
        message = file.message
        text = svg(
            message,
            rankdir.upper(),
            None if phase.upper() == "ALL" else phase.upper(),
            layer_types=runtime.layer_types,
            open_source=runtime.open_source,
        )
    for note in file.notes:
        click.echo(f"demitasse: {note}", err=True)
    for told in filter(None, (file.misfit, *(change.told for change in file.changes[:1]))):
        click.echo(f"demitasse: ignored in the drawing: {told}", err=True)
    if target == "-":
        click.echo(text, nl=False)
        return
    write_whole(path, text.encode())
    click.echo(f"wrote {path}: {len(message.layer)} layers")


def _net(runtime: Any, path: Path) -> NetFile:
    """Return the net of a text or binary file in the current format. Raise ModelError."""
    from demitasse_caffe.binary import parse_binary
    from demitasse_caffe.net import net_file, read_net
    from demitasse_caffe.reader import BINARY, TEXT, WEIGHTS, Reader
    from demitasse_caffe.schema import schema

    if not isinstance(runtime.read(path), Reader):
        raise ModelError(
            f"{path}: is not one of Caffe's files, and only their nets are drawn "
            f"({', '.join((*TEXT, *BINARY, '.caffemodel'))})"
        )
    messages = schema(runtime.layer_types)
    if path.name.endswith((*BINARY, *WEIGHTS)):
        return net_file(path, *parse_binary(path, "NetParameter", messages), messages)
    return read_net(path, messages)
