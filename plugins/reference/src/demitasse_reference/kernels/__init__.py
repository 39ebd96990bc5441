"""Every operation of the vocabulary as a plain function, and the candidate made from it.

A kernel takes its operation's inputs by position (absent ones as None) and the attributes that it uses
by name. It returns new values: first of the inputs that it updates, then of its outputs. Real numbers
arrive as float64, whatever the tensor's type; results are rounded once, when they are written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import Candidate, Request, Work
from demitasse_reference.kernels import (
    activation,
    convolution,
    elementwise,
    functions,
    indexing,
    inner_product,
    loss,
    memory,
    normalization,
    pooling,
    rearrangement,
    recurrent,
    reduction,
    regions,
    sequences,
    spatial,
    update,
)
from demitasse_reference.kernels.arrays import Kernels

_FAMILIES = (
    activation,
    convolution,
    elementwise,
    functions,
    indexing,
    inner_product,
    loss,
    memory,
    normalization,
    pooling,
    rearrangement,
    recurrent,
    reduction,
    regions,
    sequences,
    spatial,
    update,
)

KERNELS: Kernels = MappingProxyType(
    {name: kernel for family in _FAMILIES for name, kernel in family.KERNELS.items()}
)


def candidates(request: Request) -> Sequence[Candidate]:
    """Return the only kernel for a request. All layouts are plain, but reorder takes any pair."""
    name = request.operation.name
    if name == "reorder":
        return (_reorder(request),)
    if name not in KERNELS:
        return ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        return bound(KERNELS[name], request, inputs, outputs)

    return (Candidate(f"numpy {name}", bind),)


def bound(
    kernel: Callable[..., Any], request: Request, inputs: Sequence[Any], outputs: Sequence[Any]
) -> Work:
    """Return the kernel bound to its operands and attributes, as a piece of a step."""
    used = inspect.signature(kernel).parameters
    attributes = {key: value for key, value in request.attributes.items() if key in used}
    targets = [
        inputs[position] for position, operand in enumerate(request.operation.inputs) if operand.updated
    ]
    targets += outputs

    def work() -> None:
        # Infinities and NaNs are values here, as in any kernel; the check of the loss reports them.
        with np.errstate(all="ignore"):
            results = kernel(*map(_widened, inputs), **attributes)
            if not isinstance(results, tuple):
                results = (results,)
            for target, result in zip(targets, results, strict=True):
                if target is not None:
                    target[...] = result

    return work


def _widened(array: Any) -> Any:
    return array.astype(np.float64) if array is not None and array.dtype.kind == "f" else array


def _reorder(request: Request) -> Candidate:
    """Return a candidate that converts between any two layouts, by way of the logical array."""
    source, target = request.inputs[0], request.outputs[0]
    assert source is not None and target is not None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        x, y = inputs[0], outputs[0]

        def work() -> None:
            y[...] = target.layout.pack(source.layout.unpack(x, source.shape))

        return work

    return Candidate(
        "numpy reorder",
        bind,
        input_layouts=(source.layout,),
        output_layouts=(target.layout,),
        in_place=False,
    )
