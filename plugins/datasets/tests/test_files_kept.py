"""Image files that are converted unchanged: which keep their bytes, and what is then read from them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import cv2
import lmdb
import numpy as np
import pytest

from demitasse import DataError
from demitasse_datasets.convert import convert_samples
from demitasse_datasets.datum import parse

COLORS = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
DEEP = COLORS.astype(np.uint16) * 257


def packed(ending: str, pixels: np.ndarray) -> bytes:
    return bytes(cv2.imencode(ending, pixels)[1])


def rotated(orientation: int) -> bytes:
    """Return a JPEG with an orientation in an EXIF segment after its first two bytes."""
    entry = struct.pack(">HHIHH", 0x112, 3, 1, orientation, 0)
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + entry + bytes(4)
    whole = packed(".jpg", COLORS)
    return whole[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + whole[2:]


FILES = {
    "color.jpg": packed(".jpg", COLORS),
    "color.JPEG": packed(".jpg", COLORS),
    "color.png": packed(".png", COLORS),
    "nameless": packed(".png", COLORS),
    "gray.jpg": packed(".jpg", COLORS[..., 0]),
    "gray.pgm": packed(".pgm", COLORS[..., 0]),
    "clear.png": packed(".png", np.dstack([COLORS, COLORS[..., :1]])),
    "turned.jpg": rotated(3),
    "upright.jpg": rotated(6),
}


def converted(folder: Path, name: str, data: bytes, **options: Any) -> tuple[Any, str]:
    """Return the record of one file, and its database."""
    (folder / name).write_bytes(data)
    (folder / "list.txt").write_text(f"{name} 7\n")
    convert_samples(None, folder / "list.txt", folder / "db", **options)
    with lmdb.open(str(folder / "db"), readonly=True, lock=False) as database, database.begin() as view:
        ((_, record),) = view.cursor()
    return parse(bytes(record)), str(folder / "db")


def opencvs(data: bytes, flags: int = cv2.IMREAD_COLOR) -> np.ndarray:
    """Return OpenCV's pixels (1, channels, height, width)."""
    return np.atleast_3d(cv2.imdecode(np.frombuffer(data, np.uint8), flags)).transpose(2, 0, 1)[None]


@pytest.mark.parametrize("name", FILES)
def test_files_keep_their_bytes_and_are_read_as_caffe_reads_them(
    tmp_path, opened, everything, name: str
) -> None:
    """Caffe's Data layers decode them as they are, and in color (force_color) as ImageData layers do."""
    record, database = converted(tmp_path, name, FILES[name], encoded=True)
    color = opencvs(FILES[name])
    assert record.encoded and bytes(record.data) == FILES[name] and record.label == 7
    assert (record.channels, record.height, record.width) == color.shape[1:]
    found = everything(opened(database, options={"mode": "native"}))["data"]
    np.testing.assert_array_equal(found, opencvs(FILES[name], cv2.IMREAD_UNCHANGED))
    np.testing.assert_array_equal(everything(opened(database, options={"mode": "color"}))["data"], color)


@pytest.mark.parametrize("name", FILES)
def test_what_is_given_a_format_is_read_alike_by_all(tmp_path, opened, everything, name: str) -> None:
    _, database = converted(tmp_path, name, FILES[name], encoded="png")
    found = everything(opened(database, options={"mode": "native"}))["data"]
    np.testing.assert_array_equal(found, opencvs(FILES[name]))


@pytest.mark.parametrize(
    ("name", "form"),
    [("color.jpg", "jpg"), ("color.JPEG", ".jpg"), ("color.jpg", "JPEG"), ("color.png", "png")],
)
def test_files_that_have_the_format_lose_nothing(tmp_path, name: str, form: str) -> None:
    assert bytes(converted(tmp_path, name, FILES[name], encoded=form)[0].data) == FILES[name]


@pytest.mark.parametrize("name", ["gray.jpg", "turned.jpg", "upright.jpg"])
def test_what_may_be_resized_is_upright_and_in_color(tmp_path, opened, everything, name: str) -> None:
    """This includes images that already have the size, which would otherwise be oriented differently."""
    color = opencvs(FILES[name])
    height, width = color.shape[2:]
    record, database = converted(tmp_path, name, FILES[name], encoded=True, height=height, width=width)
    assert bytes(record.data) != FILES[name]
    found = everything(opened(database, options={"mode": "native"}))["data"]
    assert found.shape == color.shape
    assert np.abs(found.astype(int) - color).mean() < 12  # it was encoded as JPEG again


def test_what_data_layers_cannot_decode_is_refused(tmp_path, opened, everything) -> None:
    deep = packed(".png", DEEP)
    with pytest.raises(DataError, match=r"list\.txt:1: deep\.png: its image has uint16 .*encoded='png'"):
        converted(tmp_path, "deep.png", deep, encoded=True)
    _, database = converted(tmp_path, "deep.png", deep, encoded="png")
    np.testing.assert_array_equal(everything(opened(database))["data"], opencvs(packed(".png", COLORS)))
