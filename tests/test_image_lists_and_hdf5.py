"""Lists of images and HDF5 files: the samples in them, and what is said of a line or file that cannot be
used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import sample_files as files

from demitasse import DataError, DataSpec
from demitasse_datasets.plugin import data_source


def test_an_image_list_is_read_with_its_labels(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    for n in range(3):
        cv2.imwrite(str(tmp_path / "a b" / f"{n}.png"), files.photo(20, 24, seed=n))
    path = tmp_path / "list.txt"
    path.write_text("a b/0.png 5\r\n\na b/1.png\t-2\n  a b/2.png   1000000  \n")
    with files.opened(path, "images", root=f"{tmp_path}/") as source:
        batch = files.read(source, 3)
    assert batch["label"].tolist() == [5, -2, 1000000]
    for n in range(3):
        np.testing.assert_array_equal(batch["data"][n], files.photo(20, 24, seed=n).transpose(2, 0, 1))
    with files.opened(path, "images", height=10, width=14, mode="gray") as source:
        found = files.read(source, 3)["data"][2, 0]
    decoded = cv2.imread(str(tmp_path / "a b/2.png"), cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(found, cv2.resize(decoded, (14, 10), interpolation=cv2.INTER_LINEAR))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png 1\nb.png\n", r"list\.txt:2: 'b\.png' is not a path, a blank and a label"),
        ("a.png one\n", r"list\.txt:1: 'a\.png one'"),
        ("a.png 99999999999\n", r"list\.txt:1: the label 99999999999 does not fit"),
        ("\n\n", "lists no images"),
        ("there/is/none.png 1\n", r"list\.txt:1: there/is/none\.png: cannot be read: No such file"),
        ("a\0b.png 1\n", r"list\.txt:1: a.b\.png: cannot be read"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, text: str, message: str) -> None:
    cv2.imwrite(str(tmp_path / "a.png"), files.photo(8, 8))
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        data_source(spec=DataSpec(tmp_path / "list.txt", "images"))


def test_a_list_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"a.png 1\n\xff\xfe")
    with pytest.raises(DataError, match=r"list\.txt: is not text: byte 8 is not UTF-8"):
        data_source(spec=DataSpec(tmp_path / "list.txt", "images"))


def test_the_rows_of_hdf5_files_follow_each_other(tmp_path: Path) -> None:
    with files.opened(files.hdf5_files(tmp_path, (4, 1, 6)), "hdf5", fields=("label", "data")) as source:
        assert source.size == 11
        batch = files.read(source, 22)
    np.testing.assert_array_equal(batch["label"], np.tile(np.arange(11), 2))
    np.testing.assert_array_equal(batch["data"][:, 1, 2], np.tile(np.arange(11), 2))


def test_hdf5_files_are_shuffled_and_the_rows_within_each(tmp_path: Path) -> None:
    path = files.hdf5_files(tmp_path, (5, 6, 7, 8))
    with files.opened(path, "hdf5", shuffle=True, seed=1) as source:
        labels = files.read(source, 52)["label"]
    for epoch in (labels[:26], labels[26:]):
        assert sorted(epoch) == list(range(26))
        file = np.searchsorted([5, 11, 18], epoch, side="right")
        assert (np.diff(file) != 0).sum() == 3
    assert (labels[:26] != labels[26:]).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("label"), r"1\.h5: unknown dataset 'label'"),
        (lambda f: (f.pop("label"), f.create_group("label")), "'label' is a group, not a dataset"),
        (lambda f: (f.pop("label"), f.create_dataset("label", data=[b"a"] * 3)), "elements .valid:"),
        (lambda f: (f.pop("label"), f.create_dataset("label", data=[1])), "'data' 3, 'label' 1"),
        (
            lambda f: (f.pop("label"), f.create_dataset("label", (3, 1 << 40), "f8")),
            r"claims \(3, 1099511627776\) .*, but has 0 bytes",
        ),
        (
            lambda f: (f.pop("data"), f.create_dataset("data", data=np.zeros((3, 9)))),
            r"its samples are .*'data' \(9,\).* first file's .*'data' \(2, 3\)",
        ),
    ],
)
def test_an_hdf5_file_that_does_not_fit_is_named(
    tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    path = files.hdf5_files(tmp_path, (3, 3))
    with h5py.File(tmp_path / "1.h5", "a") as file:
        change(file)
    with pytest.raises(DataError, match=message):
        data_source(spec=DataSpec(path, "hdf5", options={"fields": ("data", "label")}))


def test_a_list_of_hdf5_files_that_are_not_there_is_refused_by_line(tmp_path: Path) -> None:
    path = files.hdf5_files(tmp_path, (3, 3))
    (tmp_path / "1.h5").unlink()
    with pytest.raises(DataError, match=r"list\.txt:2: no such file: '.*1\.h5'"):
        data_source(spec=DataSpec(path, "hdf5"))
    (tmp_path / "1.h5").write_bytes((tmp_path / "0.h5").read_bytes()[:900])
    with pytest.raises(DataError, match=r"1\.h5: cannot be read as HDF5"):
        data_source(spec=DataSpec(path, "hdf5"))
