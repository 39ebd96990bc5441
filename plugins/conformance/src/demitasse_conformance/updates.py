"""Requests for solvers' updates, as in a plan: on flat memory, in segments with their own rates."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from demitasse import Place, Request, TensorSpec
from demitasse.operations import REQUIRED, Operation
from demitasse_conformance.nets import SEED

SIZE = 74
SEGMENTS = ((0, 5, 1.0, 1.0), (5, 48, 2.0, 0.0), (48, 61, 0.5, 3.0), (61, 74, 0.0, 1.0))
"""(start, stop, rate multiplier, decay multiplier) of each parameter."""
TRIED: Mapping[str, tuple[Any, ...]] = {
    "momentum": (0.9,),
    "momentum2": (0.99,),
    "decay": (0.05,),
    "regularization": ("L2", "L1"),
    "clip": (False, True),
    "trust": (0.5,),
    "delta": (1e-3,),
    "segments": (SEGMENTS,),
}
"""The values tried for attributes; others have their default, or 0.9 if they have no default."""


def update_requests(
    vocabulary: Mapping[str, Operation], place: Place, precision: str
) -> Iterator[tuple[Request, list[Any]]]:
    """Yield requests for each update in a vocabulary, with values of its inputs: every combination of
    its attributes, with gradients as they are and with gradients scaled, as by clipping."""
    real = "float64" if precision == "f64" else "float32"
    for word in vocabulary.values():
        if word.family != "update":
            continue
        choices = {
            name: TRIED.get(name, (0.9 if value is REQUIRED else value,))
            for name, value in word.attributes.items()
        }
        optional = [operand.name for operand in word.inputs if operand.optional]
        for row in itertools.product(*choices.values()):
            for absent in (optional, []) if optional else ([],):
                values = [
                    None if operand.name in absent else _value(operand.name, operand.dtype or real)
                    for operand in word.inputs
                ]
                specs = tuple(v if v is None else TensorSpec(v.shape, v.dtype.name) for v in values)
                given = dict(zip(choices, row, strict=True))
                yield Request(word, specs, (), given, place, precision), values


def _value(name: str, dtype: str) -> np.ndarray:
    """Return an operand's value: a single number, sums of squares of segments, or flat memory, in which
    what solvers keep is not negative."""
    random = np.random.default_rng([SEED, *name.encode()])
    alone = {"rate": 0.05, "iteration": 4, "scale": 0.3}
    if name in alone:
        kind = {"rate": "float64", "iteration": "uint64"}.get(name, dtype)
        return np.array([alone[name]], kind)
    if name == "squares":
        return random.uniform(1, 2, 2 * len(SEGMENTS)).astype(dtype)
    value = random.standard_normal(SIZE)
    return (value if name in ("parameter", "gradient") else np.abs(value)).astype(dtype)
