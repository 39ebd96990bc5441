"""oneDNN's memory descriptors and the plan's layouts, each from the other.

oneDNN names many forms of memory by tags, and tells the form of any descriptor: order of dimensions
and inner blocks. So the table of tags by form is made by asking, not copied from its headers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_int, c_int64, c_void_p
from functools import cache

from demitasse import Layout, PlanError
from demitasse_cpu.onednn.library import (
    ANY,
    QUERY_BLOCK_DIMENSIONS,
    QUERY_BLOCK_SIZES,
    QUERY_BLOCKS,
    QUERY_STRIDES,
    TYPES,
    Library,
    extents,
)

_TAGS = range(2, 900)
_WIDE = 4096  # an extent that no order of dimensions leaves ambiguous, and all blocks divide


def any_form(lib: Library, shape: Sequence[int], stored: str) -> c_void_p:
    """A descriptor whose form oneDNN may choose."""
    return _kept(lib, tuple(shape), stored, ANY)


def described(lib: Library, shape: Sequence[int], stored: str, layout: Layout) -> c_void_p:
    """The descriptor of a tensor of ``shape`` in ``layout``. Raises PlanError for a form without a
    tag."""
    order = layout.order or tuple(range(len(shape)))
    tag = _tags(lib, len(shape)).get((order, layout.blocks))
    if tag is None:
        raise PlanError(f"oneDNN has no tag for layout {layout.name} ({order}, {layout.blocks})")
    return _kept(lib, tuple(shape), stored, tag)


def layout_of(lib: Library, descriptor: c_void_p, shape: Sequence[int], stored: str) -> Layout | None:
    """The layout of a descriptor that oneDNN chose, ``stored`` left out; None for a form without a
    tag. Of several forms that mean the same memory (an extent of 1 may stand anywhere) the one with
    the first tag."""
    blocks = _form(lib, descriptor, len(shape))[1]
    for (order, inner), tag in _tags(lib, len(shape)).items():
        if inner == blocks:
            candidate = _tagged(lib, shape, stored, tag)
            same = lib.functions.dnnl_memory_desc_equal(descriptor, candidate)
            lib.call("memory_desc_destroy", candidate)
            if same:
                plain = order == tuple(range(len(order)))
                return Layout(_name(order, inner), () if plain else order, inner)
    return None


def size_of(lib: Library, descriptor: c_void_p) -> int:
    """A descriptor's memory in bytes."""
    return int(lib.functions.dnnl_memory_desc_get_size(descriptor))


@cache
def _kept(lib: Library, shape: tuple[int, ...], stored: str, tag: int) -> c_void_p:
    """Descriptors are kept: there are as many as there are kinds of tensors, however often a net is
    planned."""
    return _tagged(lib, shape, stored, tag)


def _tagged(lib: Library, shape: Sequence[int], stored: str, tag: int) -> c_void_p:
    kind = TYPES[stored]
    return lib.made("memory_desc_create_with_tag", len(shape), extents(*shape), kind, tag)


@cache
def _tags(lib: Library, rank: int) -> dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], int]:
    """Tags of tensors of a rank by (order, blocks)."""
    found: dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], int] = {}
    for tag in _TAGS:
        try:
            descriptor = _tagged(lib, [_WIDE] * rank, "uint8", tag)
        except PlanError:
            continue  # of another rank
        found.setdefault(_form(lib, descriptor, rank), tag)
        lib.call("memory_desc_destroy", descriptor)
    return found


def _form(
    lib: Library, descriptor: c_void_p, rank: int
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    count = c_int()
    sizes, dimensions, strides = (ctypes.POINTER(c_int64)() for _ in range(3))
    for what, result in (
        (QUERY_BLOCKS, count),
        (QUERY_BLOCK_SIZES, sizes),
        (QUERY_BLOCK_DIMENSIONS, dimensions),
        (QUERY_STRIDES, strides),
    ):
        lib.call("memory_desc_query", descriptor, what, byref(result))
    order = tuple(sorted(range(rank), key=lambda d: -strides[d]))
    return order, tuple((dimensions[i], sizes[i]) for i in range(count.value))


def _name(order: Sequence[int], blocks: Sequence[tuple[int, int]]) -> str:
    """A form as oneDNN writes it: ``acdb16a``."""
    outer = "".join("abcdef"[d] for d in order)
    return outer + "".join(f"{size}{'abcdef'[d]}" for d, size in blocks)
