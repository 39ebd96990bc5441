"""The headers of images: sizes, and what is rejected before a decoder allocates memory for it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from demitasse import DataError, check_image, image_size

FRAME = b"\xff\xc0\x00\x11\x08\x00\x07\x00\x05" + bytes(10)
SCAN, END = b"\xff\xda" + bytes(12), b"\xff\xd9"


def jpeg(*parts: bytes) -> bytes:
    return b"\xff\xd8\xff\xe0\x00\x04JF" + b"".join(parts)


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (jpeg(FRAME), (5, 7)),
        (jpeg(b"\xff\xff\xff\x01\xff\xd0", FRAME), (5, 7)),
        (jpeg(b"\xff\xc4\x00\x04ab", FRAME), (5, 7)),
        (jpeg(SCAN, FRAME), None),
        (b"P5 # " + b"long " * 60 + b"\n5 7 255\n", (5, 7)),
        (b"P5 5", None),
        (b"BM" + bytes(20), None),
    ],
)
def test_sizes_are_read_from_headers(data: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(data) == image_size(np.frombuffer(data, np.uint8).data) == size


@pytest.mark.parametrize("behind", [0, 100, 5000])
@pytest.mark.parametrize("bits", [10, 3000])
def test_a_jpeg_ends_behind_its_last_scan(bits: int, behind: int) -> None:
    """It does not end within its thumbnail, which has an end marker, too."""
    thumbnail, more = jpeg(FRAME, SCAN, END), bytes(behind)
    check_image(jpeg(FRAME, thumbnail, SCAN, bytes(bits), END, more))
    for cut in (jpeg(FRAME, thumbnail, SCAN, bytes(bits), more), jpeg(FRAME, SCAN, bytes(bits), more)):
        with pytest.raises(DataError, match=f"cut off after {len(cut):,} bytes: a JPEG without its end"):
            check_image(cut)


@pytest.mark.parametrize("header", [b"P6 30000 30000 255\n", b"GIF89a" + b"\x30\x75" * 2])
def test_pixels_that_a_file_cannot_hold_are_refused(header: bytes) -> None:
    with pytest.raises(DataError, match=re.escape("claims 30,000 x 30,000 pixels in 1")):
        check_image(header + bytes(100))
