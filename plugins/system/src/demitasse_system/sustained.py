"""The rates that layers reach on this machine, from short trainings with the composed kernels."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from demitasse import CompositionError, ModelError, Quantity, Rate, Runtime
from demitasse_system.nets import SOLVER, Net, bottlenecks, inner_products, varieties

SECONDS = 2.0
"""Seconds for which steps of each net are repeated, per precision; each operation's best time counts."""

PRECISIONS = "f32", "bf16"
"""The first must be float32, whose rate stands for operations that were not measured in another."""

OPERATIONS = (
    "inner_product", "inner_product_backward_data", "inner_product_backward_weights",
    "batch_norm", "batch_norm_backward", "lrn_across_channels", "lrn_across_channels_backward",
    "pooling_max", "pooling_max_backward", "pooling_average", "pooling_average_backward",
    "dropout", "dropout_backward",
)  # fmt: skip
"""Operations whose rates are reported besides those of convolutions, because neither their bytes nor the
rate of matrix products predicts their time."""

ALL = "convolution"
"""The rate for all operations without one of their own: of the bottlenecks' convolutions together."""

MOVES = "reorder"
"""The operation that changes a tensor's layout for the next kernel; its time counts for that kernel."""


class Spent(NamedTuple):
    """The flops of some of a plan's entries, and the seconds that these take together."""

    flops: float = 0.0
    seconds: float = 0.0


def sustained(runtime: Runtime, precisions: Sequence[str] = PRECISIONS, times: int = 1) -> Rate | None:
    """Return FLOP/s that layers reach in training steps, in float32 and other precisions: of the
    convolutions of bottlenecks together, forward and backward, and by operation. ``times`` multiplies
    the number of images, which wide devices need. None if the composed plugins cannot train such
    nets."""
    reached = dict[str, dict[str, Quantity]]()
    for precision in precisions:
        spent = dict[str, Spent]()
        for net in (bottlenecks(times), varieties(times), inner_products(times)):
            try:
                profile = quickest(runtime, net, precision)
            except (CompositionError, ModelError):  # there is no trainer, or no reader of such files
                return None
            for name, flops, seconds in counted(net, profile):
                before = spent.get(name, Spent())
                spent[name] = Spent(before.flops + flops, before.seconds + seconds)
        for name, (flops, seconds) in spent.items():
            # So short a measurement is accurate to three digits at most.
            rate = Quantity(float(f"{flops / seconds:.3g}"), "FLOP/s", "measured")
            reached.setdefault(name, {})[precision] = rate
    whole = _rate(reached.pop(ALL))
    return Rate(
        *(whole.value, whole.unit, whole.source, whole.others),
        operations={name: _rate(reached[name]) for name in sorted(reached)},
    )


def quickest(runtime: Runtime, net: Net, precision: str) -> list[tuple[Any, float]]:
    """Return a net's operations in the order of its step, each with its best time in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net.prototxt").write_text(net.text, encoding="utf-8")
        solver = Path(folder) / "solver.prototxt"
        solver.write_text(SOLVER, encoding="utf-8")
        with runtime.trainer(solver, precision=precision, data={"train": samples(net)}) as trainer:
            trainer.profile(1)
            best: Mapping[int, float] = {}
            end = time.perf_counter() + SECONDS
            while not best or time.perf_counter() < end:
                rows = trainer.profile(1)
                best = {i: min(best.get(i, seconds), seconds) for i, (_, seconds) in enumerate(rows)}
    return [(entry, best[i]) for i, (entry, _) in enumerate(rows)]


def counted(net: Net, profile: list[tuple[Any, float]]) -> Iterator[tuple[str, float, float]]:
    """Yield the rate for which each operation counts, its flops, and its seconds including moves before
    it."""
    moving = 0.0
    for entry, seconds in profile:
        if entry.operation == MOVES:
            moving += seconds
            continue
        if entry.operation.startswith("convolution"):
            names = [str(net.convolutions[entry.layer]), *([ALL] if net.name == "bottlenecks" else [])]
        else:
            names = [max((each for each in OPERATIONS if f"{entry.operation}_".startswith(f"{each}_")),
                         key=len, default="")]  # fmt: skip
        yield from ((name, entry.flops, seconds + moving) for name in names if name)
        moving = 0.0


def samples(net: Net) -> dict[str, object]:
    """Return a batch for a net, with arbitrary numbers."""
    import numpy as np

    random = np.random.default_rng(0)
    images = random.random((net.batch, *net.shape), dtype=np.float32)
    return {"data": images, "label": np.arange(net.batch) % 10}


def _rate(reached: Mapping[str, Quantity]) -> Rate:
    plain = reached["f32"]
    others = {name: rate for name, rate in reached.items() if name != "f32"}
    return Rate(plain.value, plain.unit, plain.source, others)
