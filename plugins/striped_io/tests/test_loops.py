"""The compiled loops compared with plain NumPy and the reference checksum."""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import types

from demitasse import DataError, DataSpec
from demitasse_striped_io import loops
from demitasse_striped_io.options import check_system
from demitasse_striped_io.source import Source

VECTORS = {b"": 0xEF46DB3751D8E999, b"a": 0xD24EC4F1A98C6E5B, b"abc": 0x44BC2CF5AD770999}
"""Published values of XXH64 with seed 0."""


def test_the_checksum_is_xxh64() -> None:
    for text, value in VECTORS.items():
        assert int(loops.xxh64(np.frombuffer(text, np.uint8))) == value


@given(st.binary(max_size=200))
@settings(max_examples=examples(60))
def test_the_checksum_of_any_bytes_is_the_librarys(data: bytes) -> None:
    xxhash = pytest.importorskip("xxhash", reason="the package xxhash is the reference")
    assert int(loops.xxh64(np.frombuffer(data, np.uint8))) == xxhash.xxh64_intdigest(data)


@pytest.fixture
def stripe(tmp_path: Path) -> Path:
    path = tmp_path / "stripe"
    path.write_bytes(np.random.default_rng(1).integers(0, 256, 50_000, np.uint8).tobytes())
    return path


def fetched(path: Path, pieces: list[tuple[int, int]], flags: int = 0) -> tuple[np.ndarray, ...]:
    file = os.open(path, os.O_RDONLY | flags)
    try:
        rows, at = [], 0
        for offset, length in pieces:
            rows.append((0, offset, length, at))
            at += length
        table, out = np.array(rows, np.int64), np.zeros(at, np.uint8)
        data = np.frombuffer(path.read_bytes(), np.uint8)
        checks = np.array([loops.xxh64(data[o : o + n]) for o, n in pieces], np.uint64)
        status, tally = np.full(len(rows), 99, np.uint8), np.zeros((1, 4), np.int64)
        bounce = np.zeros(3 * loops.PAGE if flags else 0, np.uint8)
        verify = np.ones(len(rows), np.uint8)
        files = np.array([file], np.int32)
        loops.fetch(files, table, out, checks, verify, status, tally, bounce)
        return out, status, tally, data
    finally:
        os.close(file)


DIRECT = getattr(os, "O_DIRECT", 0)


@pytest.mark.parametrize("flags", [0, DIRECT], ids=["page", "direct"])
def test_pieces_are_read_to_their_places_and_neighbours_in_one_read(stripe: Path, flags: int) -> None:
    pieces = [(10, 9000), (9010, 100), (30_000, 8192), (4096, 4096)]
    out, status, tally, data = fetched(stripe, pieces, flags)
    assert (out == np.concatenate([data[o : o + n] for o, n in pieces])).all()
    assert not status.any()
    assert tally[0, 0] == 3 and tally[0, 1] == len(out) and tally[0, 3] == 4


@pytest.mark.parametrize("flags", [0, DIRECT], ids=["page", "direct"])
def test_what_lies_beyond_the_end_is_cut_off_and_the_rest_is_read(stripe: Path, flags: int) -> None:
    _, status, _, _ = fetched(stripe, [(49_000, 2000), (0, 100)], flags)
    assert status.tolist() == [loops.CUT_OFF, loops.READ]


def test_transforming_is_what_numpy_makes_of_it() -> None:
    random = np.random.default_rng(2)
    samples = random.integers(0, 256, (4, 3, 9, 11), np.uint8)
    places = np.array([[0, 0, 0], [2, 3, 1], [1, 4, 0], [2, 4, 1]])
    for mean, whole in ((random.random((3, 9, 11)), True), (random.random((3, 1, 1)), False)):
        out = np.zeros((4, 3, 7, 7), np.float32)
        loops.transform(samples, places, mean.astype(np.float32), whole, 0.25, out)
        centred = (samples - np.broadcast_to(mean.astype(np.float32), (3, 9, 11)).astype(float)) * 0.25
        for n, (top, left, mirrored) in enumerate(places):
            expected = centred[n, :, top : top + 7, left : left + 7]
            expected = expected[:, :, ::-1] if mirrored else expected
            np.testing.assert_allclose(out[n], expected, rtol=1e-6, atol=1e-5)


def test_records_are_gathered_by_number() -> None:
    records = np.random.default_rng(3).integers(0, 256, (50, 24), np.uint8)
    numbers, out = np.array([3, 4, 5, 0, 49, 48]), np.zeros(6 * 24, np.uint8)
    loops.gather(records.reshape(-1), numbers, 24, out)
    assert (out.reshape(6, 24) == records[numbers]).all()


def test_nothing_is_called_that_the_system_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled loop that calls an absent function ends the process. macOS has no posix_fadvise."""
    assert isinstance(loops._advise, types.ExternalFunction)
    monkeypatch.delattr(os, "posix_fadvise")
    spec = importlib.util.spec_from_file_location("loops_elsewhere", loops.__file__)
    assert spec is not None and spec.loader is not None
    elsewhere = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(elsewhere)
    assert elsewhere._advise.py_func(0, 0, 1, 3) is None
    assert time.CLOCK_MONOTONIC == elsewhere._MONOTONIC


def test_a_system_without_positioned_reads_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_system("samples")
    monkeypatch.delattr(os, "pread")
    with pytest.raises(DataError, match="samples: striped sets are read and written by pread"):
        check_system("samples")
    with pytest.raises(DataError, match="by pread"):
        Source(tmp_path / "set", DataSpec("set"), {})
