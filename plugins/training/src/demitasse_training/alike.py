"""Kernels for shapes of which there are many: those that were chosen for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demitasse import Candidate, Request, Tuner

WEIGHTS = ("w", "dw")
"""The operands whose extents say what is computed, and not of how large an image."""


@dataclass
class Alike:
    """A tuner for one net in many shapes. While it ``tries``, ``tuner`` picks, and it remembers what;
    after that it picks the same for an operation that differs by the sizes of images alone, and what a
    plugin prefers where none is known: trying takes longer than a kernel saves that is used once."""

    tuner: Tuner
    tries: bool = True
    _picked: dict[Any, str] = field(repr=False, default_factory=dict)

    def pick(self, plugin: str, request: Request, candidates: Sequence[Candidate]) -> tuple[int, str]:
        """As a Tuner's."""
        key, kernels = _key(plugin, request), [candidate.kernel for candidate in candidates]
        if self.tries:
            position, reason = self.tuner.pick(plugin, request, candidates)
            self._picked[key] = kernels[position]
            return position, reason
        if (known := self._picked.get(key)) in kernels:
            return kernels.index(known), "as for another size"
        return 0, "preferred: of many sizes"

    def choices(self) -> dict[str, str]:
        """As a Tuner's."""
        return self.tuner.choices()

    def prefer(self, choices: Mapping[str, str]) -> None:
        """As a Tuner's."""
        self.tuner.prefer(choices)


def _key(plugin: str, request: Request) -> Any:
    """What is the same for images of all sizes."""
    word = request.operation
    named = zip((*word.inputs, *word.outputs), (*request.inputs, *request.outputs), strict=False)
    operands = tuple(
        spec
        and (spec.dtype, spec.layout.name, spec.shape if operand.name in WEIGHTS else spec.shape[:2])
        for operand, spec in named
    )
    return plugin, word.name, repr(sorted(request.attributes.items())), operands
