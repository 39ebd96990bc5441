"""HDF5 files of one list whose datasets differ in element type."""

import itertools
import os

import h5py
import numpy as np
import pytest

from demitasse import DataError

TYPES = {
    "uint8": [1, 255],
    "int8": [-128, 127],
    "int32": [-(2**31), 70_000],
    "float32": [0.25, -1.5],
    "int64": [-(2**40), 2**52],
    "uint64": [2**52, 3],
}


@pytest.mark.parametrize("types", list(itertools.permutations(TYPES, 2)))
def test_files_of_different_element_types_keep_all_their_numbers(tmp_path, opened, everything, types):
    for name in types:
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["label"] = np.array(TYPES[name], name)
    (tmp_path / "list.txt").write_text("".join(f"{name}.h5\n" for name in types))
    read = everything(opened(str(tmp_path / "list.txt"), "hdf5"))
    assert read["label"].tolist() == [number for name in types for number in TYPES[name]]
    assert read["label"].dtype == np.result_type(*types)


def raw(file, folder):
    file.create_dataset("data", (4, 2), "u1", external=[(str(folder / "secret.txt"), 0, 8)])


def external(file, folder):
    file["data"] = h5py.ExternalLink(str(folder / "other.h5"), "rows")


def behind(file, folder):
    file["group"] = h5py.ExternalLink(str(folder / "other.h5"), "/")
    file["data"] = h5py.SoftLink("/group/rows")


def virtual(file, folder):
    layout = h5py.VirtualLayout((4, 2), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "other.h5"), "rows", (4, 2))
    file.create_virtual_dataset("data", layout)


def pipe(file, folder):
    os.mkfifo(folder / "pipe.h5")
    file["group"] = h5py.ExternalLink(str(folder / "pipe.h5"), "/")
    file["data"] = h5py.SoftLink("/group/rows")


@pytest.mark.parametrize("place", [raw, external, behind, virtual, pipe])
def test_what_lies_in_another_file_is_not_opened(tmp_path, opened, place):
    """An HDF5 file from a stranger may refer to any file that its reader can read, as samples."""
    (tmp_path / "secret.txt").write_bytes(b"password")
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["rows"] = np.zeros((4, 2), "f4")
    path = tmp_path / "samples.h5"
    with h5py.File(path, "w") as file:
        place(file, tmp_path)
    # Holding the pipe open keeps the test from blocking, should it fail.
    held = os.open(tmp_path / "pipe.h5", os.O_RDWR) if place is pipe else None
    for names in ("data",), ():
        with pytest.raises(DataError, match=r"samples\.h5: dataset '\w+' is not in this file .*list"):
            opened(str(path), "hdf5", options={"fields": names})
    if held is not None:
        os.close(held)


def test_a_link_within_the_file_is_followed(tmp_path, opened, everything):
    path = tmp_path / "samples.h5"
    with h5py.File(path, "w") as file:
        file["group/rows"] = np.arange(8, dtype="f4").reshape(4, 2)
        file["group/here"] = h5py.SoftLink("./rows")
        file["data"] = h5py.SoftLink("/group/here")
        file["nothing"] = h5py.SoftLink("/group/none")
        file["round"] = h5py.SoftLink("/round")
    for name in ("data", "group/here", "/group/rows"):
        read = everything(opened(str(path), "hdf5", options={"fields": (name,)}))
        assert read[name].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    for name, told in (
        ("nothing", "unknown dataset"),
        ("round", "point to each other"),
        ("group", "group"),
    ):
        with pytest.raises(DataError, match=told):
            opened(str(path), "hdf5", options={"fields": (name,)})
