"""Files of another kind than expected: the error says what they are, and what to do; and samples in
files with unusual names."""

from __future__ import annotations

import os
import shutil

import h5py
import lmdb
import numpy as np
import pytest

from demitasse import DataError, DataSpec
from demitasse_datasets.datum import Datum, serialize
from demitasse_datasets.plugin import data_source

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


def failure(path, kind=None, **options):
    with pytest.raises(DataError) as caught:
        data_source(spec=DataSpec(str(path), kind, options=options))
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "kind", "told"),
    [
        ("samples.bin", POINTER, None, "'git lfs pull' fetches the file"),
        ("data_batch_1.bin", POINTER, None, "'git lfs pull' fetches the file"),
        ("train-images-idx3-ubyte", POINTER, None, "'git lfs pull' fetches the file"),
        ("a.h5", POINTER, "hdf5", "is not an HDF5 file: it is a Git LFS pointer"),
        ("data.mdb", POINTER, None, "data.mdb is a Git LFS pointer"),
        ("data.mdb", b"", None, "data.mdb is empty (0 bytes)"),
        ("page", b"<html>404</html>", None, "looks like a web page"),
        ("t10k-images-idx3-ubyte", b"", None, "is empty (0 bytes)"),
    ],
)
def test_what_stands_in_a_files_place_is_told(name, content, kind, told, tmp_path):
    (tmp_path / name).write_bytes(content)
    message = failure(tmp_path / name, kind)
    assert told in message and str(tmp_path / name) in message


def test_an_archive_of_arrays_is_not_to_be_unpacked(tmp_path):
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((2, 3)))
    assert "give them by name in a program (data=...)" in failure(tmp_path / "mnist.npz")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.h5")
    assert "a pipe or a device" in failure(tmp_path / "a.h5", "hdf5")


def test_a_file_that_a_list_has_for_hdf5_is_told(tmp_path):
    (tmp_path / "a.h5").write_bytes(POINTER)
    (tmp_path / "list.txt").write_text("a.h5\n")
    message = failure(tmp_path / "list.txt", "hdf5")
    assert "a.h5: is not an HDF5 file: it is a Git LFS pointer" in message


def test_an_image_of_a_list_is_told_for_what_it_is(tmp_path):
    pytest.importorskip("cv2")
    (tmp_path / "a.jpg").write_bytes(POINTER)
    (tmp_path / "list.txt").write_text("a.jpg 1\n")
    message = failure(tmp_path / "list.txt", "images")
    assert (
        "list.txt:1: a.jpg: it is not an image in a supported format: it is a Git LFS pointer" in message
    )


def test_an_lmdb_in_one_file_may_have_any_name(tmp_path, opened, everything):
    with (
        lmdb.open(str(tmp_path / "train.lmdb"), 1 << 20, subdir=False) as database,
        database.begin(write=True) as transaction,
    ):
        for n in range(3):
            transaction.put(b"%d" % n, serialize(Datum(1, 1, 2, bytes([n, 9]), label=n)))
    read = everything(opened(str(tmp_path / "train.lmdb")))
    assert read["data"].reshape(3, 2).tolist() == [[0, 9], [1, 9], [2, 9]]
    assert read["label"].tolist() == [0, 1, 2]


def test_hdf5_behind_a_block_of_its_users_is_read_as_matlab_writes_it(tmp_path, opened, everything):
    path = tmp_path / "x.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["data"] = np.arange(6.0).reshape(3, 2)
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64")
    assert everything(opened(str(path)))["data"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_leveldb_that_was_copied_in_part_is_told(tmp_path):
    plyvel = pytest.importorskip("plyvel")
    with plyvel.DB(str(tmp_path / "db"), create_if_missing=True) as database:
        database.put(b"0", serialize(Datum(1, 1, 2, b"ab")))
    shutil.copytree(tmp_path / "db", tmp_path / "part", ignore=shutil.ignore_patterns("CURRENT"))
    assert "the file CURRENT of its LevelDB is missing" in failure(tmp_path / "part")
