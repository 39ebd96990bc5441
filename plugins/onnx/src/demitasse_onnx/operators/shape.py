"""Operators that give a blob another shape, or that concatenate or split blobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from demitasse import DataSpec, Tensor, shortened
from demitasse_onnx.call import MOST_AXES, Operands, Operator, Shape


def _input(given: Operands) -> Sequence[Tensor]:
    return [given.graph.input(given.layer.tops[0], given["shape"])]


def _samples(given: Operands) -> Sequence[Tensor]:
    """Emit what a data source delivers, by the names of the layer's tops."""
    spec = DataSpec("samples", location=given.layer.location)
    fields = dict.fromkeys(given.layer.tops, "real")
    return given.graph.source(spec, given["batch"], fields)


def _loss(given: Operands) -> Sequence[Tensor]:
    made = given.apply(given["word"], given.tensor(0), given.tensor(1))
    return [made[0] if isinstance(made, tuple) else made]


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
    """Return a list of integers: a constant input or, in older versions, an attribute."""
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
        raise ValueError(
            f"shape {wanted}: an extent must be positive, 0 (as before) or, once, -1 (the rest)"
        )
    total = math.prod(x.shape)
    if -1 in copied:
        known = -math.prod(copied)
        if known == 0 or total % known:
            raise ValueError(f"shape {wanted}: {total} elements of {x!r} are not divisible by {known}")
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
        raise ValueError(f"perm {order} is not an order of the axes of {x!r}")
    return [permuted(given, x, order)]


def permuted(given: Operands, x: Tensor, order: Shape) -> Tensor:
    """Return x with its axes permuted; a reshape if only extents of 1 change places."""
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved == sorted(moved):
        return _as(given, x, tuple(x.shape[axis] for axis in order))[0]
    made: Tensor = given.apply("permute", x, order=tuple(order))
    return made


def _depth_to_space(given: Operands) -> Sequence[Tensor]:
    x, size, mode = given.tensor(), given["blocksize"], given["mode"]
    if len(x.shape) != 4 or not isinstance(size, int) or size < 1 or x.shape[1] % size**2:
        raise ValueError(f"blocksize {size} does not divide the channels of {x!r} twice")
    n, c, h, w = x.shape
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"unknown mode {shortened(mode, quoted=True)} (valid: DCR, CRD)")
    depth = c // size**2
    cut = (n, size, size, depth, h, w) if mode == "DCR" else (n, depth, size, size, h, w)
    order = (0, 3, 4, 1, 5, 2) if mode == "DCR" else (0, 1, 4, 2, 5, 3)
    moved = permuted(given, _as(given, x, cut)[0], order)
    return _as(given, moved, (n, depth, h * size, w * size))


