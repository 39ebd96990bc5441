"""Layers for videos and volumes: the operations they emit, what they read, and what they reject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError

CLIP = (2, 3, 16, 12, 14)


@pytest.mark.parametrize(
    ("kind", "field", "weights", "y"),
    [
        (
            "Convolution3D",
            "convolution3d_param { num_output: 4 kernel_size: 3 kernel_depth: 5 pad: 1 "
            "temporal_pad: 2 }",
            (4, 3, 5, 3, 3),
            (4, 16, 12, 14),
        ),
        (  # The stride of the frames is 1 unless given.
            "Convolution3D",
            "convolution_param { num_output: 4 kernel_size: 4 kernel_depth: 2 stride: 2 "
            "filter_group: 2 }",
            (4, 3, 2, 4, 4),
            (4, 15, 5, 6),
        ),
        (
            "Deconvolution3D",
            "convolution_param { num_output: 2 kernel_size: 4 kernel_depth: 4 stride: 2 pad: 1 "
            "temporal_stride: 2 temporal_pad: 1 }",
            (3, 2, 4, 4, 4),
            (2, 32, 24, 28),
        ),
        (
            "Convolution",
            "convolution_param { num_output: 4 kernel_size: [2, 3, 3] }",
            (4, 3, 2, 3, 3),
            (4, 15, 10, 12),
        ),
    ],
)
def test_a_convolution_of_videos_has_the_shape_of_its_windows(
    build: Any, kind: str, field: str, weights: tuple[int, ...], y: tuple[int, ...]
) -> None:
    graph = build(f'name: "c" type: "{kind}" bottom: "x" top: "y" {field}', x=CLIP)
    assert graph.parameters[0].shape == weights
    assert graph.blobs["y"].shape == (2, *y)


@pytest.mark.parametrize(
    ("kind", "field", "y"),
    [
        # C3D's first pooling does not reduce the frames; ceil((14 - 3) / 2) + 1.
        (
            "Pooling3D",
            "pooling3d_param { kernel_size: 3 stride: 2 kernel_depth: 1 temporal_stride: 1 }",
            (16, 6, 7),
        ),
        ("Pooling3D", "pooling_param { kernel_size: 2 stride: 2 kernel_depth: 4 }", (13, 6, 7)),
        # P3D's parameters: ceil((16 - 3) / 2) + 1 frames, and one more with padding.
        ("Pooling3D", "pooling3d_param { kernel_size: 1 kernel_l: 3 stride_l: 2 }", (8, 12, 14)),
        (
            "Pooling3D",
            "pooling3d_param { kernel_size: 1 kernel_l: 3 stride_l: 2 pad_l: 1 }",
            (9, 12, 14),
        ),
        ("PoolingND", "pooling_nd_param { kernel_size: 2 stride: 2 }", (8, 6, 7)),
        (
            "PoolingND",
            "pooling_nd_param { pool: AVE kernel_size: [4, 2, 7] stride: [4, 2, 7] }",
            (4, 6, 2),
        ),
        ("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", (8, 6, 7)),
        ("Pooling", "pooling_param { pool: AVE global_pooling: true }", (1, 1, 1)),
        ("Pooling", "pooling_param { kernel_size: 3 stride: 2 round_mode: FLOOR }", (7, 5, 6)),
    ],
)
def test_pooling_of_videos_rounds_up_along_each_axis(
    build: Any, kind: str, field: str, y: tuple[int, ...]
) -> None:
    graph = build(f'name: "p" type: "{kind}" bottom: "x" top: "y" {field}', x=CLIP)
    assert graph.blobs["y"].shape == (2, 3, *y)


def test_an_axis_whose_windows_are_points_is_not_pooled_over(build: Any) -> None:
    plane = 'type: "Pooling3D" bottom: "x" top: "y" pooling3d_param { kernel_size: 2 kernel_depth: 1 }'
    names = [name for name, *_ in build(plane, x=CLIP).operations]
    assert names == ["reshape", "pooling_max", "reshape"]
    row = 'type: "Pooling" bottom: "x" top: "y" pooling_param { kernel_size: 3 stride: 2 }'
    assert build(row, x=(2, 5, 9)).blobs["y"].shape == (2, 5, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'type: "Convolution3D" convolution_param { num_output: 1 kernel_size: 3 }',
            r"convolution3d_param \(or convolution_param\) needs one of kernel_depth",
        ),
        (
            'type: "Pooling3D" pooling3d_param { kernel_size: 3 kernel_l: 3 kernel_depth: 3 }',
            "pooling3d_param needs one of kernel_depth, kernel_l, the window's frames; given: 2",
        ),
        ('type: "PoolingND" pooling_param { kernel_size: 3 }', "pooling_nd_param needs a kernel_size"),
        (
            'type: "PoolingND" pooling_nd_param { kernel_size: [3, 3] }',
            "kernel_size has 2 numbers for 3 spatial axes",
        ),
        (
            'type: "Pooling" pooling_param { pool: STOCHASTIC kernel_size: 3 }',
            "STOCHASTIC is for images",
        ),
        ('type: "Pooling" pooling_param { kernel_size: 3 } top: "z"', "only pool MAX of images has"),
        (
            'type: "Pooling" pooling_param { kernel_h: 3 kernel_w: 3 }',
            "for 2 spatial axes, but there are 3",
        ),
    ],
)
def test_windows_of_videos_that_cannot_be_are_told(build: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(f'name: "l" bottom: "x" top: "y" {text}', x=CLIP)


def test_a_depth_is_for_three_axes(build: Any) -> None:
    text = 'type: "Pooling" bottom: "x" top: "y" pooling_param { kernel_size: 3 kernel_depth: 3 }'
    with pytest.raises(ValueError, match="kernel_depth is for 3 spatial axes, but there are 2"):
        build(text, x=(2, 3, 9, 9))


# VideoData.

C3D = 'source: "list.txt" batch_size: 2 new_length: 16 new_height: 128 new_width: 171'
TSN = 'source: "list.txt" batch_size: 2 num_segments: 3 modality: RGB'


def video(fields: str, transform: str = "", tops: str = 'top: "data" top: "label"') -> str:
    return (
        f'name: "v" type: "VideoData" {tops} video_data_param {{ {fields} }} '
        f"transform_param {{ {transform} }}"
    )


@pytest.fixture
def clips(read: Any, recorder: Any) -> Any:
    """Build a layer of videos whose samples have the given size."""

    def clips(text: str, phase: str = "train", sample: tuple[int, ...] = (3, 16, 32, 32)) -> Any:
        graph = recorder(phase, sample)
        graph.expand(read(f"layer {{ {text} }}").net(phase))
        return graph

    return clips


def test_c3d_reads_frames_from_a_number_on(clips: Any) -> None:
    graph = clips(video(f"{C3D} use_image: true sampling_rate: 2", "crop_size: 24 mirror: true"))
    ((spec, batch, fields),) = graph.sources
    assert (spec.kind, batch, fields) == ("clips", 2, {"data": "raw", "label": "real"})
    assert spec.options == {
        "root": "",
        "height": 128,
        "width": 171,
        "length": 16,
        "every": 2,
        "pattern": "%06d.jpg",
        "start": "listed",
        "random": True,
        "stacked": False,
        "crop": 24,
        "skip": 0,
        "stream": 0,
    }
    ((_, _, cut),) = [operation for operation in graph.operations if operation[0] == "image_transform"]
    assert (cut["crop"], cut["mirror"], cut["random"]) == (24, True, True)
    plain = clips(video(C3D), "test")
    assert plain.sources[0][0].options["random"] is False
    assert plain.sources[0][2]["data"] == "real" and plain.operations == []
    assert clips(video(C3D)).sources[0][0].options["pattern"] == ""
    jittered = clips(video(f"{C3D} use_temporal_jitter: true")).sources[0][0].options
    assert jittered["start"] == "anywhere"


def test_arrays_are_cut_as_a_lists_videos_are(clips: Any) -> None:
    """This holds where the net can also do the crop. Arrays must already have what only the reading of
    frames does."""
    graph = clips(video(C3D, "crop_size: 112 mean_value: 90"), sample=(3, 16, 128, 171))
    assert graph.blobs["data"].shape == (2, 3, 16, 112, 112)
    text = video(TSN, "crop_size: 112 fix_crop: true mirror: true")
    graph = clips(text, sample=(9, 112, 112))
    assert graph.blobs["data"].shape == (2, 9, 112, 112)
    assert not graph.operations[0][2]["mirror"] and graph.sources[0][0].options["mirror"]
    with pytest.raises(
        ValueError, match=r"fix_crop } is done when a list's videos are read: arrays have"
    ):
        clips(text, sample=(9, 128, 128))
    with pytest.raises(
        ValueError, match=r"its samples must be channels x frames x rows x columns, not \(3, 9,"
    ):
        clips(video(C3D), sample=(3, 9, 9))


def test_tsn_reads_a_snippet_of_each_part(build: Any) -> None:
    options = build(video(TSN)).sources[0][0].options
    assert (options["start"], options["parts"], options["length"]) == ("parts", 3, 1)
    assert (options["pattern"], options["mode"], options["stacked"]) == ("image_%04d.jpg", "color", True)
    flow = build(
        video('num_segments: 2 new_length: 5 name_pattern: "f_%c_%05d.jpg" source: "l"')
    ).sources[0][0]
    assert (flow.options["pattern"], flow.options["length"]) == ("f_%c_%05d.jpg", 5)
    assert build(video('num_segments: 2 source: "l"')).sources[0][0].options["pattern"] == (
        "flow_%c_%04d.jpg"
    )
    transform = (
        "crop_size: 224 fix_crop: true more_fix_crop: true multi_scale: true scale_ratios: [1, 0.75] "
        "max_distort: 2 is_flow: true"
    )
    cut = build(video(TSN, transform.replace("224", "32"))).sources[0][0].options
    assert (cut["places"], cut["scales"], cut["distortion"], cut["flow"]) == (13, (1.0, 0.75), 2, True)
    assert build(video(TSN, "crop_size: 32 multi_scale: true")).sources[0][0].options["scales"] == ()


@pytest.mark.parametrize(
    ("sample", "fields", "values", "expected"),
    [
        ((3, 2, 8, 8), C3D, [1, 2, 3], [1, 1, 2, 2, 3, 3]),
        ((3, 2, 8, 8), C3D, [9], [9] * 6),
        ((6, 8, 8), TSN, [1, 2, 3], [1, 2, 3, 1, 2, 3]),
        ((4, 8, 8), TSN, [128], [128] * 4),
    ],
)
def test_means_are_of_channels(
    clips: Any, sample: tuple[int, ...], fields: str, values: list[int], expected: list[int]
) -> None:
    means = " ".join(f"mean_value: {value}" for value in values)
    graph = clips(video(fields, f"{means} scale: 0.5"), sample=sample)
    assert graph.constants["v.mean"].shape == (len(expected), 1, 1)
    assert graph.constants["v.mean"].ravel().tolist() == expected
    assert graph.blobs["data"].shape == (2, *sample)
    transform = next(op for op in graph.operations if op[0] == "image_transform")
    assert transform[2]["scale"] == 0.5 and not transform[2]["mirror"] and not transform[2]["crop"]


def test_a_mean_of_whole_frames_is_subtracted_where_they_lie(clips: Any, tmp_path: Path) -> None:
    """C3D's own mean files have a blob of five dimensions, without a shape."""
    from demitasse_caffe.schema import schema

    mean = np.arange(3 * 2 * 8 * 9, dtype=np.float32)
    blob = schema({}).message("BlobProto")
    blob.shape.dim.extend((1, 3, 2, 8, 9))
    blob.data.extend(mean)
    (tmp_path / "mean.binaryproto").write_bytes(blob.SerializeToString())
    text = video(C3D, f'mean_file: "{tmp_path}/mean.binaryproto" crop_size: 4 mirror: true')
    graph = clips(text, sample=(3, 2, 8, 9))
    assert "crop" not in graph.sources[0][0].options
    np.testing.assert_array_equal(graph.constants["v.mean"], mean.reshape(6, 8, 9))
    ((_, _, attributes),) = [op for op in graph.operations if op[0] == "image_transform"]
    assert (attributes["crop"], attributes["mirror"], attributes["random"]) == (4, True, True)
    assert graph.blobs["data"].shape == (2, 3, 2, 4, 4)
    told = r"its mean_file has shape \(3, 2, 8, 9\); its frames have \(3, 2"
    with pytest.raises(ValueError, match=told):
        clips(text, sample=(3, 2, 9, 9))


