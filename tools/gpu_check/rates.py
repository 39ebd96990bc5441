"""The rates that layers reach on a GPU, by operation and precision, for its description (sustained)."""

from __future__ import annotations

from collections.abc import Iterator

import ours
from cases import Cases, Table

from demitasse import Quantity, Rate

TIMES = 16
"""How many times as many images as on a processor: 128, or 512 for inner products."""
PRECISIONS = ("f32", "tf32", "bf16")
SECONDS = 1.0
"""Seconds of steps for each of three nets, in each precision."""


def rates(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Measure what ``demitasse detect --measure`` does for a processor."""
    from demitasse_system import nets, sustained

    sustained.SECONDS = SECONDS
    if stand_in:
        sustained.SECONDS, nets.CHANNELS, nets.NARROW, nets.WIDE = 0.0, 8, (2, 4), 16
        nets.SIDE, nets.IMAGES = 4, 32
    with ours.on_gpu(stand_in) as runtime:
        reached = sustained.sustained(runtime, PRECISIONS, 1 if stand_in else TIMES)
    if reached is None:
        yield {"wrong": ["no composed plugin trains the nets"]}
        return
    found = {name: _in_precisions(rate) for name, rate in reached.operations.items()}
    yield {"sustained": {"of all others": _in_precisions(reached), **found}}


def _in_precisions(rate: Quantity) -> dict[str, str]:
    """Return a rate as in a description, with no more digits than so short a measurement justifies."""
    others = rate.others if isinstance(rate, Rate) else {}
    values = {"f32": rate.value, **{name: each.value for name, each in others.items()}}
    return {name: f"{value / 1e9:.3g} GFLOP/s" for name, value in values.items()}
