"""WebDataset's tar shards: members that share a name up to its first dot are a sample, such as
``n01440764/7.jpg`` and ``n01440764/7.cls``.

Only the headers are read to find the members; their bytes are read where they stand. A compressed shard
(gzip, bzip2, xz) is unpacked from its beginning on: once to find them, once by each thread that reads.
"""

from __future__ import annotations

import glob
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from demitasse import DataError, shortened
from demitasse_striped_io.contents import BROKEN, Item, opener
from demitasse_striped_io.decoding import ENDINGS

LABELS = ("cls", "index", "label")
LONGEST_LABEL = 1 << 20
MOST_SHARDS = 1 << 20


def is_shards(source: str) -> bool:
    """Whether a source names tar shards: ``train.tar``, ``train-*.tar``, ``train-{000..099}.tar``."""
    return re.search(r"\.tar(\.\w+)?$|\.tgz$", source) is not None


def shard_files(source: str) -> list[Path]:
    """The files that a name with ``{000..099}``, ``*`` or commas means. Raises DataError for none."""
    names: list[str] = []
    for part in source.split(","):
        brace = re.search(r"\{(\d+)\.\.(\d+)\}", part)
        if brace and int(brace[2]) - int(brace[1]) < MOST_SHARDS:
            width = len(brace[1])
            numbers = range(int(brace[1]), int(brace[2]) + 1)
            names += [f"{part[: brace.start()]}{n:0{width}d}{part[brace.end() :]}" for n in numbers]
        else:
            names.append(part)
    files: list[Path] = []
    for name in names:
        found = sorted(glob.glob(name)) if glob.has_magic(name) else [name]  # noqa: PTH207  any pattern
        files += map(Path, found)
    if not files:
        raise DataError(f"no file matches {source!r}")
    return files


def shard_items(source: str) -> list[Item]:
    """The images in shards, each with its label (0 where none has one). Raises DataError for a shard
    that is cut off or no tar file, and for a sample without an image."""
    return [item for file in shard_files(source) for item in _items(file)]


def _items(file: Path) -> Iterator[Item]:
    try:
        unpack = opener(file)
        with (
            unpack(file) if unpack else file.open("rb") as opened,
            tarfile.open(fileobj=opened, mode="r:") as archive,
        ):
            for item in _samples(file, archive):
                yield replace(item, compressed=unpack is not None)
    except tarfile.ReadError as error:
        known = "" if unpack or file.suffix == ".tar" else "; compressed ones are gzip, bzip2 or xz"
        raise DataError(f"{file}: is no tar file that can be read: {error}{known}") from error
    except (MemoryError, OverflowError, RecursionError) as error:
        told = "is damaged: a header promises more than a file can hold"
        raise DataError(f"{file}: {told}") from error
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file}: cannot be read: {reason}") from error


def _samples(file: Path, archive: tarfile.TarFile) -> Iterator[Item]:
    image: Item | None = None
    key, label = "", 0
    for member in archive:
        if not member.isreg():
            continue
        folder, _, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        if f"{folder}/{stem}" != key:
            if key:
                yield _whole(file, key, image, label)
            key, image, label = f"{folder}/{stem}", None, 0
        if f".{ending.lower()}" in ENDINGS:
            where = f"{file}: {member.name}"
            image = Item(file, where, 0, member.offset_data, member.size)
        elif ending in LABELS or ending == "json":
            label = _label(file, archive, member, ending)
    if key:
        yield _whole(file, key, image, label)


def _whole(file: Path, key: str, image: Item | None, label: int) -> Item:
    if image is None:
        name = shortened(key.lstrip("/"), quoted=True)
        raise DataError(f"{file}: the sample {name} has no image ({', '.join(ENDINGS)})")
    return Item(image.file, image.where, label, image.offset, image.length)


def _label(file: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, ending: str) -> int:
    opened = archive.extractfile(member)
    text = opened.read(LONGEST_LABEL) if opened is not None else b""
    try:
        if ending != "json":
            return int(text)
        told = json.loads(text)
        found = [told[name] for name in ("label", *LABELS) if name in told]
        return int(found[0]) if found else 0
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(f"{file}: {shortened(member.name)} is no label: {text[:40]!r}") from error
