"""Convolutions for Winograd's kernels, their definition in float64, and how far apart the two may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from demitasse import PLAIN, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import candidates, winograd, winograd_integers

Passes = tuple[Any, Any, Any, Any]
Problem = tuple[Any, Any, Any, Any, dict[str, Any]]

ROUNDING = 2.0**-24
GROWTH = {3: 12, 5: 90}
"""By how much a sum's rounding errors may grow in the transforms, by the taps in a line."""
INTEGERS = 2.0**-14
"""The rounding of numbers that become 16-bit integers, of the largest that share a scale."""

BFLOAT16 = Layout("bf16", stored="bfloat16")
needs_products_of_pairs = pytest.mark.skipif(
    not winograd_integers.are_quick(), reason="this processor has no AVX-512 VNNI"
)


def ask(
    name: str,
    operands: Sequence[Any],
    results: Sequence[Any],
    attributes: dict[str, Any],
    threads: int,
    precision: str = "f32",
    fixed: bool = False,
) -> Request:
    """A request in plain layouts, for the shapes of arrays; None where an operand is absent."""

    def described(array: Any) -> TensorSpec | None:
        return None if array is None else TensorSpec(array.shape, array.dtype.name)

    return Request(
        VOCABULARY[name],
        tuple(map(described, operands)),
        tuple(map(described, results)),
        {**VOCABULARY[name].attributes, **attributes},
        Place("test", threads=threads),
        precision,
        fixed,
    )


def is_kept(layout: Layout) -> bool:
    """Whether weights lie transformed, in raw bytes."""
    return layout.stored.startswith("V")


def packed(x: Any, layout: Layout, threads: int, precision: str = "bf16") -> Any:
    """What a plan has made of logical numbers, in memory full of rubbish."""
    if not is_kept(layout):
        return layout.pack(x)
    ends = (TensorSpec(x.shape, x.dtype.name),), (TensorSpec(x.shape, x.dtype.name, layout),)
    (candidate,) = candidates(
        Request(VOCABULARY["reorder"], *ends, {}, Place("test", threads=threads), precision, True)
    )
    assert candidate.input_layouts == (PLAIN,)
    assert candidate.output_layouts == (layout,)
    (spec,) = ends[1]
    sizes = spec.nbytes, candidate.workspace
    rooms = [np.full(size + 128, 255, np.uint8) for size in sizes]
    starts = [-room.ctypes.data % 64 for room in rooms]
    made, workspace = (
        room[start : start + size] for room, start, size in zip(rooms, starts, sizes, strict=True)
    )
    made = made.view(spec.array_type).reshape(spec.physical)
    candidate.bind([x], [made], workspace)()
    for room, start, size in zip(rooms, starts, sizes, strict=True):
        assert (room[start + size :] == 255).all()
    return made


def compute(request: Request, operands: Sequence[Any], **options: Any) -> list[Any]:
    """What the kernel leaves in memory full of rubbish when it is called twice."""
    factory: Callable[..., Any] = winograd.FACTORIES[request.operation.name]
    (candidate,) = factory(request, **options)
    layouts = candidate.input_layouts
    threads = request.place.threads
    given = [
        None if x is None else packed(x, layout, threads, request.precision)
        for x, layout in zip(operands, layouts, strict=True)
    ]
    wanted = list(zip(request.outputs, candidate.output_layouts, strict=True))
    left = [
        None if s is None else layout.pack(np.full(s.shape, np.nan, s.dtype)) for s, layout in wanted
    ]
    memory = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -memory.ctypes.data % 64
    work = candidate.bind(given, left, memory[start : start + candidate.workspace])
    work()
    work()
    # The workspace is no larger than was asked for, and what lies behind it was not touched.
    assert (memory[start + candidate.workspace :] == 255).all()
    return [
        None if array is None or s is None else layout.unpack(array, s.shape)
        for array, (s, layout) in zip(left, wanted, strict=True)
    ]