@pytest.mark.parametrize(
    ("fields", "transform", "message"),
    [
        ('source: "l"', "", "needs a new_length, the frames of a sample"),
        (f"{C3D} num_segments: 2", "", None),
        (f"{TSN} use_image: true", "", "has use_image of C3D and num_segments of TSN's fork; give"),
        (f"{TSN} new_height: 3", "", "new_height 3 and new_width 0: give both, or neither"),
        ('source: "l" new_length: 0', "", r"new_length: 0 } is less than 1"),
        (TSN.replace("2", "0"), "", "needs a batch_size of 1 or more"),
        (TSN, "fix_crop: true", r"transform_param { fix_crop } needs a crop_size"),
        (
            TSN,
            'crop_size: 3 multi_scale: true mean_file: "m"',
            "multi_scale } changes where pixels lie; give mean_value, not mean_file",
        ),
        (TSN, "mean_value: [1, 2]", "has 2 mean_value for 3 channels; give 1, or one for each"),
        (
            TSN,
            "img_rand_resize_lower: 5",
            "belongs to NVIDIA's fork; here only Data and ImageData layers have it",
        ),
    ],
)
def test_what_a_layer_of_videos_lacks_is_told(
    build: Any, fields: str, transform: str, message: str | None
) -> None:
    if message is None:
        assert build(video(fields, transform)).sources
        return
    with pytest.raises(ValueError, match=message):
        build(video(fields, transform))


