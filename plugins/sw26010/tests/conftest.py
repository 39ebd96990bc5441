"""Runs kernels as a plan does, with operands packed in the layouts that they request, a workspace, and a
place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from demitasse import PLAIN, Candidate, Layout, Place, Request, TensorSpec, compose
from demitasse.operations import Operation
from demitasse_sw26010.kernels import candidates

PLACE = Place("core_group", "ddr3")
Run = Callable[..., list[Any]]


@cache
def vocabulary() -> Mapping[str, Operation]:
    """Return the operations of the core and of the plugins caffe and training."""
    with compose(plugins=["caffe", "training", "reference"]) as runtime:
        return runtime.vocabulary


def request(
    name: str,
    inputs: Sequence[Any],
    attributes: dict[str, Any],
    absent: Sequence[int] = (),
    layouts: Sequence[Layout] = (),
) -> Request:
    """Return a request for an operation on arrays, for all outputs except those at ``absent``."""
    operation = vocabulary()[name]
    complete = {**operation.attributes, **attributes}
    shapes: dict[str, Any] = {}
    for position, operand in enumerate(operation.inputs):
        if operand.variadic:
            shapes[operand.name] = [x.shape for x in inputs[position:]]
        else:
            given = inputs[position] if position < len(inputs) else None
            shapes[operand.name] = None if given is None else given.shape
    made = operation.shapes(shapes, complete)
    kinds = [*operation.outputs, *operation.outputs[-1:] * (len(made) - len(operation.outputs))]
    outputs = [
        TensorSpec(tuple(shape), kind.dtype if kind.dtype not in (None, "real") else "float32")
        for shape, kind in zip(made, kinds, strict=True)
    ]
    where = [*layouts, *[PLAIN] * len(inputs)]
    return Request(
        operation,
        tuple(
            None if x is None else TensorSpec(x.shape, x.dtype.name, layout)
            for x, layout in zip(inputs, where, strict=False)
        ),
        tuple(None if i in absent else spec for i, spec in enumerate(outputs)),
        complete,
        PLACE,
    )


def bound(
    asked: Request, candidate: Candidate, inputs: Sequence[Any]
) -> tuple[Any, list[Any], list[Any]]:
    """Return (work, packed inputs, packed outputs) of a candidate."""
    ins = [
        None if x is None else np.ascontiguousarray(layout.pack(x))
        for x, layout in zip(inputs, [*candidate.input_layouts, *[PLAIN] * len(inputs)], strict=False)
    ]
    wanted = [*candidate.output_layouts, *[PLAIN] * len(asked.outputs)]
    outs = [
        None if spec is None else np.zeros(layout.physical(spec.shape), spec.dtype)
        for spec, layout in zip(asked.outputs, wanted, strict=False)
    ]
    scratch = np.zeros(candidate.workspace, np.uint8) if candidate.workspace else None
    return candidate.bind(ins, outs, scratch), ins, outs


@pytest.fixture
def run() -> Run:
    """``run(name, inputs, attributes, kernel="", absent=())`` returns the logical outputs of the kernel
    whose name begins with ``kernel``, by default of the first one. Inputs that it updates are updated in
    place."""

    def call(
        name: str,
        inputs: Sequence[Any],
        attributes: dict[str, Any] | None = None,
        kernel: str = "",
        absent: Sequence[int] = (),
    ) -> list[Any]:
        asked = request(name, inputs, attributes or {}, absent)
        (candidate, *_) = [c for c in candidates(asked) if c.kernel.startswith(kernel)]
        work, ins, outs = bound(asked, candidate, inputs)
        work()
        for given, packed, operand in zip(inputs, ins, asked.operation.inputs, strict=False):
            if operand.updated and given is not None:
                given[...] = packed
        wanted = [*candidate.output_layouts, *[PLAIN] * len(outs)]
        return [
            None if out is None or spec is None else layout.unpack(out, spec.shape)
            for out, spec, layout in zip(outs, asked.outputs, wanted, strict=False)
        ]

    return call


@pytest.fixture
def ask() -> Callable[..., Request]:
    """The function ``request`` above."""
    return request


@pytest.fixture
def bind() -> Callable[..., tuple[Any, list[Any], list[Any]]]:
    """The function ``bound`` above."""
    return bound
