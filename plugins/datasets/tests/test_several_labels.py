"""Images with several labels, as forks with CTC list and store them."""

from __future__ import annotations

import io

import lmdb
import numpy as np
import pytest
from PIL import Image

from demitasse import DataError
from demitasse_datasets.convert import Form, from_files, write_lmdb
from demitasse_datasets.datum import Datum, parse, serialize
from demitasse_datasets.image_list import read_list


@pytest.fixture
def picture():
    """The bytes of an image file."""
    kept = io.BytesIO()
    Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3)).save(kept, "png")
    return kept.getvalue()


LABELS = [[3, 3, 0], [7, 0, 0], [-1, 12, 9]]


@pytest.fixture
def listed(picture, tmp_path):
    for name in ("a.png", "b c.png", "d 2.png"):
        (tmp_path / name).write_bytes(picture)
    path = tmp_path / "list.txt"
    path.write_text("a.png 3 3 0\nb c.png\t7  0 0\nd 2.png -1 12. 9\n")
    return path


def test_a_line_may_have_several(listed, opened, everything):
    source = opened(str(listed), "images")
    assert source.fields["label"].shape == (3,)
    np.testing.assert_array_equal(everything(source)["label"], LABELS)


def test_a_database_keeps_them(listed, tmp_path, opened, everything):
    entries = from_files(read_list(listed), f"{tmp_path}/", listed, Form(), shuffle=False, seed=0)
    assert write_lmdb(tmp_path / "db", entries) == 3
    source = opened(str(tmp_path / "db"), "lmdb")
    assert source.fields["label"].shape == (3,)
    np.testing.assert_array_equal(everything(source)["label"], LABELS)


def test_they_may_be_packed():
    record = Datum(1, 1, 2, b"ab", 5)
    bare = serialize(record).replace(b"\x28\x05", b"")
    found = parse(bare + b"\x2a\x04\x05\x07\xac\x02")
    assert found.labels == (5, 7, 300)
    assert parse(serialize(found)).labels == (5, 7, 300)
    assert parse(bare + b"\x28\x05").labels == 5


@pytest.mark.parametrize("line", ["b.png 1 2", "b.png 1 2 3 4", "b.png 1"])
def test_lines_have_as_many_as_the_first(line, tmp_path, picture):
    for name in "ab":
        (tmp_path / f"{name}.png").write_bytes(picture)
    (tmp_path / "list.txt").write_text(f"a.png 1 2 3\n{line}\n")
    count = len(line.split()) - 1
    with pytest.raises(
        DataError, match=rf"list\.txt:2: .* has {count} labels, but the first line 3; fill"
    ):
        read_list(tmp_path / "list.txt")


def test_records_have_as_many_as_the_first(tmp_path, opened, everything):
    with lmdb.open(str(tmp_path / "db")) as database, database.begin(write=True) as transaction:
        for number, labels in enumerate(([1, 2], [3, 4, 5])):
            record = Datum(1, 1, 1, b"x", labels[0], more=tuple(labels[1:]))
            transaction.put(f"{number}".encode(), serialize(record))
    with pytest.raises(DataError, match="has 3 labels, but the first record's 2; fill rows up"):
        everything(opened(str(tmp_path / "db"), "lmdb"))


def test_a_label_that_fits_no_32_bits_is_named(tmp_path):
    (tmp_path / "list.txt").write_text("a.png 1 3000000000\n")
    with pytest.raises(DataError, match=r"list\.txt:1: the label 3000000000 does not fit 32 bits"):
        read_list(tmp_path / "list.txt")


def test_a_layer_gives_rows_of_them(listed, tmp_path):
    import demitasse

    (tmp_path / "net.prototxt").write_text(
        'layer { name: "data" type: "ImageData" top: "data" top: "label" '
        f'image_data_param {{ source: "list.txt" root_folder: "{tmp_path}/" batch_size: 3 }} }}'
    )
    with demitasse.compose() as runtime:
        found = runtime.net(tmp_path / "net.prototxt").forward()
    np.testing.assert_array_equal(found["label"], LABELS)
