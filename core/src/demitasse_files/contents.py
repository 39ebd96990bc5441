"""What a file really contains, by its first bytes, for errors about a file that is not as expected."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

from demitasse import is_folder, is_special
from demitasse_files.image_folders import IMAGE_ENDINGS

ENOUGH = 512
"""The most bytes at the start of a file that any check here needs."""
MOST, SAMPLED = 4096, 64
"""The most names of a folder that are listed, and how many of them, in order, are examined."""
SHOWN = 40
"""The number of characters of a text's first line that are shown."""

_LFS = b"version https://git-lfs.github.com/"
_MARKS: tuple[tuple[int, bytes, str], ...] = (
    (0, _LFS, "is a Git LFS pointer, not the file itself; 'git lfs pull' fetches the file"),
    (0, b"\x89HDF\r\n\x1a\n", "looks like an HDF5 file"),
    (0, b"PK\x03\x04", "looks like a zip archive, such as .npz or PyTorch's .pt"),
    (0, b"\x93NUMPY", "looks like a NumPy array (.npy)"),
    (0, b"MATLAB ", "looks like a MATLAB file (.mat)"),
    (0, b"\x1f\x8b", "looks like gzip-compressed data"),
    (0, b"\xfd7zXZ\0", "looks like xz-compressed data"),
    (0, b"BZh", "looks like bzip2-compressed data"),
    (0, b"Rar!", "looks like a RAR archive"),
    (0, b"7z\xbc\xaf", "looks like a 7z archive"),
    (257, b"ustar", "looks like a tar archive"),
    (0, b"\xff\xd8\xff", "looks like a JPEG image"),
    (0, b"\x89PNG", "looks like a PNG image"),
    (0, b"GIF8", "looks like a GIF image"),
    (8, b"WEBP", "looks like a WebP image"),
    (4, b"ftypavif", "looks like an AVIF image"),
    (4, b"ftyphei", "looks like a HEIC image"),
    (0, b"%PDF", "looks like a PDF document"),
    (16, b"\xde\xc0\xef\xbe", "looks like an LMDB database"),
    (0, b"\0\x05\x16\x07", "looks like a metadata file of macOS, whose name begins with ._"),
)
_PAGES = (b"<!doctype html", b"<html", b"<?xml")


def looks_like_at(path: Path) -> str:
    """Return what is at a path, worded to follow "it" in a sentence; for a folder, some of the names in
    it. Empty if it may not be read."""
    try:
        if is_special(path):  # reading it might never end
            return "is a pipe or a device"
        if is_folder(path):
            inside = sorted(islice(path.iterdir(), MOST))[:SAMPLED]
            deeper = (below for each in inside if is_folder(each) for below in islice(each.iterdir(), 9))
            if any(each.suffix.lower() in IMAGE_ENDINGS for each in chain(inside, deeper)):
                return "is a folder of images"
            names = ", ".join(repr(each.name) for each in inside[:3]) + " and more" * (len(inside) > 3)
            return f"is a folder with {names}" if names else "is an empty folder"
        with path.open("rb") as file:
            return looks_like(file.read(ENOUGH))
    except OSError:
        return ""


def looks_like(start: bytes) -> str:
    """Return what a file is that starts with these bytes (pass ``ENOUGH`` of them), worded to follow
    "it" in a sentence: "is empty (0 bytes)", "looks like a NumPy array (.npy)". For a text this is its
    first line, for anything else the bytes themselves."""
    if not start:
        return "is empty (0 bytes)"
    for at, mark, told in _MARKS:
        if start.startswith(mark, at):
            return told
    if start.lstrip()[:16].lower().startswith(_PAGES):
        return "looks like a web page that a server sent instead of the file; download the file again"
    if start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        return "looks like a Python pickle"
    text = start.decode("utf-8-sig", "ignore")
    if len(text.encode()) + 6 > len(start) and all(c.isprintable() or c in "\t\r\n\f" for c in text):
        line = next((each for each in text.splitlines() if each.strip()), "")
        return f"looks like text {line[:SHOWN]!r}"
    return f"begins with the bytes {start[:8].hex(' ')}"
