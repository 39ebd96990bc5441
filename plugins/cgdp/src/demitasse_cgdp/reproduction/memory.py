"""Memory of a GPU (section 5.2.4): what the scheme needs, what an image needs, which batch fits."""

from __future__ import annotations

from demitasse_cgdp.reproduction.machine import calibrated
from demitasse_cgdp.reproduction.nets import NETS, WORD, Net
from demitasse_cgdp.reproduction.printed import BVLC, LARGEST, TABLE_5, TRL

MB = 1e6
AHEAD = 3
"""Batches that Caffe holds ready on the GPU."""

NET, PRINTED_BATCH = "VGGNet-16", 32


def rooms(net: Net, gpus: int = 4) -> int:
    """Bytes on GPU 0 for the gradients of those that it collects from."""
    return calibrated().tree(gpus).room(net.gradients)


def image(net: Net) -> int:
    """Bytes of an image more: blobs and their gradients, of which the samples have none, and the samples
    that are held ready."""
    return WORD * (2 * net.numbers - net.samples + AHEAD * net.samples)


def needed(framework: str, batch: int) -> float:
    """Bytes for VGGNet-16: as printed for its batch, and each further image."""
    net = NETS[NET]()
    scheme = rooms(net) if framework == BVLC else 0
    return TABLE_5[NET][1] * MB + scheme + (batch - PRINTED_BATCH) * image(net)


def available() -> float:
    """Bytes that a training has on a GPU: what the printed batch of TRL/Caffe needs."""
    return needed(TRL, LARGEST[TRL])


def largest_batch(framework: str) -> int:
    """How many images fit."""
    batch = PRINTED_BATCH
    while needed(framework, batch + 1) <= available():
        batch += 1
    return batch
