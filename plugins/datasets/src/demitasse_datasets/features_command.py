"""``demitasse extract_features``: a net's blobs over its samples, with the arguments of Caffe's tool."""

from __future__ import annotations

from pathlib import Path

import click

from demitasse import check_writable, compose
from demitasse_datasets.features import KINDS
from demitasse_datasets.imageset_command import Progress

DEVICES = ("cpu", "gpu")


@click.command(
    "extract_features",
    epilog="Example: demitasse extract_features net.caffemodel net.prototxt fc7 fc7.npy",
    help="Run the net NET with WEIGHTS over its samples and write blobs, one row per sample: "
    "BLOB[,BLOB] to OUT[,OUT]. An OUT is an LMDB database of float_data or, by its suffix, an HDF5 "
    "(.h5) or NumPy file (.npy). BATCHES: how many; default: all samples once.",
)
@click.argument(
    "given", metavar="WEIGHTS NET BLOBS OUTS [BATCHES] [lmdb|hdf5|npy]", nargs=-1, required=True
)
@click.option(
    "--hw", default="auto", show_default=True, metavar="MACHINE", help="The machine's description."
)
@click.option("--plugins", metavar="A,B", help="The plugins, preferred first.")
@click.option(
    "--precision",
    type=click.Choice(["f32", "tf32", "bf16", "f64"]),
    help="The precision of activations and weights; default: f32.",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A layer's field (layer.NAME.data_param.source=FILE); may be repeated.",
)
@click.option("--force", is_flag=True, help="Overwrite OUT if it exists.")
def command(
    given: tuple[str, ...],
    hw: str,
    plugins: str | None,
    precision: str | None,
    settings: tuple[str, ...],
    force: bool,
) -> None:
    """Write the blobs, and say what was written."""
    if len(given) < 4:
        raise click.UsageError("give WEIGHTS, NET, BLOB[,BLOB] and OUT[,OUT]")
    weights, net = given[:2]
    if Path(weights).suffix in (".prototxt", ".pbtxt"):
        weights, net = net, weights
    blobs, outs = given[2].split(","), given[3].split(",")
    if len(outs) == 1 and outs[0].endswith((".h5", ".hdf5")):
        outs *= len(blobs)
    if len(blobs) != len(outs) or len({*blobs}) != len(blobs):
        raise click.UsageError(f"{len(blobs)} blobs ({given[2]}) need as many names, not {given[3]!r}")
    batches, kind = _rest(given[4:])
    for out in outs:
        check_writable({"OUT": None if Path(out).is_dir() else out})  # a folder may be a database
    overrides = dict(_pair(setting) for setting in settings)
    with compose(hw, plugins.split(",") if plugins else None) as runtime:
        made = runtime.program(
            "extract_features",
            net,
            weights,
            dict(zip(blobs, outs, strict=True)),
            batches=batches,
            kind=kind,
            overrides=overrides,
            precision=precision,
            force=force,
            progress=Progress("rows"),
        )
    for blob, features in made.items():
        extents = " x ".join(f"{extent:,}" for extent in features.shape)
        click.echo(f"wrote {features.target} ({features.kind}): {blob} {extents}")


def _rest(words: tuple[str, ...]) -> tuple[int | None, str | None]:
    """Return the number of batches and the kind. A device, which Caffe's tool takes after them, is
    reported to have no effect. Raises click's UsageError."""
    batches: int | None = None
    kind: str | None = None
    device = ""
    for place, word in enumerate(words):
        if device and word.isdigit() and place == len(words) - 1:
            device += f" {word}"
        elif word.isdigit() and batches is None and int(word) > 0:
            batches = int(word)
        elif word.lower() in KINDS and kind is None:
            kind = word.lower()
        elif word.lower() in DEVICES and not device:
            device = word
        elif word.lower() == "leveldb":
            raise click.UsageError(f"LevelDB cannot be written; give one of {', '.join(KINDS)}")
        else:
            raise click.UsageError(
                f"{word!r} is neither a number of batches nor one of {', '.join(KINDS)}"
            )
    if device:
        click.echo(f"demitasse: {device} has no effect: --hw says where the net runs", err=True)
    return batches, kind


def _pair(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not (key and equals):
        raise click.UsageError(f"--set {setting}: give KEY=VALUE")
    return key, value
