"""Snapshots: what is written is read back bit by bit, and what cannot be stored is named."""

from __future__ import annotations

import hashlib
import importlib.metadata
import struct
import zlib
from pathlib import Path

import msgpack
import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from snapshot_files import bits, failure, read, sealed, small, tree, write

import demitasse
from demitasse import ModelError, ModelReader, SnapshotError, Weights, hookspecs
from demitasse_snapshots import model_writer as writing
from demitasse_snapshots.layout import DEEPEST, LARGEST_RANK
from demitasse_snapshots.plugin import model_reader

NUMBERS = st.sampled_from(["?", "i1", "u1", "i4", "u8", "f2", "f4", "f8", ">f4", ">i2", "c8", "c16"])
ARRAYS = NUMBERS.flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
)
NAMES = st.text(max_size=8)
LAYERS = st.dictionaries(NAMES, st.lists(ARRAYS, max_size=3), max_size=3)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(), max_size=9)
    | st.binary(max_size=9),
    lambda items: (
        st.lists(items, max_size=4) | st.dictionaries(NAMES | st.integers(-9, 2**40), items, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=examples(80))
@given(
    LAYERS,
    st.none() | st.integers(0, 2**62),
    st.dictionaries(NAMES, LAYERS, max_size=2),
    st.dictionaries(NAMES, PLAIN, max_size=4),
)
def test_weights_come_back_bit_by_bit(tmp_path_factory, parameters, iteration, state, record):
    path = tmp_path_factory.mktemp("snapshot") / "net.demitasse"
    written = Weights(parameters, iteration, state, record)
    write(path, written)
    assert bits(vars(read(path))) == bits(vars(written))


def test_strided_transposed_and_scalar_arrays_come_back_in_logical_order(tmp_path):
    base = np.arange(60, dtype="f8").reshape(3, 4, 5)
    arrays = [base[::2, ::-1].T, np.asfortranarray(base), np.float32(1.5), base[:0]]
    write(tmp_path / "a.demitasse", Weights({"layer": arrays}))
    for array, back in zip(arrays, read(tmp_path / "a.demitasse").parameters["layer"], strict=True):
        assert (back.shape, back.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(back, array)
        assert back.flags.writeable and back.flags.owndata


def test_the_payload_of_a_nan_is_kept(tmp_path):
    array = np.array([0x7FC00001, 0xFFA5A5A5, 0x80000000, 1], "u4").view("f4")
    write(tmp_path / "a.demitasse", Weights({"layer": [array]}))
    assert read(tmp_path / "a.demitasse").parameters["layer"][0].tobytes() == array.tobytes()


def test_the_same_weights_make_the_same_bytes(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.demitasse", small())
    assert (tmp_path / "a.demitasse").read_bytes() == (tmp_path / "b.demitasse").read_bytes()


@pytest.mark.parametrize("length", [0, 255, 256, 65535, 65536, 70001])
def test_arrays_of_every_length_of_header_come_back(length, tmp_path):
    array = np.arange(length).astype("u1")
    write(tmp_path / "a.demitasse", Weights({"layer": [array]}))
    assert read(tmp_path / "a.demitasse").parameters["layer"][0].tobytes() == array.tobytes()


def test_the_file_is_what_its_layout_says(tmp_path):
    write(tmp_path / "a.demitasse", small())
    content = (tmp_path / "a.demitasse").read_bytes()
    magic, version, length, checksum = struct.unpack("<8sIQI", content[:24])
    assert (magic, version) == (b"\x89DMT\r\n\x1a\n", 1)
    assert checksum == zlib.crc32(content[:20])
    assert len(content) == 24 + length + 32
    assert hashlib.sha256(content[:-32]).digest() == content[-32:]
    body = msgpack.unpackb(content[24:-32])
    assert body["iteration"] == 3
    entry = body["parameters"]["conv1"][0]
    assert (entry["dtype"], entry["shape"]) == ("<f4", [1, 2, 3])
    assert entry["data"] == np.arange(6, dtype="<f4").tobytes()
    assert entry["crc32"] == zlib.crc32(entry["data"])


# Values that cannot be stored.


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (Weights({"a": [np.array([None])]}), ["parameters['a'][0]", "object"]),
        (Weights({"a": [np.array(["x"])]}), ["parameters['a'][0]", "<U1"]),
        (Weights({"a": [np.zeros(1, "M8[s]")]}), ["datetime64"]),
        (Weights({"a": [np.zeros(1, "f4,i4")]}), ["element type"]),
        (Weights({3: []}), ["name in parameters", "3"]),
        (Weights(state={"m": {3: []}}), ["state['m']"]),
        (Weights(iteration="five"), ["iteration", "'five'"]),
        (Weights(record={"a": [0, (1, 2)]}), ["record['a'][1]", "tuple", "list"]),
        (Weights(record={"a": {"b": {1}}}), ["record['a']['b']", "set"]),
        (Weights(record={"a": 2**64}), ["record['a']", "64 bits"]),
        (Weights(record={"a": {None: 1}}), ["record['a']", "key None"]),
        (Weights(record={"a": Path()}), ["Path"]),
    ],
)
def test_what_cannot_be_stored_is_named_before_anything_is_written(weights, words, tmp_path):
    path = tmp_path / "a.demitasse"
    with pytest.raises(SnapshotError) as caught:
        write(path, weights)
    for word in [str(path), *words]:
        assert word in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_contains_itself_is_refused(tmp_path):
    record: dict[str, object] = {}
    record["again"] = record
    with pytest.raises(SnapshotError, match="nested deeper"):
        write(tmp_path / "a.demitasse", Weights(record=record))


def test_what_nests_as_deep_as_may_be_written_is_read_and_no_deeper(tmp_path):
    path, record = tmp_path / "a.demitasse", {"a": 1}
    for _ in range(DEEPEST - 1):
        record = {"a": record}
    write(path, Weights(record=record))
    assert read(path).record == record
    with pytest.raises(SnapshotError, match="nested deeper than 64"):
        write(path, Weights(record={"a": record}))
    path.write_bytes(sealed(msgpack.packb(tree(record={"a": record}))))
    assert "nested at most 64 deep" in failure(path)


def test_an_array_of_the_largest_rank_is_read(tmp_path):
    path, array = tmp_path / "a.demitasse", np.arange(2.0).reshape(2, *[1] * (LARGEST_RANK - 1))
    write(path, Weights(parameters={"layer": [array]}))
    (found,) = read(path).parameters["layer"]
    assert found.shape == array.shape and np.array_equal(found, array)


@pytest.mark.parametrize("longest", [1, 7, 40, 63])
def test_an_array_too_long_for_one_byte_string_stands_in_several(tmp_path, monkeypatch, longest):
    """msgpack's byte strings have less than 4 GiB; a layer with a thousand million weights has more."""
    monkeypatch.setattr(writing, "LONGEST", longest)
    path = tmp_path / "a.demitasse"
    layers = {
        "long": [np.arange(16.0, dtype=">f4").reshape(2, 8)],
        "short": [np.zeros(0), np.ones(1, "?")],
    }
    write(path, Weights(layers, state={"history": layers}))
    content = path.read_bytes()[24:-32]
    pieces = msgpack.unpackb(content)["parameters"]["long"][0]["data"]
    assert [len(piece) for piece in pieces] == [min(longest, 64 - at) for at in range(0, 64, longest)]
    assert bits(vars(read(path))) == bits(vars(Weights(layers, state={"history": layers})))
    damaged = bytearray(path.read_bytes())
    damaged[24 + content.index(bytes([0xC4, len(pieces[-1])]) + pieces[-1]) + 2] ^= 1
    path.write_bytes(damaged)
    assert "parameter 0 of layer 'long' does not match" in failure(path)


def test_numpy_scalars_in_the_record_become_plain_numbers(tmp_path):
    write(tmp_path / "a.demitasse", Weights({}, np.int64(7), {}, {"loss": np.float32(0.5)}))
    back = read(tmp_path / "a.demitasse")
    assert (back.iteration, back.record) == (7, {"loss": 0.5})
    assert type(back.iteration) is int and type(back.record["loss"]) is float


def test_arrays_are_written_from_where_they_stand(tmp_path):
    array = np.zeros(1000)
    pieces = writing._Body(tmp_path).of(Weights({"a": [array]}))
    assert any(np.shares_memory(np.asarray(p), array) for p in pieces if isinstance(p, memoryview))


# The plugin's interface.


def test_a_snapshot_has_neither_net_nor_solver(tmp_path):
    write(tmp_path / "a.demitasse", small())
    reader: ModelReader = model_reader(path=tmp_path / "a.demitasse", layer_types={})
    with pytest.raises(ModelError, match="no net"):
        reader.net("train")
    with pytest.raises(ModelError, match="no solver"):
        reader.solver()


def test_the_entry_point_loads_and_implements_the_roles_of_the_manifest():
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="snapshots")
    module = point.load()
    (manifest,) = [found for found in demitasse.discover() if found.name == "snapshots"]
    assert manifest.problem == ""
    hooks = {name for name in vars(hookspecs) if hasattr(getattr(module, name, None), "demitasse_impl")}
    assert hooks == set(manifest.roles) == {"model_reader", "model_writer"}
    assert all(role["suffixes"] == [".demitasse"] for role in manifest.roles.values())
