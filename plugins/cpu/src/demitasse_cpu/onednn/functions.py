"""Functions of one element that oneDNN does to what a convolution or an inner product makes, before it
leaves the registers: those that cost it nothing there.

With an exponential its kernels are slower than without it and our loop behind them: a swish of 8 x 32 x
112 x 112 results takes one core 3.5 ms more in a depthwise convolution, and 2.2 ms in a loop. Numbers
are those of dnnl_alg_kind_t (include/oneapi/dnnl/dnnl_types.h, version 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from demitasse import Request

Function: TypeAlias = tuple[int, float, float]
"""oneDNN's number for it, and what it calls alpha and beta."""

FUNCTIONS: Mapping[str, tuple[int, tuple[str, ...]]] = MappingProxyType(
    {
        "relu": (0x20, ()),
        "hard_sigmoid": (0x28, ("scale", "shift")),
        "clip": (0x2F, ("least", "most")),
        "hard_swish": (0x34, ("scale", "shift")),
    }
)
"""By word: oneDNN's number, and the word's attributes that are alpha and beta."""


def function_behind(product: str, request: Request) -> Function | None:
    """The function that a request for a product asks for besides, by the end of its operation's name: a
    sum may stand between. None where it asks for none."""
    word = request.operation.name.removeprefix(product).removeprefix("_sum").removeprefix("_")
    if not word:
        return None
    kind, names = FUNCTIONS[word]
    alpha, beta, *_ = (*(float(request.attributes[name]) for name in names), 0.0, 0.0)
    return kind, alpha, beta


def followed_by_each(product: str) -> list[str]:
    """The words for a product and one function behind it."""
    return [f"{product}_{word}" for word in FUNCTIONS]
