"""IDX files: real MNIST, files made by hand, and every way in which one can be invalid."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import struct
import sys
from contextlib import closing

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from demitasse import DataError, DataSpec
from demitasse_datasets import idx
from demitasse_datasets.plugin import data_source

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array, code=None):
    """Return an IDX file, written from the format's definition."""
    kind = array.dtype.str[1:]
    head = struct.pack(">BBBB", 0, 0, CODES[kind] if code is None else code, array.ndim)
    head += b"".join(struct.pack(">I", n) for n in array.shape)
    return head + array.astype(f">{kind}").tobytes()


def failure(source, kind=None, **options):
    with pytest.raises(DataError) as caught:
        data_source(spec=DataSpec(str(source), kind, options=options))
    return str(caught.value)


@pytest.mark.parametrize(
    ("split", "size", "histogram", "digest"),
    [
        (
            "train",
            60000,
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
            "6bbc9ace898e44ae57da46a324031adb",
        ),
        ("test", 10000, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009], None),
    ],
)
def test_mnist_is_read_as_it_was_published(split, size, histogram, digest, shared, opened, everything):
    source = opened(f"{shared / 'mnist'}?split={split}")
    read = everything(source)
    assert source.size == size
    assert read["data"].shape == (size, 1, 28, 28)
    assert read["data"].dtype == read["label"].dtype == np.uint8
    assert np.bincount(read["label"]).tolist() == histogram
    if digest:
        head = struct.pack(">IIII", 0x803, size, 28, 28)
        assert hashlib.md5(head + read["data"].tobytes()).hexdigest() == digest


def test_the_labels_of_mnist_are_found_beside_its_images(shared, opened):
    source = opened(shared / "mnist" / "t10k-images-idx3-ubyte.gz")
    out = {"data": np.empty((4, 1, 28, 28), np.float32), "label": np.empty(4, np.int32)}
    source.stream(0, 4, 4).read(out)
    assert out["label"].tolist() == [7, 2, 1, 0]
    assert out["data"][0].sum() == 18454


@settings(max_examples=examples(40))
@given(
    st.sampled_from(sorted(CODES)).flatmap(
        lambda kind: npst.arrays(kind, npst.array_shapes(min_dims=1, max_dims=5, max_side=4))
    ),
    st.sampled_from(["", ".gz", ".xz", ".bz2"]),
)
def test_any_element_type_and_rank_is_read(tmp_path_factory, array, ending):
    import bz2

    packers = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
    path = tmp_path_factory.mktemp("idx") / f"samples.idx{ending}"
    path.write_bytes(packers[ending](idx_bytes(array)))
    source = data_source(spec=DataSpec(path))
    shape = array.shape[1:] if array.ndim != 3 else (1, *array.shape[1:])
    assert source.fields["data"].shape == shape
    assert source.fields["data"].dtype == array.dtype.name
    out = np.empty((source.size, *shape), array.dtype)
    source.stream(0, source.size, source.size).read({"data": out})
    source.close()
    assert out.tobytes() == array.tobytes()


def test_a_large_plain_file_is_mapped_and_reads_the_same(
    tmp_path, pack, opened, everything, monkeypatch
):
    array = np.arange(5 * 4 * 3, dtype=">f8").reshape(5, 4, 3)
    path = pack(tmp_path / "samples.idx", idx_bytes(array))
    monkeypatch.setattr(idx, "MAPPED_FROM", 1)
    source = opened(path)
    assert isinstance(source._samples.columns["data"].base, np.memmap)
    np.testing.assert_array_equal(everything(source)["data"][:, 0], array)


def test_a_mapped_file_that_is_cut_off_meanwhile_is_an_error_that_names_it(
    tmp_path, pack, opened, monkeypatch
):
    path = pack(tmp_path / "samples.idx", idx_bytes(np.zeros((100, 28, 28))))
    monkeypatch.setattr(idx, "MAPPED_FROM", 1)
    source = opened(path)
    os.truncate(path, 4096)  # touching a mapped page that the file lacks would end the process
    stream = source.stream(50, 10, 10)
    with pytest.raises(DataError, match=r"samples\.idx: was cut off while it was read: 4,096 bytes of"):
        stream.read({"data": np.empty((10, 1, 28, 28))})
    stream.close()


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
        ("t10k-images-idx3-ubyte.xz", "t10k-labels-idx1-ubyte"),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte.bz2"),
        ("images.idx3-ubyte", "labels.idx1-ubyte"),
        ("emnist-Train-Images.idx3-ubyte.gz", "emnist-Train-Labels.idx1-ubyte.gz"),
        ("IMAGES.IDX", "LABELS.IDX"),
        ("image.idx", "label.idx"),
    ],
)
def test_labels_are_found_by_the_pattern_of_the_images_name(
    images, labels, tmp_path, pack, opened, everything
):
    pixels = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    pack(tmp_path / images, idx_bytes(pixels))
    pack(tmp_path / labels, idx_bytes(np.array([5, 0, 4], np.uint8)))
    read = everything(opened(str(tmp_path / images)))
    np.testing.assert_array_equal(read["data"][:, 0], pixels)
    assert read["label"].tolist() == [5, 0, 4]


