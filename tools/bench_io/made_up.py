"""Random samples in all forms that contenders read, and photos: written once into a folder."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH, PHOTOS_BATCH = 256, 64
SETS = {"imagenet": (10_000, (3, 256, 256)), "cifar": (50_000, (3, 32, 32))}
BLOCKS = {"imagenet": 64 << 20, "cifar": 4 << 20}
PHOTO = (256, 256)
REPEATED = 4
Task = Callable[[], tuple[int, float]]
"""Delivers some samples; returns how many, and the seconds."""


def prepare(folder: Path, name: str) -> None:
    """Write the same random samples as a flat file, an LMDB, tar shards and a striped set."""
    count, shape = SETS[name]
    size = int(np.prod(shape))
    flat, done = folder / f"{name}.bin", folder / f"{name}.done"
    if done.exists():
        return
    random = np.random.default_rng(0)
    with flat.open("wb") as file:
        for start in range(0, count, 1000):
            rows = min(1000, count - start)
            file.write(random.integers(0, 256, rows * size, np.uint8).tobytes())
    pixels = np.memmap(flat, np.uint8, "r", shape=(count, size))
    labels = (np.arange(count) % 1000).astype(np.int32)
    _write_lmdb(folder / f"{name}.lmdb", pixels, labels)
    for number in range(4):
        part = range(count * number // 4, count * (number + 1) // 4)
        with tarfile.open(folder / f"{name}-{number}.tar", "w") as archive:
            for i in part:
                for ending, data in (("bin", pixels[i].tobytes()), ("cls", str(labels[i]).encode())):
                    member = tarfile.TarInfo(f"{i:06d}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    _write_striped(folder / f"{name}.striped", pixels.reshape(count, *shape), labels, BLOCKS[name])
    done.write_text("")


def _write_lmdb(target: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    import lmdb

    with lmdb.open(str(target), map_size=8 << 30, sync=False) as database:
        for start in range(0, len(pixels), 1000):
            with database.begin(write=True) as transaction:
                for i in range(start, min(start + 1000, len(pixels))):
                    value = labels[i].tobytes() + pixels[i].tobytes()
                    transaction.put(f"{i:08d}".encode(), value, append=True)


class _Arrays:
    """Arrays as a source from which to write a set."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        from demitasse import Field

        self.columns = {"data": pixels, "label": labels}
        self.fields = {n: Field(a.shape[1:], a.dtype.name) for n, a in self.columns.items()}
        self.size = len(pixels)

    def stream(self, first: int, count: int, step: int) -> Any:
        columns = self.columns

        class Stream:
            cursor = first

            def read(self, out: dict[str, np.ndarray]) -> None:
                for name, array in out.items():
                    array[...] = columns[name][self.cursor : self.cursor + count]
                self.cursor += step

            def close(self) -> None:
                """Do nothing: nothing is open."""

        return Stream()

    def close(self) -> None:
        """Do nothing: nothing is open."""


def _write_striped(target: Path, pixels: np.ndarray, labels: np.ndarray, block: int) -> None:
    from demitasse_striped_io.inputs import SourceInput
    from demitasse_striped_io.writer import Making, Writer

    source = SourceInput(_Arrays(pixels, labels), "made up")
    Writer(target, source, Making(block=block, run=BATCH), True).write()


def prepare_photos(folder: Path, photos: Path) -> None:
    """Write photos, repeated several times, as files in a folder and as a striped set of encoded
    images."""
    import demitasse

    listed = folder / "photos.txt"
    if listed.exists():
        return
    files = sorted(photos.rglob("*.JPEG"))
    made = folder / "photos"
    made.mkdir(exist_ok=True)
    for turn in range(REPEATED):
        for number, file in enumerate(files):
            shutil.copy(file, made / f"{turn}{number:04d}.jpg")
    height, width = PHOTO
    with demitasse.compose(plugins=["striped_io", "datasets"]) as runtime:
        runtime.program(
            "convert_to_striped", made, folder / "photos.striped", height=height, width=width, force=True
        )
    listed.write_text("\n".join(str(p) for p in sorted(made.iterdir())))
