"""``demitasse convert_annoset``: write images and their annotations as a database, with the flags of the
tool of SSD's fork."""

from __future__ import annotations

from typing import Any

import click

from demitasse_datasets.imageset_command import Imageset, convert, number, switch, written_options


@click.command(
    "convert_annoset",
    epilog="Example: demitasse convert_annoset -label_map_file map.txt list.txt db",
    cls=Imageset,
    help="Write an LMDB database DB of images with the boxes of their objects, for AnnotatedData "
    "layers. LIST has a line for each image: the image and a file about it, both relative to ROOT.",
)
@click.argument("given", metavar="[ROOT] LIST DB", nargs=-1, required=True)
@click.option(
    "--anno_type",
    "-anno_type",
    default="detection",
    type=click.Choice(["detection", "classification"]),
    show_default=True,
    help="Boxes, or one label per image, as convert_imageset writes it.",
)
@click.option(
    "--label_type",
    "-label_type",
    default="xml",
    type=click.Choice(["xml", "json", "txt"]),
    show_default=True,
    help="The form of the files: VOC's, a COCO image each, or lines of label xmin ymin xmax ymax.",
)
@click.option(
    "--label_map_file", "-label_map_file", default="", help="A label map: the number of each class."
)
@switch("check_label", "Reject a label map that has a name twice.")
@number("min_dim", "Resize the shorter side to so many pixels; 0 keeps it.")
@number("max_dim", "The most pixels of the longer side; 0: no limit.")
@written_options
def command(
    given: tuple[str, ...],
    anno_type: str,
    label_type: str,
    label_map_file: str,
    check_label: bool,
    min_dim: int,
    max_dim: int,
    **written: Any,
) -> None:
    """Write the database, and say what is in it."""
    if anno_type == "classification":
        raise click.UsageError("to write labels only, for Data layers, use demitasse convert_imageset")
    convert(
        *("convert_annotated", given, written),
        labels=label_map_file,
        form=label_type,
        shorter=min_dim,
        longest=max_dim,
        check_labels=check_label,
    )
