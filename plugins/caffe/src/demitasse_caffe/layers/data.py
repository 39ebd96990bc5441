"""Batches of images with labels: from a database or any other source, from lists of files, and from
windows of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from demitasse import DataError, DataSpec, GraphBuilder, Layer, Tensor, is_file
from demitasse_caffe.layers.base import CaffeLayer, in_training
from demitasse_caffe.layers.transformation import (
    SCALING,
    SEGMENTS,
    check_mean_by_channels,
    check_served,
    scaling,
    subtracted,
    transform,
)
from demitasse_caffe.paths import located
from demitasse_caffe.schema import number

_MOVED = ("scale", "mean_file", "crop_size", "mirror")
_VIDEOS = ("new_length", "sampling_rate", "use_image", "use_temporal_jitter", "mean_value")
_DATABASE_FILES = {"LMDB": "data.mdb", "LEVELDB": "CURRENT"}


class Data(CaffeLayer):
    """Batches of samples and, with a second top, their labels, from any data source: a database, IDX or
    CIFAR files, ``digits:train``. Images are transformed by transform_param."""

    name = "Data"
    bottoms = (0, 0)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data, parameters = message.data_param, message.transform_param
        check_served(parameters, SCALING)
        source = source_of(data, "data_param", layer)
        if parameters.force_color and parameters.force_gray:
            raise ValueError("force_color and force_gray cannot be combined")
        options = _cropping(message, graph)
        if parameters.force_color or data.force_encoded_color:
            options["mode"] = "color"
        elif parameters.force_gray:
            options["mode"] = "gray"
        if data.rand_skip:
            options |= {"skip": data.rand_skip, "stream": graph.stream}
        spec = DataSpec(
            source=source,
            kind=_database(data, source) if source else None,
            shuffle=data.shuffle,
            seed=graph.seed,
            options=options,
            location=layer.location,
        )
        transformed = any(
            field.name not in ("force_color", "force_gray") for field, _ in parameters.ListFields()
        )
        fields = {"data": "raw" if transformed else "real"}
        if len(layer.tops) > 1:
            fields["label"] = "real"
        samples, *labels = read("data_param", layer, spec, data.batch_size, fields, graph)
        if transformed:
            samples = transform(layer, message, samples, graph)
        return [samples, *labels]


class ImageData(CaffeLayer):
    """Images and labels from a text file that has a path and a label on each line. With one top, as in
    FlowNet's fork, only the images."""

    name = "ImageData"
    bottoms = (0, 0)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data = message.image_data_param
        check_served(message.transform_param, SCALING)
        if videos := [name for name in _VIDEOS if data.HasField(name)]:
            raise ValueError(f"image_data_param {{ {videos[0]} }} belongs to C3D's layer type VideoData")
        source = source_of(data, "image_data_param", layer)
        check_resized(data)
        options = {
            **_cropping(message, graph),
            **of_listed_images(data, layer, graph),
            "labels": len(layer.tops) == 2,
        }
        spec = DataSpec(source, "images", data.shuffle, graph.seed, options, layer.location)
        fields = {"data": "raw", "label": "real"} if options["labels"] else {"data": "raw"}
        samples, *labels = read("image_data_param", layer, spec, data.batch_size, fields, graph)
        return [transform(layer, message, samples, graph), *labels]


class DenseImageData(CaffeLayer):
    """Pairs of images from a text file: an image, and the classes of its pixels. Both are
    resized, cropped at random places and mirrored in the same way, even in tests. Badrinarayanan
    et al. 2017, *SegNet*."""

    name = "DenseImageData"
    bottoms = (0, 0)
    tops = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data, parameters = message.dense_image_data_param, message.transform_param
        check_served(parameters)
        source = source_of(data, "dense_image_data_param", layer, moved=("mean_file",))
        if parameters.crop_size or parameters.mirror:
            raise ValueError(
                "transform_param { crop_size, mirror } apply to the image only; write "
                "dense_image_data_param { crop_height: ... crop_width: ... mirror: true }"
            )
        options = {
            **of_listed_images(data, layer, graph),
            "crop_height": data.crop_height,
            "crop_width": data.crop_width,
            "mirror": data.mirror,
            "divide": data.label_divide_factor,
        }
        spec = DataSpec(source, "image_pairs", data.shuffle, graph.seed, options, layer.location)
        fields = {"data": "raw", "label": "real"}
        samples, labels = read("dense_image_data_param", layer, spec, data.batch_size, fields, graph)
        return [transform(layer, message, samples, graph), labels]


class ImageSegData(CaffeLayer):
    """Images from a text file, with classes of their pixels: an image of classes, one class for all
    pixels, or none. Both are resized by a factor, padded below and to the right, cropped and mirrored in
    the same way. A third top holds how many rows and columns of a sample belong to the image. Chen et
    al. 2015, *DeepLab*."""

    name = "ImageSegData"
    bottoms = (0, 0)
    tops = (2, 3)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data, parameters = message.image_data_param, message.transform_param
        check_served(parameters, SEGMENTS)
        source = source_of(data, "image_data_param", layer)
        check_mean_by_channels(parameters)
        sides = parameters.crop_height, parameters.crop_width
        if parameters.crop_size:
            if any(sides):
                raise ValueError("crop_size cannot be combined with crop_height and crop_width")
            sides = (parameters.crop_size,) * 2
        options = {
            **of_listed_images(data, layer, graph),
            "crop_height": sides[0],
            "crop_width": sides[1],
            "random": in_training(message, graph),
            "mirror": parameters.mirror,
            "scales": tuple(map(number, parameters.scale_factors)),
            "filled": data.ignore_label,
            "classes": {0: "none", 1: "image", 2: "pixels"}[data.label_type],
        }
        mean = subtracted(layer, parameters, 3 if data.is_color else 1)
        options["mean"] = [0.0] if mean is None else mean.ravel().tolist()
        spec = DataSpec(source, "image_pairs", data.shuffle, graph.seed, options, layer.location)
        fields = dict.fromkeys(("data", "label", "data_dim")[: len(layer.tops)], "real")
        samples, *rest = read("image_data_param", layer, spec, data.batch_size, fields, graph)
        if (scale := number(parameters.scale)) != 1:
            samples = graph.apply("power", samples, scale=scale)
        return [samples, *rest]


