"""Images with boxes around the objects in them, as in SSD's fork. Liu et al. 2016, *SSD: Single Shot
MultiBox Detector*, sections 2.2, *Data augmentation*, and 3.6."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import DataSpec, Field, GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, in_training
from demitasse_caffe.layers.data import read, source_of
from demitasse_caffe.layers.transformation import check_mean_by_channels, resizing, subtracted
from demitasse_caffe.schema import number

ROW = 8
"""The numbers of an object: image, class, number, xmin, ymin, xmax, ymax, and
whether it is difficult."""


class AnnotatedData(CaffeLayer):
    """Batches of images and the objects in them: for each image ``max_objects`` rows of ``ROW`` numbers,
    which are -1 in rows without an object. An image's colours are distorted; it is placed on a larger
    canvas, cropped at random until the crop contains enough of its objects, resized, cropped and
    mirrored. Its boxes change with it."""

    name = "AnnotatedData"
    bottoms = (0, 0)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data, parameters = message.data_param, message.transform_param
        about = message.annotated_data_param
        if not 0 <= about.yolo_data_jitter < 1:
            raise ValueError(
                f"yolo_data_jitter {number(about.yolo_data_jitter):g} is not a share by which sides are "
                f"cut, 0 or more and below 1"
            )
        if about.max_objects < 1:
            raise ValueError("max_objects is 0; it must be 1 or more")
        check_mean_by_channels(parameters)
        if parameters.force_color and parameters.force_gray:
            raise ValueError("force_color and force_gray cannot be combined")
        mode = "color" if parameters.force_color or data.force_encoded_color else "native"
        channels = 1 if parameters.force_gray else 3
        options: dict[str, Any] = {
            "augmentation": _augmentation(parameters, about, in_training(message, graph)),
            "objects": about.max_objects,
            "boxed": about.HasField("anno_type"),
            "mode": "gray" if parameters.force_gray else mode,
            "stream": graph.stream,
        }
        if size := _crop(parameters) or _fitted(parameters):
            images, objects = (channels, *size), (1, about.max_objects, ROW)
            options["declared"] = {"data": Field(images, "uint8"), "label": Field(objects, "float32")}
        source = source_of(data, "data_param", layer)
        spec = DataSpec(source, "annotated", data.shuffle, graph.seed, options, layer.location)
        fields = {"data": "raw"}
        if len(layer.tops) > 1:
            fields["label"] = "real"
        samples, *labels = read("data_param", layer, spec, data.batch_size, fields, graph)
        mean = subtracted(layer, parameters, samples.shape[1])
        transformed = graph.apply(
            "image_transform",
            samples,
            None if mean is None else graph.constant(f"{layer.name}.mean", mean),
            graph.scalar("iteration"),
            graph.scalar("sample"),
            scale=number(parameters.scale),
            seed=graph.seed,
            stream=graph.stream,
        )
        return [transformed, *labels]


def _augmentation(parameters: Any, about: Any, training: bool) -> dict[str, Any]:
    """Return what the source is to do to an image and its boxes, as plain values. Raise ValueError."""
    asked: dict[str, Any] = {
        "sampling": [_sampler(each) for each in about.batch_sampler if each.use_original_image],
        "crop": _crop(parameters),
        "random": training,
        "mirror": parameters.mirror,
    }
    if about.yolo_data_jitter and not about.batch_sampler:
        fits = [each.resize_mode == each.FIT_LARGE_SIZE_AND_PAD for each in parameters.resize_param]
        asked["jitter"] = {"most": number(about.yolo_data_jitter), "alike": fits == [True]}
    if parameters.HasField("emit_constraint"):
        emit = parameters.emit_constraint
        centre = emit.emit_type == emit.CENTER
        asked["emit"] = "CENTER" if centre else number(emit.emit_overlap)
    if parameters.HasField("expand_param"):
        expand = parameters.expand_param
        if not expand.max_expand_ratio >= 1:
            raise ValueError(f"max_expand_ratio {number(expand.max_expand_ratio):g} is not 1 or more")
        asked["expansion"] = number(expand.prob), number(expand.max_expand_ratio)
        asked["fill"] = tuple(number(value) for value in parameters.mean_value) or (0.0,)
    if parameters.HasField("distort_param"):
        asked["distortion"] = _distortion(parameters.distort_param)
    if len(parameters.resize_param) > 1:
        raise ValueError(
            f"has {len(parameters.resize_param)} resize_param; give one, as images have one size here"
        )
    if parameters.resize_param:
        asked["resizing"] = resizing(parameters.resize_param[0])
        if asked["crop"] is None and _fitted(parameters) is None:
            raise ValueError("FIT_SMALL_SIZE leaves images of several sizes; give crop_h and crop_w")
    return asked


def _sampler(message: Any) -> Mapping[str, Any]:
    sampler, constraint = message.sampler, message.sample_constraint

    def bounds(name: str) -> tuple[float | None, float | None]:
        low, high = (
            number(getattr(constraint, field)) if constraint.HasField(field) else None
            for field in (f"min_{name}", f"max_{name}")
        )
        return low, high

    for name, limit in (("scale", 1.0), ("aspect_ratio", np.inf)):
        low, high = (getattr(sampler, f"{bound}_{name}") for bound in ("min", "max"))
        if not 0 < low <= high <= limit:
            raise ValueError(
                f"batch_sampler {{ sampler {{ min_{name}: {number(low):g} max_{name}: {number(high):g} "
                f"}} }} are not above 0, in order{' and at most 1' if limit == 1 else ''}"
            )
    return {
        "scale": (number(sampler.min_scale), number(sampler.max_scale)),
        "ratio": (number(sampler.min_aspect_ratio), number(sampler.max_aspect_ratio)),
        "overlap": bounds("jaccard_overlap"),
        "sample_coverage": bounds("sample_coverage"),
        "object_coverage": bounds("object_coverage"),
        "most": message.max_sample if message.HasField("max_sample") else None,
        "trials": message.max_trials,
    }


def _distortion(message: Any) -> Mapping[str, Any]:
    return {
        "brightness_probability": number(message.brightness_prob),
        "brightness": number(message.brightness_delta),
        "contrast_probability": number(message.contrast_prob),
        "contrast": (number(message.contrast_lower), number(message.contrast_upper)),
        "saturation_probability": number(message.saturation_prob),
        "saturation": (number(message.saturation_lower), number(message.saturation_upper)),
        "hue_probability": number(message.hue_prob),
        "hue": number(message.hue_delta),
        "order_probability": number(message.random_order_prob),
    }


def _crop(parameters: Any) -> tuple[int, int] | None:
    """Return the height and width of the crop from each image, if there is one."""
    sides = parameters.crop_h, parameters.crop_w
    if any(sides) and not all(sides):
        raise ValueError(f"crop_h {sides[0]} and crop_w {sides[1]}: give both, or neither")
    if any(sides) and parameters.crop_size:
        raise ValueError("crop_size cannot be combined with crop_h and crop_w")
    side = parameters.crop_size
    return sides if all(sides) else (side, side) if side else None


def _fitted(parameters: Any) -> tuple[int, int] | None:
    """Return the size that all images are resized to, if they are."""
    for resize in parameters.resize_param:
        if resize.resize_mode != resize.FIT_SMALL_SIZE:
            return resize.height, resize.width
    return None
