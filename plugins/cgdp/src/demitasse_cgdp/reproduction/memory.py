"""A GPU's memory (section 5.2.4): what the scheme needs, what an image needs, and which batch fits."""

from __future__ import annotations

from demitasse_cgdp.reproduction.machine import calibrated
from demitasse_cgdp.reproduction.nets import NETS, WORD, Net
from demitasse_cgdp.reproduction.printed import BVLC, LARGEST, TABLE_5, TRL

MB = 1e6
AHEAD = 3
"""The number of batches that Caffe holds ready on the GPU."""

NET, PRINTED_BATCH = "VGGNet-16", 32


def rooms(net: Net, gpus: int = 4) -> int:
    """Return the bytes on GPU 0 for the gradients of those that it collects from."""
    return calibrated().tree(gpus).room(net.gradients)


def image(net: Net) -> int:
    """Return the bytes that each further image needs: its blobs and their gradients (samples have none),
    and the samples that are held ready."""
    return WORD * (2 * net.numbers - net.samples + AHEAD * net.samples)


def needed(framework: str, batch: int) -> float:
    """Return the bytes for VGGNet-16: the printed batch's as printed, plus those of further images."""
    net = NETS[NET]()
    scheme = rooms(net) if framework == BVLC else 0
    return TABLE_5[NET][1] * MB + scheme + (batch - PRINTED_BATCH) * image(net)


def available() -> float:
    """Return the bytes that training may use on a GPU: what TRL/Caffe's largest printed batch needs."""
    return needed(TRL, LARGEST[TRL])


def largest_batch(framework: str) -> int:
    """Return the number of images that fit."""
    batch = PRINTED_BATCH
    while needed(framework, batch + 1) <= available():
        batch += 1
    return batch