class WindowData(CaffeLayer):
    """Windows of images, warped to squares of crop_size, with a fixed fraction of each batch foreground.
    They are mirrored at random in both phases, and are 0 where a window extends beyond its image."""

    name = "WindowData"
    bottoms = (0, 0)
    tops = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data, parameters = message.window_data_param, message.transform_param
        check_served(parameters)
        source = source_of(data, "window_data_param", layer, moved=_MOVED[1:])
        crop, padding = parameters.crop_size, data.context_pad
        if crop < 1:
            raise ValueError(
                "windows are warped to transform_param { crop_size: ... }, which is not given"
            )
        if crop <= 2 * padding:
            raise ValueError(f"a context_pad of {padding} leaves nothing of a crop_size of {crop}")
        if data.crop_mode not in ("warp", "square"):
            raise ValueError(f"unknown crop_mode {data.crop_mode!r} (valid: warp, square)")
        options = {
            "root": root_of(data.root_folder, layer),
            "cached": data.cache_images,
            "batch": data.batch_size,
            "crop": crop,
            "foreground": number(data.fg_threshold),
            "background": number(data.bg_threshold),
            "fraction": number(data.fg_fraction),
            "padding": padding,
            "square": data.crop_mode == "square",
            "mirror": parameters.mirror,
            "scale": number(parameters.scale) * number(data.scale),
            "mean": subtracted(layer, parameters, 3, (3, 1, 1) if graph.counted else None),
            "stream": graph.stream,
        }
        spec = DataSpec(source, "windows", False, graph.seed, options, layer.location)
        fields = {"data": "real", "label": "real"}
        return read("window_data_param", layer, spec, data.batch_size, fields, graph)


def read(
    field: str,
    layer: Layer,
    spec: DataSpec,
    batch: int,
    fields: Mapping[str, str],
    graph: GraphBuilder,
) -> Sequence[Tensor]:
    """Return the samples of a layer. Without a source they are arrays that the caller holds, or mere
    shapes if nothing runs: a net may be a template whose sources its user fills in. Raise ValueError."""
    if spec.source:
        return graph.source(spec, batch, fields)
    spec = replace(spec, source=f"memory:{layer.name}", kind="memory")
    try:
        return graph.source(spec, batch, fields)
    except DataError as error:
        # No plugin serves this source; an error that does not name it is about the given arrays.
        if str(spec.source) not in str(error):
            raise
        raise ValueError(
            f"{field} needs a source; --set layer.{layer.name}.{field}.source=PATH gives one"
        ) from error


def source_of(data: Any, field: str, layer: Layer, moved: Sequence[str] = _MOVED) -> str:
    """Return the located source, or "" if none is named. Raise ValueError if a field is missing that
    every layer of images needs, or is in a place where Caffe no longer reads it."""
    if data.batch_size < 1:
        raise ValueError(f"{field} needs a batch_size of 1 or more")
    if old := [name for name in moved if data.HasField(name)]:
        raise ValueError(
            f"{field} has {', '.join(old)}, which Caffe no longer reads there; "
            f"write transform_param {{ {old[0]}: ... }}"
        )
    return located(data.source, layer.location.file) if data.source else ""


def check_resized(data: Any) -> None:
    """Raise ValueError if only one of the two extents is given."""
    if bool(data.new_height) != bool(data.new_width):
        raise ValueError(
            f"new_height {data.new_height} and new_width {data.new_width}: give both, or neither"
        )


def of_listed_images(data: Any, layer: Layer, graph: GraphBuilder) -> dict[str, Any]:
    """Return the options of a source that reads listed images, for any layer type."""
    return {
        "root": root_of(data.root_folder, layer),
        "mode": "color" if data.is_color else "gray",
        "height": data.new_height,
        "width": data.new_width,
        "skip": data.rand_skip,
        "stream": graph.stream,
    }


def _cropping(message: Any, graph: GraphBuilder) -> dict[str, Any]:
    """Return the options of a source that can crop images of different sizes itself. A mean image is
    subtracted at the position of the crop, so images then have its size and are cropped later."""
    parameters = message.transform_param
    scaled = scaling(parameters)
    if not (scaled or parameters.crop_size) or parameters.mean_file:
        return {}
    return {
        **scaled,
        "crop": parameters.crop_size,
        "random": in_training(message, graph),
        "stream": graph.stream,
    }


def root_of(folder: str, layer: Layer) -> str:
    """Return a folder that is prepended to the names in a list, located. Caffe joins the two as text."""
    if not folder:
        return ""
    found = located(folder, layer.location.file)
    return f"{found}/" if folder.endswith("/") and not found.endswith("/") else found


def _database(data: Any, source: str) -> str | None:
    """Return the format that the file names, if the source is a folder with such a database in it."""
    backend = data.DB.Name(data.backend)
    return backend.lower() if is_file(Path(source) / _DATABASE_FILES[backend]) else None