def test_labels_may_be_named_or_left_out(tmp_path, pack, opened, everything):
    images = pack(tmp_path / "x-images.idx", idx_bytes(np.zeros((2, 2, 2), np.uint8)))
    labels = pack(tmp_path / "other", idx_bytes(np.array([1, -70000], np.int32)))
    assert everything(opened(images, options={"labels": labels}))["label"].tolist() == [1, -70000]
    assert list(opened(images, options={"labels": False}).fields) == ["data"]


def test_a_folder_needs_a_split_when_it_has_both_and_prefers_plain_files(tmp_path, pack, opened):
    for split, size in (("train", 3), ("t10k", 2)):
        pixels = np.full((size, 1, 1), size, np.uint8)
        pack(tmp_path / f"{split}-images-idx3-ubyte.gz", idx_bytes(pixels))
        pack(tmp_path / f"{split}-labels-idx1-ubyte", idx_bytes(np.zeros(size, np.uint8)))
    assert "split=train or ?split=test" in failure(tmp_path)
    assert opened(f"{tmp_path}?split=train").size == 3
    assert opened(tmp_path, options={"split": "test"}).size == 2
    message = failure(f"{tmp_path}?split=tst")
    assert "unknown split 'tst'" in message and "'test'" in message
    (tmp_path / "train-images-idx3-ubyte.gz").unlink()
    assert opened(tmp_path).size == 2
    assert "found idx test" in failure(f"{tmp_path}?split=train")
    pack(tmp_path / "t10k-images-idx3-ubyte", idx_bytes(np.zeros((2, 9, 9), np.uint8)))
    assert opened(tmp_path).fields["data"].shape == (1, 9, 9)


def test_a_folder_of_something_else_is_another_plugins(tmp_path):
    (tmp_path / "part-0.tfrecord").write_bytes(b"...")
    assert data_source(spec=DataSpec(tmp_path)) is None
    assert "looked for the names of MNIST" in failure(tmp_path, "idx")


def test_a_file_of_something_else_is_another_plugins(tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0 not ours")
    assert data_source(spec=DataSpec(path)) is None
    message = failure(path, "idx")
    assert str(path) in message and "looks like a JPEG image" in message and "0x08" in message


def test_the_same_file_is_decoded_once_while_it_is_used(tmp_path, pack, opened, monkeypatch):
    path = pack(tmp_path / "samples.idx.gz", idx_bytes(np.zeros((2, 2), np.uint8)))
    read, real = [], idx.read_idx
    monkeypatch.setattr(idx, "read_idx", lambda path: read.append(path) or real(path))
    first, second = opened(path), opened(str(path))
    assert len(read) == 1
    stream = second.stream(0, 1, 1)
    first.close()
    opened(path).close()
    assert len(read) == 1
    second.close()
    del stream
    opened(path)
    assert len(read) == 2
    path.write_bytes(gzip.compress(idx_bytes(np.ones((3, 2), np.uint8))))
    assert opened(path).size == 3


GOOD = idx_bytes(np.arange(24, dtype=np.uint8).reshape(4, 3, 2))


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD[:-1], ["sample 3 of 4 is cut short", "24 bytes", "23 were found"]),
        (GOOD[:-7], ["sample 2 of 4", "24 bytes", "17 were found"]),
        (GOOD[:16], ["sample 0 of 4", "0 were found"]),
        (GOOD + b"\0", ["more bytes", "expected 24"]),
        (GOOD[:9], ["header is cut short", "9 bytes", "needs 16"]),
        (GOOD[:3], ["not an IDX file", "00 00 08"]),
        (b"something else", ["not an IDX file", "looks like text 'something else'", "0x08"]),
        (b"\0\0\x0a" + GOOD[3:], ["not an IDX file", "00 00 0a 03"]),
        (b"\0\0\x08\0", ["rank 0"]),
        (b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"x", ["rank 255"]),
        (b"\0\0\x08\1" + b"\0\0\0\0", ["no samples"]),
        (b"\0\0\x08\3" + b"\xff" * 12, ["promises", "79,228,162,458,924,105,385,300,197,375"]),
    ],
)
def test_a_wrong_file_is_named_with_what_was_expected(content, words, ending, tmp_path, pack):
    path = pack(tmp_path / f"x.idx3-ubyte{ending}", content)
    message = failure(path)
    for word in [str(path), *words]:
        assert word in message


