"""Databases of Datum records: read as other libraries write them, in the order of their keys, and never
trusted: what is damaged is an error that names file and key."""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import lmdb
import numpy as np
import pytest
import sample_files as files
from hypothesis import given
from hypothesis import strategies as st
from sample_files import packed, photo, proto

import demitasse
from demitasse import DataError, DataSpec, image_size
from demitasse_caffe.schema import schema
from demitasse_datasets import images, leveldb_format
from demitasse_datasets.datum import Datum, parse, serialize
from demitasse_datasets.leveldb_reader import LevelDbReader
from demitasse_datasets.plugin import data_source


def levels(folder: Path, entries: dict[bytes, bytes]) -> Path:
    plyvel = pytest.importorskip("plyvel", reason="plyvel, which writes LevelDB, is not installed")
    made = plyvel.DB(str(folder), create_if_missing=True, write_buffer_size=4096)
    for key, value in entries.items():
        made.put(key, value)
    made.close()
    return folder


def png_header(width: int, height: int) -> bytes:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return start + b"\0\0\0\0IEND\xaeB`\x82"


@given(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=300), st.booleans())
def test_a_datum_is_what_protobuf_reads_and_writes(label: int, data: bytes, encoded: bool) -> None:
    written = proto(channels=3, height=4, width=5, data=data, label=label, encoded=encoded)
    found = parse(written)
    assert (found.channels, found.height, found.width, found.label) == (3, 4, 5, label)
    assert (bytes(found.data), found.encoded) == (data, encoded)
    message = schema({}).message("Datum")
    message.ParseFromString(serialize(Datum(3, 4, 5, data, label, encoded=encoded)))
    assert (message.label, message.data, message.encoded) == (label, data, encoded)


