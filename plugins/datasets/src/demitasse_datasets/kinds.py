"""From a specification to samples: whether they are this plugin's, of which kind, in which files."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from pathlib import Path

from demitasse import (
    DataError,
    DataSpec,
    check_plain,
    expanded,
    is_folder,
    is_there,
    looks_like_at,
    matching,
    nearest_path,
    unknown,
)
from demitasse_datasets.cifar import FORMATS, is_cifar, open_cifar
from demitasse_datasets.database import kind_of
from demitasse_datasets.digits import open_digits
from demitasse_datasets.files import SUFFIXES, SampleFile, bare_name, missing, natural
from demitasse_datasets.hdf5 import is_hdf5
from demitasse_datasets.idx import is_idx, labels_beside, open_idx
from demitasse_datasets.opening import OPTIONS, open_file, open_filler
from demitasse_datasets.pickled import is_pickled
from demitasse_datasets.samples import ArraySamples, Samples
from demitasse_datasets.stand_ins import PREFIX, StandIns

KINDS = ("arrays", "idx", "cifar10", "cifar100", "digits", "random", *OPTIONS)
SPLITS = ("train", "test")
BEHIND = {"split": "train, test", "labels": "a file, true, false"}
"""Options that may follow a source's name, and their valid values."""

UNDERSTOOD = (
    "supported are IDX files such as train-images-idx3-ubyte.gz, CIFAR files such as "
    "data_batch_*.bin.xz, a folder of either with ?split=train or ?split=test, folders of LMDB and "
    "LevelDB, HDF5 files, digits:train, digits:test and random:3x227x227"
)
MNIST = {"train": r"train[-_.]images?[-_.].*", "test": r"(t10k|test)[-_.]images?[-_.].*"}


def open_samples(spec: DataSpec) -> Samples | None:
    """Return the samples of a specification, or None if it is not of this plugin's kinds."""
    kind, source = spec.kind, spec.source
    if kind is not None and kind not in KINDS:
        return None
    if kind == "fillers":
        return open_filler(spec)
    if isinstance(source, Mapping):
        if kind not in (None, "arrays"):
            raise DataError(f"kind {kind!r} needs the name of a file, not a mapping of arrays")
        return ArraySamples("arrays", source)
    if kind == "arrays":
        raise DataError(
            f'kind "arrays" needs a mapping {{"data": array, "label": array}}, '
            f"not {type(source).__name__}"
        )
    if not isinstance(source, (str, os.PathLike)):
        return None
    if kind == "random" or (kind is None and str(source).startswith(PREFIX)):
        return StandIns(str(source), spec.instead_of)
    asked = _asked(os.fspath(source), spec.options, kind is not None)
    if asked is None:
        return None
    text, options = asked
    split = _split(options)
    digits = kind == "digits" or text == "digits" or text.startswith("digits:")
    told = kind if kind in OPTIONS else None if kind or digits else _told(text)
    if told is not None:
        return open_file(_there(text), told, spec)
    if digits:
        part = text.partition(":")[2] if text.startswith("digits") else text
        made: Samples | None = open_digits(part or split)
    elif kind is None and not is_there(text) and re.match(r"\w[\w+.-]+:", text):
        return None  # another plugin's kind; but a single letter is a drive of Windows
    else:
        made = _open_files(text, kind, split, options)
    if made is not None and options.get("scaling"):
        raise DataError(f"{text}: only images of databases and image lists can be resized")
    return made


def _told(text: str) -> str | None:
    """Return the kind of a database or an HDF5 file, judging by the files that exist."""
    path = expanded(text)
    return kind_of(path) or ("hdf5" if is_hdf5(path) else None)


def _there(text: str) -> Path:
    path = expanded(text)
    if not is_there(path):
        raise missing(path, UNDERSTOOD)
    return path


def _asked(
    text: str, options: Mapping[str, object], ours: bool
) -> tuple[str, Mapping[str, object]] | None:
    """Return the name of a source, and its options. Those after the name (``?split=test&labels=false``)
    take precedence. Returns None for an option that is none of this plugin's, but may be another's
    (``?reader=one``), unless the source is known to be ours. Raises DataError for an invalid option."""
    mark = re.search(r"\?(\w+=[^?]*)$", text)
    if mark is None or is_there(text):
        return text, options
    behind: dict[str, object] = {}
    for part in mark[1].split("&"):
        key, _, value = part.partition("=")
        if key not in BEHIND:
            if not ours:
                return None
            raise DataError(unknown("option of a source", key, BEHIND, repr(text)))
        if not value:
            raise DataError(f"{text!r}: {key} is empty (valid: {BEHIND[key]})")
        behind[key] = {"true": True, "false": False}.get(value, value) if key == "labels" else value
    return text[: mark.start()], {**options, **behind}


def _split(options: Mapping[str, object]) -> str | None:
    chosen = options.get("split")
    if chosen is not None and chosen not in SPLITS:
        raise DataError(unknown("split", str(chosen), SPLITS))
    return None if chosen is None else str(chosen)


def _open_files(
    text: str, kind: str | None, split: str | None, options: Mapping[str, object]
) -> ArraySamples | None:
    paths = _paths(text)
    for path in paths:
        told = looks_like_at(path)
        if "Git LFS" in told or "web page" in told:
            raise DataError(f"{path} {told}")
    if any(is_folder(path) for path in paths):
        if len(paths) > 1:
            raise DataError(f"{text!r} names a folder among others; name one folder, or files")
        found = _in_folder(paths[0], kind, split)
        if found is None:
            return None
        kind, paths = found
    elif kind is None:
        kind = _kind_of(paths)
        if kind is None:
            _refuse(paths[0])
            return None
    if kind == "idx":
        if len(paths) > 1:
            raise DataError(
                f"{text!r} names {len(paths)} files; IDX samples come from one file of images, and "
                f"labels from the one beside it, or from the one that ?labels=FILE after it names"
            )
        return open_idx(paths[0], *_labels(paths[0], options))
    return open_cifar(paths, kind if kind in FORMATS else None)


