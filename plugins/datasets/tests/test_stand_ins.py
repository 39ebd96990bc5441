"""Random samples of given shapes that replace unavailable ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from demitasse import DataError, DataSpec
from demitasse_datasets.source import Source
from demitasse_datasets.stand_ins import MEMORY, MOST


def test_images_with_labels_stand_in_for_a_shape(opened, everything) -> None:
    source = opened("random:3x20x30")
    assert (source.fields["data"].shape, source.fields["data"].dtype) == ((3, 20, 30), "uint8")
    assert source.fields["label"].shape == ()
    assert source.size == MOST
    read = everything(source)
    counts = np.bincount(read["data"].ravel(), minlength=256)
    expected = read["data"].size / 256
    # Chi-square with 255 degrees of freedom has a mean of 255 and a standard deviation of 22.6.
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * 22.6
    assert set(read["label"].tolist()) == {0, 1}
    again = everything(opened("random:3x20x30", kind="random"))
    np.testing.assert_array_equal(again["data"], read["data"])
    assert not np.array_equal(read["data"][0], read["data"][1])


def test_fields_have_the_shapes_of_their_names(opened, everything) -> None:
    source = opened("random:data=5, target=2x7,sure=")
    shapes = {name: (field.shape, field.dtype) for name, field in source.fields.items()}
    assert shapes == {
        "data": ((5,), "float32"),
        "target": ((2, 7), "float32"),
        "sure": ((), "float32"),
    }
    read = everything(source)
    assert 0 <= read["data"].min() < 0.1 < 0.9 < read["data"].max() < 1
    assert set(np.unique(read["target"])) == {0, 1}


def test_large_samples_are_as_many_as_memory_has_room_for(opened) -> None:
    source = opened("random:3x2048x1024")
    assert source.size == MEMORY // (3 * 2048 * 1024)


def test_in_place_of_images_with_boxes_labels_are_boxes_within_the_image(opened, everything) -> None:
    asked = DataSpec("elsewhere_lmdb", "annotated", options={"objects": 6})
    rows = everything(opened("random:3x20x30", "random", instead_of=asked))["label"]
    assert rows.shape[1:] == (1, 6, 8)
    assert (rows[..., 4:, :] == -1).all()
    first = rows[..., :4, :]
    assert set(first[..., 0].flat) == {0} and set(first[..., 1].flat) == {1}
    assert set(first[..., 7].flat) == {0}
    low, high = first[..., 3:5], first[..., 5:7]
    assert low.min() >= 0 and high.max() <= 1 and (high - low).min() > 0.09
    assert len(np.unique(low)) > 100
    given = everything(opened("random:data=3x20x30,label=1x2x8", "random", instead_of=asked))["label"]
    assert given.shape[1:] == (1, 2, 8) and (given[..., 1] == 1).all()
    plain = DataSpec("elsewhere_lmdb", "lmdb")
    assert opened("random:3x20x30", "random", instead_of=plain).fields["label"].shape == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("random:", "'' is not a shape; write random:3x227x227"),
        ("random:=3x4", "'=3x4' is not a shape"),
        ("random:3xx4", "'3xx4' is not a shape"),
        ("random:3x0x4", "'3x0x4' is not a shape"),
        ("random:3x-2", "'3x-2' is not a shape"),
        ("random:data=3x4,label=²", "'label=²' is not a shape"),
        ("random:99999x99999x99999", "a sample would take 999,970,000,299,999 bytes"),
    ],
)
def test_what_is_no_shape_is_told(name: str, message: str, opened: Callable[..., Source]) -> None:
    with pytest.raises(DataError, match=message):
        opened(name)
