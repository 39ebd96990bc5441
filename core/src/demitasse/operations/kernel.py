"""What a plan asks of kernels and what they offer: layouts, requests and candidates."""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from demitasse.operations import Operation

if TYPE_CHECKING:
    import numpy as np

Work: TypeAlias = Callable[[], None]
"""A bound piece of a step; called without arguments, it does its part."""


ARRAYS: Mapping[str, str] = types.MappingProxyType({"bfloat16": "uint16"})
"""NumPy's type for the bits of an element type that NumPy lacks."""


@dataclass(frozen=True)
class Layout:
    """How a logical tensor lies in memory. Its dimensions are in ``order``, outermost first (() keeps
    the order). Each of ``blocks``, (dimension, size), cuts a dimension, padded with zeros, into blocks;
    these follow, the last one innermost. ``Layout("NHWC", (0, 2, 3, 1))`` is a permutation,
    ``Layout("NCHW8c", blocks=((1, 8),))`` is blocked on channels. ``stored`` is the element type in
    memory if it is not the tensor's own: ``bfloat16``, the upper half of float32's bits. Layouts that
    differ only in their names are equal."""

    name: str = field(compare=False)
    order: tuple[int, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    stored: str = ""

    def physical(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape in memory of a tensor of logical ``shape``."""
        extents = list(shape)
        for dimension, size in self.blocks:
            extents[dimension] = -(-extents[dimension] // size)
        order = self.order or range(len(extents))
        return (*(extents[d] for d in order), *(size for _, size in self.blocks))

    def places(self, shape: Sequence[int]) -> tuple[object, ...]:
        """Return a key that is equal for layouts that put each element of a tensor of this shape in the
        same place (a dimension of extent 1 may stand anywhere)."""
        order = self.order or tuple(range(len(shape)))
        extents = self.physical(shape)
        outer = tuple(d for d, extent in zip(order, extents, strict=False) if extent > 1)
        return outer, self.blocks, self.stored

    def pack(self, logical: np.ndarray) -> np.ndarray:
        """Return a logical array as it lies in memory (a copy unless the layout is plain)."""
        import numpy as np

        array, rank = logical, logical.ndim
        for dimension in {dimension for dimension, _ in self.blocks}:
            more = -array.shape[dimension] % math.prod(n for d, n in self.blocks if d == dimension)
            padding = [(0, more if d == dimension else 0) for d in range(rank)]
            array = np.pad(array, padding)
        for dimension, size in reversed(self.blocks):
            cut = (*array.shape[:dimension], -1, size, *array.shape[dimension + 1 :])
            array = np.moveaxis(array.reshape(cut), dimension + 1, rank)
        order = self.order or tuple(range(rank))
        array = array.transpose(*order, *range(rank, array.ndim))
        if self.stored == "bfloat16":  # rounds to nearest, ties to even
            bits = np.ascontiguousarray(array, np.float32).view(np.uint32).astype(np.uint64)
            rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
            return np.where(np.isnan(array), np.uint16(0x7FC0), rounded)
        return np.ascontiguousarray(array, self.stored or None)

    def unpack(self, physical: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return the logical array of ``shape`` that lies in ``physical`` (a view if possible)."""
        import numpy as np

        rank = len(shape)
        order = self.order or tuple(range(rank))
        if self.stored == "bfloat16":
            physical = (physical.astype(np.uint32) << 16).view(np.float32)
        array = physical.transpose(*np.argsort(order), *range(rank, physical.ndim))
        for dimension, _ in self.blocks:
            array = np.moveaxis(array, rank, dimension + 1)
            merged = array.shape[dimension] * array.shape[dimension + 1]
            array = array.reshape(*array.shape[:dimension], merged, *array.shape[dimension + 2 :])
        return array[tuple(slice(extent) for extent in shape)] if shape else array


PLAIN = Layout("plain")
"""Row-major in logical order: NCHW for images."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as kernels see it: logical shape, element type (NumPy's name), layout."""

    shape: tuple[int, ...]
    dtype: str
    layout: Layout = PLAIN

    @property
    def physical(self) -> tuple[int, ...]:
        return self.layout.physical(self.shape)

    @property
    def stored(self) -> str:
        """The element type in memory."""
        return self.layout.stored or self.dtype

    @property
    def array_type(self) -> str:
        """The element type of a NumPy array over that memory."""
        return ARRAYS.get(self.stored, self.stored)

    @property
    def nbytes(self) -> int:
        import numpy as np

        return math.prod(self.physical) * np.dtype(self.array_type).itemsize

    @property
    def plain(self) -> TensorSpec:
        """The tensor as a candidate that states no layouts receives it."""
        return TensorSpec(self.shape, self.dtype)

    def __str__(self) -> str:
        layout = "" if self.layout == PLAIN else f" {self.layout.name}"
        return f"{'x'.join(map(str, self.shape)) or 'scalar'} {self.stored}{layout}"


@dataclass(frozen=True)
class Place:
    """Where a worker computes: the level of the machine, the memory space of its tensors, how many
    hardware threads its kernels may use, and whether the machine is only simulated."""

    level: str
    space: str = "host"
    threads: int = 1
    simulated: bool = False


@dataclass(frozen=True)
class Request:
    """An operation to be computed. The tensors of a variadic operand follow the other ones in line; an
    absent optional operand is None. Layouts are the inputs' present ones; a candidate may ask for others
    and, if ``precision`` is bf16, for tensors stored as bfloat16, but not sums, losses or parameters. If
    parameters are ``fixed``, they do not change, and what depends on them alone is computed once."""

    operation: Operation
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec | None, ...]
    attributes: Mapping[str, Any]
    place: Place
    precision: str = "f32"
    fixed: bool = False


Bind: TypeAlias = Callable[[Sequence[Any], Sequence[Any], Any], Work]
"""Returns a work for (inputs, outputs, workspace). Buffers are what the place's allocator gives (NumPy
arrays of the physical shape on a host); absent operands and an empty workspace are None."""


@dataclass(frozen=True)
class Candidate:
    """A kernel's offer for one request. ``input_layouts`` and ``output_layouts`` are per operand; ()
    means plain for all. ``workspace`` is the size in bytes of scratch memory that the plan provides
    (uint8, live only during the call). ``seconds`` is the expected time at the request's place, None if
    unknown. ``in_place`` says whether the operation's aliases are safe with this kernel. ``bind`` may
    compile and import, but allocates nothing that it could have requested, and may be called again with
    other arrays; what it returns is called every step. A kernel that can make its first output in
    ``parts`` equal stretches of memory, one by one, has ``bind_part``: (number, inputs, outputs,
    workspace), where the first output is one stretch, flat, and the others are whole."""

    kernel: str
    bind: Bind
    input_layouts: tuple[Layout, ...] = ()
    output_layouts: tuple[Layout, ...] = ()
    workspace: int = 0
    seconds: float | None = None
    in_place: bool = True
    parts: int = 1
    bind_part: Callable[[int, Sequence[Any], Sequence[Any], Any], Work] | None = None
