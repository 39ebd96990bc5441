"""transform_param: what becomes of images before a net sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import in_training
from demitasse_caffe.paths import find, find_file
from demitasse_caffe.schema import number
from demitasse_caffe.weights import read_blob

_NOT_CAFFES = 80_000_000
"""Numbers of fields that Caffe's messages do not have begin here."""


def transform(layer: Layer, message: Any, samples: Tensor, graph: GraphBuilder) -> Tensor:
    """The mean subtracted, the crop cut (at random in training, from the middle in testing), the result
    multiplied by the scale and mirrored at random (in both phases, as in Caffe)."""
    parameters = message.transform_param
    check_served(parameters)
    training = in_training(message, graph)
    channels = samples.shape[1] if len(samples.shape) > 1 else 1
    mean = subtracted(layer, parameters, channels, samples.shape[1:] if graph.counted else None)
    drawn = {"seed": graph.seed, "stream": graph.stream}
    counters = graph.scalar("iteration"), graph.scalar("sample")
    transformed: Tensor = graph.apply(
        "image_transform",
        samples,
        None if mean is None else graph.constant(f"{layer.name}.mean", mean),
        *counters,
        scale=number(parameters.scale),
        crop=parameters.crop_size,
        mirror=parameters.mirror and training,
        random=training,
        **drawn,
    )
    if parameters.mirror and not training:
        # The word draws a crop's place and the mirroring together: here only the latter is drawn.
        transformed = graph.apply(
            "image_transform", transformed, None, *counters, mirror=True, random=True, **drawn
        )
    return transformed


def check_served(parameters: Any) -> None:
    """Raise ValueError for what SSD's fork has and only AnnotatedData does here."""
    for field, value in parameters.ListFields():
        if field.number >= _NOT_CAFFES and value != 0:
            raise ValueError(
                f"transform_param {{ {field.name} }} is of SSD's fork, and only AnnotatedData layers "
                f"have it here"
            )


def as_numbers(whole: Tensor, graph: GraphBuilder) -> Tensor:
    """Whole numbers that an operation gives, as real ones, which Caffe's blobs are: what reads them has
    fractions. No gradient goes through."""
    shape = (whole.shape + (1,) * 4)[:4]
    images = whole if whole.shape == shape else graph.apply("reshape", whole, shape=shape)
    counters = graph.scalar("iteration"), graph.scalar("sample")
    numbers = graph.apply(
        "image_transform", images, None, *counters, seed=graph.seed, stream=graph.stream
    )
    if whole.shape != shape:
        numbers = graph.apply("reshape", numbers, shape=whole.shape)
    passed: Tensor = graph.apply("stop_gradient", numbers)
    return passed


def subtracted(
    layer: Layer, parameters: Any, channels: int, counted: Sequence[int] | None = None
) -> np.ndarray | None:
    """The mean of a transform_param, (channels, height, width) or (channels or 1, 1, 1); None for none.
    Where only shapes count, a file that is not there has the shape ``counted``. Raises ValueError, or
    ModelError for a file."""
    values = [number(value) for value in parameters.mean_value]
    if parameters.mean_file and values:
        raise ValueError("mean_file and mean_value exclude each other")
    if parameters.mean_file:
        if counted is not None and find(parameters.mean_file, layer.location.file)[0] is None:
            return np.broadcast_to(np.float32(0), counted)
        what = f"{layer.location}: layer {layer.name!r} ({layer.type}): mean_file"
        mean = read_blob(find_file(parameters.mean_file, layer.location.file, what))
        return mean[0] if mean.ndim == 4 and mean.shape[0] == 1 else mean
    if not values:
        return None
    if len(values) not in (1, channels):
        raise ValueError(
            f"{len(values)} mean_value for {channels} channels; give "
            + (f"1 or {channels}" if channels > 1 else "1")
        )
    return np.array(values).reshape(-1, 1, 1)
