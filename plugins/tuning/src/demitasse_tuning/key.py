"""The name under which a choice is remembered: a request as a line that people can read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Candidate, Layout, Request, TensorSpec

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def request_key(plugin: str, request: Request) -> str:
    """Return everything on which a trial depends, in one line; different requests never share it. Their
    layouts count by form, not by name, as in comparisons. The level's name does not count, as only
    its threads and its memory space matter to the kernel.

    ``cpu: relu(64x20x24x24 float32 @0.2.3.1) -> (64x20x24x24 float32); threads 2, f32, host``
    """
    place = request.place
    about = f"threads {place.threads}, {_word(request.precision)}, {_word(place.space)}"
    about += ", fixed" * request.fixed
    attributes = "".join(
        f" {_word(name)}={_value(value)}" for name, value in sorted(request.attributes.items())
    )
    operands = f"({_specs(request.inputs)}) -> ({_specs(request.outputs)})"
    return f"{_word(plugin)}: {_word(request.operation.name)}{operands}{attributes}; {about}"


def labels(candidates: Sequence[Candidate]) -> list[str]:
    """Return a unique name for each candidate: the kernel's, with the layouts that it requests if
    several candidates have that kernel, and with a number if even these are the same."""
    kernels = [candidate.kernel for candidate in candidates]
    names: list[str] = []
    for candidate in candidates:
        name = candidate.kernel
        if kernels.count(name) > 1:
            layouts = (_layout(layout) or "plain" for layout in candidate.input_layouts)
            name = f"{name} [{' '.join(layouts)}]"
        number = 1
        while (label := f"{name} #{number}" if number > 1 else name) in names:
            number += 1
        names.append(label)
    return names


def _specs(specs: Sequence[TensorSpec | None]) -> str:
    return ", ".join("-" if spec is None else _spec(spec) for spec in specs)


def _spec(spec: TensorSpec) -> str:
    shape = "x".join(map(str, spec.shape)) or "scalar"
    layout = _layout(spec.layout)
    return f"{shape} {_word(spec.dtype)}" + (f" {layout}" if layout else "")


def _layout(layout: Layout) -> str:
    """Return a layout as text, ``@0.2.3.1/1:8 bfloat16``: order, blocks and element type in memory, if
    it has them."""
    form = "@" + ".".join(map(str, layout.order)) if layout.order else ""
    form += "".join(f"/{dimension}:{size}" for dimension, size in layout.blocks)
    stored = f"={_word(layout.stored)}" if layout.stored else ""
    return form + stored


def _word(text: str) -> str:
    return text if _WORD.fullmatch(text) else repr(text)


def _value(value: Any) -> str:
    """Return an attribute as text; numbers as Python writes them, so that 1, 1.0 and True differ."""
    if isinstance(value, np.ndarray):
        return f"array({value.dtype.str!r}, {value.shape}, {_value(value.ravel().tolist())})"
    if isinstance(value, np.generic):
        return f"{value.dtype.str}({_value(value.item())})"
    if isinstance(value, Mapping):
        pairs = sorted((_value(key), _value(item)) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    if isinstance(value, tuple):
        return "(" + "".join(f"{_value(item)}," for item in value) + ")"
    if isinstance(value, list):
        return "[" + "".join(f"{_value(item)}," for item in value) + "]"
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    return f"{type(value).__module__}.{type(value).__qualname__}({value!r})"
