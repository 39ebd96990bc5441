"""Every kernel that the cpu plugin offers for an operation, against the reference in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import PLAIN, Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY, Shape
from demitasse_cpu.kernels import candidates
from demitasse_reference.kernels import candidates as reference

NHWC = Layout("NHWC", (0, 2, 3, 1))
BLOCKED = Layout("nChw16c", blocks=((1, 16),))
TOLERANCE = {"f32": 2e-5, "bf16": 2**-7}
"""Sums of float32 products round at 2^-24 each; bfloat16 keeps 8 bits of what is written."""
_BEHIND = 4096
"""Bytes that others have behind a kernel's workspace."""


def aligned(nbytes: int) -> Any:
    """Memory as a plan gives it: on a cache line, full of rubbish."""
    room = np.full(nbytes + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + nbytes]


def run(candidate: Candidate, inputs: Sequence[Any], outputs: Sequence[TensorSpec | None]) -> list[Any]:
    """What a candidate makes of logical arrays, in logical order; done twice, as in a second step, in no
    more memory than it has asked for."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    given_out = candidate.output_layouts or (PLAIN,) * len(outputs)
    arrays: list[Any] = []
    for array, layout in zip(inputs, taken, strict=True):
        if array is None:
            arrays.append(None)
            continue
        packed = layout.pack(array)
        arrays.append(aligned(packed.nbytes).view(packed.dtype).reshape(packed.shape))
        arrays[-1][...] = packed
    made: list[Any] = []
    for spec, layout in zip(outputs, given_out, strict=True):
        if spec is None:
            made.append(None)
            continue
        lying = replace(spec, layout=layout)
        made.append(aligned(lying.nbytes).view(lying.array_type).reshape(lying.physical))
    size = candidate.workspace
    room = aligned(size + _BEHIND)
    work = candidate.bind(arrays, made, room[:size] if size else None)
    work()
    work()
    assert (room[size:] == 255).all(), f"{candidate.kernel} writes behind its workspace"
    return [
        None if spec is None else layout.unpack(array, spec.shape)
        for layout, array, spec in zip(given_out, made, outputs, strict=True)
    ]


def known(candidate: Candidate, inputs: Sequence[Any]) -> list[Any]:
    """What a candidate can know of its inputs, in float64: as it has them stored."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    return [
        None if a is None else layout.unpack(layout.pack(a), a.shape).astype(np.float64)
        for a, layout in zip(inputs, taken, strict=True)
    ]


def agree(
    name: str,
    inputs: Sequence[Any],
    shapes: Sequence[Shape | None],
    attributes: dict[str, Any],
    precision: str,
    arriving: Layout = PLAIN,
) -> set[str]:
    """Compare all candidates of an operation with the reference; the names of the kernels."""
    plain_name = name.removesuffix("_relu")
    word = VOCABULARY[plain_name]
    complete = {**word.attributes, **attributes}
    exact = [None if shape is None else np.full(shape, 77.0) for shape in shapes]
    specs = [None if a is None else TensorSpec(a.shape, "float64") for a in inputs]
    wanted = Request(
        word,
        tuple(specs),
        tuple(None if shape is None else TensorSpec(shape, "float64") for shape in shapes),
        complete,
        Place("test"),
        "f64",
    )
    (oracle,) = reference(wanted)
    room = aligned(oracle.workspace) if oracle.workspace else None

    def expected_of(candidate: Candidate) -> list[Any]:
        oracle.bind(known(candidate, inputs), exact, room)()
        rectified = name != plain_name and exact[0] is not None
        return [np.maximum(exact[0], 0), *exact[1:]] if rectified else exact

    # What a sum of such terms comes to as a rule: one that happens to cancel is no more exact.
    usual = [None if a is None else np.empty_like(a) for a in exact]
    oracle.bind([None if a is None else np.square(a, dtype=np.float64) for a in inputs], usual, room)()
    usual = [None if a is None else np.sqrt(a).max() for a in usual]

    lying = [
        None if a is None else TensorSpec(a.shape, "float32", arriving if a.ndim == 4 else PLAIN)
        for a in inputs
    ]
    outputs = [None if shape is None else TensorSpec(shape, "float32") for shape in shapes]
    request = Request(
        replace(word, name=name),
        tuple(lying),
        tuple(outputs),
        complete,
        Place("test", threads=2),
        precision,
    )
    names = set()
    for candidate in candidates(request):
        names.add(candidate.kernel)
        results = run(candidate, inputs, outputs)
        for made, expected, size in zip(results, expected_of(candidate), usual, strict=True):
            if expected is None:
                continue
            scale = max(np.abs(expected).max(), size) + 1e-30
            worst = np.abs(made - expected).max() / scale
            assert worst < TOLERANCE[precision], f"{candidate.kernel}: {name}"
    return names


def check_convolution(case: dict[str, Any], precision: str, arriving: Layout) -> set[str]:
    random, attributes = np.random.default_rng(case["seed"]), case["attributes"]
    word = VOCABULARY["convolution"]
    shapes = {"x": case["x"], "w": case["w"], "b": None}
    (y,) = word.shapes(shapes, {**word.attributes, **attributes})
    x, w, dy = (random.standard_normal(shape).astype(np.float32) for shape in (case["x"], case["w"], y))
    b = random.standard_normal(w.shape[0]).astype(np.float32)
    names = agree("convolution", [x, w, None], [y], attributes, precision, arriving)
    names |= agree("convolution", [x, w, b], [y], attributes, precision, arriving)
    names |= agree("convolution_relu", [x, w, b], [y], attributes, precision, arriving)
    back = {**attributes, "shape": x.shape}
    names |= agree("convolution_backward_data", [dy, w], [x.shape], back, precision, arriving)
    back = {**attributes, "shape": w.shape}
    made = [w.shape, b.shape]
    agree("convolution_backward_weights", [dy, x], [w.shape, None], back, precision, arriving)
    return names | agree("convolution_backward_weights", [dy, x], made, back, precision, arriving)
