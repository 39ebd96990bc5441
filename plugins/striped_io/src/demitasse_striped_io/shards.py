"""WebDataset's tar shards: members whose names are equal up to their first dot form a sample, such as
``n01440764/7.jpg`` and ``n01440764/7.cls``.

Finding the members reads only headers; their bytes are later read where they are. A compressed shard
(gzip, bzip2, xz) is decompressed from its beginning: once to find them, and once by each thread that
reads.
"""

from __future__ import annotations

import glob
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from demitasse import IMAGE_ENDINGS, DataError, shortened
from demitasse_striped_io.contents import BROKEN, Item, opener

LABELS = ("cls", "index", "label")
LONGEST_LABEL = 1 << 20
MOST_SHARDS = 1 << 20


def is_shards(source: str) -> bool:
    """Whether a source names tar shards: ``train.tar``, ``train-*.tar``, ``train-{000..099}.tar``."""
    return re.search(r"\.tar(\.\w+)?$|\.tgz$", source) is not None


def shard_files(source: str) -> list[Path]:
    """Return the files that a name with ``{000..099}``, ``*`` or commas stands for. Raises DataError if
    there are none."""
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
    """Return the images in shards, each with its label (0 if it has none). Raises DataError for a shard
    that is truncated or not a tar file, and for a sample without an image or with several."""
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
        raise DataError(f"{file}: is not a readable tar file: {error}{known}") from error
    except (MemoryError, OverflowError, RecursionError) as error:
        told = "is damaged: a header promises more than a file can hold"
        raise DataError(f"{file}: {told}") from error
    except BROKEN as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file}: cannot be read: {reason}") from error


def _samples(file: Path, archive: tarfile.TarFile) -> Iterator[Item]:
    sample: _Sample | None = None
    for member in archive:
        if not member.isreg():
            continue
        folder, _, name = member.name.rpartition("/")
        stem, _, ending = name.partition(".")
        key, ending = f"{folder}/{stem}", ending.lower()
        if sample is None or key != sample.key:
            if sample is not None:
                yield sample.item()
            sample = _Sample(file, key)
        if f".{ending}" in IMAGE_ENDINGS:
            where = f"{file}: {member.name}"
            sample.images.append(Item(file, where, 0, member.offset_data, member.size))
        elif ending in (*LABELS, "json"):
            opened = archive.extractfile(member)
            text = opened.read(LONGEST_LABEL) if opened is not None else b""
            sample.labels.setdefault(ending, (member.name, text))
    if sample is not None:
        yield sample.item()


@dataclass
class _Sample:
    """The members of a sample: its images, and the names and bytes of members that may contain its
    label, by suffix."""

    file: Path
    key: str
    images: list[Item] = field(default_factory=list)
    labels: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def item(self) -> Item:
        """Return its image and label. Raises DataError for no image, for several, or for an invalid
        label."""
        label, name = self._label(), shortened(self.key.lstrip("/"), quoted=True)
        if not self.images:
            raise DataError(f"{self.file}: the sample {name} has no image ({', '.join(IMAGE_ENDINGS)})")
        if len(self.images) > 1:
            found = ", ".join(shortened(Path(image.where).name) for image in self.images[:4])
            raise DataError(
                f"{self.file}: the sample {name} has {len(self.images)} images ({found}); to make clear "
                f"which one counts, leave the others out, or give them two endings (mask.png)"
            )
        return replace(self.images[0], label=label)

    def _label(self) -> int:
        """Return the label from a member of its own, or else from a field of the JSON, which may contain
        anything; otherwise 0."""
        ending = next((each for each in (*LABELS, "json") if each in self.labels), None)
        if ending is None:
            return 0
        name, text = self.labels[ending]
        try:
            if ending != "json":
                return int(text)
            told = json.loads(text)
            fields = told if isinstance(told, dict) else {}
            found = next((fields[key] for key in ("label", *LABELS) if key in fields), 0)
            label = int(found)
            if isinstance(found, float) and label != found:
                raise ValueError("it is not a whole number")
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise DataError(f"{self.file}: {shortened(name)} is not a label: {text[:40]!r}") from error
        return label
