"""Nodes that make constants from constants. They are evaluated when a model is read or, if they depend
on the shape of a blob, when a net is planned for its shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

LARGEST_MADE = 2**24
"""The maximum number of elements of a constant made from others. Otherwise a few nodes that each double
a constant could fill any memory. Real models make shapes and index tables in this way."""

LARGEST_FILLED = 2**27
"""The maximum number of elements of a constant that is a single repeated number: the weights of VGG's
largest layer, in models stripped of their weights."""

Arrays = Sequence[np.ndarray]
Attributes = Mapping[str, Any]
Maker = Callable[[Arrays, Attributes], Any]

CASTS: Mapping[int, type[np.generic]] = MappingProxyType(
    {
        1: np.float32,
        2: np.uint8,
        3: np.int8,
        4: np.uint16,
        5: np.int16,
        6: np.int32,
        7: np.int64,
        9: np.bool_,
        10: np.float16,
        11: np.float64,
        12: np.uint32,
        13: np.uint64,
        16: np.float32,
    }
)
"""NumPy's types for those that Cast produces, by ONNX's numbers; bfloat16, which NumPy lacks, is stored
as float32. Composing the plugin imports this module without the package onnx."""


def made_of(
    operator: str,
    arrays: Sequence[np.ndarray | None],
    attributes: Attributes,
    outputs: int = 1,
) -> list[np.ndarray]:
    """Return the constants that a node makes from constants. Raise ValueError with the
    reason if it cannot."""
    last = max((place for place, each in enumerate(arrays) if each is not None), default=-1)
    given = [np.zeros(0) if each is None else each for each in arrays[: last + 1]]
    try:
        # Overflow and NaN are the same in every evaluator.
        with np.errstate(all="ignore"):
            made = _MAKERS[operator](given, {**attributes, "outputs": outputs})
    except (TypeError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise ValueError(f"cannot be computed for its constants: {error}") from error
    return [np.asarray(each) for each in (made if isinstance(made, list) else [made])]


def constant(attributes: Attributes) -> np.ndarray:
    """Return the value of a Constant node. Raise ValueError."""
    kinds = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    for name, value in attributes.items():
        if name == "value" and isinstance(value, np.ndarray):
            return value
        if name in kinds and not isinstance(value, str | np.ndarray):
            return np.array(value, kinds[name])
    raise ValueError(
        "has no value, or one of a kind that is not supported (valid: numbers, and lists of them)"
    )


def bounded(size: float, what: str = "constant") -> None:
    """Raise ValueError if a constant is larger than any in a real model."""
    if size > LARGEST_MADE:
        raise ValueError(f"makes a {what} of more than {LARGEST_MADE} elements")


def _numbers(array: np.ndarray) -> tuple[int, ...]:
    """Return an array as a list of axes or extents."""
    if array.size > 32:
        raise ValueError(f"{array.size} axes")
    return tuple(int(each) for each in array.reshape(-1))


def _axes(arrays: Arrays, attributes: Attributes) -> tuple[int, ...]:
    return _numbers(arrays[1] if len(arrays) > 1 else np.array(attributes.get("axes", ()), np.int64))


def _reshape(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    shape = _numbers(arrays[1])
    if attributes.get("allowzero"):
        return arrays[0].reshape(shape)
    return arrays[0].reshape([arrays[0].shape[i] if n == 0 else n for i, n in enumerate(shape)])


def _concat(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    bounded(sum(array.size for array in arrays))
    return np.concatenate(arrays, attributes["axis"])


def _gather(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    data, index = arrays
    axis = attributes.get("axis", 0)
    bounded(index.size * data.size / max(1, data.shape[axis]))
    return np.take(data, index, axis)


def _slice(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    data, *rest = arrays
    lists = [_numbers(each) for each in rest]
    starts, ends = lists[:2] if lists else (attributes["starts"], attributes["ends"])
    axes = lists[2] if len(lists) > 2 else attributes.get("axes", ())
    axes = axes or tuple(range(len(starts)))
    steps = (lists[3] if len(lists) > 3 else ()) or (1,) * len(starts)
    chosen = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        chosen[axis] = slice_of(start, end, step, data.shape[axis])
    return data[tuple(chosen)]


def slice_of(start: int, end: int, step: int, extent: int) -> slice:
    """Convert ONNX's bounds to Python's. When the step is negative, an end before the first element
    becomes None. Raise ValueError for a step of 0."""
    first, last, step = slice(start, end, step).indices(extent)
    if step < 0 and end < -extent:
        last = -1
    return slice(first, None if last < 0 else last, step)


def _split(arrays: Arrays, attributes: Attributes) -> list[np.ndarray]:
    data, axis, parts = arrays[0], attributes.get("axis", 0), attributes["outputs"]
    sizes = _numbers(arrays[1]) if len(arrays) > 1 else tuple(attributes.get("split", ()))
    each = -(-data.shape[axis] // parts)
    cuts = np.cumsum(sizes)[:-1] if sizes else [each * part for part in range(1, parts)]
    return list(np.split(data, cuts, axis))


def _filled(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    """Return one number broadcast to a shape, which takes no memory."""
    shape = _numbers(arrays[0])
    if math.prod(shape) > LARGEST_FILLED:
        raise ValueError(f"makes a constant of more than {LARGEST_FILLED} elements")
    value = attributes.get("value", np.zeros(1, np.float32))
    return np.broadcast_to(value.reshape(-1)[:1].reshape(()), shape)


def _expand(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    shape = np.broadcast_shapes(arrays[0].shape, _numbers(arrays[1]))
    bounded(math.prod(shape))
    return np.broadcast_to(arrays[0], shape).copy()


def _tile(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    repeats = _numbers(arrays[1])
    bounded(arrays[0].size * math.prod(max(0, each) for each in repeats))
    return np.tile(arrays[0], repeats)


def _range(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    start, limit, step = (array.reshape(()).item() for array in arrays)
    if not step:
        raise ValueError("has a step of 0")
    bounded((limit - start) / step)
    return np.arange(start, limit, step).astype(arrays[0].dtype)


def _cast(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    if attributes["to"] not in CASTS:
        raise ValueError(f"to {attributes['to']} is not a supported type of numbers")
    return arrays[0].astype(CASTS[attributes["to"]])


def _several(function: Callable[..., Any]) -> Maker:
    """Return the maker for a function of two or more arrays whose shapes can be broadcast."""

    def maker(arrays: Arrays, attributes: Attributes) -> Any:
        bounded(math.prod(np.broadcast_shapes(*(array.shape for array in arrays))))
        made = arrays[0]
        for other in arrays[1:]:
            made = function(made, other)
        return made

    return maker


def _each(function: Callable[[np.ndarray], Any]) -> Maker:
    return lambda arrays, attributes: np.asarray(function(arrays[0])).astype(arrays[0].dtype, copy=False)


def _divided(over: np.ndarray, under: np.ndarray) -> np.ndarray:
    """Divide; integers are divided without remainder, rounded towards 0."""
    if over.dtype.kind == "f":
        quotient: np.ndarray = np.divide(over, under)
        return quotient
    if not under.all():
        raise ValueError("divides by 0")
    whole: np.ndarray = np.sign(over) * np.sign(under) * (np.abs(over) // np.abs(under))
    return whole.astype(over.dtype)


def _modulo(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    over, under = arrays
    bounded(math.prod(np.broadcast_shapes(over.shape, under.shape)))
    if over.dtype.kind in "iu" and not under.all():
        raise ValueError("divides by 0")
    made: np.ndarray = (np.fmod if attributes.get("fmod") else np.mod)(over, under)
    return made


def _clipped(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    made = arrays[0]
    for position, name, function in ((1, "min", np.maximum), (2, "max", np.minimum)):
        limit = arrays[position] if position < len(arrays) else np.zeros(0)
        if not limit.size and name in attributes:
            limit = np.array(attributes[name], made.dtype)
        made = function(made, limit.reshape(()).astype(made.dtype)) if limit.size else made
    return made


def _running(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    x, axis = arrays[0], int(arrays[1].reshape(()))
    x = np.flip(x, axis) if attributes.get("reverse") else x
    made: np.ndarray = np.cumsum(x, axis, dtype=x.dtype)
    made = made - x if attributes.get("exclusive") else made
    return np.flip(made, axis) if attributes.get("reverse") else made


def _within(index: np.ndarray, extent: int) -> np.ndarray:
    """Return indices counted from 0. Raise ValueError for an index outside the axis."""
    if index.size and not -extent <= index.min() <= index.max() < extent:
        raise ValueError(f"an index of {index.reshape(-1)[:8].tolist()} is not one of {extent}")
    return np.where(index < 0, index + extent, index)


def _gather_elements(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    data, index = arrays
    axis = attributes.get("axis", 0)
    places: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    places[axis] = _within(index, data.shape[axis])
    taken: np.ndarray = data[tuple(places)]
    return taken


def _gather_slices(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    """Evaluate GatherND: the last axis of the indices enumerates the data's axes
    after the batch axes."""
    data, index = arrays
    common = attributes.get("batch_dims", 0)
    count = index.shape[-1]
    if not 0 <= common < index.ndim or common + count > data.ndim:
        raise ValueError(f"indices of shape {index.shape} do not fit data of shape {data.shape}")
    chosen = [_within(index[..., i], data.shape[common + i]) for i in range(count)]
    bounded(math.prod(index.shape[:-1]) * math.prod(data.shape[common + count :]))
    before = np.indices(index.shape[:-1], sparse=True)[:common]
    taken: np.ndarray = data[(*before, *chosen)]
    return taken


def _scattered(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    """Evaluate ScatterElements, formerly Scatter."""
    data, index, updates = arrays
    _only_put(attributes)
    axis, made = attributes.get("axis", 0), arrays[0].copy()
    if index.shape != updates.shape or index.ndim != data.ndim:
        raise ValueError(f"indices of shape {index.shape} do not fit updates of {updates.shape}")
    places: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    places[axis] = _within(index, data.shape[axis])
    made[tuple(places)] = updates
    return made


def _scattered_slices(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    data, index, updates = arrays
    _only_put(attributes)
    if not index.ndim or index.shape[-1] > data.ndim:
        raise ValueError(f"indices of shape {index.shape} do not fit data of shape {data.shape}")
    made = data.copy()
    made[tuple(_within(index[..., i], data.shape[i]) for i in range(index.shape[-1]))] = updates
    return made


def _only_put(attributes: Attributes) -> None:
    if attributes.get("reduction", "none") != "none":
        raise ValueError(f"reduction {attributes['reduction']!r} is not supported, only none")


def _not_zero(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    return np.array(np.nonzero(arrays[0]), np.int64)


def _triangle(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    shift = int(arrays[1].reshape(())) if len(arrays) > 1 else 0
    return (np.triu if attributes.get("upper", 1) else np.tril)(arrays[0], shift)


def _where(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    bounded(math.prod(np.broadcast_shapes(*(array.shape for array in arrays))))
    return np.where(*arrays)


def _reduced(function: Callable[..., Any]) -> Maker:
    def maker(arrays: Arrays, attributes: Attributes) -> Any:
        axes, keep = _axes(arrays, attributes), bool(attributes.get("keepdims", 1))
        if not axes and attributes.get("noop_with_empty_axes"):
            return arrays[0]
        made = function(arrays[0], axis=axes or None, keepdims=keep)
        return np.asarray(made).astype(arrays[0].dtype, copy=False)

    return maker


def _dequantized(arrays: Arrays, attributes: Attributes) -> np.ndarray:
    data, scale = arrays[:2]
    zero = arrays[2] if len(arrays) > 2 and arrays[2].size else np.zeros_like(scale, data.dtype)
    if attributes.get("block_size"):
        raise ValueError("blocks of one scale each are not supported")
    along = _along(scale, data.ndim, attributes.get("axis", 1))
    shifted = data.astype(np.int64) - zero.astype(np.int64).reshape(along)
    return (shifted.astype(scale.dtype) * scale.reshape(along)).astype(scale.dtype)


def _along(scale: np.ndarray, axes: int, axis: int) -> tuple[int, ...]:
    """Return the shape in which a single scale, or one for each element of an axis,
    broadcasts to an array."""
    if scale.size == 1:
        return (1,) * axes
    return tuple(-1 if each == axis % axes else 1 for each in range(axes))


_MAKERS: Mapping[str, Maker] = MappingProxyType(
    {
        "Abs": _each(np.abs),
        "Add": _several(np.add),
        "And": _several(np.logical_and),
        "Cast": _cast,
        "CastLike": lambda arrays, attributes: arrays[0].astype(arrays[1].dtype),
        "Ceil": _each(np.ceil),
        "Clip": _clipped,
        "Concat": _concat,
        "Constant": lambda arrays, attributes: constant(attributes),
        "ConstantOfShape": _filled,
        "Cos": _each(np.cos),
        "CumSum": _running,
        "DequantizeLinear": _dequantized,
        "Div": _several(_divided),
        "Equal": _several(np.equal),
        "Exp": _each(np.exp),
        "Expand": _expand,
        "Flatten": lambda arrays, attributes: arrays[0].reshape(
            math.prod(arrays[0].shape[: attributes.get("axis", 1)]), -1
        ),
        "Floor": _each(np.floor),
        "Gather": _gather,
        "GatherElements": _gather_elements,
        "GatherND": _gather_slices,
        "Greater": _several(np.greater),
        "GreaterOrEqual": _several(np.greater_equal),
        "Identity": lambda arrays, attributes: arrays[0],
        "Less": _several(np.less),
        "LessOrEqual": _several(np.less_equal),
        "Log": _each(np.log),
        "Max": _several(np.maximum),
        "Min": _several(np.minimum),
        "Mod": _modulo,
        "Mul": _several(np.multiply),
        "Neg": _each(np.negative),
        "NonZero": _not_zero,
        "Not": _each(np.logical_not),
        "Or": _several(np.logical_or),
        "Pow": lambda arrays, attributes: np.power(*arrays).astype(arrays[0].dtype),
        "Range": _range,
        "Reciprocal": _each(np.reciprocal),
        "ReduceMax": _reduced(np.max),
        "ReduceMean": _reduced(np.mean),
        "ReduceMin": _reduced(np.min),
        "ReduceProd": _reduced(np.prod),
        "ReduceSum": _reduced(np.sum),
        "Reshape": _reshape,
        "Round": _each(np.round),
        "Scatter": _scattered,
        "ScatterElements": _scattered,
        "ScatterND": _scattered_slices,
        "Sign": _each(np.sign),
        "Sin": _each(np.sin),
        "Slice": _slice,
        "Split": _split,
        "Sqrt": _each(np.sqrt),
        "Squeeze": lambda arrays, attributes: arrays[0].squeeze(_axes(arrays, attributes) or None),
        "Sub": _several(np.subtract),
        "Tile": _tile,
        "Transpose": lambda arrays, attributes: arrays[0].transpose(attributes.get("perm")),
        "Trilu": _triangle,
        "Unsqueeze": lambda arrays, attributes: np.expand_dims(arrays[0], _axes(arrays, attributes)),
        "Where": _where,
        "Xor": _several(np.logical_xor),
    }
)

MADE = frozenset(_MAKERS)
"""The operators that are evaluated if all their inputs are constant."""
