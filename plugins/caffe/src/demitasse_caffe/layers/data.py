"""Where a net's samples come in: Data and Input."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataSpec, GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, in_training
from demitasse_caffe.paths import find_file, located
from demitasse_caffe.schema import number
from demitasse_caffe.weights import read_blob

_DEPRECATED = ("scale", "mean_file", "crop_size", "mirror")
_DATABASE_FILES = {"LMDB": "data.mdb", "LEVELDB": "CURRENT"}


class Data(CaffeLayer):
    """Batches of samples and, with a second top, their labels, from whatever a data source reads:
    a database, IDX or CIFAR files, ``digits:train``. Images are transformed by transform_param."""

    name = "Data"
    bottoms = (0, 0)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data = message.data_param
        if not data.source:
            raise ValueError("data_param needs a source")
        if data.batch_size < 1:
            raise ValueError("data_param needs a batch_size of 1 or more")
        if old := [field for field in _DEPRECATED if data.HasField(field)]:
            raise ValueError(
                f"data_param has {', '.join(old)}, which Caffe no longer reads there; "
                f"write transform_param {{ {old[0]}: ... }}"
            )
        source = located(data.source, layer.location.file)
        spec = DataSpec(
            source=source,
            kind=_database(data, source),
            shuffle=data.shuffle,
            seed=graph.seed,
            location=layer.location,
        )
        transformed = any(
            field.name not in ("force_color", "force_gray")
            for field, _ in message.transform_param.ListFields()
        )
        fields = {"data": "raw" if transformed else "real"}
        if len(layer.tops) > 1:
            fields["label"] = "real"
        samples, *labels = graph.source(spec, data.batch_size, fields)
        if transformed:
            samples = transform(layer, message, samples, graph)
        return [samples, *labels]


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
        tensors = [graph.input(name, shape) for name, shape in zip(layer.tops, shapes, strict=True)]
        for tensor in tensors:
            if not tensor.shape or min(tensor.shape) < 1:
                raise ValueError(
                    f"top {tensor.name!r} has the shape {tensor.shape}; write "
                    f"input_param {{ shape {{ dim: ... }} }} with positive extents"
                )
        return tensors


def transform(layer: Layer, message: Any, samples: Tensor, graph: GraphBuilder) -> Tensor:
    """The image_transform of a layer's transform_param."""
    parameters = message.transform_param
    transformed: Tensor = graph.apply(
        "image_transform",
        samples,
        _mean(layer, parameters, samples, graph),
        graph.scalar("iteration"),
        graph.scalar("sample"),
        scale=number(parameters.scale),
        crop=parameters.crop_size,
        mirror=parameters.mirror,
        random=in_training(message, graph),
        seed=graph.seed,
        stream=graph.stream,
    )
    return transformed


def _database(data: Any, source: str) -> str | None:
    """The format that the file names, where the source is a folder with such a database in it."""
    backend = data.DB.Name(data.backend)
    return backend.lower() if (Path(source) / _DATABASE_FILES[backend]).is_file() else None


def _mean(layer: Layer, parameters: Any, samples: Tensor, graph: GraphBuilder) -> Tensor | None:
    values = [number(value) for value in parameters.mean_value]
    if not parameters.mean_file and not values:
        return None
    if parameters.mean_file and values:
        raise ValueError("mean_file and mean_value exclude each other")
    if parameters.mean_file:
        what = f"{layer.location}: layer {layer.name!r} ({layer.type}): mean_file"
        mean = read_blob(find_file(parameters.mean_file, layer.location.file, what))
        if mean.ndim == 4 and mean.shape[0] == 1:
            mean = mean[0]
    else:
        channels = samples.shape[1] if len(samples.shape) > 1 else 1
        if len(values) not in (1, channels):
            raise ValueError(f"{len(values)} mean_value for {channels} channels; give 1 or {channels}")
        mean = np.array(values).reshape(-1, 1, 1)
    return graph.constant(f"{layer.name}.mean", mean)