def test_float_data_is_read_packed_or_not_and_written_as_protobuf_reads_it() -> None:
    values = np.linspace(-2, 2, 12).astype(np.float32)
    plain = proto(channels=3, height=2, width=2, float_data=values.tolist(), label=7)
    dense = b"\x08\x03\x10\x02\x18\x02\x28\x07" + b"\x32\x30" + values.tobytes()
    for record in (plain, dense):
        found = parse(record)
        assert found.label == 7
        np.testing.assert_array_equal(found.pixels(), values.reshape(3, 2, 2))
    message = schema({}).message("Datum")
    message.ParseFromString(serialize(Datum(3, 2, 2, label=7, floats=values)))
    assert list(message.float_data) == values.tolist()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (proto(channels=3, height=4, width=5, data=b"123"), "shape .3, 4, 5. .* holds 3 uint8"),
        (proto(channels=2**31 - 1, height=2**31 - 1, width=2, data=b"1"), "holds 1 uint8"),
        (proto(channels=0, height=1, width=1, data=b"1"), r"shape \(0, 1, 1\)"),
        (proto(channels=-1, height=-1, width=1, data=b"1"), r"shape \(-1, -1, 1\)"),
        (proto(channels=1, height=1, width=1), "neither data nor float_data"),
        (b"\x22\xff\xff\xff\xff\x7f12", "promises 34,359,738,367 bytes, but 2 are there"),
        (b"\x08" + b"\xff" * 20, "a number at byte 1"),
        (b"\x35\0\0", "cut short within float_data"),
        (b"\x0b", "wire type 3"),
    ],
)
def test_a_datum_that_is_not_what_it_says_is_refused(record: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse(record).pixels()


@pytest.mark.parametrize("write", [files.database, levels])
def test_records_come_in_the_order_of_their_keys(write: Callable[..., Path], tmp_path: Path) -> None:
    with files.opened(write(tmp_path / "db", files.records())) as source:
        assert (source.size, source.fields["data"].shape) == (7, (2, 3, 4))
        batch = files.read(source, 14)
    numbers = np.tile(np.arange(7), 2)
    np.testing.assert_array_equal(batch["label"], numbers - 3)
    wanted = (numbers[:, None] + np.arange(24)).reshape(14, 2, 3, 4)
    np.testing.assert_array_equal(batch["data"], wanted)


@pytest.mark.parametrize("write", [files.database, levels])
def test_shuffling_visits_every_record_once_an_epoch(write: Callable[..., Path], tmp_path: Path) -> None:
    with files.opened(write(tmp_path / "db", files.records(50)), shuffle=True, seed=5) as source:
        labels = files.read(source, 100)["label"] + 3
    for epoch in (0, 1):
        order = demitasse.permutation(5, epoch, 50)
        np.testing.assert_array_equal(labels[50 * epoch : 50 * epoch + 50], order)


def test_an_lmdb_is_read_where_nothing_can_be_written(tmp_path: Path) -> None:
    folder = files.database(tmp_path / "db", files.records())
    (folder / "lock.mdb").unlink()
    before = sorted(path.name for path in folder.iterdir())
    folder.chmod(0o555)
    try:
        with files.opened(folder) as one, files.opened(folder) as two:
            assert files.read(one, 3)["label"].tolist() == files.read(two, 3)["label"].tolist()
        assert sorted(path.name for path in folder.iterdir()) == before == ["data.mdb"]
    finally:
        folder.chmod(0o755)


def test_an_lmdb_that_the_process_has_open_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """Not closed yet, as a script that has just written it may leave it: lmdb opens none twice."""
    folder = files.database(tmp_path / "db", files.records())
    environment = lmdb.open(str(folder))
    with pytest.raises(DataError, match=r"already open .*; close\(\) the one that is open"):
        data_source(spec=DataSpec(folder, "lmdb"))
    environment.close()
    with files.opened(folder) as source:
        assert files.read(source, 3)["label"].size == 3


def test_an_lmdb_that_is_cut_off_while_it_is_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder = files.database(tmp_path / "db", files.records(200))
    with files.opened(folder) as source:
        os.truncate(folder / "data.mdb", 8192)  # a page of a map that the file has not ends the process
        with pytest.raises(DataError, match=r"data\.mdb: was cut off while it was read: 8,192 bytes of"):
            files.read(source, 100)


def test_an_lmdb_that_is_cut_off_or_something_else_is_refused(tmp_path: Path) -> None:
    folder = files.database(tmp_path / "db", files.records(200))
    file = folder / "data.mdb"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"data\.mdb: is cut off: it promises .* are there"):
        data_source(spec=DataSpec(folder, "lmdb"))
    file.write_bytes(b"no database " * 1000)
    with pytest.raises(DataError, match=r"db: cannot be opened as an LMDB database"):
        data_source(spec=DataSpec(folder, "lmdb"))
    file.unlink()
    with pytest.raises(DataError, match=r"is not an intact lmdb database: .*data\.mdb: No such file"):
        data_source(spec=DataSpec(folder, "lmdb"))


def test_a_leveldb_knows_later_values_and_deletions_from_tables_and_log(tmp_path: Path) -> None:
    plyvel = pytest.importorskip("plyvel", reason="plyvel, which writes LevelDB, is not installed")
    generator = np.random.default_rng(0)
    expected: dict[bytes, bytes] = {}
    made = plyvel.DB(str(tmp_path / "db"), create_if_missing=True, write_buffer_size=1 << 16)
    for _ in range(4000):
        key = f"{generator.integers(700):05d}".encode()
        if generator.random() < 0.2:
            made.delete(key)
            expected.pop(key, None)
        else:
            value = bytes(generator.integers(0, 4, generator.integers(1, 600), np.uint8))
            made.put(key, value)
            expected[key] = value
    made.close()
    endings = {path.suffix for path in (tmp_path / "db").iterdir()}
    assert {".ldb", ".log"} <= endings
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "db").iterdir()}
    reader = LevelDbReader(tmp_path / "db")
    with reader.session() as get:
        found = {reader.key(i): bytes(get(i)) for i in range(reader.size)}
    assert found == expected
    assert list(found) == sorted(found)
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "db").iterdir()} == before


def test_a_leveldb_that_was_written_byte_by_byte_is_read(tmp_path: Path) -> None:
    with files.opened(files.small_leveldb(tmp_path / "db")) as source:
        assert files.read(source, 5)["label"].tolist() == [-2, -1, 0, 1, 2]


