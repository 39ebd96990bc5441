"""Checks of a candidate (a kernel's offer) before a plan uses it: its layouts, workspace, seconds and
functions."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

from demitasse import Candidate, Layout, PluginError, Request, TensorSpec


def check_candidate(candidate: Candidate, request: Request, where: str) -> None:
    """Raise PluginError if a candidate breaks its contract. The message begins with ``where`` and names
    the kernel and the operation."""
    at = f"{where}, kernel {candidate.kernel!r} of {request.operation.name}"
    for what, value, right, valid in (
        ("kernel", candidate.kernel, isinstance(candidate.kernel, str), "a string"),
        ("bind", candidate.bind, callable(candidate.bind), "a function of inputs, outputs, workspace"),
        (
            "workspace",
            candidate.workspace,
            _whole(candidate.workspace, 0),
            "a number of bytes, 0 or more",
        ),
        (
            "seconds",
            candidate.seconds,
            _seconds(candidate.seconds),
            "seconds, 0 or more, or None",
        ),
        ("parts", candidate.parts, _whole(candidate.parts, 1), "a whole number, 1 or more"),
    ):
        if not right:
            raise PluginError(f"{at}: {what} = {value!r:.99} (valid: {valid})")
    if candidate.parts > 1 and not callable(candidate.bind_part):
        raise PluginError(f"{at}: parts = {candidate.parts} without a function bind_part; give it one")
    ins, outs = (candidate.input_layouts, request.inputs), (candidate.output_layouts, request.outputs)
    for side, (layouts, specs) in (("input", ins), ("output", outs)):
        if layouts and not (len(layouts) == len(specs) and all(map(_fits, layouts, specs))):
            given = ", ".join(_told(layout) for layout in layouts)
            wants = (
                f"{side} layouts {given} (valid: one of the same rank for each of {[*map(str, specs)]})"
            )
            raise PluginError(f"{at}: {wants}")


def _whole(value: Any, least: int) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= least


def _seconds(value: Any) -> bool:
    number = type(value) is not bool and isinstance(value, Real)
    return value is None or (number and math.isfinite(value) and value >= 0)


def _told(layout: Any) -> str:
    stored = getattr(layout, "stored", "")
    return f"{getattr(layout, 'name', layout)}{f' stored as {stored}' if stored else ''}"


def _fits(layout: Layout, spec: TensorSpec | None) -> bool:
    if not isinstance(layout, Layout) or not _type(layout.stored):
        return False
    dimensions = [*range(len(spec.shape))] if spec is not None else sorted(layout.order)
    ordered = sorted(layout.order) in ([], dimensions)
    return ordered and (spec is None or {d for d, _ in layout.blocks} <= {*dimensions})


def _type(name: str) -> bool:
    import numpy as np

    try:
        np.dtype(TensorSpec((), "float32", Layout("", stored=name)).array_type)
    except TypeError:
        return False
    return True
