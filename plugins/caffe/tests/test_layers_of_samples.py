"""Layers that provide samples: what they read, how it is transformed, and what they reject."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError
from demitasse_caffe.mean import write_blob


def test_input_gives_the_declared_shapes(build: Any) -> None:
    graph = build(
        'type: "Input" top: "a" top: "b" input_param { shape { dim: 2 dim: 3 } shape { dim: 4 } }'
    )
    assert (graph.blobs["a"].shape, graph.blobs["b"].shape) == ((2, 3), (4,))
    same = build('type: "Input" top: "a" top: "b" input_param { shape { dim: 2 } }')
    assert same.blobs["a"].shape == same.blobs["b"].shape == (2,)
    with pytest.raises(ValueError, match=r"top 'a' has the shape \(\); write input_param"):
        build('type: "Input" top: "a"')
    with pytest.raises(ValueError, match="3 shapes for 1 tops"):
        build('type: "Input" top: "a" input_param { shape {} shape {} shape {} }')


def data(parameters: str = "", transform: str = "", tops: str = 'top: "data" top: "label"') -> str:
    return (
        f'name: "d" type: "Data" {tops} data_param {{ source: "digits:train" batch_size: 8 '
        f"{parameters} }} {transform}"
    )


def test_data_without_a_transformation_is_read_as_real_numbers(build: Any) -> None:
    graph = build(data("shuffle: true"))
    ((spec, batch, fields),) = graph.sources
    assert (spec.source, spec.kind, spec.shuffle, spec.seed) == ("digits:train", None, True, 7)
    assert (batch, fields) == (8, {"data": "real", "label": "real"})
    assert spec.location.line == 1
    assert graph.operations == []
    assert (graph.blobs["data"].shape, graph.blobs["label"].shape) == ((8, 3, 32, 32), (8,))


def test_data_without_a_second_top_has_no_label(build: Any) -> None:
    assert build(data(tops='top: "data"')).sources[0][2] == {"data": "real"}


def test_data_is_transformed_as_it_is_stored(build: Any) -> None:
    transform = "transform_param { scale: 0.00390625 crop_size: 28 mirror: true mean_value: 5 }"
    graph = build(data(transform=transform))
    assert graph.sources[0][2] == {"data": "raw", "label": "real"}
    ((name, inputs, attributes),) = graph.operations
    assert name == "image_transform"
    assert [tensor.name for tensor in inputs] == ["data", "d.mean", "iteration", "sample"]
    assert attributes == {
        "scale": 0.00390625,
        "crop": 28,
        "mirror": True,
        "random": True,
        "seed": 7,
        "stream": 0,
    }
    assert graph.blobs["data"].shape == (8, 3, 28, 28)
    assert build(data(transform=transform), "test").operations[0][2]["random"] is False


def test_a_mean_is_one_number_or_one_a_channel(build: Any) -> None:
    one = build(data(transform="transform_param { mean_value: 5 }"))
    assert one.constants["d.mean"].tolist() == [[[5.0]]]
    three = build(data(transform="transform_param { mean_value: 1 mean_value: 2.5 mean_value: 3 }"))
    assert three.constants["d.mean"].reshape(-1).tolist() == [1.0, 2.5, 3.0]
    assert three.constants["d.mean"].shape == (3, 1, 1)
    with pytest.raises(ValueError, match="2 mean_value for 3 channels; give 1 or 3"):
        build(data(transform="transform_param { mean_value: 1 mean_value: 2 }"))


def test_a_mean_file_that_is_not_finite_is_named(build: Any, tmp_path: Path) -> None:
    write_blob(tmp_path / "mean.binaryproto", np.array([[[1.0]], [[np.inf]], [[2.0]]]))
    with pytest.raises(
        ModelError, match=r":1: layer 'd' .*mean.binaryproto: is not a mean: it has 1 of 3 num"
    ):
        build(data(transform="transform_param { mean_file: 'mean.binaryproto' }"))


def test_a_mean_file_lies_beside_the_net_or_is_missed_by_name(
    build: Any, shared: Path, tmp_path: Path
) -> None:
    mean = (shared / "mean/cifar10_mean.binaryproto").read_bytes()
    (tmp_path / "mean.binaryproto").write_bytes(mean)
    graph = build(data(transform="transform_param { mean_file: 'examples/mean.binaryproto' }"))
    assert graph.constants["d.mean"].shape == (3, 32, 32)
    # The mean of CIFAR-10's training images by colour, as published: 125.3, 123.0, 113.9.
    assert np.sort(graph.constants["d.mean"].mean(axis=(1, 2))) == pytest.approx(
        [113.9, 123.0, 125.3], abs=0.1
    )
    with pytest.raises(ModelError, match=r":1: layer 'd' \(Data\): mean_file 'meen.*' was not found"):
        build(data(transform="transform_param { mean_file: 'meen.binaryproto' }"))
    with pytest.raises(ValueError, match="mean_file and mean_value cannot be"):
        build(data(transform="transform_param { mean_file: 'mean.binaryproto' mean_value: 1 }"))


def test_the_backend_is_named_where_its_files_are(build: Any, tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db/data.mdb").touch()
    text = 'name: "d" type: "Data" top: "x" data_param {{ source: "{}" batch_size: 1 backend: LMDB }}'
    (found, _, _), (word, _, _) = (
        build(text.format(source)).sources[0] for source in ("db", "digits:test")
    )
    assert (found.source, found.kind) == (str(tmp_path / "db"), "lmdb")
    assert (word.source, word.kind) == ("digits:test", None)


def test_without_a_source_samples_are_what_the_caller_holds(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not a database that happens to be in the working directory."""
    (tmp_path / "data.mdb").touch()
    monkeypatch.chdir(tmp_path)
    ((spec, batch, _),) = build('name: "d" type: "Data" top: "x" data_param { batch_size: 3 }').sources
    assert (spec.source, spec.kind, batch) == ("memory:d", "memory", 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('type: "Data" top: "x" data_param { source: "a" }', "needs a batch_size"),
        (data("scale: 0.5"), "data_param has scale, which Caffe no longer reads there"),
        (data(transform="transform_param { crop_size: 40 }"), "crop of 40 does not fit"),
    ],
)
def test_data_that_cannot_be_says_why(build: Any, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(text)


def segments(parameters: str) -> str:
    return (
        'name: "d" type: "ImageSegData" top: "data" top: "label" '
        f'image_data_param {{ source: "list.txt" batch_size: 2 {parameters} }}'
    )


@pytest.mark.parametrize(
    ("said", "classes"),
    [
        ("", "image"),
        ("has_label: false", "none"),
        ("has_label: false label_type: NONE", "none"),
        ("has_label: true", "image"),
        ("has_label: true label_type: PIXEL", "pixels"),
    ],
)
def test_deeplabs_older_word_for_no_label_is_taken(
    said: str, classes: str, build: Any, read: Any
) -> None:
    assert build(segments(said)).sources[0][0].options["classes"] == classes
    message = read(f"layer {{ {segments(said)} }}").net("train").layers[0].parameters
    assert not message.image_data_param.HasField("has_label")


def test_deeplabs_older_word_is_taken_in_the_form_before_2014(read: Any) -> None:
    text = f"layers {{ {segments('has_label: false')} }}".replace('"ImageSegData"', "IMAGE_SEG_DATA")
    data = read(text).net("train").layers[0].parameters.image_data_param
    assert data.label_type == data.NONE and data.HasField("label_type")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("has_label: false label_type: PIXEL", "has_label: false and label_type: PIXEL differ"),
        ("has_label: false label_type: IMAGE", "has_label: false and label_type: IMAGE differ"),
        ("has_label: true label_type: NONE", "has_label: true and label_type: NONE differ"),
    ],
)
def test_a_label_that_is_there_and_is_not_is_told(said: str, message: str, read: Any) -> None:
    with pytest.raises(ModelError, match=rf":1: layer 'd': {message}; give label_type alone$"):
        read(f"layer {{ {segments(said)} }}")
