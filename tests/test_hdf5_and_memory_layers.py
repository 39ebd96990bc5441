"""Layers whose samples come from HDF5 files, from the caller or from fillers, and HDF5Output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from real_files import DATA
from small_nets import net_of

import demitasse
from demitasse import DataError, ModelError

HDF5 = DATA / "hdf5"


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose() as made:
        yield made


@pytest.mark.skipif(not HDF5.is_dir(), reason=f"no HDF5 files under {DATA}")
def test_real_hdf5_files_are_read_by_the_names_of_the_tops(runtime: Any, tmp_path: Path) -> None:
    names = ("sample_data.h5", "sample_data_2_gzip.h5")
    (tmp_path / "list.txt").write_text("".join(f"{HDF5 / name}\n" for name in names))
    made = net_of(
        runtime,
        tmp_path,
        """layer { name: "d" type: "HDF5Data" top: "label2" top: "data" top: "label"
           hdf5_data_param { source: "list.txt" batch_size: 7 } }""",
    )
    stored: dict[str, list[np.ndarray]] = {"data": [], "label": [], "label2": []}
    for name in names:
        with h5py.File(HDF5 / name) as file:
            for key, arrays in stored.items():
                arrays.append(file[key][...])
    whole = {key: np.concatenate(arrays) for key, arrays in stored.items()}
    size = len(whole["data"])
    for batch in range(5):
        numbers = np.arange(7 * batch, 7 * batch + 7) % size
        found = made.forward()
        for key, array in whole.items():
            np.testing.assert_allclose(found[key], array[numbers], rtol=1e-6)


def test_a_file_that_the_script_itself_has_open_is_read(runtime: Any, tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    with h5py.File(tmp_path / "samples.h5", "w") as written:
        written["data"] = values
    (tmp_path / "list.txt").write_text("samples.h5\n")
    text = """layer { name: "d" type: "HDF5Data" top: "data"
                      hdf5_data_param { source: "list.txt" batch_size: 4 } }"""
    with h5py.File(tmp_path / "samples.h5") as held, net_of(runtime, tmp_path, text) as net:
        assert np.array_equal(net.forward()["data"], values)
        assert np.array_equal(held["data"], values)


def test_hdf5_output_writes_the_blobs_of_the_last_forward(runtime: Any, tmp_path: Path) -> None:
    path = tmp_path / "out.h5"
    made = net_of(
        runtime,
        tmp_path,
        f"""layer {{ name: "in" type: "Input" top: "x" top: "y"
          input_param {{ shape {{ dim: 3 dim: 2 }} shape {{ dim: 3 }} }} }}
        layer {{ name: "relu" type: "ReLU" bottom: "x" top: "r" }}
        layer {{ name: "out" type: "HDF5Output" bottom: "r" bottom: "y"
          hdf5_output_param {{ file_name: "{path}" }} }}""",
    )
    for sign in (1, -1):
        x = sign * np.arange(-2.0, 4.0).reshape(3, 2)
        made.forward(x=x, y=sign * np.arange(3))
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["data"], np.maximum(x, 0))
            np.testing.assert_array_equal(file["label"], sign * np.arange(3))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.prototxt", "out.h5"]
    path.write_text("notes")
    with pytest.raises(DataError, match=r"out\.h5: exists and is not an HDF5 file"):
        made.forward(x=x, y=np.arange(3))
    assert path.read_text() == "notes"


MEMORY = """layer { name: "m" type: "MemoryData" top: "x" top: "y"
  memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 }
  transform_param { mean_value: 1 scale: 2 } }"""


def test_memory_data_takes_arrays_as_inputs_or_as_samples(runtime: Any, tmp_path: Path) -> None:
    x = np.arange(120).reshape(2, 3, 4, 5)
    found = net_of(runtime, tmp_path, MEMORY).forward(x=x, y=[1, 0])
    np.testing.assert_array_equal(found["x"], x)
    samples = {"data": np.repeat(x, 2, axis=0).astype(np.uint8), "label": np.arange(4)}
    made = net_of(runtime, tmp_path, MEMORY, data={"test": samples})
    for batch in range(3):
        found = made.forward()
        np.testing.assert_array_equal(found["x"][0], 2 * (x[batch % 2] - 1.0))
        assert found["y"].tolist() == [2 * batch % 4, 2 * batch % 4 + 1]
    samples["data"] = samples["data"][:, :2]
    with pytest.raises(ModelError, match=r"have shape \(2, 4, 5\), but \(3, 4, 5\) is declared"):
        net_of(runtime, tmp_path, MEMORY, data={"test": samples})
    samples["data"] = samples["data"][:3]
    with pytest.raises(DataError, match="'data' has 3 samples, but field 'label' has 4"):
        net_of(runtime, tmp_path, MEMORY, data={"test": samples})


DUMMY = """layer { name: "d" type: "DummyData" top: "a" top: "b" top: "c" dummy_data_param {
  data_filler { type: "constant" value: 3 } data_filler { type: "gaussian" mean: 5 std: 2 }
  data_filler { type: "uniform" min: 1 max: 2 }
  shape { dim: 4 dim: 2 } shape { dim: 50 dim: 40 } shape { dim: 4 dim: 100 } } }"""


@pytest.mark.parametrize("phase", ["train", "test"])
def test_dummy_data_is_filled_once_with_constants_and_anew_with_random_numbers(
    runtime: Any, tmp_path: Path, phase: str
) -> None:
    one, other = (net_of(runtime, tmp_path, DUMMY, phase=phase, seed=4) for _ in range(2))
    first, second = one.forward(), one.forward()
    assert (first["a"] == 3).all() and (second["a"] == 3).all()
    assert first["b"].mean() == pytest.approx(5, abs=0.2) and first["b"].std() == pytest.approx(
        2, abs=0.1
    )
    assert 1 <= first["c"].min() < 1.1 and 1.9 < first["c"].max() < 2
    for name in ("b", "c"):
        assert (first[name] != second[name]).all()
        assert abs(np.corrcoef(first[name].ravel(), second[name].ravel())[0, 1]) < 0.15
        np.testing.assert_array_equal(other.forward()[name] if name == "b" else first["c"], first[name])
    assert first["b"].shape == (50, 40)


def test_dummy_data_takes_the_four_numbers_of_old(runtime: Any, tmp_path: Path) -> None:
    found = net_of(
        runtime,
        tmp_path,
        """layer { name: "d" type: "DummyData" top: "a" top: "b" dummy_data_param {
             num: 2 channels: 3 channels: 1 height: 4 width: 5 } }""",
    ).forward()
    assert (found["a"].shape, found["b"].shape) == ((2, 3, 4, 5), (2, 1, 4, 5))
    assert not found["a"].any()


@pytest.mark.parametrize("phase", ["train", "test"])
def test_classes_that_dummy_data_fills_are_cut_off(runtime: Any, tmp_path: Path, phase: str) -> None:
    def losses(fillers: str) -> dict[str, Any]:
        text = f"""layer {{ name: "d" type: "DummyData" top: "x" top: "label" top: "target"
             dummy_data_param {{ shape {{ dim: 4 dim: 3 }} shape {{ dim: 4 }} shape {{ dim: 4 dim: 3 }}
             {fillers} }} }}
           layer {{ name: "l" type: "SoftmaxWithLoss" bottom: "x" bottom: "label" top: "loss" }}
           layer {{ name: "a" type: "Accuracy" bottom: "x" bottom: "label" top: "share" }}
           layer {{ name: "e" type: "EuclideanLoss" bottom: "x" bottom: "target" top: "distance" }}"""
        found: dict[str, Any] = net_of(runtime, tmp_path, text, phase=phase, seed=4).forward()
        return found

    def three(label: float) -> str:
        fills = f'data_filler {{ type: "gaussian" }} data_filler {{ value: {label} }}'
        return fills + " data_filler { value: 0.5 }"

    cut, whole = losses(three(1.75)), losses(three(1))
    assert cut["loss"] == whole["loss"] != losses(three(2))["loss"]
    alike = losses('data_filler { type: "constant" value: 0.01 }')
    assert alike["loss"] == pytest.approx(np.log(3))
    assert alike["distance"] == 0  # what is no class is left as it is
    with pytest.raises(DataError, match="layer 'l': label 3 of sample 0"):
        losses(three(3.5))
