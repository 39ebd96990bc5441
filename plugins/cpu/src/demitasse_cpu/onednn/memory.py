"""Converts between oneDNN's memory descriptors and the plan's layouts.

oneDNN names many forms of memory by tags, and reports the form of any descriptor: the order of
dimensions and the inner blocks. The table of tags by form is therefore made by asking oneDNN, not copied
from its headers.
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
_WIDE = 4096  # large enough that the order of dimensions is unambiguous, and a multiple of every block


def any_form(lib: Library, shape: Sequence[int], stored: str) -> c_void_p:
    """Return a descriptor whose form oneDNN may choose."""
    return _kept(lib, tuple(shape), stored, ANY)


def described(lib: Library, shape: Sequence[int], stored: str, layout: Layout) -> c_void_p:
    """Return the descriptor of a tensor of ``shape`` in ``layout``. Raises PlanError for a form without
    a tag."""
    order = layout.order or tuple(range(len(shape)))
    tag = _tags(lib, len(shape)).get((order, layout.blocks))
    if tag is None:
        raise PlanError(f"oneDNN has no tag for layout {layout.name} ({order}, {layout.blocks})")
    return _kept(lib, tuple(shape), stored, tag)


def layout_of(lib: Library, descriptor: c_void_p, shape: Sequence[int], stored: str) -> Layout | None:
    """Return the layout, without ``stored``, of a descriptor that oneDNN chose, or None for a form
    without a tag. If several forms mean the same memory (a dimension of extent 1 may be anywhere),
    return the one with the first tag."""
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
    """Return the size of a descriptor's memory in bytes."""
    return int(lib.functions.dnnl_memory_desc_get_size(descriptor))


@cache
def _kept(lib: Library, shape: tuple[int, ...], stored: str, tag: int) -> c_void_p:
    """Return a descriptor, which is never freed. There are only as many as there are kinds of tensors,
    however often a net is planned."""
    return _tagged(lib, shape, stored, tag)


def _tagged(lib: Library, shape: Sequence[int], stored: str, tag: int) -> c_void_p:
    kind = TYPES[stored]
    return lib.made("memory_desc_create_with_tag", len(shape), extents(*shape), kind, tag)


@cache
def _tags(lib: Library, rank: int) -> dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], int]:
    """Return the tags of tensors of a rank by (order, blocks)."""
    found: dict[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], int] = {}
    for tag in _TAGS:
        try:
            descriptor = _tagged(lib, [_WIDE] * rank, "uint8", tag)
        except PlanError:
            continue  # a tag for another rank
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
    """Return oneDNN's notation for a form, such as ``acdb16a``."""
    outer = "".join("abcdef"[d] for d in order)
    return outer + "".join(f"{size}{'abcdef'[d]}" for d, size in blocks)
