"""What was the quickest for single images of some sizes, for those of others: where each has a size of
its own, to measure takes longer than it saves."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log, prod
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from demitasse_gpu.libraries.convolutions import Convolution

Sizes: TypeAlias = dict[Any, dict[int, str]]
"""The quickest way for an image of how many points, by the convolution without its size."""

SIZES, ALIKE = 4, 4
"""After so many sizes of single images what was the quickest of one serves others, that are at most so
many times as large or as small."""


def teach(sizes: Sizes, asked: Convolution, name: str) -> None:
    """Have what is the quickest for one image serve those of other sizes: there nobody holds it against
    another, so what is not proved teaches nobody."""
    if asked.x[0] == 1:
        sizes.setdefault(_sizeless(asked), {})[prod(asked.y[2:])] = name


def taught(sizes: Sizes, asked: Convolution) -> list[str]:
    """What may be the quickest for one image, the likeliest first; nothing where too few were measured,
    or none that is nearly as large. Of cuDNN's plans the number says only how the heuristics order
    them, so their first is preferred."""
    known, points = sizes.get(_sizeless(asked), {}), prod(asked.y[2:])
    if asked.x[0] != 1 or len(known) < SIZES:
        return []
    nearest = min(known, key=lambda size: abs(log(size / points)))
    if abs(log(nearest / points)) > log(ALIKE):
        return []
    name = known[nearest]
    return [re.sub(r"(cuDNN \d+)\.\d+$", r"\1.0", name), name]


def _sizeless(asked: Convolution) -> Convolution:
    return replace(asked, x=asked.x[:2], y=asked.y[:2])
