"""``demitasse extract_features``: blobs of a net, by a formula in float64 and other readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest

import demitasse
from demitasse import Weights
from demitasse_caffe.pycaffe.proto import caffe_pb2
from demitasse_cli.main import main

Capture = pytest.CaptureFixture[str]

NET = """
name: "features"
layer {
  name: "digits" type: "Data" top: "data" top: "label"
  transform_param { scale: 0.0625 }
  data_param { source: "digits:test" batch_size: 100 }
}
layer {
  name: "low" type: "InnerProduct" bottom: "data" top: "low"
  inner_product_param { num_output: 7 }
}
layer { name: "bend" type: "ReLU" bottom: "low" top: "low" }
layer {
  name: "high" type: "InnerProduct" bottom: "low" top: "high"
  inner_product_param { num_output: 10 }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "high" bottom: "label" top: "loss" }
"""


class Case:
    """A net with weights in files, and its blobs ``low`` (rectified) and ``high`` in float64."""

    def __init__(self, folder: Path) -> None:
        from sklearn.datasets import load_digits

        random = np.random.default_rng(3)
        self.net, self.weights = folder / "net.prototxt", folder / "net.caffemodel"
        self.net.write_text(NET)
        parameters = {
            "low": [random.standard_normal((7, 64)), random.standard_normal(7)],
            "high": [random.standard_normal((10, 7)), random.standard_normal(10)],
        }
        with demitasse.compose() as runtime:
            runtime.write(self.weights, Weights(parameters))
        # digits:test is the first fifth of a permutation, ascending (plugins/datasets/README.md).
        order = np.sort(np.asarray(demitasse.permutation(0, 0, 1797))[:359])
        pictures = load_digits()
        x = pictures.images[order].reshape(359, 64) / 16
        (w, b), (v, c) = parameters["low"], parameters["high"]
        self.label = pictures.target[order]
        self.low = np.maximum(x @ w.T + b, 0)
        self.high = self.low @ v.T + c


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("features"))


def run(*arguments: object) -> int:
    return main(["extract_features", *map(str, arguments)])


def records(folder: Path) -> dict[bytes, Any]:
    """A database's messages, by LMDB's own package and protobuf's."""
    with lmdb.open(str(folder), readonly=True, lock=False) as database, database.begin() as transaction:
        return {key: caffe_pb2.Datum.FromString(value) for key, value in transaction.cursor()}


def test_all_samples_become_records_as_caffe_writes_them(
    case: Case, tmp_path: Path, capsys: Capture
) -> None:
    targets = f"{tmp_path}/low_db,{tmp_path}/high_db"
    assert run(case.weights, case.net, "low,high", targets) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"wrote {tmp_path}/low_db (lmdb): low 359 x 7",
        f"wrote {tmp_path}/high_db (lmdb): high 359 x 10",
    ]
    for name, right in (("low_db", case.low), ("high_db", case.high)):
        found = records(tmp_path / name)
        assert list(found) == [b"%010d" % number for number in range(359)]
        shapes = {(datum.channels, datum.height, datum.width) for datum in found.values()}
        assert shapes == {(right.shape[1], 1, 1)}
        values = np.array([datum.float_data for datum in found.values()])
        np.testing.assert_allclose(values, right, rtol=1e-5, atol=1e-5)


def test_batches_go_round_and_suffixes_tell_the_format(
    case: Case, tmp_path: Path, capsys: Capture
) -> None:
    whole, rows = tmp_path / "both.h5", tmp_path / "high.npy"
    assert run(case.net, case.weights, "low,label", whole, "4") == 0  # also in this order
    assert run(case.weights, case.net, "high", rows, "GPU", "0") == 0
    assert capsys.readouterr().err == "demitasse: GPU 0 has no effect: --hw says where the net runs\n"
    around = np.arange(400) % 359
    with h5py.File(whole) as file:
        np.testing.assert_allclose(file["low"][:], case.low[around], rtol=1e-5, atol=1e-5)
        assert (file["label"][:] == case.label[around]).all()
    np.testing.assert_allclose(np.load(rows), case.high, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["hihg", "{t}/a"],
            "net.prototxt: unknown blob 'hihg'; did you mean 'high'? (valid: data, high",
        ),
        (["loss", "{t}/a"], "blob 'loss' has the shape (), not one row for each of the 100 samples"),
        (["high", "{t}/kept"], "kept already exists; force (--force) overwrites it"),
        (["low,high", "{t}/a"], "2 blobs (low,high) need as many names, not '"),
        (["high", "{t}/a", "leveldb"], "LevelDB cannot be written; give one of lmdb, hdf5, npy"),
        (["high", "{t}/a", "0"], "'0' is neither a number of batches nor one of lmdb, hdf5, npy"),
        (["low,high", "{t}/a.npy,{t}/a.npy"], "a.npy is given for the blobs 'low' and 'high'"),
        (["high", "{t}/kept/a.npy"], "kept/a.npy cannot be written: "),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    case: Case, tmp_path: Path, capsys: Capture, words: list[str], said: str
) -> None:
    (tmp_path / "kept").write_text("kept")
    assert run(case.weights, case.net, *(word.format(t=tmp_path) for word in words)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "kept"


def test_a_failure_midway_keeps_what_was_there(case: Case, tmp_path: Path) -> None:
    with demitasse.compose() as runtime:
        targets = {"low": tmp_path / "low_db", "high": tmp_path / "high.npy"}
        runtime.program("extract_features", case.net, case.weights, targets, batches=1)
        before = records(tmp_path / "low_db"), (tmp_path / "high.npy").read_bytes()

        def stop(rows: int) -> None:
            if rows == 200:
                raise RuntimeError("stop")

        again = {"batches": 3, "force": True, "progress": stop}
        with pytest.raises(RuntimeError, match="stop"):
            runtime.program("extract_features", case.net, case.weights, targets, **again)
        assert (records(tmp_path / "low_db"), (tmp_path / "high.npy").read_bytes()) == before
        assert {path.name for path in tmp_path.iterdir()} == {"low_db", "high.npy"}
        again["progress"] = None
        made = runtime.program("extract_features", case.net, case.weights, targets, **again)
        assert made["low"].shape == (300, 7)
        assert len(records(tmp_path / "low_db")) == 300


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is full")
@pytest.mark.parametrize("name", ["full.npy", "full.h5"])
def test_a_full_disk_is_told_in_a_line(case: Case, tmp_path: Path, capsys: Capture, name: str) -> None:
    """Not by the end of the process, as of mapped memory that finds no room."""
    target = tmp_path / name
    target.symlink_to("/dev/full")
    assert run(case.weights, case.net, "high", target, "--force") == 2
    assert (
        capsys.readouterr().err == f"demitasse: {target}: cannot be written: No space left on device\n"
    )
    assert target.is_symlink()


def test_rows_are_never_written_by_mapped_memory(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(np.lib.format, "open_memmap")
    assert run(case.weights, case.net, "high", tmp_path / "high.npy") == 0
    assert np.load(tmp_path / "high.npy").shape == (359, 10)