def all_passes(problem: Problem, threads: int = 2, precision: str = "f32") -> list[Any]:
    x, w, b, dy, attributes = problem
    data, weights = {**attributes, "shape": x.shape}, {**attributes, "shape": w.shape}
    forward = ask("convolution", [x, w, b], [dy], attributes, threads, precision)
    to_data = ask("convolution_backward_data", [dy, w], [x], data, threads, precision)
    to_weights = ask("convolution_backward_weights", [dy, x], [w, b], weights, threads, precision)
    return [
        *compute(forward, [x, w, b]),
        *compute(to_data, [dy, w]),
        *compute(to_weights, [dy, x]),
    ]


def defined(problem: Problem) -> Passes:
    """y, dx, dw and db, tap by tap."""
    x, w, b, dy, attributes = problem
    x, w, b, dy = (array.astype(np.float64) for array in (x, w, b, dy))
    (top, left), groups = attributes["pad"], attributes["groups"]
    padded = np.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    y, dx, dw = np.zeros(dy.shape), np.zeros(padded.shape), np.zeros(w.shape)
    inputs, outputs = w.shape[1], w.shape[0] // groups
    for g in range(groups):
        c, k = slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)
        for i, j in np.ndindex(*w.shape[2:]):
            window = (slice(None), c, slice(i, i + dy.shape[2]), slice(j, j + dy.shape[3]))
            taps = w[k, :, i, j]
            y[:, k] += np.einsum("nchw,kc->nkhw", padded[window], taps, optimize=True)
            dw[k, :, i, j] = np.einsum("nkhw,nchw->kc", dy[:, k], padded[window], optimize=True)
            dx[window] += np.einsum("nkhw,kc->nchw", dy[:, k], taps, optimize=True)
    dx = dx[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return y + b[:, None, None], dx, dw, dy.sum((0, 2, 3))


def random_problem(
    seed: int,
    samples: int,
    channels: int,
    outputs: int,
    result: tuple[int, int],
    pad: tuple[int, int] = (1, 1),
    groups: int = 1,
    taps: int = 3,
) -> Problem:
    random = np.random.default_rng(seed)
    image = [max(1, extent + taps - 1 - 2 * p) for extent, p in zip(result, pad, strict=True)]
    result_shape = [extent + 2 * p + 1 - taps for extent, p in zip(image, pad, strict=True)]
    shapes = (
        (samples, channels * groups, *image),
        (outputs * groups, channels, taps, taps),
        (outputs * groups,),
        (samples, outputs * groups, *result_shape),
    )
    x, w, b, dy = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, w, b, dy, {"pad": pad, "groups": groups}


def stored(problem: Problem) -> Problem:
    """The problem with images as bfloat16 keeps them."""
    x, w, b, dy, attributes = problem
    x, dy = (BFLOAT16.unpack(BFLOAT16.pack(array), array.shape) for array in (x, dy))
    return x, w, b, dy, attributes


def check(
    found: Sequence[Any], problem: Problem, precision: str = "f32", rounding: float = ROUNDING
) -> None:
    """Errors stay below what sums of so many terms of random sign make, times the growth; results
    stored as bfloat16 were rounded to 8 bits after that."""
    _, w, _, dy, _ = problem
    result = dy.shape[0] * dy.shape[2] * dy.shape[3]
    taps = w.shape[2] * w.shape[3]
    terms = taps * w.shape[1], taps * w.shape[0], result, result
    steps = (2.0**-8, 2.0**-8, 0, 0) if precision == "bf16" else (0, 0, 0, 0)
    for ours, theirs, count, step in zip(found, defined(problem), terms, steps, strict=True):
        check_sums(ours, theirs, count, w.shape[2], rounding, step)


def check_sums(ours: Any, theirs: Any, terms: int, taps: int, rounding: float, step: float) -> None:
    """Numbers that are sums of so many ``terms``, in the end rounded to a ``step``."""
    scale = max(np.sqrt(terms), float(np.abs(theirs).max()))
    bound = GROWTH[taps] * rounding * scale * max(4, np.log2(terms))
    np.testing.assert_allclose(ours, theirs, rtol=step, atol=bound)
