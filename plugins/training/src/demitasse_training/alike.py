"""Kernels for shapes of which there are many: those that were chosen for others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demitasse import Candidate, Request, Tuner

WEIGHTS = ("w", "dw")
"""The operands whose extents say what is computed, and not of how much."""

LARGER = 4
"""How many times as many elements a choice holds for."""


@dataclass
class Alike:
    """A tuner for one net in many shapes. While it ``tries``, ``tuner`` picks, and it remembers what for
    how many elements. Else it picks that again for an operation that differs by the number and the sizes
    of images alone, unless it has many more elements: to try kernels takes longer than they save where
    each is used a few times."""

    tuner: Tuner
    tries: bool = True
    _picked: dict[Any, tuple[str, int]] = field(repr=False, default_factory=dict)

    def pick(self, plugin: str, request: Request, candidates: Sequence[Candidate]) -> tuple[int, str]:
        """As a Tuner's."""
        key, kernels = _key(plugin, request), [candidate.kernel for candidate in candidates]
        elements = sum(math.prod(spec.shape) for spec in (*request.inputs, *request.outputs) if spec)
        kernel, known = self._picked.get(key, ("", 0))
        if not self.tries and kernel in kernels and elements <= LARGER * known:
            return kernels.index(kernel), "as for another size"
        position, reason = self.tuner.pick(plugin, request, candidates)
        if elements >= known:
            self._picked[key] = kernels[position], elements
        return position, reason

    def choices(self) -> dict[str, str]:
        """As a Tuner's."""
        return self.tuner.choices()

    def prefer(self, choices: Mapping[str, str]) -> None:
        """As a Tuner's."""
        self.tuner.prefer(choices)


def _key(plugin: str, request: Request) -> Any:
    """What is the same for images of all numbers and sizes."""
    word = request.operation
    shapes = [spec.shape for spec in (*request.inputs, *request.outputs) if spec]
    sizes = {part for shape in shapes for part in (shape, shape[2:])}
    named = zip((*word.inputs, *word.outputs), (*request.inputs, *request.outputs), strict=False)
    operands = tuple(
        spec
        and (spec.dtype, spec.layout.name, spec.shape if operand.name in WEIGHTS else spec.shape[1:2])
        for operand, spec in named
    )
    attributes = [
        (name, value) for name, value in sorted(request.attributes.items()) if not _is_one(value, sizes)
    ]
    return plugin, word.name, repr(attributes), operands


def _is_one(value: Any, sizes: set[tuple[int, ...]]) -> bool:
    """Whether an attribute is one of the sizes, as of the image whose gradient is made."""
    return isinstance(value, tuple) and value in sizes
