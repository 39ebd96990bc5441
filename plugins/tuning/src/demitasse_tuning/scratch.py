"""Memory for trials: one block that is kept and grown, and divided into the operands of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import PLAIN, Allocator, Candidate, Layout, Memory, Request, TensorSpec
from demitasse.operations import Operand

ALIGNMENT = 64
KEPT = 64 * 2**20
"""In bytes. The first block has this size: on most systems it occupies only what is written, and pages
that one trial has touched need not be touched again in a larger block. A larger block is released after
its trial, so that a net's own memory never waits for it."""

# Bits of bfloat16 numbers between 0.0078 and 0.0157, in no order: no operation overflows, gives a
# subnormal result or takes the root of a negative number.
_BITS = (0x3C00 + np.arange(2048) * 40503 % 128).astype(np.uint16)


class Scratch:
    """The block of a tuner; there are never two at a time."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._block: Memory | None = None
        self._met = 0

    @property
    def nbytes(self) -> int:
        """The number of bytes currently held."""
        return self._block.nbytes if self._block is not None else 0

    def block(self, nbytes: int) -> Memory:
        """Return a block of at least ``nbytes`` bytes; views of the previous one must no longer be used.
        Raises the allocator's MemoryError."""
        if self._block is None or self._block.nbytes < nbytes:
            self.close()
            self._met = 0
            try:
                self._block = self._allocator.allocate(max(nbytes, KEPT))
            except MemoryError:
                self._block = self._allocator.allocate(nbytes)
        return self._block

    def meets(self, nbytes: int) -> bool:
        """Return whether any of the block's first ``nbytes``, which are about to be written, were never
        written before: the first write to memory waits for the system to provide it."""
        is_new, self._met = nbytes > self._met, max(nbytes, self._met)
        return is_new

    def release(self) -> None:
        """Release the block if it is large."""
        if self.nbytes > KEPT:
            self.close()

    def close(self) -> None:
        """Release the block."""
        if self._block is not None:
            self._block.close()
            self._block = None


class Operands:
    """Arrays for a request's operands in the layouts that each of its candidates requests. All use the
    same places, which have room for the largest layout, so that candidates may take turns, and memory is
    never more than the operands and the largest workspace of one operation. Raises MemoryError."""

    def __init__(self, request: Request, candidates: Sequence[Candidate], scratch: Scratch) -> None:
        self._request, self._scratch = request, scratch
        specs = (*request.inputs, *request.outputs)
        forms = zip(*(wanted(request, candidate) for candidate in candidates), strict=True)
        sizes = [max(0 if spec is None else spec.nbytes for spec in each) for each in forms]
        sizes.append(max(candidate.workspace for candidate in candidates))
        self._offsets = [0]
        for size in sizes:
            self._offsets.append(self._offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
        self._block = scratch.block(max(self._offsets[-1], ALIGNMENT))
        for i in range(len(specs)):
            start, stop = self._offsets[i], self._offsets[i + 1]
            words = self._block.view(start, ((stop - start) // 2,), "uint16")
            spec = request.inputs[i] if i < len(request.inputs) else None
            _fill(words, _pattern(operand(request, i), spec) if spec is not None else None)
        scratch.meets(self._offsets[-2])

    def meets_new(self, candidate: Candidate) -> bool:
        """Return whether the candidate's first call has to wait for memory that was never written."""
        return self._scratch.meets(self._offsets[-2] + candidate.workspace)

    def of(self, candidate: Candidate) -> tuple[list[Any], list[Any], Any]:
        """Return inputs, outputs and workspace for ``candidate.bind``."""
        arrays = [
            None if spec is None else self._block.view(offset, spec.physical, spec.array_type)
            for spec, offset in zip(wanted(self._request, candidate), self._offsets, strict=False)
        ]
        workspace = None
        if candidate.workspace:
            workspace = self._block.view(self._offsets[-2], (candidate.workspace,), "uint8")
        inputs = len(self._request.inputs)
        return arrays[:inputs], arrays[inputs:], workspace


def wanted(request: Request, candidate: Candidate) -> list[TensorSpec | None]:
    """Return the inputs and outputs in the layouts that a candidate requests."""
    sides = (
        (request.inputs, candidate.input_layouts),
        (request.outputs, candidate.output_layouts),
    )
    return [
        None if spec is None else replace(spec, layout=_at(layouts, i))
        for specs, layouts in sides
        for i, spec in enumerate(specs)
    ]


_WHOLE = ("label", "index", "place", "regions", "steps", "lengths")
"""Names of operands that hold classes (and objects), rows, places, regions of images, and numbers of
steps or places."""


def operand(request: Request, i: int) -> Operand:
    """Return the operand of input ``i``; a variadic operand, the last one, stands for all the rest."""
    inputs = request.operation.inputs
    return inputs[min(i, len(inputs) - 1)]


def _at(layouts: Sequence[Layout], i: int) -> Layout:
    return layouts[i] if layouts else PLAIN


def _pattern(named: Operand, spec: TensorSpec) -> np.ndarray | None:
    """Return 16-bit words to repeat over an input, or None for zeros. Whole numbers are counts,
    positions, masks and classes, for which 0 is valid, also if they come as floating point."""
    wide = spec.dtype in ("float32", "bfloat16")
    if named.name in _WHOLE or not (wide or np.dtype(spec.dtype).kind == "f"):
        return None
    if wide:
        # Both halves are alike: read as float32 or as bfloat16, the numbers are small.
        return np.repeat(_BITS, 2)
    values = (_BITS.astype(np.uint32) << 16).view(np.float32)
    return values.astype(spec.dtype).view(np.uint16)


def _fill(words: np.ndarray, pattern: np.ndarray | None) -> None:
    """Write every word, as memory that was never written may be one page of zeros seen many times."""
    if pattern is None:
        words[...] = 0
        return
    whole = len(words) // len(pattern) * len(pattern)
    words[:whole].reshape(-1, len(pattern))[...] = pattern
    words[whole:] = pattern[: len(words) - whole]
