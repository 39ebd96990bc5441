"""Requests for kernels that multiply bfloat16, what they compute, and memory that ends, for the tests of
plugins/cpu."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY

ROUNDING = 2.0**-8
BFLOAT16 = Layout("bf16", stored="bfloat16")


def ask(
    name: str,
    operands: Sequence[tuple[int, ...]],
    result: tuple[int, ...],
    attributes: dict[str, Any],
    threads: int,
    precision: str = "bf16",
    layouts: Sequence[Layout] = (),
) -> Request:
    """A request for float32 operands; the first lie in ``layouts``, the others plain."""
    plain = Layout("plain")
    specs = [
        TensorSpec(shape, "float32", layouts[i] if i < len(layouts) else plain)
        for i, shape in enumerate(operands)
    ]
    outputs = (TensorSpec(result, "float32"),)
    given = {**VOCABULARY[name].attributes, **attributes}
    return Request(
        VOCABULARY[name], tuple(specs), outputs, given, Place("test", threads=threads), precision
    )


def rounded(array: Any) -> Any:
    """The nearest numbers of bfloat16, in float64."""
    return BFLOAT16.unpack(BFLOAT16.pack(array), array.shape).astype(np.float64)


def compute(candidate: Candidate, request: Request, operands: Sequence[Any]) -> Any:
    """What the kernel leaves in memory full of rubbish, which in float32 and bfloat16 is no number."""
    layouts = candidate.input_layouts
    sources = [layout.pack(x).copy() for layout, x in zip(layouts, operands, strict=True)]
    (layout,), (spec,) = candidate.output_layouts, request.outputs
    assert spec is not None
    target = np.full(layout.physical(spec.shape), 0xFFFF, np.uint16)
    room = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    work = candidate.bind(sources, [target], room[start : start + candidate.workspace])
    work()
    work()
    return layout.unpack(target, spec.shape)


def near(found: Any, expected: Any, terms: Any) -> None:
    """Within the rounding of the result, and of sums in float32 of ``terms``' size."""
    bound = ROUNDING * np.abs(expected) + 1e-5 * np.max(terms, initial=1.0)
    assert np.all(np.abs(found - expected) <= bound)


def windows_of(x: Any, result: Sequence[int], taps: Sequence[int], about: dict[str, Any]) -> Any:
    """The windows of padded images: images, channels, rows, columns, taps down and across."""
    (top, left), (down, across) = about["pad"], about["stride"]
    apart = about.get("dilation", (1, 1))
    spans = tuple((t - 1) * d + 1 for t, d in zip(taps, apart, strict=True))
    more = [
        max(0, (n - 1) * s + t - extent - p)
        for n, s, t, extent, p in zip(
            result, (down, across), spans, x.shape[2:], (top, left), strict=True
        )
    ]
    padded = np.pad(x, ((0, 0), (0, 0), (top, more[0]), (left, more[1])))
    seen = np.lib.stride_tricks.sliding_window_view(padded, spans, (2, 3))
    return seen[:, :, ::down, ::across][:, :, : result[0], : result[1], :: apart[0], :: apart[1]]


def made_for_windows(numbers: dict[str, Any]) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    """Images of numbers, the shape of the results and the attributes."""
    numbers = {"dilation": (1, 1), **numbers}
    extents = [
        max(1, (r - 1) * s + (t - 1) * d + 1 - 2 * p + min(more, s - 1))
        for r, s, t, d, p, more in zip(
            *(numbers[each] for each in ("result", "stride", "taps", "dilation", "pad", "beyond")),
            strict=True,
        )
    ]
    random = np.random.default_rng(numbers["channels"])
    x = random.standard_normal((numbers["images"], numbers["channels"], *extents)).astype(np.float32)
    shape = (numbers["images"], numbers["outputs"], *numbers["result"])
    return x, shape, {name: numbers[name] for name in ("stride", "pad", "dilation")}


def at_the_end_of_memory(array: Any) -> Any:
    """A copy behind which nothing may be read: the next page is not there for this process."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None)
    size = -(-array.nbytes // page) * page
    pages = mmap.mmap(-1, size + page)
    memory = np.frombuffer(pages, np.uint8)
    nothing = ctypes.c_void_p(memory.ctypes.data + size)
    assert libc.mprotect(nothing, ctypes.c_size_t(page), 0) == 0
    copy = memory[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
