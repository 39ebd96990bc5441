"""Checks of what a layer type or an operation's shape rule gives a graph, before the graph uses it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral
from typing import Any

from demitasse import PluginError, Tensor, unknown
from demitasse.operations import Operation

VALID = "a tuple of whole numbers, 0 or more"
KEPT = ("raw", "real")
"""Element types of samples without a fixed type: as stored, and as the plan computes."""

TYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
TYPES += ("float16", "float32", "float64")


def check_operands(operation: str, inputs: Iterable[Any], where: str) -> None:
    """Raise PluginError for an input that is not a tensor."""
    for given in inputs:
        if given is not None and not isinstance(given, Tensor):
            valid = "valid: a tensor that is a bottom, a parameter or an operation's output, or None"
            raise PluginError(f"{where}: operation {operation!r} is given {given!r:.99} ({valid})")


def check_shape(what: str, shape: Any, where: str) -> None:
    """Raise PluginError for an invalid shape of an input or a parameter."""
    if not _is_shape(shape):
        raise PluginError(f"{where}: {what} of shape {shape!r:.99} (valid: {VALID})")


def check_filler(filler: Any, where: str) -> None:
    """Raise PluginError if a parameter's filler is not callable."""
    if not callable(filler):
        valid = "valid: a function of a shape and a demitasse.RandomStream"
        raise PluginError(f"{where}: a parameter's filler is {filler!r:.99} ({valid})")


def check_asked(fields: Any, batch: Any, where: str) -> None:
    """Raise PluginError for requested fields or a batch size that no source could provide."""
    if not isinstance(batch, Integral):
        raise PluginError(f"{where}: a batch of {batch!r:.99} (valid: a whole number)")
    if not isinstance(fields, Mapping):
        valid = "valid: a table of element types by field, like {'data': 'real'}"
        raise PluginError(f"{where}: the samples' fields are {fields!r:.99} ({valid})")
    for name, kind in fields.items():
        if kind not in (*KEPT, *TYPES):
            raise PluginError(unknown("element type", kind, (*KEPT, *TYPES), f"{where}: field {name!r}"))


def check_shapes(operation: Operation, made: Any, where: str) -> None:
    """Raise PluginError if a shape rule's result is not one valid shape for each output."""
    outputs, rule = operation.outputs, f"{where}: the shape rule of operation {operation.name!r}"
    if not isinstance(made, list | tuple) or not all(map(_is_shape, made)):
        raise PluginError(f"{rule} returned {made!r:.99} (valid: for each output {VALID})")
    least = len(outputs) - bool(outputs and outputs[-1].variadic)
    if len(made) < least or (len(made) > len(outputs) and least == len(outputs)):
        names = ", ".join(operand.name for operand in outputs) or "no output"
        raise PluginError(f"{rule} returned {len(made)} shapes, for {names}")


def _is_shape(shape: Any) -> bool:
    whole = isinstance(shape, list | tuple) and all(hasattr(extent, "__index__") for extent in shape)
    return whole and all(extent >= 0 for extent in shape)
