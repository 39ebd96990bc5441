"""Lists as editors and other systems leave them: marks of a byte order, ends of lines, names in other
encodings; and archives given for what is in them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile

import h5py
import numpy as np
import pytest

from demitasse import DataError, DataSpec
from demitasse_datasets.plugin import data_source

cv2 = pytest.importorskip("cv2")


@pytest.fixture
def picture():
    """A PNG of 4 x 6 pixels and its bytes."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
    return pixels, cv2.imencode(".png", pixels)[1].tobytes()


@pytest.mark.parametrize(
    "name",
    [b"a.png", "mäuse 1.png".encode(), "mäuse.png".encode("latin-1"), "图.png".encode("gbk")],
)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_list_names_any_file_that_the_system_can_have(
    name, mark, end, picture, tmp_path, opened, everything
):
    pixels, data = picture
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:  # noqa: PTH118, PTH123  bytes
        file.write(data)
    path = tmp_path / "list.txt"
    path.write_bytes(mark + name + b" 7" + end + end)
    read = everything(opened(str(path), "images"))
    np.testing.assert_array_equal(read["data"][0], pixels.transpose(2, 0, 1))
    assert read["label"].tolist() == [7]


def test_a_list_of_hdf5_files_may_begin_with_the_mark_of_a_byte_order(tmp_path, opened, everything):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.arange(6).reshape(3, 2)
    (tmp_path / "list.txt").write_bytes("\ufeffa.h5\r\n\r\na.h5\r\n".encode())
    read = everything(opened(str(tmp_path / "list.txt"), "hdf5"))
    assert read["data"].tolist() == [[0, 1], [2, 3], [4, 5]] * 2


def test_an_image_given_for_a_list_is_no_text(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 JFIF\n")
    with pytest.raises(DataError, match=r"photo\.jpg: is no text: byte 0 is not UTF-8"):
        data_source(spec=DataSpec(str(tmp_path / "photo.jpg"), "images"))


def tar_of(name):
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return whole.getvalue()


def zip_of(name):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr(name, b"")
    return whole.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("cifar-10-binary.tar.gz", gzip.compress(tar_of("data_batch_1.bin")), "a tar archive in gzip"),
        ("mnist.tar", tar_of("train-images-idx3-ubyte"), "a tar archive;"),
        ("mnist.zip", zip_of("train-images-idx3-ubyte"), "a zip archive;"),
    ],
)
def test_an_archive_is_to_be_unpacked(name, content, what, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=what) as caught:
        data_source(spec=DataSpec(str(tmp_path / name)))
    assert str(tmp_path / name) in str(caught.value) and "unpack it" in str(caught.value)
