"""Samples from arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import DataError, DataSource, DataSpec, Location, Stream
from demitasse_datasets.plugin import data_source

TYPES = ["bool", "int8", "uint8", ">i2", "int32", "uint64", "float16", ">f4", "float64"]


@pytest.mark.parametrize("dtype", TYPES)
def test_any_number_type_is_read_in_file_order(dtype, opened, everything):
    array = np.arange(24).reshape(6, 2, 2).astype(dtype)
    source = opened({"data": array})
    assert source.fields["data"].shape == (2, 2)
    assert source.fields["data"].dtype == np.dtype(dtype).name
    np.testing.assert_array_equal(everything(source)["data"], array)


def test_non_contiguous_arrays_are_used_as_they_are(opened, everything):
    base = np.arange(10 * 6 * 4, dtype=np.float32).reshape(10, 6, 4)
    arrays = {
        "data": base[::2, 1::2].transpose(0, 2, 1),
        "mirrored": base[::-2],
        "label": base[5:, 0, 0],
    }
    read = everything(opened(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array)


def test_unaligned_arrays_are_read(opened, everything):
    array = np.frombuffer(b"\0" + np.arange(6, dtype="f8").tobytes(), "f8", offset=1).reshape(3, 2)
    assert not array.flags.aligned
    np.testing.assert_array_equal(everything(opened({"data": array}))["data"], array)


@given(st.integers(1, 9), st.integers(1, 25), st.integers(0, 40), st.booleans(), st.integers(0, 99))
def test_a_run_is_what_the_definition_of_the_order_says(size, count, first, shuffle, seed):
    from demitasse import permutation

    array = np.arange(size, dtype=np.int64) * 10
    source = data_source(spec=DataSpec({"data": array}, shuffle=shuffle, seed=seed))
    stream = source.stream(first, count, count)
    out = np.empty(count)
    stream.read({"data": out})
    source.close()
    expected = []
    for i in range(first, first + count):
        order = permutation(seed, i // size, size) if shuffle else range(size)
        expected.append(array[order[i % size]])
    assert out.tolist() == expected


def test_values_are_cast_to_the_type_of_the_array_that_is_read_into(opened):
    source = opened({"data": np.array([[1.75], [250.0]]), "label": np.array([3, 4])})
    out = {"data": np.empty((2, 1), np.float32), "label": np.empty(2, np.float32)}
    source.stream(0, 2, 2).read(out)
    assert out["data"].tolist() == [[1.75], [250.0]]
    assert out["label"].tolist() == [3.0, 4.0]


def test_some_fields_may_be_read_alone_and_into_strided_arrays(opened):
    source = opened({"data": np.arange(6).reshape(3, 2), "label": np.array([7, 8, 9])})
    out = np.zeros((3, 2), np.int32)
    source.stream(0, 3, 3).read({"label": out[:, 1]})
    assert out.tolist() == [[0, 7], [0, 8], [0, 9]]


class Elsewhere:
    """An array of another library, whose memory the host cannot address."""

    def __array__(self, *given, **more):
        raise RuntimeError("memory of a device")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, ["no fields"]),
        ({"data": np.zeros((3, 2)), "label": np.zeros(4)}, ["'data'", "'label'", "3", "4"]),
        ({"data": np.zeros((0, 2))}, ["no samples", "'data'"]),
        ({"data": np.float32(1)}, ["'data'", "single number"]),
        ({"data": [[1], [2, 3]]}, ["'data'", "is not an array", "inhomogeneous"]),
        ({"data": Elsewhere()}, ["'data'", "is not an array: memory of a device"]),
        ({"data": np.zeros((3, 0))}, ["'data'", "empty", "(0,)"]),
        ({"data": np.array(["a", "b"])}, ["'data'", "element type", "integers"]),
        ({"data": np.array([None])}, ["'data'", "object"]),
        ({"data": np.zeros(2, complex)}, ["complex"]),
    ],
)
def test_arrays_that_make_no_samples_are_an_error_that_names_them(arrays, words):
    with pytest.raises(DataError) as caught:
        data_source(spec=DataSpec(arrays, location=Location("net.prototxt", 7)))
    for word in ["net.prototxt:7", *words]:
        assert word in str(caught.value)


def test_the_kind_arrays_needs_a_mapping():
    with pytest.raises(DataError, match=r"mapping.*not str"):
        data_source(spec=DataSpec("train.npz", "arrays"))


def test_another_kind_does_not_take_a_mapping():
    with pytest.raises(DataError, match="'idx' needs the name of a file"):
        data_source(spec=DataSpec({"data": np.zeros(2)}, "idx"))


@pytest.mark.parametrize(
    "spec",
    [
        DataSpec("train.tfrecord", "tfrecord"),
        DataSpec({"data": np.zeros(2)}, "tfrecord"),
        DataSpec("synthetic:1000"),
        DataSpec("s3://bucket/key"),
        DataSpec(7),
    ],
)
def test_what_is_another_plugins_is_left_to_it(spec):
    assert data_source(spec=spec) is None


def test_sources_and_streams_keep_the_protocols(opened):
    source: DataSource = opened({"data": np.zeros((2, 3))})
    stream: Stream = source.stream(0, 1, 1)
    assert stream.cursor == 0
    assert repr(source) == "<2 samples of arrays, in file order: data (3,) float64>"


@pytest.mark.parametrize("arguments", [(-1, 1, 1), (0, 0, 1), (0, 1, 0)])
def test_a_stream_cannot_start_before_the_order_or_stand_still(arguments, opened):
    with pytest.raises(ValueError, match="first >= 0"):
        opened({"data": np.zeros(2)}).stream(*arguments)
