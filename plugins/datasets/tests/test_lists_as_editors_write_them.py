"""Lists as editors and other systems write them: byte order marks, line ends, names in other encodings;
and archives given in place of their contents."""

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
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
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


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_list_in_utf_16_is_read_where_it_says_so(encoding, picture, tmp_path, opened, everything):
    (tmp_path / "mäuse.png").write_bytes(picture[1])
    mark = "" if encoding == "utf-16" else "\ufeff"
    (tmp_path / "list.txt").write_bytes(f"{mark}mäuse.png 7\r\n".encode(encoding))
    assert everything(opened(str(tmp_path / "list.txt"), "images"))["label"].tolist() == [7]


def test_a_list_of_windows_names_files_in_folders(picture, tmp_path, opened, everything):
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "1.png").write_bytes(picture[1])
    (tmp_path / r"dogs\2.png").write_bytes(picture[1])  # a single name here, unlike on Windows
    (tmp_path / "list.txt").write_text("cats\\1.png 3\r\ndogs\\2.png 4\r\n")
    read = everything(opened(str(tmp_path / "list.txt"), "images"))
    assert read["label"].tolist() == [3, 4]
    np.testing.assert_array_equal(read["data"][0], picture[0].transpose(2, 0, 1))
    with h5py.File(tmp_path / "cats" / "a.h5", "w") as file:
        file["data"] = np.arange(6).reshape(3, 2)
    (tmp_path / "files.txt").write_text("cats\\a.h5\r\n")
    assert everything(opened(str(tmp_path / "files.txt"), "hdf5"))["data"].shape == (3, 2)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_list_without_labels_has_them_all_0_as_in_caffe(
    end, picture, tmp_path, opened, everything, caplog
):
    for name in ("a b.PNG", "2.png"):
        (tmp_path / name).write_bytes(picture[1])
    (tmp_path / "list.txt").write_text(f"a b.PNG{end}2.png{end}", newline="")
    read = everything(opened(str(tmp_path / "list.txt"), "images"))
    assert (read["data"].shape, read["label"].tolist()) == ((2, 3, 4, 6), [0, 0])
    assert caplog.messages == [f"{tmp_path / 'list.txt'}: no line has a label: all 2 are 0, as in Caffe"]
    caplog.clear()
    assert [*everything(opened(str(tmp_path / "list.txt"), "images", options={"labels": False}))] == [
        "data"
    ]
    assert not caplog.messages


def test_a_label_that_is_a_whole_number_may_have_a_point(picture, tmp_path, opened, everything):
    (tmp_path / "a.png").write_bytes(picture[1])
    (tmp_path / "a.jp2").write_bytes(picture[1])  # its name ends like a number
    (tmp_path / "list.txt").write_text("a.png 3.000\na.png -1.\na.jp2 2\n")
    assert everything(opened(str(tmp_path / "list.txt"), "images"))["label"].tolist() == [3, -1, 2]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("# path label", "lists have no comments"),
        ("a.png b.png", "DenseImageData and ImageSegData, kind image_pairs"),
        ("a.png a.xml", "demitasse convert_annoset"),
        ("a.png  66.07", "into an HDF5 file, for an HDF5Data layer"),
        ("a.png 0.5 1 1", "into an HDF5 file, for an HDF5Data layer"),
        ("a.png,1", "it has ',' instead of the blank"),
        ("train.h5", "for the layer HDF5Data"),
        ("a.png\na.png 1", "others have a label"),
        ("a.png 1\nb.png", "others have a label"),
    ],
)
def test_a_line_of_another_kind_of_list_says_where_it_goes(line, told, picture, tmp_path):
    (tmp_path / "a.png").write_bytes(picture[1])
    (tmp_path / "list.txt").write_text(f"{line}\n")
    with pytest.raises(DataError, match="is not a path, a blank and a label") as caught:
        data_source(spec=DataSpec(str(tmp_path / "list.txt"), "images"))
    assert told in str(caught.value)


def test_the_first_folder_that_is_not_there_is_told(picture, tmp_path):
    (tmp_path / "list.txt").write_text("/nowhere/some/images/a.png 1\n")
    with pytest.raises(DataError, match=r"No such file or directory; there is no folder '/nowhere'$"):
        data_source(spec=DataSpec(str(tmp_path / "list.txt"), "images"))


def test_a_list_of_hdf5_files_may_begin_with_the_mark_of_a_byte_order(tmp_path, opened, everything):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data"] = np.arange(6).reshape(3, 2)
    (tmp_path / "list.txt").write_bytes("\ufeffa.h5\r\n\r\na.h5\r\n".encode())
    read = everything(opened(str(tmp_path / "list.txt"), "hdf5"))
    assert read["data"].tolist() == [[0, 1], [2, 3], [4, 5]] * 2


@pytest.mark.parametrize("folder", ["/data/somebody/caffe", "D:\\caffe", "/data/somebody"])
def test_a_list_of_hdf5_files_that_moved_finds_them_beside_it(
    folder, tmp_path, opened, everything, caplog
):
    (tmp_path / "caffe").mkdir()
    for place, value in ((tmp_path, 1), (tmp_path / "caffe", 2)):
        with h5py.File(place / "a.h5", "w") as file:
            file["data"] = np.full((1, 2), value)
    sign = "\\" if "\\" in folder else "/"
    listed = [f"{folder}{sign}a.h5", f"{folder}{sign}none{sign}a.h5"]
    (tmp_path / "list.txt").write_text("\n".join(listed))
    read = everything(opened(str(tmp_path / "list.txt"), "hdf5"))["data"][:, 0].tolist()
    assert read == [2 if folder.endswith("caffe") else 1, 1]
    assert caplog.messages[0].startswith(f"{tmp_path / 'list.txt'}:1: {listed[0]} was not found; using")
    assert caplog.messages[0].endswith("a.h5 (and 1 more)")


def test_an_image_given_for_a_list_is_no_text(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 JFIF\n")
    with pytest.raises(DataError, match=r"photo\.jpg: is not text: byte 0 is not UTF-8"):
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
