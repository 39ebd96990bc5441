"""CIFAR's Python batches: as written by Python 2, in the protocols of today's Python, and invalid
ones."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest

from demitasse import DataError, DataSpec
from demitasse_datasets.plugin import data_source


def batch(size=5, seed=0, classes=10):
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (size, 3072), np.uint8)
    return pixels, random.integers(0, classes, size).tolist()


def by_python_2(pixels, labels):
    """Return the bytes of a batch as written by Python 2's cPickle and NumPy 1: byte strings, protocol
    2."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nq\x06K\x00\x85U\x01b\x87Rq\x07"
        + b"(K\x01J" + struct.pack("<i", len(pixels)) + b"M" + struct.pack("<H", 3072) + b"\x86"
        + b"cnumpy\ndtype\nq\x08U\x02u1K\x00K\x01\x87Rq\x09(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2
        + b"K\x00tb\x89T" + struct.pack("<i", pixels.nbytes) + pixels.tobytes() + b"tb"
    )  # fmt: skip
    listed = b"]q\x03(" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    items = text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + listed
    return b"\x80\x02}q\x01(" + items + text(b"data") + array + b"u."


def failure(source, kind=None):
    with pytest.raises(DataError) as caught:
        data_source(spec=DataSpec(str(source), kind))
    return str(caught.value)


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_a_batch_that_python_2_wrote_is_read(ending, tmp_path, pack, opened, everything):
    pixels, labels = batch()
    path = pack(tmp_path / f"data_batch_1{ending}", by_python_2(pixels, labels))
    by_python = pickle.loads(by_python_2(pixels, labels), encoding="latin1")  # noqa: S301  our own
    assert by_python["labels"] == labels
    read = everything(opened(str(path)))
    np.testing.assert_array_equal(read["data"], pixels.reshape(-1, 3, 32, 32))
    assert read["label"].tolist() == labels


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("keys", ["text", "bytes"])
@pytest.mark.parametrize("as_array", [False, True])
def test_batches_of_todays_python_are_read(protocol, keys, as_array, tmp_path, opened, everything):
    pixels, labels = batch(300, protocol)
    content = {
        "batch_label": "testing batch 1 of 1",
        "labels": np.array(labels) if as_array else labels,
        "data": np.asfortranarray(pixels) if as_array else pixels,
        "filenames": [f"{i}.png" for i in range(300)],
    }
    if keys == "bytes":
        content = {name.encode(): value for name, value in content.items()}
    path = tmp_path / "test_batch"
    path.write_bytes(pickle.dumps(content, protocol))
    read = everything(opened(str(path)))
    np.testing.assert_array_equal(read["data"].reshape(-1, 3072), pixels)
    assert read["label"].tolist() == labels


def test_cifar100_has_fine_and_coarse_labels(tmp_path, opened, everything):
    pixels, fine = batch(4, 1, 100)
    coarse = [label // 5 for label in fine]
    content = {"fine_labels": fine, "coarse_labels": coarse, "data": pixels}
    (tmp_path / "train").write_bytes(pickle.dumps(content, 2))
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": ["apple"]}, 2))
    read = everything(opened(f"{tmp_path}?split=train"))
    assert read["label"].tolist() == fine
    assert read["coarse_label"].tolist() == coarse
    assert "'fine_label_names'" not in failure(f"{tmp_path}?split=test")
    assert "no 'data' (it has fine_label_names)" in failure(tmp_path / "meta")


def test_a_folder_of_batches_is_split_by_its_names_and_each_batch_is_read_once(
    tmp_path, opened, everything
):
    expected = []
    for number in (1, 2, 10):
        pixels, labels = batch(3, number)
        expected += labels
        (tmp_path / f"data_batch_{number}").write_bytes(by_python_2(pixels, labels))
    pixels, labels = batch(3, 2)
    flat = np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1)
    (tmp_path / "data_batch_2.bin").write_bytes(flat.tobytes())
    (tmp_path / "test_batch").write_bytes(by_python_2(*batch(2, 7)))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({"label_names": ["airplane"]}, 2))
    assert everything(opened(f"{tmp_path}?split=train"))["label"].tolist() == expected
    assert opened(f"{tmp_path}?split=test").size == 2


class Harmful:
    """Unpickling this would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_in_a_pickle_is_run(protocol, tmp_path):
    made = tmp_path / "made"
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": Harmful(made), "labels": [1]}, protocol))
    message = failure(path)
    assert "open is not one of them" in message and str(path) in message
    assert not made.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": [1, 2]}, ["5 samples", "2 labels"]),
        ({"labels": [1, 2, 3, 4, 10]}, ["sample 4 has label 10", "0 to 9"]),
        ({"labels": [1, 2, 3, 4, -1]}, ["sample 4 has label -1"]),
        ({"labels": ["cat"] * 5}, ["'labels'", "whole numbers"]),
        ({"labels": [1 << 70] * 5}, ["at most 32 bits"]),
        ({"data": np.zeros((5, 3072), np.float32)}, ["'f4'", "u1"]),
        ({"data": np.zeros((5, 32, 32, 3), np.uint8)}, ["(5, 32, 32, 3)", "3072"]),
        ({"data": [0] * 3072}, ["no 'data'"]),
        ({"labels": None}, ["'labels'"]),
    ],
)
def test_a_wrong_batch_is_named_with_what_is_wrong(change, words, tmp_path):
    pixels, labels = batch()
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": pixels, "labels": labels, **change}, 2))
    message = failure(path)
    for word in [str(path), *words]:
        assert word in message


def test_a_kind_that_the_labels_do_not_fit_is_named(tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(by_python_2(*batch()))
    message = failure(path, "cifar100")
    assert "no 'coarse_labels', as CIFAR-100 has" in message and "'labels'" in message


def test_damaged_pickles_are_errors_and_never_anything_else(tmp_path):
    whole = by_python_2(*batch(1))
    path = tmp_path / "data_batch_1"
    for end in [*range(2, 400, 3), len(whole) - 1]:
        path.write_bytes(whole[:end])
        assert "cut off or damaged" in failure(path)
    random = np.random.default_rng(3)
    for _ in range(300):
        damaged = bytearray(whole)
        for at in random.integers(2, 330, 2):
            damaged[at] = random.integers(256)
        path.write_bytes(damaged)
        try:
            data_source(spec=DataSpec(str(path))).close()
        except DataError as error:
            assert str(path) in str(error)
