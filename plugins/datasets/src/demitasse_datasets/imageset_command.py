"""``demitasse convert_imageset``: write images as a database, with the flags of Caffe's tool."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from demitasse import check_writable, compose

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = "bmp, jpeg, jpg, png, ppm, tif, tiff, webp"
PATIENCE = 10.0
"""Seconds between two progress lines."""


class Progress:
    """Reports on standard error, every few seconds, how many records (or what they are called) are
    done."""

    def __init__(self, noun: str = "records") -> None:
        self._noun, self._said = noun, time.monotonic()

    def __call__(self, count: int) -> None:
        if time.monotonic() - self._said >= PATIENCE:
            self._said = time.monotonic()
            click.echo(f"{count:,} {self._noun}", err=True)


SWITCHES = ("gray", "shuffle", "encoded", "check_size", "check_label", "skip_damaged")
ON, OFF = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")
_SET = re.compile(rf"(--?)({'|'.join(SWITCHES)})=(.*)", re.DOTALL)


class Imageset(click.Command):
    """A command whose switches may also have a value, as in gflags: ``--gray=true``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse after converting every switch to the form that click knows."""
        return super().parse_args(ctx, [_plain(word, ctx) for word in args])


def _plain(word: str, context: click.Context) -> str:
    match = _SET.fullmatch(word)
    if match is None:
        return word
    dashes, name, value = match.groups()
    if value.lower() not in (*ON, *OFF):
        raise click.UsageError(f"--{name}: {value!r} (valid: true, false)", context)
    return f"{dashes}{name if value.lower() in ON else f'no{name}'}"


def switch(name: str, text: str) -> Callable[[Command], Command]:
    """Add a flag in all of gflags' forms: ``--gray``, ``-gray``, ``--nogray``, ``--gray=true``."""
    return click.option(f"--{name}/--no{name}", f"-{name}/-no{name}", name, default=False, help=text)


def number(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}", f"-{name}", name, type=click.IntRange(0), default=0, help=text)


def written_options(command: Command) -> Command:
    """Add the flags that say how images are written."""
    formats = f"The format of encoded images: {FORMATS}."
    options = (
        number("resize_height", "Resize images to so many rows; 0 keeps theirs."),
        number("resize_width", "Resize images to so many columns; 0 keeps theirs."),
        switch("gray", "Write one channel."),
        switch("shuffle", "Write in a random order."),
        switch("encoded", "Store image files as they are, not pixels."),
        click.option("--encode_type", "-encode_type", default="", help=formats),
        switch("check_size", "Reject images whose size differs from the first."),
        click.option(
            "--backend",
            "-backend",
            default="lmdb",
            type=click.Choice(["lmdb"]),
            show_default=True,
            help="The format of DB: LevelDB is read, not written.",
        ),
        click.option("--seed", type=click.IntRange(0), default=0, help="The seed of the random order."),
        click.option("--force", is_flag=True, help="Overwrite DB if it exists."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def convert(program: str, given: tuple[str, ...], written: dict[str, Any], **more: Any) -> None:
    """Run the program that writes the database, with ``written_options``, and report the result."""
    if len(given) not in (2, 3):
        raise click.UsageError("give LIST and DB, or ROOT, LIST and DB")
    root, (source, target) = given[0] if len(given) == 3 else "", given[-2:]
    if not (source and target):  # ROOT may be empty: the list then has full paths
        raise click.UsageError("LIST or DB is empty (is a shell variable not set?)")
    if root and Path(root).is_dir():
        root = f"{root.rstrip('/')}/"  # a folder may be named without its slash
    check_writable({"DB": None if Path(target).is_dir() else target})
    renamed = {"resize_height": "height", "resize_width": "width"}
    options = {renamed.get(name, name): value for name, value in written.items()}
    options["encoded"] = options.pop("encode_type") or options["encoded"]
    del options["backend"]  # LMDB is the only one
    with compose() as runtime:
        count = runtime.program(
            program, source, target, root=root, progress=Progress(), **options, **more
        )
    size = sum(file.stat().st_size for file in Path(target).iterdir())
    click.echo(f"wrote {target}: {count:,} records, {size / 2**20:.1f} MiB")


@click.command(
    "convert_imageset",
    epilog="Example: demitasse convert_imageset images/ list.txt train_lmdb -shuffle",
    cls=Imageset,
    help="Write an LMDB database DB of the images that LIST names, each line a path (relative to ROOT) "
    "and a label; or of a folder of images, whose sub-folders are the classes; or of samples in another "
    "format (CIFAR, IDX).",
)
@click.argument("given", metavar="[ROOT] LIST|FOLDER|SAMPLES DB", nargs=-1, required=True)
@written_options
@switch("skip_damaged", "Leave out images that are missing or damaged, with a line for each.")
def command(given: tuple[str, ...], **written: Any) -> None:
    """Write the database, and say what is in it."""
    convert("convert_samples", given, written)