def _labels(images: Path, options: Mapping[str, object]) -> tuple[Path | None, str]:
    """Return the labels file, or None and the reason for its absence."""
    labels = options.get("labels", True)
    if labels is True:
        return labels_beside(images)
    if labels is False or labels is None:
        return None, ""
    path = expanded(str(labels))
    if not is_there(path) and is_there(images.parent / path):
        return images.parent / path, ""
    if not is_there(path):
        raise missing(path, f"the labels of {images}")
    return path, ""


def _kind_of(paths: list[Path]) -> str | None:
    if all(is_cifar(path) for path in paths):
        return "cifar"
    return "idx" if is_idx(paths[0]) else None


def _refuse(path: Path) -> None:
    """Raise DataError for an archive."""
    if path.suffix == ".npz":
        raise DataError(
            f"{path}: holds arrays; give them by name in a program (data=...), or write them "
            f"into an HDF5 file"
        )
    try:
        with SampleFile(path) as file:
            start, compression = file.read(512), file.compression
    except DataError:
        return
    tar = start[257:262] == b"ustar"
    if tar or start.startswith(b"PK\x03\x04"):
        what = (
            "a tar archive" + (f" in {compression}" if compression else "") if tar else "a zip archive"
        )
        raise DataError(
            f"{path}: is {what}; unpack it, and name a file in it, or its folder with ?split=train or "
            f"?split=test"
        )


def _paths(text: str) -> list[Path]:
    """Return the files named by a path, a pattern, or several of these separated by commas."""
    paths = []
    for part in [text] if is_there(text) else text.split(","):
        path = expanded(part.strip())
        if is_there(path) or not glob.has_magic(str(path)):
            if not is_there(path):
                raise missing(path, UNDERSTOOD)
            check_plain(path)
            paths.append(path)
            continue
        try:
            found = sorted(matching(path), key=natural)
        except ValueError as error:
            raise DataError(f"{str(path)!r}: {error}") from error
        if not found:
            raise DataError(f"no file matches {str(path)!r}{nearest_path(path)} ({UNDERSTOOD})")
        by_name: dict[Path, Path] = {}
        for each in found:
            other = by_name.setdefault(each.with_name(bare_name(each)), each)
            if other != each:
                raise DataError(
                    f"{str(path)!r} matches both {str(other)!r} and {str(each)!r}, the same samples "
                    f"twice; name the ending too"
                )
        paths += found
    return paths


def _in_folder(folder: Path, kind: str | None, split: str | None) -> tuple[str, list[Path]] | None:
    """Return the kind and the files of a folder with MNIST's or CIFAR's names. Raises DataError for a
    folder in which no samples can be found."""
    wanted: dict[str, Mapping[str, str]] = {
        "idx": MNIST,
        **{name: {"train": form.train, "test": form.test} for name, form in FORMATS.items()},
    }
    present: dict[tuple[str, str], list[Path]] = {}
    entries = sorted(
        folder.iterdir(), key=lambda path: (SUFFIXES.index(_ending(path)), not _is_binary(path))
    )
    # This remains of an LMDB database that was copied only in part, or whose writing was interrupted.
    if all(entry.name == "lock.mdb" for entry in entries):
        held = "it has the lock.mdb of a database, but no data.mdb" if entries else "the folder is empty"
        raise DataError(f"{folder} has no samples: {held} ({UNDERSTOOD})")
    for name, splits in wanted.items():
        for part, pattern in splits.items():
            files: dict[str, Path] = {}
            for entry in entries:
                # Plain before compressed, binary before pickled, so that each batch is read once.
                if not re.fullmatch(pattern, bare_name(entry)) or not entry.is_file():
                    continue
                if name not in FORMATS or _is_binary(entry) or is_pickled(entry):
                    files.setdefault(bare_name(entry).removesuffix(".bin"), entry)
            if files and kind in (None, name):
                present[name, part] = sorted(files.values(), key=natural)
    if not present and kind is None and split is None:
        if any(entry.name.startswith("MANIFEST-") for entry in entries):
            raise DataError(
                f"{folder}: the file CURRENT of its LevelDB is missing; copy the whole folder"
            )
        return None
    choices = [key for key in present if split in (None, key[1])]
    if len(choices) == 1:
        return choices[0][0], present[choices[0]]
    there = ", ".join(f"{name} {part}" for name, part in present) or "none of these"
    if choices:
        raise DataError(
            f"{folder} has {there}; say which: {str(folder)!r} with ?split=train or ?split=test"
            + (", and a kind" if len({name for name, _ in choices}) > 1 else "")
        )
    raise DataError(
        f"{folder} has no samples for kind {kind or 'any'}, split {split or 'any'}: found {there}; "
        f"looked for the names of MNIST (train-images-idx3-ubyte), CIFAR-10 (data_batch_1.bin) and "
        f"CIFAR-100 (train.bin)"
    )


def _is_binary(path: Path) -> bool:
    return bare_name(path).endswith(".bin")


def _ending(path: Path) -> str:
    return path.suffix if path.suffix in SUFFIXES else ""
