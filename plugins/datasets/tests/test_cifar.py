"""CIFAR's binary files: real ones, files made by hand, and invalid ones."""

from __future__ import annotations

import hashlib
import lzma

import numpy as np
import pytest

from demitasse import DataError, DataSpec
from demitasse_datasets import cifar
from demitasse_datasets.plugin import data_source


def records(size, classes=(10,), seed=0):
    """Return (labels, pixels, the bytes of a file) of random records."""
    random = np.random.default_rng(seed)
    labels = np.stack([random.integers(0, n, size, np.uint8) for n in classes], axis=1)
    pixels = random.integers(0, 256, (size, 3, 32, 32), np.uint8)
    data = b"".join(
        label.tobytes() + image.tobytes() for label, image in zip(labels, pixels, strict=True)
    )
    return labels, pixels, data


def failure(source, kind=None):
    with pytest.raises(DataError) as caught:
        data_source(spec=DataSpec(str(source), kind))
    return str(caught.value)


def test_the_real_test_batch_has_a_thousand_of_each_class(shared, unpacked_cifar, opened, everything):
    source = opened(f"{shared / 'cifar10'}?split=test")
    read = everything(source)
    assert source.fields["data"].shape == (3, 32, 32)
    assert source.fields["label"].shape == ()
    assert np.bincount(read["label"]).tolist() == [1000] * 10
    raw = unpacked_cifar("test_batch").read_bytes()
    flat = np.hstack([read["label"][:, None], read["data"].reshape(-1, 3072)])
    assert hashlib.sha256(flat.tobytes()).digest() == hashlib.sha256(raw).digest()


def test_the_real_training_batches_are_read_in_order(shared, unpacked_cifar, opened, everything):
    """One file is as published, after one that was decompressed."""
    names = lzma.decompress((shared / "cifar10" / "order.txt.xz").read_bytes()).decode()
    classes = (shared / "cifar10" / "batches.meta.txt").read_text().split()
    first_two = [
        line.split()[2] for line in names.splitlines() if "batch_1" in line or "batch_2" in line
    ]
    folder = shared / "cifar10"
    source = opened(f"{unpacked_cifar('data_batch_1')}, {folder / 'data_batch_2.bin.xz'}")
    labels = everything(source)["label"]
    assert source.size == 20000
    assert [classes[label] for label in labels] == [name.split("/")[0] for name in first_two]


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2"])
def test_cifar10_records_of_any_compression_are_read(ending, tmp_path, pack, opened, everything):
    labels, pixels, data = records(5)
    read = everything(opened(pack(tmp_path / f"data_batch_1.bin{ending}", data)))
    np.testing.assert_array_equal(read["data"], pixels)
    np.testing.assert_array_equal(read["label"], labels[:, 0])


def test_cifar100_records_have_a_fine_and_a_coarse_label(tmp_path, pack, opened, everything):
    labels, pixels, data = records(5, (20, 100))
    source = opened(pack(tmp_path / "train.bin", data))
    read = everything(source)
    assert list(source.fields) == ["data", "label", "coarse_label"]
    np.testing.assert_array_equal(read["data"], pixels)
    np.testing.assert_array_equal(read["coarse_label"], labels[:, 0])
    np.testing.assert_array_equal(read["label"], labels[:, 1])


def test_lists_and_patterns_are_read_in_the_order_of_their_numbers(tmp_path, pack, opened, everything):
    parts = {number: records(2, seed=number) for number in (1, 2, 9, 10)}
    for number, (_, _, data) in parts.items():
        pack(tmp_path / f"data_batch_{number}.bin.xz", data)
    expected = np.concatenate([labels[:, 0] for labels, _, _ in parts.values()])
    read = everything(opened(str(tmp_path / "data_batch_*.bin.xz")))
    np.testing.assert_array_equal(read["label"], expected)
    listed = f"{tmp_path / 'data_batch_9.bin.xz'},{tmp_path / 'data_batch_[12].bin.xz'}"
    read = everything(opened(listed))
    order = np.concatenate([parts[number][0][:, 0] for number in (9, 1, 2)])
    np.testing.assert_array_equal(read["label"], order)


