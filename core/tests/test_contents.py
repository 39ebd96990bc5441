"""What a file is that is not as expected, recognised by its first bytes, for errors."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from demitasse import DataError, DataSpec, compose, hookimpl, looks_like, looks_like_at


def saved(write: Callable[[io.BytesIO], object]) -> bytes:
    whole = io.BytesIO()
    write(whole)
    return whole.getvalue()


def tar(whole: io.BytesIO) -> None:
    with tarfile.open(fileobj=whole, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.bin"))


def empty_zip(whole: io.BytesIO) -> None:
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("a", b"")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


@pytest.mark.parametrize(
    ("start", "told"),
    [
        (b"", "is empty (0 bytes)"),
        (POINTER, "'git lfs pull' fetches the file"),
        (b"<!DOCTYPE html>\n<html>", "looks like a web page that a server sent instead of the file"),
        (saved(lambda f: np.save(f, np.ones(3))), "looks like a NumPy array (.npy)"),
        (saved(lambda f: np.savez(f, a=np.ones(3))), "looks like a zip archive, such as .npz"),
        (saved(empty_zip), "looks like a zip archive"),
        (saved(tar)[:512], "looks like a tar archive"),
        (gzip.compress(b"a"), "looks like gzip-compressed data"),
        (pickle.dumps({"a": 1}), "looks like a Python pickle"),
        (b"MATLAB 5.0 MAT-file, Platform: GLNXA64", "looks like a MATLAB file (.mat)"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "looks like a JPEG image"),
        (b"\n\n# a comment\nbase_lr: 1\n", "looks like text '# a comment'"),
        ("\ufeffmäuse.png 1\r\n".encode(), "looks like text 'mäuse.png 1'"),
        ("ä".encode() * 400, f"looks like text {'ä' * 40!r}"),
        (("ä".encode() * 400)[:511], f"looks like text {'ä' * 40!r}"),  # cut within a character
        (b"\x0a\x05LeNet\xa2\x06\x01", "begins with the bytes 0a 05 4c 65 4e 65 74 a2"),
        (b"clear\x1b[2J", "begins with the bytes"),  # bytes that a terminal would obey are not text
    ],
)
def test_a_beginning_is_told_for_what_it_looks_like(start: bytes, told: str) -> None:
    assert looks_like(start).startswith(told) or told in looks_like(start)


def test_a_path_is_told_for_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "1.JPG").write_bytes(b"")
    (tmp_path / "a.txt").write_text("words")
    assert looks_like_at(tmp_path / "a.txt") == "looks like text 'words'"
    assert looks_like_at(tmp_path / "empty") == "is an empty folder"
    assert looks_like_at(tmp_path / "photos") == "is a folder of images"
    assert looks_like_at(tmp_path) == "is a folder with 'a.txt', 'empty', 'photos'"
    assert looks_like_at(tmp_path / "nothing") == ""
    os.mkfifo(tmp_path / "pipe")
    assert looks_like_at(tmp_path / "pipe") == "is a pipe or a device"


class Reader:
    """A plugin that reads no samples, and says what to do instead."""

    manifest = {
        "name": "reader",
        "api": ">=0.1",
        "roles": {"data_source": {"kinds": ["csv"], "instead": {"looks like text": "name a list"}}},
    }

    @hookimpl
    def data_source(self, spec: DataSpec) -> None:
        """Return None: no samples are this plugin's."""


def test_samples_that_nobody_reads_are_told_with_what_to_do_instead(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,pixel\n")
    with compose(plugins=[Reader()]) as runtime, pytest.raises(DataError) as caught:
        runtime.open_source(DataSpec(str(tmp_path / "a.csv")))
    assert str(caught.value).endswith("it looks like text 'label,pixel'; name a list")
