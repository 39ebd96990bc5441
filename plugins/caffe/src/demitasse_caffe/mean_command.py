"""``demitasse compute_image_mean``: the mean of many images, with the arguments of Caffe's tool."""

from __future__ import annotations

import time

import click

from demitasse import check_writable, compose

PATIENCE = 10.0
"""Seconds between two progress messages."""


class Progress:
    """Reports on standard error, every few seconds, how many images are done."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, count: int, total: int) -> None:
        if time.monotonic() - self._said >= PATIENCE:
            self._said = time.monotonic()
            click.echo(f"{count:,} of {total:,} images", err=True)


@click.command(
    "compute_image_mean",
    epilog="Example: demitasse compute_image_mean train_lmdb mean.binaryproto",
    help="Compute the mean image of samples (an LMDB or LevelDB database, CIFAR, IDX, an image list), "
    "write it to OUT as a binaryproto if that is given, and print the mean of each channel.",
)
@click.argument("source", metavar="SAMPLES")
@click.argument("target", metavar="[OUT.binaryproto]", required=False)
@click.option(
    "--backend", "-backend", default=None, help="The samples' format, if it cannot be detected."
)
def command(source: str, target: str | None, backend: str | None) -> None:
    """Compute the mean and print what was written."""
    check_writable({"OUT": target})
    with compose() as runtime:
        mean = runtime.program("compute_image_mean", source, target, kind=backend, progress=Progress())
    if target is not None:
        click.echo(f"wrote {target}: {' x '.join(map(str, mean.shape))}")
    for channel, plane in enumerate(mean.reshape(mean.shape[0], -1)):
        click.echo(f"mean of channel {channel}: {plane.mean():.6g}")