def test_fields_of_tsn_are_for_videos(build: Any) -> None:
    text = (
        'name: "d" type: "ImageData" top: "x" top: "y" image_data_param { source: "l" } '
        "transform_param { crop_size: 3 multi_scale: true }"
    )
    with pytest.raises(
        ValueError, match="multi_scale } belongs to the fork of TSN; here only VideoData layers"
    ):
        build(text)


def test_c3ds_first_version_has_its_videos_in_image_data_param(read: Any) -> None:
    net = read(
        """layers { name: "d" type: VIDEO_DATA top: "data" top: "label" image_data_param {
        source: "list.lst" use_image: true mean_value: 90 batch_size: 30 crop_size: 112 mirror: true
        show_data: 0 new_height: 128 new_width: 171 new_length: 16 shuffle: true } }
        layers { name: "c" type: CONVOLUTION3D bottom: "data" top: "c" convolution_param {
        num_output: 64 kernel_size: 3 kernel_depth: 3 pad: 1 temporal_pad: 1 } }
        layers { name: "p" type: POOLING3D bottom: "c" top: "p" pooling_param {
        pool: MAX kernel_size: 2 kernel_depth: 1 stride: 2 temporal_stride: 1 } }"""
    ).net("train")
    assert [layer.type for layer in net.layers] == ["VideoData", "Convolution3D", "Pooling3D"]
    message = net.layers[0].parameters
    assert not message.HasField("image_data_param")
    assert (message.video_data_param.new_length, message.video_data_param.use_image) == (16, True)
    assert (message.transform_param.crop_size, list(message.transform_param.mean_value)) == (112, [90])
    assert "of C3D that have no effect here: show_data" in net.notes[0]
    with pytest.raises(
        ModelError, match=r":1: layer 'd': image_data_param { is_color } is for images only; a"
    ):
        read('layers { name: "d" type: VIDEO_DATA top: "x" image_data_param { is_color: true } }').net(
            "test"
        )
    with pytest.raises(ModelError, match="'use_tempral_jitter'; did you mean 'use_temporal_jitter'"):
        read('layers { type: VIDEO_DATA top: "x" image_data_param { use_tempral_jitter: true } }')
