"""Mutated records, images, HDF5 files, databases and lists: each is read, or refused with DataError."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import numpy as np
import pytest
import sample_files as files
from sample_files import packed, photo, proto

from demitasse import DataError
from demitasse_datasets import images, leveldb_format
from demitasse_datasets.datum import parse
from demitasse_datasets.image_list import read_list
from demitasse_datasets.leveldb_reader import LevelDbReader
from demitasse_datasets.windows import read_windows

FUZZED = 10_000


def mutated(data: bytes, generator: random.Random) -> bytes:
    """Cut off, some bytes changed, a number made huge, a part repeated or left out."""
    changed, size = bytearray(data), len(data)
    way = generator.randrange(5)
    at = generator.randrange(size)
    if way == 0:
        return data[:at]
    if way == 1:
        for _ in range(generator.choice((1, 2, 8))):
            changed[generator.randrange(size)] = generator.randrange(256)
    elif way == 2:
        changed[at : at + 8] = generator.choice((b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7))
    elif way == 3:
        changed[at:at] = changed[at : at + generator.randrange(1, 64)]
    else:
        del changed[at : at + generator.randrange(1, 64)]
    return bytes(changed)


def refused(attempt: Callable[[], Any]) -> bool:
    """Whether it raises DataError; any other error is the test's."""
    try:
        attempt()
    except DataError:
        return True
    return False


def test_mutated_lmdb_values_are_read_or_refused_by_key(tmp_path: Path) -> None:
    generator = random.Random(0)
    kinds = (
        proto(channels=3, height=5, width=4, data=bytes(range(60)), label=3),
        proto(channels=3, height=5, width=4, data=packed(photo(5, 4), ".png"), encoded=True),
        proto(data=packed(photo(5, 4), ".jpg"), encoded=True, label=1),
        proto(channels=3, height=5, width=4, float_data=range(60), label=1),
    )
    values = [kinds[0]] + [mutated(kinds[n % 4], generator) for n in range(FUZZED)]
    folder = files.database(tmp_path / "db", {b"%05d" % n: value for n, value in enumerate(values)})
    with files.opened(folder) as source:
        samples = source._samples
        out = {"data": np.empty((1, 3, 5, 4), np.uint8), "label": np.empty(1, np.int32)}
        failed = 0
        for number in range(1, source.size):
            try:
                samples.gather(np.array([number]), out, number)
            except DataError as error:
                assert f"key '{number:05d}': " in str(error)
                failed += 1
    assert 0.3 * FUZZED < failed < 0.95 * FUZZED


@pytest.mark.parametrize("ending", [".jpg", ".png", ".bmp", ".webp", ".tiff", ".gif", ".ppm"])
def test_mutated_images_are_decoded_or_refused(ending: str) -> None:
    generator = random.Random(1)
    data = packed(photo(19, 23), ending)
    failed = sum(refused(lambda: images.decode(mutated(data, generator))) for _ in range(FUZZED))
    assert failed > FUZZED // 10


@pytest.mark.parametrize("count", [1000, pytest.param(FUZZED, marks=pytest.mark.slow)])
def test_mutated_hdf5_files_are_read_or_refused(tmp_path: Path, count: int) -> None:
    generator = random.Random(2)
    files.hdf5_files(tmp_path, (3, 4))
    kinds = [(tmp_path / name).read_bytes() for name in ("0.h5", "1.h5")]
    path = tmp_path / "x.h5"

    def attempt() -> None:
        path.write_bytes(mutated(generator.choice(kinds), generator))
        with files.opened(path, "hdf5", fields=("data", "label")) as source:
            samples = source._samples
            out = {n: np.empty((1, *f.shape), f.dtype) for n, f in samples.fields.items()}
            samples.gather(np.array([0]), out, 0)

    failed = sum(refused(attempt) for _ in range(count))
    assert 0.05 * count < failed < count


def test_mutated_leveldb_files_are_read_or_refused(tmp_path: Path) -> None:
    generator = random.Random(3)
    folder = files.small_leveldb(tmp_path / "db")
    snappy = cramjam.snappy.compress_raw(files.block_of(sorted(files.records().items())))
    table, log, edits = (
        (folder / name).read_bytes() for name in ("000005.ldb", "000006.log", "MANIFEST-000002")
    )

    large = files.table_of({b"%d" % n: bytes(range(200)) * 50 for n in range(2)}, each=1)

    def tables() -> None:
        given = generator.choice((table, large))
        for key, *_ in leveldb_format.table(io.BytesIO(mutated(given, generator))):
            assert isinstance(key, bytes)

    def logs() -> None:
        for _, record in leveldb_format.records(mutated(log, generator)):
            for _, _, begin, end in leveldb_format.batch(record):
                assert 0 <= begin <= end <= len(record)

    def manifests() -> None:
        leveldb_format.manifest(mutated(edits, generator))

    def blocks() -> None:
        data = mutated(bytes(snappy), generator)
        file = io.BytesIO(data + b"\1" + b"\0" * 4)
        for _, begin, end in leveldb_format.entries(leveldb_format.block(file, 0, len(data))):
            assert 0 <= begin <= end

    noise = files.block_of([(b"key", generator.randbytes(9000))])
    single = bytes(cramjam.snappy.compress_raw(noise))

    def singles() -> None:
        data = mutated(single[:30], generator) + single[30:]
        found = leveldb_format.single(io.BytesIO(data + b"\1" + b"\0" * 4), 0, len(data))
        if found is None:
            raise DataError("more than one entry")

    for attempt in (tables, logs, manifests, blocks, singles):
        failed = sum(refused(attempt) for _ in range(FUZZED))
        assert 0.05 * FUZZED < failed < FUZZED, attempt


def test_a_mutated_leveldb_is_read_or_refused_as_a_whole(tmp_path: Path) -> None:
    generator = random.Random(4)
    folder = files.small_leveldb(tmp_path / "db")
    whole = {path: path.read_bytes() for path in sorted(folder.iterdir())}

    def attempt() -> None:
        path = generator.choice(list(whole))
        path.write_bytes(mutated(whole[path], generator))
        try:
            reader = LevelDbReader(folder)
            with reader.session() as get:
                for number in range(reader.size):
                    parse(get(number))
        finally:
            path.write_bytes(whole[path])

    assert 20 < sum(refused(attempt) for _ in range(300)) < 300


def test_mutated_lists_are_read_or_refused_by_line(tmp_path: Path) -> None:
    generator = random.Random(5)
    images_text = b"a/b.png 1\nc d.jpg 22\n\te.png\t-3\n" * 3
    windows_text = b"# 0\na.png\n3\n60\n80\n2\n7 0.9 20 10 59 39\n3 0.1 0 0 29 49\n" * 3
    path = tmp_path / "list.txt"
    for text, read_it in (
        (images_text, read_list),
        (windows_text, lambda path: read_windows(path, 0.5, 0.5)),
    ):

        def attempt(text: bytes = text, read_it: Callable[[Path], Any] = read_it) -> None:
            path.write_bytes(mutated(text, generator))
            try:
                read_it(path)
            except DataError as error:
                assert str(error).startswith(str(path))
                raise

        assert 30 < sum(refused(attempt) for _ in range(500)) < 500
