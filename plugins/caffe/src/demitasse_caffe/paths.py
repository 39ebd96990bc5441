"""Locating the files that a model file names."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

from demitasse import ModelError, matching, nearest, nearest_path

FILES = ("mean_file", "root_folder", "source")
"""The fields of a layer's parameters that name files."""

_WINDOWS = re.compile(r"[A-Za-z]:/")
"""The beginning of an absolute Windows path."""


def find(name: str, beside: str | Path) -> tuple[str | None, list[str]]:
    """Locate the path (or pattern) ``name`` that is written in the file ``beside``.

    Caffe takes it relative to the working directory, so that is the first place for a file that lies
    there or below. Then come the folder of ``beside`` and each folder above it (files say
    ``examples/mnist/x.prototxt`` and lie in that very folder). For a file from elsewhere these folders
    come first, because a file of the same name in the working directory belongs to another project. An
    absolute path that does not exist is from another machine: its last parts, as many as possible first,
    are looked for in the same folders. The last candidate is the bare name in the folder of ``beside``.
    Return the path that was found, or None, and the paths that were tried.
    """
    tried: list[str] = []
    for candidate in _candidates(name, Path(beside)):
        if str(candidate) not in tried:
            tried.append(str(candidate))
            if _exists(candidate):
                return str(candidate), tried
    return None, tried


def find_file(name: str, beside: str | Path, what: str) -> Path:
    """Return the path of a file that must exist. Raise ModelError with the paths tried and the nearest
    name; that is never the asking file itself, nor a solver unless a solver is asked for."""
    if not name:
        raise ModelError(f"{what} has an empty name")
    found, tried = find(name, beside)
    if found is not None and Path(found).is_dir():
        raise ModelError(f"{what} {name!r} is a folder; a file is needed here: name one in it")
    if found is None:
        folder = _folder(Path(beside))
        places = Path(name), folder / name, folder / Path(name).name
        guess = next((told for each in places if (told := _guess(each, Path(beside)))), "")
        gone = "" if _working_directory() else "; the working directory no longer exists"
        raise ModelError(f"{what} {name!r} was not found; {attempts(tried)}{guess}{gone}")
    return Path(found)


def _guess(place: Path, beside: Path) -> str:
    """Return the end of a sentence about a missing file: the nearest folder or file, or ""
    if there is none."""
    if not place.parent.is_dir():
        told = nearest_path(place)
        return told if told.endswith("?") else ""
    close = _nearest_file(place, beside)
    return f"; did you mean {str(close)!r}?" if close is not None else ""


def _nearest_file(place: Path, beside: Path) -> Path | None:
    """Return the file in the folder of ``place`` with the most similar name; an equal suffix alone does
    not count."""
    try:
        names = sorted(each.name for each in place.parent.iterdir() if each.is_file())
    except OSError:  # a folder without permission to read
        return None
    shown = [
        each
        for each in names
        if each not in (beside.name, place.name)
        and (each[:1] != "." or place.name[:1] == ".")
        and ("solver" in place.name or "solver" not in each)
    ]
    alike = {each.removesuffix(place.suffix): each for each in shown}
    stem = nearest(place.stem, alike)
    close = alike[stem] if stem is not None else nearest(place.name, sorted({*alike} & {*shown}))
    return place.parent / close if close is not None else None


def moved(name: str, beside: str | Path, what: str) -> list[str]:
    """Return a sentence for an absolute path that does not exist if the file was found
    elsewhere; else nothing."""
    absolute = Path(name).is_absolute() or _WINDOWS.match(name.replace("\\", "/"))
    found = find(name, beside)[0] if absolute else None
    if found is None or Path(found) == Path(name):
        return []
    return [f"{what} {name!r} was not found; using {found}"]


def attempts(tried: list[str]) -> str:
    """Describe the paths tried; of a long walk upwards the first ones and the last."""
    if len(tried) > 5:
        tried = [*tried[:3], f"{len(tried) - 4} places above", tried[-1]]
    return f"tried {', '.join(tried)}"


def located(source: str, beside: str | Path) -> str:
    """Return a data source with its files replaced by where they were found. What names no file stays
    unchanged.

    Supports comma-separated lists, patterns, and options such as ``?split=train`` at the end.
    """
    names, query = _apart(source)
    parts = [find(part.strip(), beside)[0] for part in names.split(",")]
    if not all(parts):
        return source
    return ",".join(part for part in parts if part) + query


def given(source: str) -> str:
    """Return a source given by a user instead of a file: relative to the working
    directory, made absolute."""
    names, query = _apart(source)
    here = _working_directory() or Path()
    parts = [here / part.strip() for part in names.split(",")]
    return ",".join(map(str, parts)) + query if all(map(_exists, parts)) else source


def _apart(source: str) -> tuple[str, str]:
    """Split a source into the names and the options, with their question mark; patterns may
    contain one, too."""
    mark = re.search(r"\?\w+=", source)
    return (source[: mark.start()], source[mark.start() :]) if mark else (source, "")


def _candidates(name: str, beside: Path) -> Iterator[Path]:
    path = Path(name)
    if "\\" in name:  # a Windows path
        yield path
        path = Path(name := name.replace("\\", "/"))
    if name.startswith("~/"):
        path = path.expanduser()
    folder = _folder(beside)
    folders = (folder, *folder.parents)
    if path.is_absolute() or _WINDOWS.match(name):
        yield path
        parts = path.parts[1:]
        for start in range(len(parts) - 1):
            yield from (each.joinpath(*parts[start:]) for each in folders)
        yield from (folder / part for part in parts[-1:])
        return
    around = [each / path for each in folders]
    here = _working_directory()
    own = [path] if here else []
    yield from (*own, *around) if here and folder.is_relative_to(here) else (*around, *own)
    yield folder / path.name


def _working_directory() -> Path | None:
    """Return the working directory, or None if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _folder(file: Path) -> Path:
    """Return the folder of a file, unresolved if it is relative to a deleted working directory."""
    try:
        return file.parent.resolve()
    except FileNotFoundError:
        return file.parent


def _exists(path: Path) -> bool:
    try:
        if path.exists():  # whatever characters its name has
            return True
        return glob.has_magic(str(path)) and any(matching(path))
    except (OSError, ValueError):
        return False
