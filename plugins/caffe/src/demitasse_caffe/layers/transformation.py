"""transform_param: how images are preprocessed for a net."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from demitasse import DataError, GraphBuilder, Layer, ModelError, Tensor
from demitasse_caffe.layers.base import in_training
from demitasse_caffe.mean import read_mean
from demitasse_caffe.paths import find, find_file
from demitasse_caffe.schema import number

_INTELS = ("random_resize_param", "random_aspect_ratio_param")
_STRETCHES = ("vertical_stretch", "horizontal_stretch")
_PAIRS = ("img_rand_resize", "rand_resize_ratio", *_STRETCHES)
_NVIDIAS = tuple(f"{name}_{bound}" for name in _PAIRS for bound in ("lower", "upper"))
_IDLE_ALONE = ("allow_upscale", "interpolation_algo_down", "interpolation_algo_up")
"""Fields that say how NVIDIA's fork resizes images. They have an effect only together with
one of the others."""

SCALING = (*_INTELS, *_NVIDIAS, "resize_param")
"""The fields of Intel's and NVIDIA's forks, and one of SSD's."""

SEGMENTS = ("scale_factors", "crop_width", "crop_height")
"""The fields of DeepLab's fork."""

CLIPS = ("fix_crop", "more_fix_crop", "multi_scale", "scale_ratios", "max_distort", "is_flow")
"""The fields of TSN's fork."""

_OWNERS = {
    **dict.fromkeys(_INTELS, ("Intel's fork", "Data and ImageData layers")),
    **dict.fromkeys(_NVIDIAS, ("NVIDIA's fork", "Data and ImageData layers")),
    **dict.fromkeys(SEGMENTS, ("DeepLab's fork", "ImageSegData layers")),
    **dict.fromkeys(CLIPS, ("the fork of TSN", "VideoData layers")),
    "resize_param": ("SSD's fork", "AnnotatedData, Data and ImageData layers"),
}
"""For each field its fork, and the layers that have it; all other fields are SSD's."""

_MOST_ATTEMPTS = 1000
"""The maximum number of attempts; random numbers are drawn for all of them, for each image."""

_NOT_CAFFES = 80_000_000
"""The first field number of fields that Caffe's messages do not have."""


def check_mean_by_channels(parameters: Any) -> None:
    """Raise ValueError for a mean image when images differ in size."""
    if parameters.mean_file:
        raise ValueError("has a mean_file, which is for images of one size; give mean_value")


def transform(
    layer: Layer,
    message: Any,
    samples: Tensor,
    graph: GraphBuilder,
    mean: np.ndarray | None = None,
) -> Tensor:
    """Subtract the mean (of transform_param, unless given), crop (at random places in training, at the
    centre in tests), multiply by the scale, and mirror at random (in both phases, as in Caffe)."""
    parameters = message.transform_param
    training = in_training(message, graph)
    channels = samples.shape[1] if len(samples.shape) > 1 else 1
    if mean is None:
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
        # The operation draws the crop's place and the mirroring together; here only the latter.
        transformed = graph.apply(
            "image_transform", transformed, None, *counters, mirror=True, random=True, **drawn
        )
    return transformed


def check_served(parameters: Any, served: Collection[str] = ()) -> None:
    """Raise ValueError for fields that forks have in transform_param, except those
    that are ``served``."""
    for field, value in parameters.ListFields():
        counts = field.number >= _NOT_CAFFES and value != 0 and field.name not in _IDLE_ALONE
        if counts and field.name not in served:
            whose, whom = _OWNERS.get(field.name, ("SSD's fork", "AnnotatedData layers"))
            raise ValueError(
                f"transform_param {{ {field.name} }} belongs to {whose}; here only {whom} have it"
            )


def scaling(parameters: Any) -> dict[str, Any]:
    """Return the options of a source that resizes images before it crops them, as plain values; empty if
    it does not. Raise ValueError."""
    given = [name for name in (*_INTELS, *_NVIDIAS) if parameters.HasField(name)]
    if parameters.resize_param:
        return _fitted(parameters, given)
    if not given:
        return {}
    intels = [name for name in given if name in _INTELS]
    if intels and len(given) > 1:
        raise ValueError(f"transform_param {{ {' and '.join(given)} }} cannot be combined")
    where = f"transform_param {{ {given[0]} }}"
    if not parameters.crop_size:
        raise ValueError(f"{where} leaves images of several sizes; it needs a crop_size")
    if parameters.mean_file:
        raise ValueError(f"{where} changes where pixels lie; give mean_value, not mean_file")
    if given[0] in _NVIDIAS:
        return {"scaling": _stretched(parameters)}
    about = getattr(parameters, given[0])
    if about.resize_param.resize_mode != about.resize_param.WARP or about.resize_param.prob != 1:
        raise ValueError(f"{where}: only interp_mode of its resize_param has an effect")
    names = tuple(about.resize_param.Interp_mode.Name(each) for each in about.resize_param.interp_mode)
    asked: dict[str, Any] = {"interpolations": names or ("LINEAR",)}
    if given == ["random_resize_param"]:
        least, most = about.min_size, about.max_size
        if least and most and least > most:
            raise ValueError(f"{where} {{ min_size: {least} max_size: {most} }} are not in order")
        if least and least < parameters.crop_size:
            raise ValueError(
                f"{where} {{ min_size: {least} }} is below crop_size {parameters.crop_size}"
            )
        return {"scaling": {**asked, "least": least, "most": most}}
    least, most, change = (
        number(getattr(about, name))
        for name in ("min_area_ratio", "max_area_ratio", "aspect_ratio_change")
    )
    if about.max_attempt > _MOST_ATTEMPTS:
        raise ValueError(f"{where} {{ max_attempt: {about.max_attempt} }}: at most {_MOST_ATTEMPTS}")
    if not 0 < least <= most or not 0 < change <= 1:
        raise ValueError(
            f"{where} {{ min_area_ratio: {least:g} max_area_ratio: {most:g} aspect_ratio_change: "
            f"{change:g} }}: areas must be above 0 and in order, the change above 0 and at most 1"
        )
    return {
        "scaling": {
            **asked,
            "least": least,
            "most": most,
            "change": change,
            "attempts": about.max_attempt,
        }
    }


