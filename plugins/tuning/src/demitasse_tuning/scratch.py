"""Memory for trials: one block that is kept and grown, cut into the operands of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import PLAIN, Allocator, Candidate, Layout, Memory, Request, TensorSpec
from demitasse.operations import Operand

ALIGNMENT = 64
KEPT = 64 * 2**20
"""Bytes. So large a block is asked for at first: of most systems it takes no more than is written, and
pages that one trial met need not be met again in a larger block. One above goes back after its trial, so
that a net's own memory never waits for it."""

# Bits of bfloat16 numbers between 0.0078 and 0.0157, in no order: no operation's result overflows,
# becomes subnormal or takes the root of less than nothing.
_BITS = (0x3C00 + np.arange(2048) * 40503 % 128).astype(np.uint16)


class Scratch:
    """The block of a tuner; at no time are there two."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._block: Memory | None = None
        self._met = 0

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return self._block.nbytes if self._block is not None else 0

    def block(self, nbytes: int) -> Memory:
        """A block of at least so many bytes; views of the one before must no longer be used. Raises
        MemoryError, the allocator's."""
        if self._block is None or self._block.nbytes < nbytes:
            self.close()
            self._met = 0
            try:
                self._block = self._allocator.allocate(max(nbytes, KEPT))
            except MemoryError:
                self._block = self._allocator.allocate(nbytes)
        return self._block

    def meets(self, nbytes: int) -> bool:
        """Whether some of the block's first ``nbytes``, which are written now, never were before:
        whoever writes memory first waits for the system to find it."""
        is_new, self._met = nbytes > self._met, max(nbytes, self._met)
        return is_new

    def release(self) -> None:
        """Give a large block back."""
        if self.nbytes > KEPT:
            self.close()

    def close(self) -> None:
        """Give the block back."""
        if self._block is not None:
            self._block.close()
            self._block = None


class Operands:
    """Arrays for a request's operands as each of its candidates wants them, all in the same places:
    one has room for whichever layout is largest. So candidates may take turns, and there is never more
    than the operands and the largest workspace of one operation. Raises MemoryError."""

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
        """Whether the candidate's first call has to wait for memory that nobody wrote yet."""
        return self._scratch.meets(self._offsets[-2] + candidate.workspace)

    def of(self, candidate: Candidate) -> tuple[list[Any], list[Any], Any]:
        """Inputs, outputs and workspace for ``candidate.bind``."""
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
    """The inputs and outputs in the layouts that a candidate asks for."""
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
"""What operands of classes (and objects), of rows, of places, of regions of images and of how many steps
or places there are, are called."""


def operand(request: Request, i: int) -> Operand:
    """What the operation calls its input ``i``; a variadic operand, the last, stands for the rest."""
    inputs = request.operation.inputs
    return inputs[min(i, len(inputs) - 1)]


def _at(layouts: Sequence[Layout], i: int) -> Layout:
    return layouts[i] if layouts else PLAIN


def _pattern(named: Operand, spec: TensorSpec) -> np.ndarray | None:
    """16-bit words to repeat over an input, None for zeros: whole numbers are counts, positions, masks
    and classes, of which 0 is a valid one, and so is it for those that come as floating point."""
    wide = spec.dtype in ("float32", "bfloat16")
    if named.name in _WHOLE or not (wide or np.dtype(spec.dtype).kind == "f"):
        return None
    if wide:
        # Both halves alike: whichever candidate reads them as float32 or as bfloat16, they are small.
        return np.repeat(_BITS, 2)
    values = (_BITS.astype(np.uint32) << 16).view(np.float32)
    return values.astype(spec.dtype).view(np.uint16)


def _fill(words: np.ndarray, pattern: np.ndarray | None) -> None:
    """Write every word: memory that was never written may be one page of zeros seen many times."""
    if pattern is None:
        words[...] = 0
        return
    whole = len(words) // len(pattern) * len(pattern)
    words[:whole].reshape(-1, len(pattern))[...] = pattern
    words[whole:] = pattern[: len(words) - whole]
