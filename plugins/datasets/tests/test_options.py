"""Options of the kinds, missing libraries, groups and skipping in the order, and fillers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import DataError, DataSpec, RandomStream
from demitasse_datasets import hdf5, images, leveldb_format
from demitasse_datasets.order import Order
from demitasse_datasets.plugin import data_source


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("images", {"rot": "x"}, "unknown option of kind images 'rot'; did you mean 'root'"),
        ("images", {"mode": "colour"}, "unknown mode of images 'colour'; did you mean 'color'"),
        ("images", {"height": 3}, "height 3 and width 0: give both, or neither"),
        ("images", {"height": 1 << 40, "width": 1}, "height 1,099,511,627,776 .valid: 0 to 32,768"),
        ("lmdb", {"crop": -1}, "crop -1 .valid: 0 to"),
        ("windows", {"batch": 1}, "need a crop size and a batch"),
        ("windows", {"batch": 1, "crop": 4, "padding": 2}, "leaves nothing of a crop of 4"),
        ("windows", {"batch": 1, "crop": 4, "fraction": 2}, "a fraction of 2"),
        ("fillers", {"shape": (2,)}, "needs the options filler"),
        ("fillers", {"filler": len, "shape": (1 << 20, 1 << 20)}, "cannot make samples of shape"),
    ],
)
def test_an_option_that_cannot_be_is_refused(tmp_path, kind, options, message):
    with pytest.raises(DataError, match=message):
        data_source(spec=DataSpec(tmp_path, kind, options=options))


def test_a_file_that_is_not_there_is_missed_with_the_nearest_name(tmp_path):
    (tmp_path / "train.txt").touch()
    with pytest.raises(DataError, match=r"no such file or folder: .*; did you mean '.*train\.txt'"):
        data_source(spec=DataSpec(tmp_path / "trian.txt", "images"))


@pytest.mark.parametrize("name", ["x.h5", "batch_*.bin"])
def test_a_folder_that_is_not_there_is_missed_with_the_nearest_name(tmp_path, name):
    (tmp_path / "samples").mkdir()
    words = "there is no folder '.*/smaples', did you mean '.*/samples'"
    with pytest.raises(DataError, match=words):
        data_source(spec=DataSpec(str(tmp_path / "smaples" / name)))


@pytest.mark.parametrize("name", ["C:/samples/train_lmdb", "d:\\\\samples\\\\train_lmdb"])
def test_a_drive_of_windows_is_the_beginning_of_a_path(name):
    with pytest.raises(DataError, match="no such file or folder: "):
        data_source(spec=DataSpec(name))


def test_a_list_of_files_that_are_not_there_misses_them_with_the_nearest_name(tmp_path):
    (tmp_path / "train.h5").touch()
    (tmp_path / "list.txt").write_text(f"{tmp_path}/trian.h5\n")
    with pytest.raises(DataError, match=r"list\.txt:1: no such file: .*; did you mean '.*/train\.h5'"):
        data_source(spec=DataSpec(tmp_path / "list.txt", "hdf5"))
    (tmp_path / "list.txt").write_text("x" * 50_000)
    with pytest.raises(DataError, match=r"list\.txt:1: no such file: 'xxx.* \(50,002 characters\)$"):
        data_source(spec=DataSpec(tmp_path / "list.txt", "hdf5"))


@pytest.mark.parametrize(
    ("library", "module", "hint"),
    [
        (images.opencv, "cv2", r"pip install .*opencv-python-headless<5"),
        (hdf5.h5py, "h5py", "pip install h5py"),
        (leveldb_format.cramjam, "cramjam", "pip install cramjam"),
    ],
)
def test_a_library_that_is_not_there_is_said_with_its_remedy(
    library: Any, module: str, hint: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, module, None)
    library.cache_clear()
    try:
        with pytest.raises(DataError, match=hint):
            library()
    finally:
        library.cache_clear()


def test_an_lmdb_without_its_library_is_said(tmp_path, monkeypatch):
    (tmp_path / "data.mdb").touch()
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(DataError, match="the package lmdb is needed to read it"):
        data_source(spec=DataSpec(tmp_path))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 50), st.integers(0, 2**40))
def test_groups_are_shuffled_whole_and_skipping_moves_the_start(groups, skip, seed):
    size = sum(groups)
    order, moved = Order(size, True, seed, 0, groups), Order(size, True, seed, skip, groups)
    numbers = order.numbers(0, 3 * size)
    ends = np.cumsum(groups)
    for epoch in numbers.reshape(3, size):
        assert sorted(epoch) == list(range(size))
        of = np.searchsorted(ends, epoch, side="right")
        assert np.count_nonzero(np.diff(of)) == len(groups) - 1
    np.testing.assert_array_equal(moved.numbers(0, size), order.numbers(skip, size))


@given(st.integers(1, 5), st.lists(st.integers(1, 7), min_size=1, max_size=5), st.integers(0, 9))
def test_what_a_filler_makes_is_the_same_for_any_division(batch, shares, first):
    def filler(shape: tuple[int, ...], stream: RandomStream) -> np.ndarray:
        values: np.ndarray = stream.normal(shape) + stream.uniform(shape)
        return values

    options = {"filler": filler, "shape": (batch, 3), "field": "noise", "stream": 4}
    source = data_source(spec=DataSpec("noise", "fillers", seed=1, options=options))

    def read(start: int, count: int) -> np.ndarray:
        out = np.empty((count, 3), np.float32)
        stream = source.stream(start, count, count)
        stream.read({"noise": out})
        stream.close()
        return out

    whole = read(0, first + sum(shares))
    starts = first + np.cumsum([0, *shares[:-1]])
    for start, count in zip(starts, shares, strict=True):
        np.testing.assert_array_equal(read(int(start), count), whole[start : start + count])
    assert len(np.unique(whole)) == whole.size
    source.close()


def test_a_filler_that_draws_nothing_is_asked_once():
    asked = []

    def filler(shape: tuple[int, ...], stream: RandomStream) -> np.ndarray:
        asked.append(shape)
        return np.full(shape, 7.0)

    making: Callable[..., np.ndarray] = filler
    source = data_source(spec=DataSpec("x", "fillers", options={"filler": making, "shape": (2, 1)}))
    out = np.empty((9, 1), np.float32)
    stream = source.stream(0, 9, 9)
    stream.read({"data": out})
    stream.close()
    source.close()
    assert asked == [(2, 1)]
    assert (out == 7).all()
