"""Operators that give a blob another shape, join blobs or cut them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Operands, Operator, Shape


def _input(given: Operands) -> Sequence[Tensor]:
    return [given.graph.input(given.layer.tops[0], given["shape"])]


def _identity(given: Operands) -> Sequence[Tensor]:
    return [given.tensor()]


def _axis(axis: int, axes: int) -> int:
    if not isinstance(axis, int) or not -axes <= axis < axes:
        raise ValueError(f"axis {axis} is not one of {axes} axes")
    return axis % axes


def _flatten(given: Operands) -> Sequence[Tensor]:
    x, axis = given.tensor(), given["axis"]
    if not -len(x.shape) <= axis <= len(x.shape):
        raise ValueError(f"axis {axis} is not one of the axes of {x!r}")
    cut = axis + len(x.shape) if axis < 0 else axis
    return _as(given, x, (math.prod(x.shape[:cut]), math.prod(x.shape[cut:])))


def _as(given: Operands, x: Tensor, shape: Shape) -> Sequence[Tensor]:
    return [x if x.shape == shape else given.apply("reshape", x, shape=shape)]


def _integers(given: Operands, position: int, name: str) -> Shape:
    """A list of whole numbers: a constant input or, as in older versions, an attribute."""
    value = given.constant(position)
    if value is None:
        return tuple(given.attributes.get(name, ()))
    if value.dtype.kind not in "iu" or value.ndim > 1:
        raise ValueError(
            f"{name} is {value.dtype.name} of shape {value.shape}, not a list of whole numbers"
        )
    return tuple(int(each) for each in value.reshape(-1))


def _reshape(given: Operands) -> Sequence[Tensor]:
    x, wanted = given.tensor(), _integers(given, 1, "shape")
    if given["allowzero"] and 0 in wanted:
        raise ValueError("allowzero is not supported: no blob is empty")
    copied = []
    for place, extent in enumerate(wanted):
        if extent == 0 and place >= len(x.shape):
            raise ValueError(f"shape {wanted}: the 0 at place {place} has no axis in {x!r} to copy")
        copied.append(x.shape[place] if extent == 0 else extent)
    if any(extent < -1 for extent in copied) or copied.count(-1) > 1:
        raise ValueError(f"shape {wanted}: an extent is positive, 0 (as before) or, once, -1 (the rest)")
    total = math.prod(x.shape)
    if -1 in copied:
        known = -math.prod(copied)
        if known == 0 or total % known:
            raise ValueError(f"shape {wanted}: {total} elements of {x!r} do not divide by {known}")
        copied = [total // known if extent == -1 else extent for extent in copied]
    return _as(given, x, tuple(copied))


def _squeeze(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    axes = {_axis(axis, len(x.shape)) for axis in _integers(given, 1, "axes")}
    axes = axes or {axis for axis, extent in enumerate(x.shape) if extent == 1}
    if any(x.shape[axis] != 1 for axis in axes):
        raise ValueError(f"axes {sorted(axes)} of {x!r} are not all of extent 1")
    return _as(given, x, tuple(n for axis, n in enumerate(x.shape) if axis not in axes))


def _unsqueeze(given: Operands) -> Sequence[Tensor]:
    x, listed = given.tensor(), _integers(given, 1, "axes")
    count = len(x.shape) + len(listed)
    axes = {_axis(axis, count) for axis in listed}
    if len(axes) != len(listed) or count > 32:
        raise ValueError(f"axes {listed} are not distinct, or too many")
    rest = iter(x.shape)
    return _as(given, x, tuple(1 if axis in axes else next(rest) for axis in range(count)))


def _transpose(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    order = given["perm"] or tuple(reversed(range(len(x.shape))))
    if sorted(order) != list(range(len(x.shape))):
        raise ValueError(f"perm {order} is no order of the axes of {x!r}")
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved != sorted(moved):
        raise ValueError(
            f"perm {order} moves the numbers of {x!r}: only axes of extent 1 may change place"
        )
    return _as(given, x, tuple(x.shape[axis] for axis in order))


def _concat(given: Operands) -> Sequence[Tensor]:
    xs = [given.tensor(position) for position in range(len(given.values))]
    if not xs or not isinstance(given["axis"], int):
        raise ValueError("needs inputs and an axis")
    axis = _axis(given["axis"], len(xs[0].shape))
    return [xs[0] if len(xs) == 1 else given.apply("concat", *xs, axis=axis)]


def _slice(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    starts, ends = _integers(given, 1, "starts"), _integers(given, 2, "ends")
    axes = _integers(given, 3, "axes") or tuple(range(len(starts)))
    steps = _integers(given, 4, "steps") or (1,) * len(starts)
    if len({len(starts), len(ends), len(axes), len(steps)}) != 1 or set(steps) - {1}:
        raise ValueError(f"starts {starts}, ends {ends}, axes {axes}, steps {steps}: only steps of 1")
    offset, extent = [0] * len(x.shape), list(x.shape)
    for axis, start, end in zip(axes, starts, ends, strict=True):
        axis = _axis(axis, len(x.shape))
        first, last, _ = slice(start, end).indices(x.shape[axis])
        offset[axis], extent[axis] = first, last - first
    return [given.apply("crop", x, offset=tuple(offset), extent=tuple(extent))]


def _split(given: Operands) -> Sequence[Tensor]:
    x, parts = given.tensor(), len(given.layer.tops)
    axis = _axis(given["axis"], len(x.shape))
    sizes = _integers(given, 1, "split")
    if not sizes:
        each = -(-x.shape[axis] // (given["num_outputs"] or parts))
        sizes = tuple(min(each, x.shape[axis] - each * part) for part in range(parts))
    if sum(sizes) != x.shape[axis] or min(sizes, default=0) < 1:
        raise ValueError(f"cuts {x.shape[axis]} of {x!r} into {sizes}")
    made, first = [], 0
    for size in sizes:
        offset = tuple(first if each == axis else 0 for each in range(len(x.shape)))
        extent = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        made.append(given.apply("crop", x, offset=offset, extent=extent))
        first += size
    return made


def _pad(given: Operands) -> Sequence[Tensor]:
    """Zeros before a convolution or average are its own; what pads nothing is the identity."""
    pads = given.constant(1)
    if np.any(given["pads"] if pads is None else pads):
        raise ValueError(
            "pads a blob that another operator than Conv or AveragePool reads, or with something else "
            "than zeros around its space"
        )
    return [given.tensor()]


OPERATORS = (
    Operator("Input", _input, {"shape": ()}),
    Operator("Identity", _identity),
    Operator("Flatten", _flatten, {"axis": 1}),
    Operator("Reshape", _reshape, {"shape": (), "allowzero": 0}),
    Operator("Squeeze", _squeeze, {"axes": ()}),
    Operator("Unsqueeze", _unsqueeze, {"axes": ()}),
    Operator("Transpose", _transpose, {"perm": ()}),
    Operator("Concat", _concat, {"axis": None}),
    Operator("Slice", _slice, {"starts": (), "ends": (), "axes": ()}),
    Operator("Split", _split, {"axis": 0, "split": (), "num_outputs": 0}),
    Operator("Pad", _pad, {"mode": "constant", "pads": (), "value": 0.0}),
)