@pytest.mark.parametrize("compression", [None, "snappy"])
def test_the_keys_of_a_leveldb_of_large_images_are_listed_without_reading_these(
    tmp_path: Path, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plyvel = pytest.importorskip("plyvel", reason="plyvel, which writes LevelDB, is not installed")
    generator = np.random.default_rng(0)
    made = plyvel.DB(str(tmp_path / "db"), create_if_missing=True, compression=compression)
    expected = {}
    for number in range(60):
        # Noise, plain areas and what repeats: all that snappy tells apart.
        parts = [generator.integers(0, 256, 9000), np.full(30_000, number), np.tile(np.arange(50), 400)]
        value = b"".join(np.uint8(parts[i]).tobytes() for i in generator.permutation(3))
        expected[f"{number:08d}_{'n' * (number % 30)}.JPEG".encode()] = value
    with made.write_batch() as batch:
        for key, value in expected.items():
            batch.put(key, value)
    made.compact_range()
    made.close()
    read: list[int] = []
    block = leveldb_format.block
    monkeypatch.setattr(
        leveldb_format, "block", lambda *given: (read.append(given[2]), block(*given))[1]
    )
    reader = LevelDbReader(tmp_path / "db")
    assert sum(read) < 20_000
    with reader.session() as get:
        assert {reader.key(i): bytes(get(i)) for i in range(reader.size)} == expected


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("000005.ldb", lambda data: data[:-20], r"000005\.ldb: is not a LevelDB table, or is cut off"),
        ("CURRENT", lambda data: b"nothing", "CURRENT: names no manifest: 'nothing'"),
        ("MANIFEST-000002", lambda data: data[:6] + b"\x09" + data[7:], "record 0 is damaged at byte 0"),
        ("000005.ldb", lambda data: None, r"its table 000005\.ldb is missing"),
        ("MANIFEST-000002", lambda data: None, "MANIFEST-000002: cannot be read: No such file"),
    ],
)
def test_a_damaged_leveldb_is_refused_by_file(
    tmp_path: Path, file: str, change: Callable[[bytes], bytes | None], message: str
) -> None:
    path = files.small_leveldb(tmp_path / "db") / file
    changed = change(path.read_bytes())
    path.unlink() if changed is None else path.write_bytes(changed)
    with pytest.raises(DataError, match=message):
        data_source(spec=DataSpec(tmp_path / "db", "leveldb"))


def test_encoded_records_are_decoded_as_opencv_does(tmp_path: Path) -> None:
    pixels = photo(40, 30)
    gray = photo(40, 30, 1)
    folder = files.database(
        tmp_path / "db",
        {
            b"0": proto(data=packed(pixels, ".jpg"), label=1, encoded=True),
            b"1": proto(data=packed(pixels, ".png"), label=2, encoded=True),
            b"2": proto(data=packed(gray, ".png"), label=3, encoded=True),
        },
    )
    with files.opened(folder, "lmdb", mode="color") as source:
        batch = files.read(source, 3)["data"]
    jpeg = cv2.imdecode(np.frombuffer(packed(pixels, ".jpg"), np.uint8), cv2.IMREAD_COLOR)
    np.testing.assert_array_equal(batch[0], jpeg.transpose(2, 0, 1))
    np.testing.assert_array_equal(batch[1], pixels.transpose(2, 0, 1))
    np.testing.assert_array_equal(batch[2], np.broadcast_to(gray[:, :, 0], (3, 40, 30)))
    with files.opened(folder, "lmdb", mode="gray") as source:
        assert source.fields["data"].shape == (1, 40, 30)
        np.testing.assert_array_equal(files.read(source, 3)["data"][2, 0], gray[:, :, 0])
    with (
        files.opened(folder, "lmdb") as source,
        pytest.raises(DataError, match=r"key '2'.*\(1, 40, 30\)"),
    ):
        files.read(source, 3)


