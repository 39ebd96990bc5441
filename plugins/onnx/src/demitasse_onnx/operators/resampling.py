"""Weighted sums along axes: resizing, padding, gathering, and slices with steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Tensor, shortened
from demitasse_onnx.call import Call, Operands, Operator, constant_of
from demitasse_onnx.constants import bounded, slice_of

Table = tuple[np.ndarray, np.ndarray]
"""For each result along an axis, the places that are summed, and their weights."""


def resampled(given: Operands, x: Tensor, axis: int, table: Table) -> Tensor:
    """Return x with each result along an axis computed from the table."""
    places, weights = table
    bounded(places.size, "table of places")
    if places.size and not 0 <= places.min() <= places.max() < x.shape[axis]:
        raise ValueError(f"places {places.min()} to {places.max()} are not all of axis {axis} of {x!r}")
    rows = given.fixed(f"places{axis}", places), given.fixed(f"weights{axis}", weights)
    made: Tensor = given.apply("resample", x, *rows, axis=axis)
    return made


def taken(given: Operands, x: Tensor, axis: int, places: Sequence[int] | np.ndarray) -> Tensor:
    """Return the elements of x at some places along an axis; a crop if the places are consecutive."""
    listed = np.asarray(places, np.int64)
    in_line = listed.size > 0 and listed[0] >= 0 and bool((np.diff(listed) == 1).all())
    if in_line and listed[-1] < x.shape[axis]:
        return boxed(given, x, {axis: (int(listed[0]), len(listed))})
    return resampled(given, x, axis, (listed[:, None], np.ones((len(listed), 1))))


def boxed(given: Operands, x: Tensor, parts: dict[int, tuple[int, int]]) -> Tensor:
    """Return a crop of x that has a start and an extent along each of some axes."""
    whole = [(0, extent) for extent in x.shape]
    for axis, part in parts.items():
        whole[axis] = part
    if all(part == (0, extent) for part, extent in zip(whole, x.shape, strict=True)):
        return x
    offset, extent = zip(*whole, strict=True)
    made: Tensor = given.apply("crop", x, offset=offset, extent=extent)
    return made


def surrounded(given: Operands, x: Tensor, before: Sequence[int], behind: Sequence[int]) -> Tensor:
    """Return x with zeros around it: ``before`` and ``behind`` are their numbers on each axis."""
    if not any((*before, *behind)):
        return x
    shape = tuple(a + n + b for a, n, b in zip(before, x.shape, behind, strict=True))
    made: Tensor = given.apply(
        "crop_backward", x, offset=tuple(before), extent=tuple(x.shape), shape=shape
    )
    return made


def _pad(given: Operands) -> Sequence[Tensor]:
    x, mode = given.tensor(), given["mode"]
    listed = given.constant(1)
    pads = [int(each) for each in (given["pads"] if listed is None else listed.reshape(-1))]
    value = given.constant(2)
    filler = given["value"] if value is None or not value.size else float(value.reshape(-1)[0])
    chosen = given.constant(3)
    axes = range(len(x.shape)) if chosen is None else [int(a) % len(x.shape) for a in chosen.reshape(-1)]
    if len(pads) != 2 * len(axes):
        raise ValueError(f"pads {pads}: give {2 * len(axes)} whole numbers for {x!r}")
    around = {axis: (pads[i], pads[i + len(axes)]) for i, axis in enumerate(axes)}
    if mode == "constant":
        return [_with_constant(given, x, around, filler)]
    if mode not in _EDGES:
        raise ValueError(
            f"unknown mode {shortened(mode, quoted=True)} (valid: constant, {', '.join(_EDGES)})"
        )
    for axis, (before, behind) in around.items():
        bounded(before + x.shape[axis] + behind, "table of places")
        x = taken(
            given, x, axis, _EDGES[mode](np.arange(-before, x.shape[axis] + behind), x.shape[axis])
        )
    return [x]


def _with_constant(
    given: Operands, x: Tensor, around: dict[int, tuple[int, int]], value: float
) -> Tensor:
    """Crop where pads are negative. A constant other than zero is concatenated, axis after axis."""
    cut = {
        axis: (max(0, -before), x.shape[axis] + min(0, before) + min(0, behind))
        for axis, (before, behind) in around.items()
    }
    x = boxed(given, x, cut)
    before, behind = (
        [max(0, around.get(axis, (0, 0))[side]) for axis in range(len(x.shape))] for side in (0, 1)
    )
    if not any((*before, *behind)) or not value:
        return surrounded(given, x, before, behind)
    for axis, sides in enumerate(zip(before, behind, strict=True)):
        blocks: list[Tensor | None] = []
        for extent in sides:
            shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
            bounded(math.prod(shape))
            blocks.append(given.fixed("filler", np.full(shape, value)) if extent else None)
        parts = [part for part in (blocks[0], x, blocks[1]) if part is not None]
        x = given.apply("concat", *parts, axis=axis) if len(parts) > 1 else x
    return x


def _reflected(places: np.ndarray, extent: int) -> np.ndarray:
    if extent == 1:
        return np.zeros_like(places)
    wave = np.abs(places) % (2 * extent - 2)
    reflected: np.ndarray = np.minimum(wave, 2 * extent - 2 - wave)
    return reflected


_EDGES: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "reflect": _reflected,
    "edge": lambda places, extent: np.clip(places, 0, extent - 1),
    "wrap": lambda places, extent: places % extent,
}


def edged(given: Operands, x: Tensor, axis: int, before: int, behind: int) -> Tensor:
    """Return x with its edges repeated ``before`` and ``behind`` times along an axis."""
    bounded(before + x.shape[axis] + behind, "table of places")
    places = np.clip(np.arange(-before, x.shape[axis] + behind), 0, x.shape[axis] - 1)
    return taken(given, x, axis, places)


def _rows(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """Return the learned matrix of an embedding, whose rows are selected by numbers that
    the net computes."""
    table = call.operands[0] if call.operands else None
    if not isinstance(table, np.ndarray) or not isinstance(call.operands[-1], int):
        return []
    if table.ndim != 2 or table.dtype.kind != "f" or attributes["axis"] != 0:
        return []
    return [constant_of(call, 0, "the rows")]


def _by_numbers(given: Operands, rows: Tensor) -> Tensor:
    where = f"{given.layer.location}: layer {given.layer.name!r} (Gather)"
    made: Tensor = given.apply("gather", rows, given.tensor(1), source=where)
    return made


def _gather(given: Operands) -> Sequence[Tensor]:
    axis = given["axis"]
    if given.learned and isinstance(given.values[1], Tensor):
        return [_by_numbers(given, given.learned[0])]
    x, table = given.tensor(), given.values[0]
    if isinstance(table, np.ndarray) and isinstance(given.values[1], Tensor) and axis == 0:
        rows = given.apply("reshape", x, shape=(table.shape[0], math.prod(table.shape[1:])))
        shape = (*given.values[1].shape, *table.shape[1:])
        return [given.apply("reshape", _by_numbers(given, rows), shape=shape)]
    index = given.constant(1)
    if index is None or not -len(x.shape) <= axis < len(x.shape):
        raise ValueError(f"axis {axis} is not one of the axes of {x!r}")
    axis %= len(x.shape)
    places = index.reshape(-1).astype(np.int64)
    if (places >= x.shape[axis]).any() or (places < -x.shape[axis]).any():
        raise ValueError(f"an index of {places.tolist()[:8]} is not one of axis {axis} of {x!r}")
    y = taken(given, x, axis, places % x.shape[axis])
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return [y if y.shape == shape else given.apply("reshape", y, shape=shape)]


def _slice(given: Operands) -> Sequence[Tensor]:
    x = given.tensor()
    starts, ends, axes, steps = (
        _list(given, place, name)
        for place, name in ((1, "starts"), (2, "ends"), (3, "axes"), (4, "steps"))
    )
    axes = axes or tuple(range(len(starts)))
    steps = steps or (1,) * len(starts)
    if len({len(starts), len(ends), len(axes), len(steps)}) != 1 or 0 in steps:
        raise ValueError(f"starts {starts}, ends {ends}, axes {axes}, steps {steps} do not fit")
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if not -len(x.shape) <= axis < len(x.shape):
            raise ValueError(f"axis {axis} is not one of the axes of {x!r}")
        axis %= len(x.shape)
        places = np.arange(x.shape[axis])[slice_of(start, end, step, x.shape[axis])]
        if not places.size:
            raise ValueError(f"leaves nothing of axis {axis} of {x!r}: {start} to {end} by {step}")
        x = taken(given, x, axis, places)
    return [x]


def _list(given: Operands, position: int, name: str) -> tuple[int, ...]:
    value = given.constant(position)
    listed = given.attributes.get(name, ()) if value is None else value.reshape(-1)
    return tuple(int(each) for each in listed)


def _resize(given: Operands) -> Sequence[Tensor]:
    """Interpolate along one axis after the other, which is how ONNX defines it."""
    x, older = given.tensor(), given.call.opset < 11 or given.call.operator == "Upsample"
    scales, sizes = given.constant(1 if older else 2), None if older else given.constant(3)
    if scales is None and given["scales"]:
        scales = np.array(given["scales"])
    axes = [axis % len(x.shape) for axis in given["axes"]] or list(range(len(x.shape)))
    wanted = scales if scales is not None and scales.size else sizes
    if wanted is None or wanted.size != len(axes):
        raise ValueError(f"scales or sizes: give one for each of {len(axes)} axes of {x!r}")
    if wanted is sizes and given["keep_aspect_ratio_policy"] != "stretch":
        raise ValueError("keep_aspect_ratio_policy other than stretch is not supported")
    transform = "asymmetric" if older else given["coordinate_transformation_mode"]
    for axis, number in zip(axes, wanted.reshape(-1), strict=True):
        extent = x.shape[axis]
        by_scale = wanted is scales
        size = math.floor(extent * float(number)) if by_scale else int(number)
        scale = float(number) if by_scale else size / extent
        if size < 1 or scale <= 0:
            raise ValueError(f"axis {axis} of {x!r} would have no elements")
        bounded(size, "table of places")
        if size != extent or scale != 1:
            at = _coordinates(transform, size, extent, scale)
            x = resampled(given, x, axis, _table(given, at, extent, scale, older))
    return [x]


def _coordinates(mode: str, size: int, extent: int, scale: float) -> np.ndarray:
    """Return the position of each result along an axis of ``extent`` elements."""
    places = np.arange(size, dtype=np.float64)
    if mode == "align_corners":
        return places * (extent - 1) / (size - 1) if size > 1 else np.zeros(1)
    if mode == "asymmetric":
        return places / scale
    if mode == "pytorch_half_pixel" and size == 1:
        return np.zeros(1)
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (places + 0.5) / scale - 0.5
    if mode == "tf_half_pixel_for_nn":
        return (places + 0.5) / scale
    if mode == "half_pixel_symmetric":
        centre = extent / 2 * (1 - size / (scale * extent))
        return centre + (places + 0.5) / scale - 0.5
    raise ValueError(
        f"unknown coordinate_transformation_mode {shortened(mode, quoted=True)} (valid: align_corners, "
        f"asymmetric, half_pixel, half_pixel_symmetric, pytorch_half_pixel, tf_half_pixel_for_nn)"
    )


def _table(given: Operands, at: np.ndarray, extent: int, scale: float, older: bool) -> Table:
    mode, thinned = given["mode"], bool(given["antialias"]) and scale < 1
    if mode == "nearest":
        rounding = "floor" if older else given["nearest_mode"]
        if rounding not in _ROUNDINGS:
            raise ValueError(
                f"unknown nearest_mode {shortened(rounding, quoted=True)} (valid: "
                f"{', '.join(_ROUNDINGS)})"
            )
        places = np.clip(_ROUNDINGS[rounding](at), 0, extent - 1).astype(np.int64)
        return places[:, None], np.ones((len(at), 1))
    if mode not in ("linear", "bilinear", "trilinear", "cubic"):
        raise ValueError(f"unknown mode {shortened(mode, quoted=True)} (valid: nearest, linear, cubic)")
    cubic = mode == "cubic"
    stretch = 1 / scale if thinned else 1.0
    reach = math.ceil((2 if cubic else 1) * stretch)
    places = np.floor(at).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    distance = np.abs(places - at[:, None]) / stretch
    weights = _cubic(distance, given["cubic_coeff_a"]) if cubic else np.maximum(0, 1 - distance)
    if given["exclude_outside"]:
        weights = np.where((places < 0) | (places >= extent), 0, weights)
    if given["exclude_outside"] or thinned:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(places, 0, extent - 1), weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Cubic convolution, Keys 1981."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


_ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}

_RESIZED = {
    "antialias": 0,
    "axes": (),
    "coordinate_transformation_mode": "half_pixel",
    "cubic_coeff_a": -0.75,
    "exclude_outside": 0,
    "extrapolation_value": 0.0,
    "keep_aspect_ratio_policy": "stretch",
    "mode": "nearest",
    "nearest_mode": "round_prefer_floor",
    "scales": (),
}

OPERATORS = (
    Operator("Gather", _gather, {"axis": 0}, _rows),
    Operator("Pad", _pad, {"mode": "constant", "pads": (), "value": 0.0}),
    Operator("Resize", _resize, _RESIZED),
    Operator("Slice", _slice, {"starts": (), "ends": (), "axes": ()}),
    Operator("Upsample", _resize, _RESIZED),
)
