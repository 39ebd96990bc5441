"""Writing samples as an LMDB database of Datum records, for any program that reads Caffe's data."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    DataError,
    DataSpec,
    folder_beside,
    images_by_class,
    is_folder,
    is_there,
    permutation,
    unknown,
)
from demitasse_datasets import images
from demitasse_datasets.datum import Datum, serialize
from demitasse_datasets.decoders import decoders, for_each
from demitasse_datasets.image_list import Listed, log, read_bytes, read_list
from demitasse_datasets.samples import naming

ENCODED = ("bmp", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")
"""Formats of image files that Caffe can read."""
ALSO = {".jpeg": ".jpg", ".jpg": ".jpeg", ".tif": ".tiff", ".tiff": ".tif"}
"""Other suffixes of the same formats."""
TOGETHER = 256
"""How many records are made and then written in one transaction."""
DIGITS = 8
"""Digits of the number at the beginning of a record's key, as in Caffe; more for more records."""
FIRST_MAP = 1 << 28
NOTHING_LEFT = 1 << 20
"""With fewer free bytes than this, a disk counts as full."""
FILES = {"data.mdb", "lock.mdb"}
"""The files in a database's folder."""


@dataclass(frozen=True)
class Form:
    """How records are written: resized to (height, width), in gray, and raw or as an image file of the
    format that ``encoded`` names (such as ``.png``; empty for the file's own). Without ``resized``,
    proportions are kept: the shorter side becomes ``shorter``, unless the other one would then be longer
    than ``longest`` (0: unchanged). A file that already has the format is kept if no pixel changes."""

    resized: tuple[int, int] | None = None
    gray: bool = False
    encoded: str | None = None
    shorter: int = 0
    longest: int = 0

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size to which an image of this size is resized."""
        if self.resized:
            return self.resized
        low, high = min(height, width), max(height, width)
        scale = self.shorter / low if self.shorter else 1.0
        if self.longest and (not self.shorter or scale * high > self.longest):
            scale = self.longest / high
        return max(1, round(height * scale)), max(1, round(width * scale))

    @property
    def keeps(self) -> bool:
        """Whether files are stored unchanged and unchecked, as Caffe does."""
        asked = self.resized or self.gray or self.shorter or self.longest
        return self.encoded == "" and not asked

    def record(self, pixels: np.ndarray, label: int) -> Datum:
        """Return the record of an image (height, width, channels), uint8, or float32 if stored raw."""
        pixels = images.resize(pixels, *self.size(*pixels.shape[:2]))
        height, width, channels = pixels.shape
        about = channels, height, width
        if self.encoded:
            return Datum(*about, images.encode(pixels, self.encoded), label, encoded=True)
        raw = np.ascontiguousarray(images.planes(pixels))
        if raw.dtype == np.uint8:
            return Datum(*about, raw.tobytes(), label)
        return Datum(*about, label=label, floats=raw.astype(np.float32).reshape(-1))


def convert_samples(
    runtime: Any,
    source: str | Path,
    target: str | Path,
    *,
    root: str = "",
    height: int = 0,
    width: int = 0,
    gray: bool = False,
    encoded: bool | str = False,
    shuffle: bool = False,
    seed: int = 0,
    kind: str | None = None,
    force: bool = False,
    check_size: bool = False,
    skip_damaged: bool = False,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Write the LMDB database ``target`` (a folder, written whole or not at all) as Caffe's
    convert_imageset does, and return the number of its records.

    ``source`` is an image list (a path and its labels on each line, after ``root``), a folder of images
    (its sub-folders, by name, are the classes), or anything from which a composed plugin reads samples
    (CIFAR, IDX). ``encoded`` keeps image files as they are, or names a format such as ``png``; otherwise
    records hold pixels, blue first. With ``check_size``, all images must be as large as the first. With
    ``skip_damaged``, missing or damaged files are skipped, each with a warning, as Caffe's tool does;
    otherwise the first one is an error. ``progress`` is called now and then with the number of records
    written. Raises DataError that names file and line.
    """
    target, path = Path(target), Path(source)
    check_target(target, force)
    form = form_of(height, width, gray, encoded)
    if kind in (None, "images") and is_folder(path) and (listed := in_folder(path)):
        root = f"{path}{os.sep}"
        entries = from_files(listed, root, path, form, shuffle, seed, check_size, skip=skip_damaged)
    elif kind == "images" or (kind is None and path.suffix.lower() == ".txt"):
        listed = read_list(path)
        entries = from_files(listed, root, path, form, shuffle, seed, check_size, skip=skip_damaged)
    else:
        opened = runtime.open_source(DataSpec(str(source), kind, shuffle, seed))
        with contextlib.closing(opened):
            return write_lmdb(target, from_source(opened, str(source), form), progress)
    return write_lmdb(target, entries, progress)


