"""HDF5 files of one list whose datasets have different element types."""

import itertools

import h5py
import numpy as np
import pytest

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
