"""Choosing kernels for many shapes: the choices made for some are reused for others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demitasse import Candidate, Request, Tuner

WEIGHTS = ("w", "dw")
"""Operands whose shapes determine the kind of computation, rather than its amount."""

LARGER = 4
"""A choice holds for up to this many times as many elements."""


@dataclass
class Alike:
    """A tuner for one net in many shapes. While it ``tries``, ``tuner`` picks, and each pick is
    remembered with the number of elements. Otherwise, that pick is reused for an operation that differs
    only in the number and sizes of images, unless it has many more elements: trying kernels takes longer
    than it saves if each shape is used only a few times."""

    tuner: Tuner
    tries: bool = True
    _picked: dict[Any, tuple[str, int]] = field(repr=False, default_factory=dict)

    def pick(self, plugin: str, request: Request, candidates: Sequence[Candidate]) -> tuple[int, str]:
        """As in Tuner."""
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
        """As in Tuner."""
        return self.tuner.choices()

    def prefer(self, choices: Mapping[str, str]) -> None:
        """As in Tuner."""
        self.tuner.prefer(choices)


def _key(plugin: str, request: Request) -> Any:
    """The part of a request that is the same for images of any number and size."""
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
    """Whether an attribute is one of the sizes, such as that of the image whose gradient is computed."""
    return isinstance(value, tuple) and value in sizes