def check_target(target: Path, force: bool) -> None:
    """Raise DataError if the target exists and must not be overwritten."""
    if is_there(target) and not force:
        raise DataError(f"{target} already exists; force (--force) overwrites it")
    if is_folder(target) and (others := sorted({path.name for path in target.iterdir()} - FILES)):
        raise DataError(f"{target} is not an LMDB database and is left alone: it holds {others[0]!r}")


def form_of(height: int, width: int, gray: bool, encoded: bool | str) -> Form:
    """Return how records are to be written. Raises DataError."""
    if (height == 0) != (width == 0) or min(height, width) < 0:
        raise DataError(f"give both a height and a width to resize images, not ({height}, {width})")
    if isinstance(encoded, str) and encoded.lstrip(".").lower() not in ENCODED:
        raise DataError(unknown("format of encoded images", encoded, ENCODED))
    ending = "" if encoded is True else f".{str(encoded).lstrip('.').lower()}" if encoded else None
    return Form((height, width) if height else None, gray, ending)


def in_folder(folder: Path) -> list[Listed]:
    """Return the images of a folder with the numbers of their classes. Raises DataError."""
    images = (
        (path.relative_to(folder).as_posix(), label)
        for label, each in enumerate(images_by_class(folder))
        for path in each
    )
    return [Listed(number, name, label) for number, (name, label) in enumerate(images, 1)]


