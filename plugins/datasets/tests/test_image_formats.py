"""Image files in rarer formats that OpenCV reads, written by it or byte by byte, and the claims of their
headers."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from demitasse import DataError, image_size
from demitasse_datasets import images

cv2 = pytest.importorskip("cv2")

GRAY = np.random.default_rng(5).integers(0, 256, (5, 7), np.uint8)
COLOR = np.random.default_rng(6).integers(0, 256, (48, 40, 3), np.uint8)


def big_tiff(order: str) -> bytes:
    """Return GRAY as a BigTIFF in one strip: entries of 20 bytes, whose offsets and counts have 8 (TIFF
    revision of 2004). ``order`` is struct's."""
    entries = [
        *((256, 4, GRAY.shape[1]), (257, 16, GRAY.shape[0]), (258, 3, 8), (259, 3, 1), (262, 3, 1)),
        *((273, 16, 16), (277, 3, 1), (278, 4, GRAY.shape[0]), (279, 4, GRAY.size)),
    ]
    forms = {3: "H6x", 4: "I4x", 16: "Q"}
    listed = b"".join(
        struct.pack(f"{order}HHQ{forms[kind]}", tag, kind, 1, value) for tag, kind, value in entries
    )
    at = 16 + GRAY.size + GRAY.size % 2
    start = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HHHQ", 43, 8, 0, at)
    pixels = GRAY.tobytes().ljust(at - 16, b"\0")
    return start + pixels + struct.pack(f"{order}Q", len(entries)) + listed + bytes(8)


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_big_tiff_is_read(order: str) -> None:
    assert image_size(big_tiff(order)) == (7, 5)
    np.testing.assert_array_equal(images.decode(big_tiff(order), "gray")[:, :, 0], GRAY)


@pytest.mark.parametrize("ending", [".jp2", ".ras", ".pam", ".ppm", ".tiff"])
def test_what_opencv_writes_is_read(ending: str) -> None:
    lossless = [cv2.IMWRITE_JPEG2000_COMPRESSION_X1000, 1000] if ending == ".jp2" else []
    data = cv2.imencode(ending, COLOR, lossless)[1].tobytes()
    assert image_size(data) == (40, 48)
    np.testing.assert_array_equal(images.decode(data), COLOR)


def test_a_jpeg_2000_may_be_a_bare_codestream() -> None:
    whole = cv2.imencode(".jp2", COLOR)[1].tobytes()
    bare = whole[whole.index(b"\xff\x4f\xff\x51") :]
    assert image_size(bare) == (40, 48)
    np.testing.assert_array_equal(images.decode(bare), cv2.imdecode(np.frombuffer(bare, np.uint8), 1))


@pytest.mark.parametrize(
    "header",
    [
        b"P5 7 5 255\n",
        b"P5\n# by a scanner that says at length what it is, of which year, and who has it\n7 5\n255\n",
        b"P5\n# one\n# two\n7\n# three\n5 255\n",
    ],
)
def test_a_graymap_may_have_comments_anywhere(header: bytes) -> None:
    data = header + GRAY.tobytes()
    assert image_size(data) == (7, 5)
    np.testing.assert_array_equal(images.decode(data, "gray")[:, :, 0], GRAY)


@pytest.mark.parametrize("at", [8, 12])
def test_what_a_header_claims_is_compared_with_the_bytes(at: int) -> None:
    data = bytearray(cv2.imencode(".jp2", COLOR)[1].tobytes())
    place = data.index(b"\xff\x4f\xff\x51") + at
    data[place : place + 4] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(DataError, match=r"its image claims .*2,147,483,647"):
        images.decode(bytes(data))


def test_a_codestream_in_a_box_of_another_kind_is_none() -> None:
    data = cv2.imencode(".jp2", COLOR)[1].tobytes()
    false = b"\xff\x4f\xff\x51" + struct.pack(">HHIIII", 41, 0, 1, 1, 0, 0)
    other = struct.pack(">I4s", 8 + len(false), b"free") + false
    at = 12 + int.from_bytes(data[12:16], "big")  # after the boxes of signature and type
    assert image_size(data[:at] + other + data[at:]) == (40, 48)
    assert image_size(data[:at]) is None
