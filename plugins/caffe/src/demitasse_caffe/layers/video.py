"""Batches of video frames, as C3D and TSN read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import DataSpec, GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, in_training
from demitasse_caffe.layers.data import check_resized, read, root_of, source_of
from demitasse_caffe.layers.transformation import CLIPS, check_served, subtracted, transform
from demitasse_caffe.schema import number

_C3DS = ("root_folder", "use_image", "sampling_rate", "use_temporal_jitter")
_TSNS = ("num_segments", "modality", "name_pattern", "grayscale")
"""The fields that show which fork a layer belongs to."""

_CUTTING = ("fix_crop", "more_fix_crop", "multi_scale", "is_flow")
"""Fields of transform_param that apply where frames are read, together with the crop
and the mirroring."""


class VideoData(CaffeLayer):
    """Frames of the videos that a text file lists, and their labels. Frames are cropped at random places
    in training, otherwise at the centre, and mirrored, all frames of a sample in the same way.

    C3D's top is samples x channels x frames x rows x columns; a line of its list has a path, the first
    frame (with use_temporal_jitter the number of frames) and a label. Tran et al. 2015, section 3. TSN's
    layer, which has num_segments, a modality, a name_pattern or grayscale, makes samples x channels of
    all frames x rows x columns; a line has a folder, the number of frames, and a label. Wang et al.
    2016, *Temporal Segment Networks*, sections 3.1 and 3.2.
    """

    name = "VideoData"
    bottoms = (0, 0)
    tops = (1, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        data, parameters = message.video_data_param, message.transform_param
        check_served(parameters, CLIPS)
        source = source_of(data, "video_data_param", layer, moved=())
        stacked = any(data.HasField(name) for name in _TSNS)
        self._check(data, parameters, stacked)
        cut_there = [name for name in _CUTTING if getattr(parameters, name)]
        flow = stacked and data.modality == data.FLOW
        options = {
            "height": data.new_height,
            "width": data.new_width,
            "length": data.new_length,
            "random": in_training(message, graph),
            "stacked": stacked,
            "skip": data.rand_skip,
            "stream": graph.stream,
            **(_snippets(data, flow) if stacked else _clips(data, layer)),
        }
        if not parameters.mean_file:  # a mean image needs whole frames
            options["crop"] = parameters.crop_size
        if cut_there:
            options |= _cutting(parameters)
        spec = DataSpec(source, "clips", data.shuffle, graph.seed, options, layer.location)
        transformed = bool(parameters.ListFields())
        fields = dict.fromkeys(("data", "label")[: len(layer.tops)], "real")
        if transformed:
            fields["data"] = "raw"
        samples, *labels = read("video_data_param", layer, spec, data.batch_size, fields, graph)
        axes = "channels x rows x columns" if stacked else "channels x frames x rows x columns"
        if len(samples.shape) != (4 if stacked else 5):
            raise ValueError(f"its samples must be {axes}, not {samples.shape[1:]}")
        if not transformed:
            return [samples, *labels]
        if cut_there and parameters.crop_size and set(samples.shape[-2:]) != {parameters.crop_size}:
            raise ValueError(
                f"transform_param {{ {cut_there[0]} }} is done when a list's videos are read: arrays "
                f"have {parameters.crop_size} rows and columns; these have {samples.shape[-2:]}"
            )
        return [self._transformed(layer, message, samples, stacked, bool(cut_there), graph), *labels]

    def _check(self, data: Any, parameters: Any, stacked: bool) -> None:
        """Raise ValueError for fields that cannot be combined."""
        check_resized(data)
        given = [name for name in _C3DS if data.HasField(name)]
        if stacked and given:
            mixed = next(name for name in _TSNS if data.HasField(name))
            raise ValueError(
                f"video_data_param has {given[0]} of C3D and {mixed} of TSN's fork; give the fields of "
                f"one fork"
            )
        if not stacked and not data.HasField("new_length"):
            raise ValueError("video_data_param needs a new_length, the frames of a sample")
        for name in ("new_length", "num_segments", "sampling_rate"):
            if getattr(data, name) < 1:
                raise ValueError(f"video_data_param {{ {name}: {getattr(data, name)} }} is less than 1")
        fields = {field.name for field, _ in parameters.ListFields()}
        needing = [name for name in CLIPS if name in fields and name != "is_flow"]
        if needing and not parameters.crop_size:
            raise ValueError(f"transform_param {{ {needing[0]} }} needs a crop_size")
        if parameters.mean_file and fields & {*CLIPS}:
            raise ValueError(
                f"transform_param {{ {sorted(fields & {*CLIPS})[0]} }} changes where pixels lie; give "
                f"mean_value, not mean_file"
            )

    def _transformed(
        self,
        layer: Layer,
        message: Any,
        samples: Tensor,
        stacked: bool,
        cut: bool,
        graph: GraphBuilder,
    ) -> Tensor:
        """Subtract the mean and scale. Unless the source has already ``cut`` the frames, also crop and
        mirror all planes of a sample in the same way."""
        shape, images = samples.shape, samples
        if not stacked:
            flat = (shape[0], shape[1] * shape[2], *shape[3:])
            images = graph.apply("reshape", samples, shape=flat)
        mean = _mean(layer, message.transform_param, shape, stacked, graph)
        if cut:
            y: Tensor = graph.apply(
                "image_transform",
                images,
                None if mean is None else graph.constant(f"{layer.name}.mean", mean),
                graph.scalar("iteration"),
                graph.scalar("sample"),
                scale=number(message.transform_param.scale),
                seed=graph.seed,
                stream=graph.stream,
            )
        else:
            y = transform(layer, message, images, graph, mean)
        if stacked:
            return y
        made: Tensor = graph.apply("reshape", y, shape=(*shape[:3], *y.shape[2:]))
        return made


def _clips(data: Any, layer: Layer) -> dict[str, Any]:
    """Return the options of a source for C3D."""
    return {
        "root": root_of(data.root_folder, layer),
        "every": data.sampling_rate,
        "pattern": "%06d.jpg" if data.use_image else "",
        "start": "anywhere" if data.use_temporal_jitter else "listed",
    }


def _snippets(data: Any, flow: bool) -> dict[str, Any]:
    """Return the options of a source for TSN."""
    return {
        "pattern": data.name_pattern or ("flow_%c_%04d.jpg" if flow else "image_%04d.jpg"),
        "start": "parts",
        "parts": data.num_segments,
        "mode": "gray" if data.grayscale else "color",
    }


def _cutting(parameters: Any) -> dict[str, Any]:
    """Return the options of a source that crops and mirrors as TSN does."""
    cutting = {
        "mirror": parameters.mirror,
        "flow": parameters.is_flow,
        "distortion": parameters.max_distort,
    }
    if parameters.fix_crop:
        cutting["places"] = 13 if parameters.more_fix_crop else 5
    if parameters.multi_scale:
        cutting["scales"] = tuple(map(number, parameters.scale_ratios))
    return cutting


def _mean(
    layer: Layer, parameters: Any, shape: Sequence[int], stacked: bool, graph: GraphBuilder
) -> np.ndarray | None:
    """Return what is subtracted from the frames, whose planes count as channels: (planes, 1, 1), or an
    image. Raise ValueError if the number of values does not fit."""
    counted = tuple(shape[1:]) if graph.counted else None
    planes = shape[1] if stacked else shape[1] * shape[2]
    if parameters.mean_file:
        mean = subtracted(layer, parameters, planes, counted)
        assert mean is not None
        if mean.shape != tuple(shape[1:]):
            raise ValueError(f"its mean_file has shape {mean.shape}; its frames have {tuple(shape[1:])}")
        return np.asarray(mean).reshape(planes, *shape[-2:])
    values = np.array([number(value) for value in parameters.mean_value])
    if not values.size:
        return None
    if shape[1] % values.size:
        raise ValueError(
            f"has {values.size} mean_value for {shape[1]} channels; give 1, or one for each"
        )
    channels = np.resize(values, shape[1])
    return (channels if stacked else np.repeat(channels, shape[2])).reshape(planes, 1, 1)
