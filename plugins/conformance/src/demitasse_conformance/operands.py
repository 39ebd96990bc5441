"""Arrays for a kernel's operands, as in a plan, but each between guards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import PLAIN, TensorSpec
from demitasse_conformance.promises import hold

if TYPE_CHECKING:
    from demitasse import Allocator, Candidate, Layout, Request

GUARD = 64
"""Bytes on either side of an array, equal to the alignment of memory."""
PATTERN = (0xF5, 0xFF)
"""The bytes of a NaN, in two bytes as well as in four and eight: a kernel that reads beside an array, or
reads the old content of a workspace, has it in its sums."""
UNWRITTEN = {"bfloat16": 0x7FC0}
"""The content of an output before it is written, if NumPy has no NaN of the type: the bits of one."""


def _pattern(size: int) -> np.ndarray:
    return np.tile(np.array(PATTERN, np.uint8), -(-size // len(PATTERN)))[:size]


class Guarded:
    """An array of ``spec`` in new memory of ``allocator``, with a guard on either side."""

    def __init__(self, allocator: Allocator, spec: TensorSpec) -> None:
        self.spec = spec
        size = spec.nbytes + 2 * GUARD
        self._pattern = _pattern(size)
        self._block = allocator.allocate(size)
        self._whole = self._block.view(0, (size,), "uint8")
        self.array = self._block.view(GUARD, spec.physical, spec.array_type)
        self._whole[...] = self._pattern

    def fill(self, value: np.ndarray) -> None:
        """Store the logical ``value``, packed."""
        self.array[...] = self.spec.layout.pack(value).reshape(self.spec.physical)

    def spoil(self) -> None:
        """Fill the array as unwritten: with NaN, or a number that no sum gives."""
        real = np.dtype(self.spec.array_type).kind == "f"
        self.array[...] = UNWRITTEN.get(self.spec.stored, np.nan if real else 77)

    def scribble(self) -> None:
        """Fill the memory with what others leave in a workspace between two calls."""
        self._whole[...] = self._pattern

    @property
    def value(self) -> np.ndarray:
        """A copy of the value in logical order."""
        return np.array(self.spec.layout.unpack(np.asarray(self.array), self.spec.shape))

    @property
    def intact(self) -> bool:
        """Whether nothing was written beside the array."""
        whole, behind = np.asarray(self._whole), GUARD + self.spec.nbytes
        return np.array_equal(whole[:GUARD], self._pattern[:GUARD]) and np.array_equal(
            whole[behind:], self._pattern[behind:]
        )

    def close(self) -> None:
        """Release the memory."""
        self._block.close()


def laid_out(specs: Sequence[TensorSpec | None], layouts: Sequence[Layout]) -> list[TensorSpec | None]:
    """Return specifications of tensors in a candidate's layouts; plain if it names none."""
    chosen = layouts or (PLAIN,) * len(specs)
    return [
        spec and TensorSpec(spec.shape, spec.dtype, layout)
        for spec, layout in zip(specs, chosen, strict=True)
    ]


class Operands:
    """The arrays to which a candidate is bound, without values. If ``sharing`` is the position of an
    input, the first output uses that input's memory."""

    def __init__(
        self,
        candidate: Candidate,
        request: Request,
        allocator: Allocator,
        sharing: int | None = None,
    ) -> None:
        self.updated = _updated(request)
        self.before: list[np.ndarray | None] = []
        self._all: list[Guarded] = []
        try:
            taken = laid_out(request.inputs, candidate.input_layouts)
            self.inputs = [self._made(allocator, spec) for spec in taken]
            shared = None if sharing is None else self.inputs[sharing]
            self.outputs = [
                shared if shared and not i and spec is not None else self._made(allocator, spec)
                for i, spec in enumerate(laid_out(request.outputs, candidate.output_layouts))
            ]
            self.workspace = Guarded(allocator, TensorSpec((candidate.workspace,), "uint8"))
            self._all.append(self.workspace)
        except BaseException:
            self.close()
            raise

    def _made(self, allocator: Allocator, spec: TensorSpec | None) -> Guarded | None:
        if spec is None:
            return None
        self._all.append(Guarded(allocator, spec))
        return self._all[-1]

    def renew(self, values: Sequence[np.ndarray | None]) -> None:
        """Set the inputs to ``values``, in logical order, make the outputs unwritten again, and fill the
        workspace with what others leave there."""
        for output in self.outputs:
            if output is not None:
                output.spoil()
        for given, value in zip(self.inputs, values, strict=True):
            if given is not None and value is not None:
                given.fill(value)
        self.workspace.scribble()
        self.before = [
            None if each is None else np.array(np.asarray(each.array)) for each in self.inputs
        ]

    @property
    def arrays(self) -> tuple[list[Any], list[Any], Any]:
        """Inputs, outputs and workspace, as arguments of ``bind``."""
        scratch = self.workspace.array if self.workspace.spec.shape[0] else None
        ins, outs = ([each and each.array for each in side] for side in (self.inputs, self.outputs))
        return ins, outs, scratch

    def check(self) -> None:
        """Raise BrokenPromiseError if anything except outputs and updated inputs was written."""
        for each, before, may in zip(self.inputs, self.before, self.updated, strict=True):
            if each is None or before is None or may or any(each is other for other in self.outputs):
                continue
            hold(np.asarray(each.array).tobytes() == before.tobytes(), "it writes to an input")
        for each in self.inputs + self.outputs:
            hold(each is None or each.intact, "it writes beside an array")
        size = self.workspace.spec.nbytes
        hold(self.workspace.intact, f"it writes beside its workspace of {size} bytes")

    def made(self) -> list[np.ndarray]:
        """Return copies of the outputs and of the updated inputs, in logical order."""
        changed = [each for each, may in zip(self.inputs, self.updated, strict=True) if may]
        return [each.value for each in self.outputs + changed if each is not None]

    def close(self) -> None:
        """Release all memory."""
        for each in self._all:
            each.close()


@contextmanager
def operands(*about: Any, **more: Any) -> Iterator[Operands]:
    """Yield ``Operands``, and release their memory after the block."""
    arrays = Operands(*about, **more)
    try:
        yield arrays
    finally:
        arrays.close()


def _updated(request: Request) -> list[bool]:
    """Return whether each input is updated; the inputs of a variadic operand follow in line."""
    named = [operand.updated for operand in request.operation.inputs]
    return named + named[-1:] * (len(request.inputs) - len(named))
