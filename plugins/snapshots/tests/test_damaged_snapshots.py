"""Files that are damaged, foreign, or not from our writer are rejected with an error that names them."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshot_files import failure, read, sealed, small, tree, write

from demitasse import SnapshotError, Weights


def test_every_flipped_bit_is_told(tmp_path):
    path = tmp_path / "a.demitasse"
    write(path, small())
    content = path.read_bytes()
    for at in range(len(content)):
        for bit in (1 << (at % 8), 0xFF):
            path.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            failure(path)


def test_every_truncation_and_whatever_follows_the_end_is_told(tmp_path):
    path = tmp_path / "a.demitasse"
    write(path, small())
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        message = failure(path)
        assert "cut off" in message or length == 0
    path.write_bytes(content + b"\0")
    assert "after its end" in failure(path)


def test_the_damaged_array_is_named(tmp_path):
    path = tmp_path / "a.demitasse"
    weights = replace(small(), gradients={"conv1": [np.linspace(2, 3, 7)]})
    write(path, weights)
    content = path.read_bytes()
    for array, name in [
        (weights.parameters["conv1"][0], "parameter 0 of layer 'conv1'"),
        (weights.parameters["conv1"][1], "parameter 1 of layer 'conv1'"),
        (weights.state["momentum"]["conv1"][0], "state 'momentum' 0 of layer 'conv1'"),
        (weights.gradients["conv1"][0], "gradient 0 of layer 'conv1'"),
    ]:
        at = content.index(array.tobytes()) + 1
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        assert name in failure(path)
    path.write_bytes(content.replace(b"LeNet", b"LeNot"))
    assert "record" in failure(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b'name: "LeNet"\nlayer {', "looks like text 'name: \"LeNet\"'"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (b"PK\x03\x04....", "zip archive"),
        (b"\x80\x04\x95", "pickle"),
        (b"\x0a\x05LeNet\xa2\x06", "binary Caffe model"),
        (b"\x89DMT\n\x1a\n\1\0\0\0", "copied as text"),
        (b"\1\2\3\4\5\6\7\xff\xff", "begins with the bytes 01 02 03 04 05 06 07 ff"),
    ],
)
def test_a_foreign_file_is_told_for_what_it_looks_like(content, words, tmp_path):
    path = tmp_path / "a.demitasse"
    path.write_bytes(content)
    message = failure(path)
    assert "not a Demitasse snapshot" in message and words in message


def test_a_newer_version_is_told(tmp_path):
    path = tmp_path / "a.demitasse"
    path.write_bytes(sealed(b"", 2))
    message = failure(path)
    assert "version 2" in message and "install a newer" in message


def test_the_tree_that_the_next_test_spoils_is_right(tmp_path):
    path = tmp_path / "a.demitasse"
    path.write_bytes(sealed(msgpack.packb(tree())))
    assert read(path).parameters["a"][0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000 + b"\xc0",
        msgpack.packb(tree()) + b"\0",
        msgpack.packb([]),
        msgpack.packb(tree(more=1)),
        msgpack.packb(tree(parameters=[])),
        msgpack.packb(tree(parameters={1: []})),
        msgpack.packb(tree(parameters={"a": {}})),
        msgpack.packb(tree(parameters={"a": [7]})),
        msgpack.packb(tree(iteration="x")),
        msgpack.packb(tree(iteration=True)),
        msgpack.packb(tree(state={"m": 3})),
        msgpack.packb(tree(record=[])),
        msgpack.packb(tree(record={"a": msgpack.ExtType(5, b"")})),
        msgpack.packb(tree(record={"a": msgpack.ExtType(5, b"12345")})),
        msgpack.packb(tree(record={"a": msgpack.Timestamp(5)})),
        msgpack.packb(tree(record={"a": {1.5: 1}})),
        msgpack.packb(tree(entry={"dtype": "O"})),
        msgpack.packb(tree(entry={"dtype": "|O"})),
        msgpack.packb(tree(entry={"dtype": ["<f4"]})),
        msgpack.packb(tree(entry={"shape": [3]})),
        msgpack.packb(tree(entry={"shape": [-2]})),
        msgpack.packb(tree(entry={"shape": [1 << 62, 1 << 62]})),
        msgpack.packb(tree(entry={"shape": [0, 1 << 62, 1 << 62], "data": b""})),
        msgpack.packb(tree(entry={"shape": [1] * 33 + [2]})),
        msgpack.packb(tree(entry={"shape": 2})),
        msgpack.packb(tree(entry={"data": "text"})),
        msgpack.packb(tree(entry={"extra": 1})),
    ],
)
def test_a_body_that_no_writer_of_ours_makes_is_refused_though_its_checksum_is_right(body, tmp_path):
    path = tmp_path / "a.demitasse"
    path.write_bytes(sealed(body))
    failure(path)


def test_a_wrong_value_is_shown_where_that_is_short(tmp_path):
    path = tmp_path / "a.demitasse"
    for record, shown in (([1, 2], "[1, 2]"), ([0] * 20, "a list")):
        path.write_bytes(sealed(msgpack.packb(tree(record=record))))
        assert f" is {shown}, not " in failure(path)


@settings(max_examples=examples(150))
@given(st.data())
def test_any_damage_under_a_right_checksum_is_refused_or_reads_as_weights(tmp_path_factory, data):
    body = bytearray(msgpack.packb(tree(record={"seed": 1, "list": [1, 2.5, None]})))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("snapshot") / "a.demitasse"
    path.write_bytes(sealed(bytes(body)))
    try:
        assert isinstance(read(path), Weights)
    except SnapshotError as error:
        assert str(path) in str(error)


def test_a_missing_file_and_a_folder_are_named(tmp_path):
    assert "No such file" in failure(tmp_path / "nowhere.demitasse")
    assert "directory" in failure(tmp_path)