def test_a_folder_is_split_by_its_names(tmp_path, pack, opened):
    for number in (1, 2):
        pack(tmp_path / f"data_batch_{number}.bin.gz", records(number)[2])
    pack(tmp_path / "data_batch_1.bin", records(1)[2])
    pack(tmp_path / "test_batch.bin", records(4)[2])
    (tmp_path / "batches.meta.txt").write_text("airplane\n")
    assert opened(f"{tmp_path}?split=train").size == 3
    assert opened(f"{tmp_path}?split=test").size == 4
    assert "cifar10 train, cifar10 test" in failure(tmp_path)


def test_a_folder_with_two_kinds_needs_a_kind(tmp_path, pack, opened):
    pack(tmp_path / "data_batch_1.bin", records(1)[2])
    pack(tmp_path / "train.bin", records(2, (20, 100))[2])
    assert "and a kind" in failure(f"{tmp_path}?split=train")
    assert opened(f"{tmp_path}?split=train", "cifar100").size == 2
    assert opened(f"{tmp_path}?split=train", "cifar10").size == 1


def test_a_common_multiple_of_both_record_sizes_is_told_by_name_or_kind(tmp_path, monkeypatch):
    length = 3073 * 3074
    chosen = {
        name: cifar._format(tmp_path / name, bytearray(length)).title
        for name in ("train.bin.xz", "data_batch_1.bin", "other.bin")
    }
    assert chosen == {
        "train.bin.xz": "CIFAR-100",
        "data_batch_1.bin": "CIFAR-10",
        "other.bin": "CIFAR-10",
    }


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b"", None, ["is empty"]),
        (bytes(3073 * 2 + 5), None, ["6,151 bytes", "3,073", "3,074", "sample 2", "found 5"]),
        (bytes(3073 * 2), "cifar100", ["3,074", "sample 1 is cut short", "found 3,072"]),
        (b"\x0a" + bytes(3072), None, ["sample 0 has label 10", "0 to 9"]),
        (b"\x01\x64" + bytes(3072), None, ["sample 0 has label 100", "0 to 99"]),
        (bytes(3074) + b"\x14" + bytes(3073), None, ["sample 1 has coarse_label 20"]),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(content, kind, words, tmp_path):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(content)
    message = failure(path, kind)
    for word in [str(path), *words]:
        assert word in message


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_an_error_in_one_file_of_many_names_that_file(ending, tmp_path, pack):
    for number in (1, 2, 3):
        pack(tmp_path / f"data_batch_{number}.bin{ending}", records(2)[2])
    bad = tmp_path / f"data_batch_2.bin{ending}"
    bad.write_bytes(bad.read_bytes()[:3000])
    message = failure(tmp_path / f"data_batch_*.bin{ending}")
    assert str(bad) in message and "is cut off" in message


def test_files_of_different_records_do_not_mix(tmp_path, pack):
    pack(tmp_path / "a.bin", records(2)[2])
    bad = pack(tmp_path / "b.bin", records(2, (20, 100))[2])
    message = failure(tmp_path / "*.bin")
    assert str(bad) in message and "CIFAR-10 record" in message


def test_a_pattern_must_match_and_match_once(tmp_path, pack):
    assert "no file matches" in failure(tmp_path / "data_batch_*.bin")
    pack(tmp_path / "data_batch_1.bin", records(1)[2])
    pack(tmp_path / "data_batch_1.bin.gz", records(1)[2])
    assert "the same samples twice" in failure(tmp_path / "data_batch_*")
    assert "a folder among others" in failure(f"{tmp_path},{tmp_path / 'data_batch_1.bin'}")


def test_what_unpacks_without_end_is_stopped(tmp_path, pack, monkeypatch):
    monkeypatch.setattr(cifar, "LARGEST_UNPACKED", 1 << 20)
    path = pack(tmp_path / "data_batch_1.bin.xz", bytes(4 << 20))
    assert "unpacks to more than 1,048,576 bytes" in failure(path)


def test_the_same_files_are_decoded_once(tmp_path, pack, opened, monkeypatch):
    path = pack(tmp_path / "test_batch.bin.xz", records(3)[2])
    read, real = [], cifar._read
    monkeypatch.setattr(cifar, "_read", lambda path: read.append(path) or real(path))
    first, second = opened(path), opened(path, shuffle=True)
    assert len(read) == 1
    assert first._samples is second._samples