def from_files(
    listed: list[Listed],
    root: str,
    where: Path,
    form: Form,
    shuffle: bool,
    seed: int,
    check_size: bool = False,
    finish: Callable[[Listed, Datum], bytes] = lambda each, datum: serialize(datum),
    skip: bool | None = None,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys (a number and the path, as Caffe's) and records of image files. ``finish`` makes the
    record from a line and its Datum. With ``skip``, files that cannot be read are skipped with a
    warning."""
    order = permutation(seed, 0, len(listed)) if shuffle else range(len(listed))
    pool, first, digits = decoders(), dict[str, Any](), _digits(len(listed))
    for start in range(0, len(listed), TOGETHER):
        some = [listed[int(i)] for i in order[start : start + TOGETHER]]
        made: list[bytes] = [b""] * len(some)
        sizes: list[tuple[int, ...]] = [()] * len(some)
        faults = [""] * len(some)

        def one(
            i: int,
            some: list[Listed] = some,
            made: list[bytes] = made,
            sizes: list[tuple[int, ...]] = sizes,
            faults: list[str] = faults,
        ) -> None:
            try:
                with naming(f"{where}:{some[i].line}: {root}{some[i].path}"):
                    record = _file_record(root + some[i].path, where, some[i].label, form)
                    record.more = some[i].more
                    made[i] = finish(some[i], record)
            except DataError as error:
                if skip:
                    faults[i] = str(error)
                    return
                told = "" if skip is None else "; skip_damaged leaves such images out"
                raise DataError(f"{error}{told}") from error
            sizes[i] = record.channels, record.height, record.width

        for_each(pool, len(some), one)
        for number, (each, record) in enumerate(zip(some, made, strict=True), start):
            if fault := faults[number - start]:
                log.warning("%s: left out", fault)
                continue
            if check_size and (size := sizes[number - start]) != first.setdefault("size", size):
                raise DataError(
                    f"{where}:{each.line}: {root}{each.path}: {_extents(size)}, but the first one is "
                    f"{_extents(first['size'])}; give a height and a width to resize them to"
                )
            yield f"{number:0{digits}d}_{each.path}".encode(errors="surrogateescape"), record


def _digits(count: int) -> int:
    """Digits of the numbers in the keys of so many records, so that keys sort as text."""
    return max(DIGITS, len(str(count - 1)))


def _extents(size: tuple[int, ...]) -> str:
    channels, height, width = size
    return f"{height} x {width} pixels of {channels} channel{'s' * (channels > 1)}"


def _file_record(name: str, listed_in: Path, label: int, form: Form) -> Datum:
    data = read_bytes(name, listed_in)
    pixels = images.decode(data, "gray" if form.gray else "color")
    if form.encoded is None:
        return form.record(pixels, label)
    try:
        native = images.decode(data, "native")  # as Data layers decode it
    except DataError as error:
        if form.keeps:
            raise DataError(f"{error}; give a format (encoded='png') to encode it again") from error
        native = pixels[:0]
    ending = Path(name).suffix.lower()
    own = form.encoded in ("", ending, ALSO.get(ending))
    same = form.size(*pixels.shape[:2]) == pixels.shape[:2] and np.array_equal(native, pixels)
    if form.keeps or (own and same):
        height, width, channels = pixels.shape
        return Datum(channels, height, width, data, label, encoded=True)
    return replace(form, encoded=form.encoded or ending).record(pixels, label)


def from_source(source: Any, name: str, form: Form) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys (numbers) and records of an open source's fields ``data`` and ``label``."""
    if "data" not in source.fields:
        raise DataError(f"{name}: has the fields {', '.join(source.fields)}, but data is needed")
    if form.gray or form.encoded == "":
        raise DataError(
            f"{name}: is not a list of image files; give a format (encoded='png'), without gray"
        )
    shape, dtype = source.fields["data"].shape, source.fields["data"].dtype
    if len(shape) > 3:
        raise DataError(f"{name}: samples of shape {shape} are not images")
    if dtype != "uint8" and (form.encoded or form.resized):
        raise DataError(f"{name}: samples of {dtype} can only be written as they are")
    fields = {key: source.fields[key] for key in ("data", "label") if key in source.fields}
    if "label" in fields and fields["label"].shape not in ((), (1,)):
        raise DataError(f"{name}: a Datum has one label, but these samples have {fields['label'].shape}")
    stream, digits = None, _digits(source.size)
    try:
        for start in range(0, source.size, TOGETHER):
            count = min(TOGETHER, source.size - start)
            if stream is None or count < TOGETHER:
                if stream is not None:
                    stream.close()
                stream = source.stream(start, count, count)
            out = {key: np.empty((count, *f.shape), f.dtype) for key, f in fields.items()}
            stream.read(out)
            planes = out["data"].reshape(count, *(1,) * (3 - len(shape)), *shape)
            labels = out.get("label", np.zeros(count, np.int32)).reshape(count)
            for i in range(count):
                record = form.record(planes[i].transpose(1, 2, 0), int(labels[i]))
                yield f"{start + i:0{digits}d}".encode(), serialize(record)
    finally:
        if stream is not None:
            stream.close()


def write_lmdb(
    target: Path,
    entries: Iterator[tuple[bytes, bytes]],
    progress: Callable[[int], object] | None = None,
) -> int:
    """Write keys, in ascending order, and values. The folder appears whole or not at all. Returns the
    number of entries. Raises DataError if writing fails."""
    count = 0
    with new_lmdb(target) as put:
        while some := list(islice(entries, TOGETHER)):
            put(some)
            count += len(some)
            if progress is not None:
                progress(count)
        if not count:
            raise DataError("there are no samples to write")
    return count


@contextlib.contextmanager
def new_lmdb(target: Path) -> Iterator[Callable[[Sequence[tuple[bytes, bytes]]], None]]:
    """Yield a function that writes keys, in ascending order, and values. The folder appears whole when
    the block ends, or not at all. Raises DataError if writing fails."""
    try:
        import lmdb
    except ImportError as error:
        raise DataError(f"the package lmdb is needed ({error}); pip install lmdb") from error
    _check_replaceable(target)
    with contextlib.ExitStack() as stack:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = stack.enter_context(folder_beside(target))
        except FileExistsError as error:
            raise DataError(f"{target}: cannot be written: {error.filename} is not a folder") from error
        except OSError as error:
            raise DataError(f"{target}: cannot be written: {error.strerror or error}") from error
        made = temporary / "new"
        try:
            made.mkdir()
            # Nobody else knows the folder. The lock file is written through mapped memory: on a full
            # disk in memory (tmpfs), this is not an error but ends the process.
            quick = {"metasync": False, "sync": False, "lock": False}
            with lmdb.open(str(made), FIRST_MAP, **quick) as database:
                yield partial(_put, database, lmdb.MapFullError)
                database.sync(True)
            if target.exists():
                target.replace(temporary / "old")
            made.replace(target)
        except (OSError, lmdb.Error) as error:
            # LMDB reports a full disk as an input/output error.
            full = " (the disk is full)" if shutil.disk_usage(temporary).free < NOTHING_LEFT else ""
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"{target}: cannot be written: {reason}{full}") from error


def _check_replaceable(target: Path) -> None:
    """Raise DataError for a folder that contains more than a database, because it would be lost."""
    if not is_folder(target):
        return
    others = sorted(p.name for p in target.iterdir() if p.name not in ("data.mdb", "lock.mdb"))
    if others and not (target / "CURRENT").is_file():
        raise DataError(
            f"{target}: is a folder with more in it than a database ({', '.join(others[:3])}), and is "
            f"not overwritten"
        )


def _put(database: Any, full: type[Exception], entries: Sequence[tuple[bytes, bytes]]) -> None:
    """Write entries in one transaction; if the map is ``full``, enlarge it and try again."""
    while True:
        try:
            with database.begin(write=True) as transaction:
                for key, value in entries:
                    # LMDB limits keys to 511 bytes; the number in front of the name keeps them distinct.
                    transaction.put(key[:511], value, append=True)
            return
        except full:
            database.set_mapsize(2 * database.info()["map_size"])