def test_images_of_different_sizes_need_a_crop(tmp_path: Path) -> None:
    folder = files.database(
        tmp_path / "db",
        {b"%d" % n: proto(data=packed(photo(30 + n, 40 - n)), encoded=True) for n in range(5)},
    )
    with (
        files.opened(folder) as source,
        pytest.raises(DataError, match=r"key '1'.*\(3, 31, 39\).*\(3, 30, 40\)"),
    ):
        files.read(source, 5)
    with files.opened(folder, crop=24) as source:
        for n, found in enumerate(files.read(source, 5)["data"]):
            top, left = (30 + n - 24) // 2, (40 - n - 24) // 2
            wanted = photo(30 + n, 40 - n)[top : top + 24, left : left + 24]
            np.testing.assert_array_equal(found, wanted.transpose(2, 0, 1))
    with files.opened(folder, crop=24, random=True, seed=3, stream=2) as source:
        some, later = files.read(source, 10)["data"], files.read(source, 5, first=5)["data"]
    np.testing.assert_array_equal(some[5:], later)
    draws = demitasse.crop_and_mirror(3, 2, 0, 0, 10, 2**30 - 1, 2**30 - 1)
    for i, (found, draw) in enumerate(zip(some, draws, strict=True)):
        n = i % 5
        top, left = (int(draw[0]) * (7 + n)) >> 30, (int(draw[1]) * (17 - n)) >> 30
        wanted = photo(30 + n, 40 - n)[top : top + 24, left : left + 24]
        np.testing.assert_array_equal(found, wanted.transpose(2, 0, 1))
    assert any((some[n] != some[n + 5]).any() for n in range(5))
    with pytest.raises(DataError, match=r"key '0': .*\(3, 30, 40\).* too small for a crop of 31"):
        data_source(spec=DataSpec(folder, options={"crop": 31}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (
            b"text, not an image",
            "it is not an image in a supported format: it looks like text 'text, not an image'",
        ),
        (
            packed(photo(64, 64), ".jpg")[:900],
            "cut off after 900 bytes: a JPEG without its end",
        ),
        (
            packed(photo(64, 64), ".png")[:900],
            "cut off after 900 bytes: a PNG without its end",
        ),
        (png_header(2**31 - 1, 2**31 - 1), "claims 2,147,483,647 x 2,147,483,647 pixels in 45 bytes"),
        (png_header(0, 7), "no pixels: 0 x 7"),
        (png_header(5, 7), "damaged"),
        (b"BM" + b"\0" * 12 + struct.pack("<Iii", 40, 1 << 30, 1 << 30), "claims 1,073,741,824"),
    ],
)
def test_what_is_no_whole_image_is_refused_before_it_takes_memory(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        images.decode(data)


@pytest.mark.parametrize("ending", [".jpg", ".png", ".bmp", ".webp", ".tiff", ".gif", ".ppm", ".pgm"])
def test_the_size_of_an_image_is_known_before_it_is_decoded(ending: str) -> None:
    data = packed(photo(37, 53, 1 if ending == ".pgm" else 3), ending)
    assert image_size(data) == (53, 37)
    assert images.decode(data).shape == (37, 53, 3)


def test_progressive_jpegs_and_lossless_webps_tell_their_size_too() -> None:
    for ending, options in (
        (".jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
        (".webp", [cv2.IMWRITE_WEBP_QUALITY, 101]),
    ):
        assert image_size(bytes(cv2.imencode(ending, photo(37, 53), options)[1])) == (53, 37)


@pytest.mark.parametrize("form", ["database", "list"])
@pytest.mark.parametrize(("edge", "shared"), [(8, False), (64, True)])
def test_threads_share_images_unless_all_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, edge: int, shared: bool
) -> None:
    """The first may be a small one among others."""
    encoded = [packed(photo(n, n)) for n in (8, edge, edge)]
    if form == "list":
        for number, data in enumerate(encoded):
            (tmp_path / f"{number}.png").write_bytes(data)
        source = tmp_path / "list.txt"
        source.write_text("".join(f"{number}.png 0\n" for number in range(3)))
    else:
        every = {b"%d" % n: proto(encoded=True, data=data) for n, data in enumerate(encoded)}
        source = files.database(tmp_path / "db", every)
    names, decode = set[str](), images.decode

    def noted(data: bytes, mode: str) -> np.ndarray:
        names.add(threading.current_thread().name.partition("_")[0])
        return decode(data, mode)

    monkeypatch.setattr("demitasse_datasets.decoders.threads", lambda: 2)
    monkeypatch.setattr(images, "decode", noted)
    with files.opened(str(source), {"list": "images"}.get(form), crop=8) as opened:
        names.clear()
        files.read(opened, 3)
    assert (names == {"decode"}) is shared
