"""Files in PyTorch's own formats are recognised without being read."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest

import demitasse

MAGIC = 0x1950A86A20F9469CFC6C  # torch.serialization's magic number for its format before version 1.6


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return path


def legacy(path: Path) -> Path:
    path.write_bytes(pickle.dumps(MAGIC, protocol=2) + pickle.dumps(1001, protocol=2))
    return path


@pytest.mark.parametrize("name", ["net.pth", "net.pt", "net.bin", "net"])
@pytest.mark.parametrize("write", [lambda p: zipped(p, "net/data.pkl", "net/version"), legacy])
def test_they_are_refused_with_what_to_do(write, name, tmp_path):
    path = write(tmp_path / name)
    with (
        demitasse.compose() as runtime,
        pytest.raises(demitasse.ModelError, match=r"net.*: a PyTorch file .*torch\.onnx\.export"),
    ):
        runtime.read(path)


def test_another_archive_or_a_broken_one_is_not_said_to_be(tmp_path):
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"PK\x03\x04 and no more")
    for path in (zipped(tmp_path / "other.zip", "data.txt"), broken):
        with (
            demitasse.compose() as runtime,
            pytest.raises(demitasse.ModelError, match="no composed plugin can read this file"),
        ):
            runtime.read(path)