def _fitted(parameters: Any, others: Sequence[str]) -> dict[str, Any]:
    """Return how SSD's fork resizes images. Raise ValueError."""
    where = "transform_param { resize_param }"
    if others:
        raise ValueError(
            f"transform_param {{ resize_param and {' and '.join(others)} }} cannot be combined"
        )
    if len(parameters.resize_param) > 1:
        raise ValueError(
            f"{where} is given {len(parameters.resize_param)} times; images have one size here"
        )
    if parameters.mean_file:
        raise ValueError(f"{where} changes where pixels lie; give mean_value, not mean_file")
    (resize,) = parameters.resize_param
    if resize.resize_mode == resize.FIT_SMALL_SIZE and not parameters.crop_size:
        raise ValueError(f"{where}: FIT_SMALL_SIZE leaves images of several sizes; it needs a crop_size")
    return {"scaling": resizing(resize)}


def resizing(message: Any) -> dict[str, Any]:
    """Return the options of a source for a resize_param. Raise ValueError."""
    if message.height < 1 or message.width < 1:
        raise ValueError(
            f"resize_param {{ height: {message.height} width: {message.width} }} is not the size of an "
            f"image"
        )
    if message.height_scale or message.width_scale:
        raise ValueError("resize_param { height_scale, width_scale } have no counterpart here")
    return {
        "height": message.height,
        "width": message.width,
        "mode": message.Resize_mode.Name(message.resize_mode),
        "interpolations": tuple(message.Interp_mode.Name(each) for each in message.interp_mode),
        "pad": message.Pad_mode.Name(message.pad_mode),
        "values": tuple(number(value) for value in message.pad_value),
    }


def _stretched(parameters: Any) -> dict[str, Any]:
    """Return how NVIDIA's fork resizes images. Raise ValueError for bounds that are not in order."""
    bounds = {}
    for name in _PAIRS:
        lower, upper = (number(getattr(parameters, f"{name}_{end}")) for end in ("lower", "upper"))
        least = 0.0 if name not in _STRETCHES else 1e-3
        if not least <= lower <= upper < math.inf:
            raise ValueError(
                f"transform_param {{ {name}_lower: {lower:g} {name}_upper: {upper:g} }} are not in order"
            )
        bounds[name] = lower, upper
    side = tuple(map(int, bounds["img_rand_resize"]))
    if (side[0] == 0) != (side[1] == 0):
        raise ValueError("img_rand_resize_lower and img_rand_resize_upper: give both, or neither")
    ways = parameters.DESCRIPTOR.fields_by_name["interpolation_algo_up"].enum_type.values_by_number
    names = (parameters.interpolation_algo_down, parameters.interpolation_algo_up)
    return {
        "least": side[0],
        "most": side[1],
        "ratio": bounds["rand_resize_ratio"],
        "tall": bounds["vertical_stretch"],
        "wide": bounds["horizontal_stretch"],
        "enlarges": parameters.allow_upscale,
        "interpolations": tuple(ways[way].name.removeprefix("INTER_") for way in names),
    }


def as_numbers(whole: Tensor, graph: GraphBuilder) -> Tensor:
    """Convert integers that an operation returns to floating point, which Caffe's blobs are, because
    their readers compute fractions. No gradient passes."""
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
    """Return the mean of a transform_param, (channels, height, width) or (channels or 1, 1, 1), or None
    if there is none. If only shapes matter, a missing file counts as a mean of the shape ``counted``
    with the average of random bytes. Raise ValueError, or ModelError or DataError for a file."""
    values = [number(value) for value in parameters.mean_value]
    if parameters.mean_file and values:
        raise ValueError("mean_file and mean_value cannot be combined")
    if parameters.mean_file:
        if counted is not None and find(parameters.mean_file, layer.location.file)[0] is None:
            return np.broadcast_to(np.float32(127.5), counted)
        what = f"{layer.location}: layer {layer.name!r} ({layer.type}): mean_file"
        path = find_file(parameters.mean_file, layer.location.file, what)
        try:
            mean = read_mean(path)
        except (DataError, ModelError) as error:  # say which mean_file of several is wrong
            raise type(error)(f"{what}: {error}") from error
        if mean.ndim < 2:  # one for each channel, as a NumPy file may have it
            return mean.reshape(-1, 1, 1)
        return mean[0] if mean.ndim > 3 and mean.shape[0] == 1 else mean
    if not values:
        return None
    if len(values) not in (1, channels):
        raise ValueError(
            f"{len(values)} mean_value for {channels} channels; give "
            + (f"1 or {channels}" if channels > 1 else "1")
        )
    return np.array(values).reshape(-1, 1, 1)
