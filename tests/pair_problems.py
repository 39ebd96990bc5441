"""Requests for kernels of pairs of bfloat16, and what they compute, for the tests of plugins/cpu."""

from __future__ import annotations

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