@pytest.mark.parametrize("ending", [".gz", ".xz", ".bz2"])
def test_damaged_compressed_data_is_named(ending, tmp_path, pack):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), np.uint8)
    path = pack(tmp_path / f"x.idx3-ubyte{ending}", idx_bytes(pixels))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}[ending](path, "rb") as file:
        unpacked = 0
        with pytest.raises(EOFError):
            while part := file.read1(1):
                unpacked += len(part)
    message = failure(path)
    assert f"{path}: its" in message
    wanted = f", but {16 + pixels.size:,} were expected" if unpacked else ""  # unknown otherwise
    assert message.endswith(f"is cut off after {unpacked:,} unpacked bytes{wanted}")
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :])
    message = failure(path)
    assert str(path) in message and "is damaged" in message


@settings(max_examples=examples(60))
@given(st.data())
def test_no_damage_makes_another_error(tmp_path_factory, data):
    ending, packer = data.draw(st.sampled_from([("", bytes), (".gz", gzip.compress)]))
    content = bytearray(packer(GOOD))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("bad") / f"x.idx3-ubyte{ending}"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        data_source(spec=DataSpec(path)).close()
    except DataError as error:
        assert str(path) in str(error)


def test_an_absurd_header_allocates_nothing(tmp_path):
    import resource

    path = tmp_path / "x.idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\2" + struct.pack(">II", 1 << 16, 1 << 12)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "0 were found" in failure(path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < (1 << 28) // (1 if sys.platform == "darwin" else 1024) // 2


def test_empty_missing_and_forbidden_files_are_named(tmp_path, pack):
    empty = tmp_path / "empty.idx3-ubyte"
    empty.touch()
    assert failure(empty) == f"{empty} is empty (0 bytes)"
    there = pack(tmp_path / "train-images-idx3-ubyte.gz", GOOD)
    message = failure(tmp_path / "train-image-idx3-ubyte.gz")
    assert "no such file" in message and f"did you mean {str(there)!r}" in message
    assert "digits:train" in message
    assert f"there is no folder '{tmp_path / 'no'}'" in failure(tmp_path / "no" / "such" / "x.idx")
    assert "no such file" in failure(there, labels=tmp_path / "nowhere")


def test_images_whose_labels_are_not_there_do_where_nobody_asks_for_labels(tmp_path, pack):
    images = pack(tmp_path / "train-images-idx3-ubyte.gz", GOOD)
    for source in (images, f"{tmp_path}?split=train"):
        with closing(data_source(spec=DataSpec(str(source)))) as alone:
            assert list(alone.fields) == ["data"] and alone.size == 4
            message = alone.absent["label"]
            assert f"{images}: its labels are not beside it: no 'train-labels-idx1-ubyte.gz'" in message
    with closing(data_source(spec=DataSpec(f"{images}?labels=false"))) as alone:
        assert not alone.absent


def test_images_and_labels_must_agree_in_number(tmp_path, pack):
    images = pack(tmp_path / "images.idx", GOOD)
    labels = pack(tmp_path / "labels.idx", idx_bytes(np.zeros(5, np.uint8)))
    message = failure(images)
    assert all(word in message for word in [str(images), str(labels), "4 samples", "5"])


def test_idx_takes_one_file_of_images(tmp_path, pack):
    names = [str(pack(tmp_path / f"{i}.idx", GOOD)) for i in range(2)]
    assert "names 2 files" in failure(",".join(names))


def test_options_stand_behind_a_source(tmp_path, pack):
    images = pack(tmp_path / "train-images-idx3-ubyte", GOOD)
    with closing(data_source(spec=DataSpec(f"{images}?labels=false"))) as source:
        assert list(source.fields) == ["data"] and source.size == 4
    pack(tmp_path / "mine", idx_bytes(np.arange(4, dtype=np.uint8)))
    for labels in ("mine", tmp_path / "mine"):
        with closing(data_source(spec=DataSpec(f"{images}?labels={labels}"))) as source:
            assert list(source.fields) == ["data", "label"]
    with closing(data_source(spec=DataSpec(f"{tmp_path}?split=train&labels=false"))) as source:
        assert list(source.fields) == ["data"]
    mistaken = f"{images}?lables=x"
    assert data_source(spec=DataSpec(mistaken)) is None, "another plugin may have this option"
    told = "unknown option of a source 'lables'; did you mean 'labels'?"
    assert told in failure(mistaken, "idx")
    assert "labels is empty (valid: a file, true, false)" in failure(f"{images}?labels=")
