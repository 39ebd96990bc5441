"""``demitasse convert_annoset``: images and what they show written as a database, with the flags of the
tool of SSD's fork."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse import compose
from demitasse_datasets.imageset_command import FORMATS, Imageset, Progress, number, switch


@click.command(
    "convert_annoset",
    cls=Imageset,
    help="Write an LMDB database DB of the images that LIST names, an image and a file about it (both "
    "after ROOT) a line, with boxes of what they show, for AnnotatedData layers.",
)
@click.argument("given", metavar="[ROOT] LIST DB", nargs=-1, required=True)
@click.option(
    "--anno_type",
    "-anno_type",
    default="detection",
    type=click.Choice(["detection", "classification"]),
    show_default=True,
    help="Boxes, or a label for each image, as convert_imageset writes it.",
)
@click.option(
    "--label_type",
    "-label_type",
    default="xml",
    type=click.Choice(["xml", "json", "txt"]),
    show_default=True,
    help="What the files are: VOC's, a COCO image each, or lines: label xmin ymin xmax ymax.",
)
@click.option(
    "--label_map_file", "-label_map_file", default="", help="Gives the classes that they name numbers."
)
@switch("check_label", "Refuse a label map that has a name twice.")
@number("min_dim", "Pixels to which the shorter side is resized; 0 keeps it.")
@number("max_dim", "Pixels that the longer side has at most; 0 for any.")
@number("resize_height", "Rows to which images are resized; 0 keeps theirs.")
@number("resize_width", "Columns to which images are resized; 0 keeps theirs.")
@switch("gray", "Write one channel.")
@switch("shuffle", "Write in a random order.")
@switch("encoded", "Keep images as files, not as pixels.")
@click.option(
    "--encode_type", "-encode_type", default="", help=f"The format of encoded images: {FORMATS}."
)
@switch("check_size", "Refuse images of another size than the first.")
@click.option("--backend", "-backend", default="lmdb", type=click.Choice(["lmdb"]), show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, help="Of the random order.")
@click.option("--force", is_flag=True, help="Overwrite DB if it is there.")
def command(
    given: tuple[str, ...],
    anno_type: str,
    label_type: str,
    label_map_file: str,
    check_label: bool,
    min_dim: int,
    max_dim: int,
    resize_height: int,
    resize_width: int,
    gray: bool,
    shuffle: bool,
    encoded: bool,
    encode_type: str,
    check_size: bool,
    backend: str,
    seed: int,
    force: bool,
) -> None:
    """Write the database, and say what is in it."""
    if len(given) not in (2, 3):
        raise click.UsageError("give LIST and DB, or ROOT, LIST and DB")
    if anno_type == "classification":
        raise click.UsageError("for labels alone, of Data layers, there is demitasse convert_imageset")
    root, (source, target) = given[0] if len(given) == 3 else "", given[-2:]
    with compose() as runtime:
        count = runtime.program(
            "convert_annotated",
            source,
            target,
            labels=label_map_file,
            form=label_type,
            root=root,
            height=resize_height,
            width=resize_width,
            shorter=min_dim,
            longest=max_dim,
            gray=gray,
            encoded=encode_type or encoded,
            shuffle=shuffle,
            seed=seed,
            force=force,
            check_size=check_size,
            check_labels=check_label,
            progress=Progress(),
        )
    size = sum(file.stat().st_size for file in Path(target).iterdir())
    click.echo(f"wrote {target}: {count:,} records, {size / 2**20:.1f} MiB")
