"""Batch normalisation, and means over valid labels, by the statistics of a batch that workers share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from demitasse import Candidate, Request
from demitasse_sw26010.kernels.normalization import LINE, SUMS, channels_of
from demitasse_sw26010.kernels.program import (
    Place,
    elements,
    given,
    is_single,
    program_candidate,
    up,
)
from demitasse_sw26010.model.figures import CPES
from demitasse_sw26010.model.ldm import LdmBuffer

TOGETHER = 2048
"""The maximum number of channels whose sums are together in LDM: 32 KiB of each CPE. Of as many, a
sample's numbers are at least one block of a long DMA."""

MOMENTS = LdmBuffer("moments", (64 * 1024,), "float64", copies=2)
Factory = Callable[[Request], Iterable[Candidate]]


def _offer(
    request: Request, ldm: Sequence[LdmBuffer], numbers: tuple[Any, ...], in_place: bool = False
) -> Iterable[Candidate]:
    """Return the kernel of an operation whose loop has its name, and takes its inputs, its outputs, and
    numbers, in this order."""
    name = request.operation.name
    places: tuple[Place, ...] = (
        *(("in", i) for i in range(len(request.operation.inputs))),
        *(("out", i) for i in range(len(request.operation.outputs))),
    )
    loop = ("whole_batch", name)
    return (program_candidate(request, name, loop, ldm, places, numbers, in_place=in_place),)


def channel_moments(request: Request) -> Iterable[Candidate]:
    """Return the kernel of sums over channels, of at most ``TOGETHER`` channels at a time, as evenly as
    possible."""
    samples, channels, plane = channels_of(request)
    if not is_single(request.inputs[0]):
        return ()
    together = -(-channels // -(-channels // TOGETHER))
    sums = LdmBuffer("sums", (CPES, up(2 * together, 4 * CPES)), "float64")
    return _offer(request, (LINE, sums), (samples, channels, plane, together))


def settle_moments(request: Request) -> Iterable[Candidate]:
    """Return the kernel of statistics from sums."""
    _, *kept = request.inputs
    if not is_single(*kept, *request.outputs):
        return ()
    about = request.attributes
    numbers = float(about["keep"]), bool(about["averaged"]), float(about["epsilon"])
    return _offer(request, (MOMENTS,), (elements(kept[0]), *numbers))


def batch_norm_whole_backward(request: Request) -> Iterable[Candidate]:
    """Return the kernel of dx; none if the result was clipped, as there is no kernel that clips it."""
    *operands, _, _ = request.inputs
    about = request.attributes
    clips = about["least"] > -math.inf or about["most"] < math.inf
    if clips or not is_single(*operands, *request.outputs):
        return ()
    return _offer(request, (LINE,), (*channels_of(request), bool(about["relu"])))


def count_labels(request: Request) -> Iterable[Candidate]:
    """Return the kernel that counts labels, which may have any type."""
    label = given(request.inputs[0])
    line = LdmBuffer("label", LINE.shape, label.array_type, copies=2)
    return _offer(request, (line, SUMS), (elements(label), int(request.attributes["ignore_label"])))


def over_divisor(request: Request) -> Iterable[Candidate]:
    """Return the kernel of a division by a number of labels."""
    x = given(request.inputs[0])
    if not is_single(x, *request.outputs):
        return ()
    return _offer(request, (), (elements(x), float(request.attributes["share"])), in_place=True)


FACTORIES: Mapping[str, Factory] = MappingProxyType(
    {
        "channel_moments": channel_moments,
        "settle_moments": settle_moments,
        "batch_norm_whole_backward": batch_norm_whole_backward,
        "count_labels": count_labels,
        "over_divisor": over_divisor,
    }
)
