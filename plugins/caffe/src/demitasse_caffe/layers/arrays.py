"""Blobs that the caller fills, and blobs that fillers fill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import DataError, DataSpec, GraphBuilder, Layer, RandomStream, Tensor
from demitasse_caffe.fillers import Constant, filler
from demitasse_caffe.layers.base import CaffeLayer, check_size
from demitasse_caffe.layers.transformation import check_served, transform

_LEGACY = ("num", "channels", "height", "width")
LARGEST = (1 << 31) - 1
"""The maximum number of elements of a blob, as in Caffe."""
_STREAM = 1 << 20
"""The first random stream of layers that fill blobs, 64 for each layer; parameters use lower ones."""


class Input(CaffeLayer):
    """Blobs that the caller of the net fills."""

    name = "Input"
    bottoms = (0, 0)
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        shapes = [tuple(shape.dim) for shape in message.input_param.shape]
        if len(shapes) not in (0, 1, len(layer.tops)):
            raise ValueError(f"input_param has {len(shapes)} shapes for {len(layer.tops)} tops")
        if len(shapes) < 2:
            shapes = (shapes or [()]) * len(layer.tops)
        for name, shape in zip(layer.tops, shapes, strict=True):
            check_size(f"top {name!r}", shape)
            if any(extent < 0 for extent in shape):
                raise ValueError(_without_extents(name, shape))
        tensors = [graph.input(name, shape) for name, shape in zip(layer.tops, shapes, strict=True)]
        for tensor in tensors:
            if not tensor.shape or min(tensor.shape) < 1:
                raise ValueError(_without_extents(tensor.name, tensor.shape))
        return tensors


def _without_extents(name: str, shape: tuple[int, ...]) -> str:
    return (
        f"top {name!r} has the shape {shape}; write input_param {{ shape {{ dim: ... }} }} with "
        f"positive extents"
    )


class MemoryData(CaffeLayer):
    """Samples that the caller holds: the arrays ``data`` and ``label`` that are passed to a trainer or
    net, or else inputs. Arrays are transformed by transform_param, like the datums and images that are
    added in Caffe."""

    name = "MemoryData"
    bottoms = (0, 0)
    tops = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        memory = message.memory_data_param
        shape = memory.batch_size, memory.channels, memory.height, memory.width
        if min(shape) < 1:
            raise ValueError(
                f"memory_data_param needs a positive batch_size, channels, height and width, not {shape}"
            )
        spec = DataSpec(f"memory:{layer.name}", "memory", seed=graph.seed, location=layer.location)
        try:
            samples, labels = graph.source(spec, shape[0], {"data": "raw", "label": "real"})
        except DataError as error:
            # No plugin serves this source; an error that does not name it is about the given arrays.
            if spec.source not in str(error):
                raise
            wanted = zip(layer.tops, (shape, shape[:1]), strict=True)
            return [graph.input(name, extents) for name, extents in wanted]
        check_served(message.transform_param)
        if message.HasField("transform_param") or samples.dtype != graph.dtype:
            samples = transform(layer, message, samples, graph)
        if samples.shape[1:] != shape[1:]:
            raise ValueError(
                f"the samples given have shape {samples.shape[1:]}, but {shape[1:]} is declared"
            )
        return [samples, labels]


class DummyData(CaffeLayer):
    """Blobs that fillers fill: constants once, random values anew for every batch."""

    name = "DummyData"
    bottoms = (0, 0)
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        dummy, count = message.dummy_data_param, len(layer.tops)
        given = len(dummy.data_filler)
        if given not in (0, 1, count):
            raise ValueError(f"has {given} data_filler for {count} tops; give none, one, or one each")
        tops = []
        for number, shape in enumerate(_shapes(dummy, count)):
            fill = filler(dummy.data_filler[number if given > 1 else 0], shape) if given else Constant()
            if isinstance(fill, Constant) and graph.phase != "train":
                # In training even a constant batch is divided among workers, so it must be samples.
                value = np.asarray(fill(shape, RandomStream(graph.seed)))
                tops.append(graph.constant(f"{layer.name}.{layer.tops[number]}", value))
                continue
            stream = _STREAM + 64 * graph.stream + number
            field = layer.tops[number]
            options = {"field": field, "filler": fill, "shape": shape, "stream": stream}
            spec = DataSpec(layer.name, "fillers", False, graph.seed, options, layer.location)
            tops += graph.source(spec, shape[0], {field: "real"})
        return tops


def _shapes(dummy: Any, count: int) -> list[tuple[int, ...]]:
    """Return the shape of each top, from ``shape`` or from the four older numbers. Raise ValueError."""
    legacy = [name for name in _LEGACY if len(getattr(dummy, name))]
    if legacy and len(dummy.shape):
        raise ValueError(f"has both shape and {', '.join(legacy)}; use one of the two")
    if legacy:
        for name in _LEGACY:
            if len(getattr(dummy, name)) not in (1, count):
                raise ValueError(
                    f"has {len(getattr(dummy, name))} {name} for {count} tops; give one, or one each"
                )
        columns = [list(getattr(dummy, name)) for name in _LEGACY]
        shapes = [tuple(c[i if len(c) > 1 else 0] for c in columns) for i in range(count)]
    else:
        if len(dummy.shape) not in (1, count):
            raise ValueError(f"has {len(dummy.shape)} shape for {count} tops; give one, or one each")
        each = [tuple(shape.dim) for shape in dummy.shape]
        shapes = each if len(each) == count else each * count
    for shape in shapes:
        if not shape or min(shape) < 1 or math.prod(shape) > LARGEST:
            raise ValueError(
                f"a blob of shape {shape}: extents must be 1 or more, with at most {LARGEST:,} elements"
            )
    return shapes
