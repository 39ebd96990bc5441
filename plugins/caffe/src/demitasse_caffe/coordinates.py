"""The position of one blob's pixels in another: crops that align them, as nets that score every pixel
need.

Each layer maps coordinates of its bottom to those of its top by ``a x + b`` along the spatial axes; the
coordinate of a pixel is its centre. Long et al. 2015, *Fully Convolutional Networks for Semantic
Segmentation*, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from demitasse import Location, ModelError

Node = TypeVar("Node")

_WINDOWED = ("Convolution", "Deconvolution", "Pooling", "Im2col")
_SAME = (
    *("AbsVal", "BNLL", "BatchNorm", "Bias", "Clip", "Concat", "Dropout", "ELU", "Eltwise", "Exp"),
    *("LRN", "Log", "MVN", "PReLU", "Power", "ReLU", "Scale", "Sigmoid", "Softmax", "Split", "Swish"),
    *("TanH", "Threshold"),
)
"""Layer types that leave pixels where they are."""


class Map(NamedTuple):
    """Maps x of one blob to ``a * x + b`` of another, on the axes from ``axis`` on (None: any)."""

    axis: int | None
    a: np.ndarray
    b: np.ndarray


class Made(NamedTuple):
    """How a blob is made: by a layer of type ``kind`` from ``bottoms``. ``message`` returns the layer,
    and is called only when its parameters matter."""

    kind: str
    message: Callable[[], Any]
    bottoms: Sequence[Any]


_IDENTITY = Map(None, np.ones(1), np.zeros(1))


def map_between(start: Node, end: Node, made: Callable[[Node], Made | None]) -> Map | None:
    """Return the map from the coordinates of one blob to those of another, through their nearest common
    ancestor, or None if they have none. ``made`` returns how a blob is made, or None for one that is
    given. Raise ValueError if layers in between work on different axes."""
    with np.errstate(all="ignore"):  # a stride of 0 is reported when its layer is built
        theirs, mine = _ancestors(end, made), _ancestors(start, made)
        shared = next((node for node in mine if node in theirs), None)
        if shared is None:
            return None
        here, there = mine[shared], theirs[shared]
        axis = here.axis if here.axis is not None else there.axis
        scale = there.a / here.a
        return Map(axis, scale, there.b - scale * here.b)


def alignments(layers: Sequence[Any], kind: str = "Crop") -> Iterator[tuple[int, Map | None]]:
    """Yield the index of each layer of the given ``kind`` without ``crop_param`` in a net's messages,
    with the map from the coordinates of the blob that it cuts to those of its other bottom, or None if
    there is none."""
    latest: dict[str, tuple[str, int]] = {}
    makers: dict[tuple[str, int], Made] = {}
    for place, layer in enumerate(layers):
        bottoms = [latest.get(name, (name, -1)) for name in layer.bottom]
        if layer.type == kind and not layer.HasField("crop_param") and len(bottoms) == 2:
            try:
                yield place, map_between(bottoms[0], bottoms[1], makers.get)
            except ValueError:
                yield place, None
        for top in layer.top:
            latest[top] = top, place
            makers[top, place] = Made(layer.type, partial(layers.__getitem__, place), bottoms)


def align_crops(layers: Sequence[Any], places: Sequence[Location], kind: str = "Crop") -> None:
    """Set the offset that aligns the bottoms of layers of a ``kind`` that cannot specify one: the Crop
    of a net in the format before 2014, or RCF's AutoCrop. Raise ModelError if no offset does."""
    for place, found in alignments(layers, kind):
        layer = layers[place]
        if found is None or not np.allclose(found.a, 1) or (found.b > 0.5).any():
            told = "unknown" if found is None else _told(found)
            asked = "CROP" if kind == "Crop" else kind
            raise ModelError(
                f"{places[place]}: layer {layer.name!r} ({asked}): no offset aligns its bottoms (where "
                f"pixels lie: {told}); layer {{ type: 'Crop' crop_param {{ offset }} }} gives one"
            )
        layer.type = "Crop"
        layer.crop_param.offset.extend(_whole(found))