def _space_to_depth(given: Operands) -> Sequence[Tensor]:
    x, size, mode = given.tensor(), given["blocksize"], given["mode"]
    if len(x.shape) != 4 or not isinstance(size, int) or size < 1 or any(e % size for e in x.shape[2:]):
        raise ValueError(f"blocksize {size} does not divide the rows and columns of {x!r}")
    if mode not in ("DCR", "CRD"):
        raise ValueError(f"unknown mode {shortened(mode, quoted=True)} (valid: DCR, CRD)")
    n, c, h, w = x.shape
    cut = _as(given, x, (n, c, h // size, size, w // size, size))[0]
    moved = permuted(given, cut, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return _as(given, moved, (n, c * size**2, h // size, w // size))


def repeated(given: Operands, x: Tensor, shape: Shape) -> Tensor:
    """Return x broadcast along axes of extent 1 to a shape, which may have additional leading axes."""
    x = _as(given, x, (1,) * (len(shape) - len(x.shape)) + x.shape)[0]
    for axis, extent in enumerate(shape):
        if extent != x.shape[axis]:
            x = given.apply("tile", x, axis=axis, tiles=extent)
    return x


def _expand(given: Operands) -> Sequence[Tensor]:
    x, wanted = given.tensor(), _integers(given, 1, "shape")
    if len(wanted) > MOST_AXES:
        raise ValueError(f"makes a blob of {len(wanted)} axes, more than {MOST_AXES}")
    try:
        shape = np.broadcast_shapes(x.shape, wanted)
    except ValueError as error:
        raise ValueError(f"{x!r} cannot be repeated to make {wanted}") from error
    return [repeated(given, x, shape)]


def _tile(given: Operands) -> Sequence[Tensor]:
    x, repeats = given.tensor(), _integers(given, 1, "repeats")
    if len(repeats) != len(x.shape) or any(each < 1 for each in repeats):
        raise ValueError(f"repeats {repeats}: give a number, 1 or more, for each axis of {x!r}")
    for axis, tiles in enumerate(repeats):
        if tiles != 1:
            x = given.apply("tile", x, axis=axis, tiles=tiles)
    return [x]


def _shape(given: Operands) -> Sequence[np.ndarray]:
    value = given.values[0]
    if value is None:
        raise ValueError("input 0 is left out")
    end = len(value.shape) if given["end"] == _END else given["end"]
    return [np.array(value.shape[given["start"] : end], np.int64)]


def _size(given: Operands) -> Sequence[np.ndarray]:
    value = given.values[0]
    if value is None:
        raise ValueError("input 0 is left out")
    return [np.array(math.prod(value.shape), np.int64)]


def _concat(given: Operands) -> Sequence[Tensor]:
    values = given.values
    empty = [place for place, each in enumerate(values) if each is not None and 0 in each.shape]
    # What is empty along the axis adds nothing. Exporters write it for a shape that they computed.
    xs = [given.tensor(place) for place in range(len(values)) if place not in empty]
    if not xs or not isinstance(given["axis"], int):
        raise ValueError("needs inputs and an axis")
    axis = _axis(given["axis"], len(xs[0].shape))
    return [xs[0] if len(xs) == 1 else given.apply("concat", *xs, axis=axis)]


def _cropped(given: Operands) -> Sequence[Tensor]:
    """Cut off columns and rows, or keep as many as scale says."""
    x, border, scale = given.tensor(), given["border"], given["scale"]
    if len(x.shape) != 4 or len(border) != 4 or len(scale) not in (0, 2):
        raise ValueError(f"border {border}, scale {scale}: give left, top, right, bottom of planes")
    left, top, right, bottom = border
    rows, columns = scale or (x.shape[2] - top - bottom, x.shape[3] - left - right)
    if min(border) < 0 or not 0 < rows <= x.shape[2] - top or not 0 < columns <= x.shape[3] - left:
        raise ValueError(f"border {border}, scale {scale}: leaves no part of {x!r}")
    offset, extent = (0, 0, top, left), (*x.shape[:2], rows, columns)
    return [given.apply("crop", x, offset=offset, extent=extent)]


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


_END = 2**31
"""Shape's default end: none."""

OPERATORS = (
    Operator("Input", _input, {"shape": (), "batch": ""}),
    Operator("Samples", _samples, {"batch": None}),
    Operator("Loss", _loss, {"word": None}),
    Operator("Identity", _identity),
    Operator("Flatten", _flatten, {"axis": 1}),
    Operator("Reshape", _reshape, {"shape": (), "allowzero": 0}),
    Operator("Squeeze", _squeeze, {"axes": ()}),
    Operator("Unsqueeze", _unsqueeze, {"axes": ()}),
    Operator("Transpose", _transpose, {"perm": ()}),
    Operator("Concat", _concat, {"axis": None}),
    Operator("Split", _split, {"axis": 0, "split": (), "num_outputs": 0}),
    Operator("Crop", _cropped, {"border": None, "scale": ()}),
    Operator("DepthToSpace", _depth_to_space, {"blocksize": None, "mode": "DCR"}),
    Operator("Expand", _expand),
    Operator("Shape", _shape, {"start": 0, "end": _END}),
    Operator("Size", _size),
    Operator("SpaceToDepth", _space_to_depth, {"blocksize": None, "mode": "DCR"}),
    Operator("Tile", _tile),
)
