"""Using the fastest way for single images of some sizes for other sizes too. If every image has a size
of its own, measuring takes longer than it saves."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log, prod
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from demitasse_gpu.libraries.convolutions import Convolution

Sizes: TypeAlias = dict[Any, dict[int, str]]
"""The fastest way by the number of an image's points, for each convolution without its size."""

SIZES, ALIKE = 4, 4
"""After SIZES sizes of single images were measured, the fastest way of one serves other sizes that are
at most ALIKE times as large or as small."""


def teach(sizes: Sizes, asked: Convolution, name: str) -> None:
    """Let the fastest way for one image serve those of other sizes. There it is not verified, so pass
    only ways that are proved."""
    if asked.x[0] == 1:
        sizes.setdefault(_sizeless(asked), {})[prod(asked.y[2:])] = name


def taught(sizes: Sizes, asked: Convolution) -> list[str]:
    """Return the names of ways that may be the fastest for one image, the likeliest first; none if too
    few sizes were measured, or none of similar size. The last number of cuDNN's plans is only their rank
    in the heuristics, so their first is preferred."""
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