def crop_note(layers: Sequence[Any], places: Sequence[Location]) -> str:
    """Return a sentence about Crops without ``crop_param`` that forks cut elsewhere; "" if none."""
    told = [
        f"{layers[place].name!r}{_line(places[place])}: "
        + " ".join(f"offset: {cut}" for cut in _whole(found))
        for place, found in alignments(layers)
        if found is not None and np.allclose(found.a, 1) and (found.b < -0.5).any()
    ]
    if not told:
        return ""
    return (
        f"{places[0].file}: Crop without crop_param cuts from offset 0 on, as in BVLC Caffe; the forks "
        f"that had it before (FCN's, HED's) align it, as crop_param does with {', '.join(told)}"
    )


def _whole(found: Map) -> list[int]:
    """Return the offset that aligns the blobs, in pixels; a single number if all axes have the same."""
    offset = [max(0, int(cut)) for cut in np.floor(0.5 - found.b)]
    return offset[:1] if len({*offset}) == 1 else offset


def _line(place: Location) -> str:
    return "" if place.line is None else f" in line {place.line}"


def _told(found: Map) -> str:
    return "at " + " and ".join(f"{a:g} x {b:+g}" for a, b in np.broadcast(found.a, found.b))


def _ancestors(blob: Node, made: Callable[[Node], Made | None]) -> dict[Node, Map]:
    """Return the ancestors of a blob, nearest first, with the map from their
    coordinates to the blob's."""
    found, frontier = {blob: _IDENTITY}, [blob]
    while frontier:
        last = frontier.pop(0)
        how = made(last)
        step = None if how is None else _step(how)
        if how is None or step is None:
            continue
        for given in how.bottoms[:1] if how.kind == "Crop" else how.bottoms:
            if given not in found:
                found[given] = _compose(found[last], step)
                frontier.append(given)
    return found


def _compose(outer: Map, inner: Map) -> Map:
    if outer.axis is not None and inner.axis is not None and outer.axis != inner.axis:
        raise ValueError(f"layers work on different axes: from {outer.axis} and from {inner.axis} on")
    axis = outer.axis if outer.axis is not None else inner.axis
    return Map(axis, outer.a * inner.a, outer.a * inner.b + outer.b)


def _step(how: Made) -> Map | None:
    """Return the map of the layer that makes a blob, or None if that layer does not map coordinates."""
    if how.kind in _SAME:
        return _IDENTITY
    if how.kind not in (*_WINDOWED, "Crop", "Slice"):
        return None
    layer = how.message()
    if how.kind == "Slice":
        cut = layer.slice_param
        axis = cut.slice_dim if cut.HasField("slice_dim") else cut.axis
        return _IDENTITY if axis in (0, 1, -3, -4) else None  # samples or channels
    if how.kind == "Crop":
        offset = np.array(list(layer.crop_param.offset) or [0], float)
        return Map(layer.crop_param.axis - 1, np.ones(1), -offset)
    pooling = how.kind == "Pooling"
    message = layer.pooling_param if pooling else layer.convolution_param
    if pooling and message.global_pooling:
        return None
    kernel, stride, pad = (_extents(message, name, pooling) for name in ("kernel", "stride", "pad"))
    if not pooling and message.dilation:
        kernel = (kernel - 1) * np.array(list(message.dilation), float) + 1
    axis = 1 if pooling else message.axis
    if how.kind == "Deconvolution":
        return Map(axis, stride, (kernel - 1) / 2 - pad)
    return Map(axis, 1 / stride, (pad - (kernel - 1) / 2) / stride)


def _extents(message: Any, name: str, pooling: bool) -> np.ndarray:
    """Return kernel, stride or pad for each spatial axis."""
    if message.HasField(f"{name}_h") or message.HasField(f"{name}_w"):
        return np.array([getattr(message, f"{name}_h"), getattr(message, f"{name}_w")], float)
    value = getattr(message, "kernel_size" if name == "kernel" else name)
    default = 0.0 if name == "pad" else 1.0
    return np.array([value] if pooling else list(value) or [default], float)
