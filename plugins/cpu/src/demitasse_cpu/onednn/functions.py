"""Functions of one element that oneDNN applies to the result of a convolution or an inner product before
it leaves the registers. Only functions that cost nothing there are listed.

With a function that needs an exponential, oneDNN's kernels are slower than its kernels without it
followed by our loop. A swish of 8 x 32 x 112 x 112 results takes one core 3.5 ms more in a depthwise
convolution, and 2.2 ms in a loop. The numbers are those of dnnl_alg_kind_t
(include/oneapi/dnnl/dnnl_types.h, version 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from demitasse import Request

Function: TypeAlias = tuple[int, float, float]
"""oneDNN's number for a function, and the values of its parameters alpha and beta."""

FUNCTIONS: Mapping[str, tuple[int, tuple[str, ...]]] = MappingProxyType(
    {
        "relu": (0x20, ()),
        "hard_sigmoid": (0x28, ("scale", "shift")),
        "clip": (0x2F, ("least", "most")),
        "hard_swish": (0x34, ("scale", "shift")),
    }
)
"""For each word, oneDNN's number and the attributes of the word that give alpha and beta."""


def function_behind(product: str, request: Request) -> Function | None:
    """Return the function that a request applies to a product, as named at the end of its operation's
    name (a sum may stand in between), or None if it applies none."""
    word = request.operation.name.removeprefix(product).removeprefix("_sum").removeprefix("_")
    if not word:
        return None
    kind, names = FUNCTIONS[word]
    alpha, beta, *_ = (*(float(request.attributes[name]) for name in names), 0.0, 0.0)
    return kind, alpha, beta


def followed_by_each(product: str) -> list[str]:
    """Return the words for a product followed by one function."""
    return [f"{product}_{word}" for word in FUNCTIONS]
