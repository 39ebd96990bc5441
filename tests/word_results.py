"""What a plugin's kernel makes of arrays: a word's results, whatever layouts the kernel asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from agreement import WORDS, aligned, hook

from demitasse import PLAIN, Layout, Place, Request, TensorSpec
from demitasse.operations import Operation

WITHIN = {"float32": 1e-5, "float64": 1e-12}
PLUGINS = ("reference", "cpu")


def compute(
    plugin: str,
    name: str,
    *inputs: np.ndarray,
    words: Mapping[str, Operation] = WORDS,
    layout: Layout = PLAIN,
    precision: str = "f32",
    in_place: bool = False,
    absent: Sequence[int] = (),
    threads: int = 2,
    **attributes: Any,
) -> list[Any]:
    """The logical outputs of a plugin's kernel for logical inputs, of which images lie in ``layout``;
    None for those that are ``absent``."""
    operation, shapes = words[name], dict[str, Any]()
    complete = {**operation.attributes, **attributes}
    for position, operand in enumerate(operation.inputs):
        many = [x.shape for x in inputs[position:]]
        shapes[operand.name] = many if operand.variadic else many[0]
    made = operation.shapes(shapes, complete)
    kinds = [*operation.outputs, *operation.outputs[-1:] * (len(made) - len(operation.outputs))]
    real = inputs[0].dtype.name
    outputs = tuple(
        None if i in absent else TensorSpec(tuple(shape), kind.dtype or real)
        for i, (kind, shape) in enumerate(zip(kinds, made, strict=True))
    )
    lying = tuple(TensorSpec(x.shape, x.dtype.name, layout if x.ndim == 4 else PLAIN) for x in inputs)
    place = Place("test", threads=threads)
    (candidate,) = hook(plugin)(Request(operation, lying, outputs, complete, place, precision))
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    given = candidate.output_layouts or (PLAIN,) * len(outputs)
    sources = [
        lies.pack(x).copy().reshape(lies.physical(x.shape))
        for lies, x in zip(taken, inputs, strict=True)
    ]
    targets: list[Any] = []
    for lies, spec in zip(given, outputs, strict=True):
        there = spec and replace(spec, layout=lies)
        targets.append(there and np.full(there.physical, 77, there.array_type))
    if in_place:
        position = [operand.name for operand in operation.inputs].index(operation.aliases[0][1])
        assert candidate.in_place
        assert taken[position] == given[0]
        targets[0] = sources[position]
    workspace = aligned(TensorSpec((candidate.workspace,), "uint8"), 255)
    work = candidate.bind(sources, targets, workspace)
    assert plugin != "cpu" or hasattr(work, "join"), "a step of the cpu's kernels runs no Python"
    work()
    results: list[Any] = []
    for lies, spec, target in zip(given, outputs, targets, strict=True):
        results.append(None if spec is None else lies.unpack(target, spec.shape))
        if spec is not None and lies.blocks:
            assert np.array_equal(*map(_unsigned_zeros, (lies.pack(results[-1]), target))), "padding"
    return results


def _unsigned_zeros(stored: np.ndarray) -> np.ndarray:
    """With 0 for -0, which as bits of bfloat16 would differ: a zero times a slope below 0 is one."""
    return np.where(stored == 0x8000, 0, stored) if stored.dtype == np.uint16 else stored
