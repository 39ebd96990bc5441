"""Applies one operation with the plugin's kernel, as a plan would, but without a runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from demitasse import Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_reference import plugin

HOST = Place("machine")


@pytest.fixture(scope="session")
def apply() -> Callable[..., Any]:
    """Return ``apply(name, *inputs, **attributes)``: new values of updated inputs, then of outputs."""
    return _apply


def _apply(
    name: str,
    *inputs: Any,
    in_place: bool = False,
    absent: Sequence[str] = (),
    **attributes: Any,
) -> Any:
    operation = VOCABULARY[name]
    complete = dict(operation.attributes) | attributes
    arrays = [None if x is None else np.array(x) for x in inputs]
    shapes: dict[str, Any] = {}
    for i, operand in enumerate(operation.inputs):
        group = [None if a is None else a.shape for a in arrays[i:]]
        shapes[operand.name] = group if operand.variadic else next(iter(group), None)
    made = operation.shapes(shapes, complete)
    operands = list(operation.outputs)
    if operands and operands[-1].variadic:
        operands += operands[-1:] * (len(made) - len(operands))
    first = next(str(a.dtype) for a in arrays if a is not None)
    real = next((str(a.dtype) for a in arrays if a is not None and a.dtype.kind == "f"), "float64")
    types = [{None: first, "real": real}.get(o.dtype, o.dtype or first) for o in operands]
    # This reveals whatever a kernel leaves unwritten.
    outputs: list[Any] = [
        np.full(shape, np.nan if np.dtype(dtype).kind == "f" else 99, dtype)
        for shape, dtype in zip(made, types, strict=True)
    ]
    for i, operand in enumerate(operands):
        if operand.name in absent:
            outputs[i] = None
    if in_place:
        for output, source in operation.aliases:
            i = [o.name for o in operands].index(output)
            outputs[i] = arrays[[o.name for o in operation.inputs].index(source)]
    request = Request(operation, tuple(map(_spec, arrays)), tuple(map(_spec, outputs)), complete, HOST)
    (candidate,) = plugin.kernels(request)
    candidate.bind(arrays, outputs, None)()
    updated = [a for a, o in zip(arrays, operation.inputs, strict=False) if o.updated]
    results = (*updated, *outputs)
    return results[0] if len(results) == 1 else results


def _spec(array: Any) -> TensorSpec | None:
    return None if array is None else TensorSpec(array.shape, str(array.dtype))
