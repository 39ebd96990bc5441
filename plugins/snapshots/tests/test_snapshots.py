"""Snapshots: what is written comes back bit by bit, what is damaged is told, nothing is lost."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import os
import signal
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import demitasse
from demitasse import ModelError, ModelReader, SnapshotError, Weights, hookspecs
from demitasse_snapshots import model_writer as writing
from demitasse_snapshots.layout import DEEPEST, LARGEST_RANK
from demitasse_snapshots.plugin import model_reader, model_writer


def write(path, weights):
    model_writer(path=path, weights=weights)


def read(path):
    return model_reader(path=path, layer_types={}).weights()


def failure(path):
    with pytest.raises(SnapshotError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def bits(value):
    """A value as nested tuples in which NaNs, signed zeros and types are told apart."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return "float", struct.pack(">d", value)
    if isinstance(value, dict):
        return "dict", tuple((bits(key), bits(item)) for key, item in value.items())
    if isinstance(value, list):
        return "list", tuple(bits(item) for item in value)
    return type(value).__name__, value


def small():
    return Weights(
        {"conv1": [np.arange(6, dtype="f4").reshape(1, 2, 3), np.array([-0.0, np.nan])], "ip": []},
        3,
        {"momentum": {"conv1": [np.array([[7]], "i8")]}},
        {"seed": 1, "net": "LeNet"},
    )


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


# What cannot be stored.


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


def test_numpy_scalars_in_the_record_become_plain_numbers(tmp_path):
    write(tmp_path / "a.demitasse", Weights({}, np.int64(7), {}, {"loss": np.float32(0.5)}))
    back = read(tmp_path / "a.demitasse")
    assert (back.iteration, back.record) == (7, {"loss": 0.5})
    assert type(back.iteration) is int and type(back.record["loss"]) is float


# What is damaged.


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
        (b'name: "LeNet"\nlayer {', "looks like text 'name: \"L'"),
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


def sealed(body, version=1):
    """A file with right checksums around any body."""
    head = struct.pack("<8sIQ", b"\x89DMT\r\n\x1a\n", version, len(body))
    head += struct.pack("<I", zlib.crc32(head))
    return head + body + hashlib.sha256(head + body).digest()


def test_a_newer_version_is_told(tmp_path):
    path = tmp_path / "a.demitasse"
    path.write_bytes(sealed(b"", 2))
    message = failure(path)
    assert "version 2" in message and "install a newer" in message


def tree(**changes):
    entry = {"dtype": "<f4", "shape": [2], "crc32": 0, "data": bytes(8)} | changes.pop("entry", {})
    return {"parameters": {"a": [entry]}, "iteration": None, "state": {}, "record": {}} | changes


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


def test_writing_leaves_no_file_open(tmp_path):
    opened = Path("/proc/self/fd")
    before = len([*opened.iterdir()])
    write(tmp_path / "a.demitasse", small())
    assert len([*opened.iterdir()]) == before


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


# Nothing that was saved is lost.


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failing_disk_leaves_the_previous_snapshot(number, tmp_path, monkeypatch):
    path = tmp_path / "a.demitasse"
    write(path, small())
    before = path.read_bytes()

    def failing(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(SnapshotError) as caught:
        write(path, Weights({"b": [np.ones(99)]}))
    monkeypatch.undo()
    assert str(path) in str(caught.value)
    assert os.strerror(number) in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_leaves_no_partial_file(tmp_path, monkeypatch):
    def interrupted(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "a.demitasse", small())
    assert list(tmp_path.iterdir()) == []


def test_a_filesystem_that_cannot_synchronise_folders_is_served(tmp_path, monkeypatch):
    real, calls = os.fsync, []

    def second_fails(descriptor):
        calls.append(descriptor)
        if len(calls) == 2:
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", second_fails)
    write(tmp_path / "a.demitasse", small())
    assert len(calls) == 2
    assert read(tmp_path / "a.demitasse").iteration == 3


LIMITED = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from demitasse import SnapshotError, Weights
from demitasse_snapshots.plugin import model_writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    model_writer(path=Path(sys.argv[1]), weights=Weights({"a": [np.zeros(1_000_000)]}))
except SnapshotError as error:
    print(error)
"""


def test_a_file_that_may_not_grow_leaves_the_previous_snapshot(tmp_path):
    path = tmp_path / "a.demitasse"
    write(path, small())
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert str(path) in done.stdout and os.strerror(errno.EFBIG) in done.stdout
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from demitasse import Weights
from demitasse_snapshots.plugin import model_writer

def wait(*arguments):
    print("here", flush=True)
    sys.stdin.read()

if sys.argv[2] == "flushing":
    os.fsync = wait
elif sys.argv[2] == "renaming":
    Path.replace = wait
else:
    real, written = Path.open, []
    class Slow:
        def __init__(self, file): self.file = file
        def __enter__(self): return self
        def __exit__(self, *error): self.file.close()
        def write(self, data):
            self.file.write(data)
            self.file.flush()
            written.append(len(data))
            if sum(written) > 100_000:
                wait()
    def slowly(path, mode="r", **given):
        file = real(path, mode, **given)
        return Slow(file) if mode == "wb" else file
    Path.open = slowly
model_writer(path=Path(sys.argv[1]), weights=Weights({"a": [np.zeros(99_999)] * 3}))
"""


@pytest.mark.parametrize("moment", ["writing", "flushing", "renaming"])
def test_a_kill_while_writing_leaves_the_previous_snapshot_whole(moment, tmp_path):
    path = tmp_path / "a.demitasse"
    write(path, small())
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path), moment],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "here\n"
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    assert bits(vars(read(path))) == bits(vars(small()))
    (partial,) = set(tmp_path.iterdir()) - {path}
    assert partial.name.startswith(".a.demitasse.") and partial.name.endswith(".partial")
    write(path, Weights(iteration=4))
    assert read(path).iteration == 4
    assert set(tmp_path.iterdir()) == {path}


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    for path in (tmp_path / "no" / "a.demitasse", tmp_path):
        with pytest.raises(SnapshotError) as caught:
            write(path, small())
        assert str(path) in str(caught.value)
    (tmp_path / "file").touch()
    with pytest.raises(SnapshotError, match="Not a directory"):
        write(tmp_path / "file" / "a.demitasse", small())
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_link_stays_a_link_and_long_names_fit(tmp_path):
    (tmp_path / "link.demitasse").symlink_to(tmp_path / "real.demitasse")
    write(tmp_path / "link.demitasse", small())
    assert (tmp_path / "link.demitasse").is_symlink()
    assert read(tmp_path / "real.demitasse").iteration == 3
    long = tmp_path / f"{'n' * 240}.demitasse"
    write(long, small())
    assert read(long).iteration == 3


def test_arrays_are_written_from_where_they_stand(tmp_path):
    array = np.zeros(1000)
    pieces = writing._Body(tmp_path).of(Weights({"a": [array]}))
    assert any(np.shares_memory(np.asarray(p), array) for p in pieces if isinstance(p, memoryview))


# The plugin's own door.


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
