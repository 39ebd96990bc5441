"""Where the files lie that a model file names."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from pathlib import Path

from demitasse import ModelError, matching, nearest, nearest_path

FILES = ("mean_file", "root_folder", "source")
"""The fields of a layer's parameters that name files."""

_WINDOWS = re.compile(r"[A-Za-z]:/")
"""How an absolute path of Windows begins."""


def find(name: str, beside: str | Path) -> tuple[str | None, list[str]]:
    """The path (or pattern) ``name`` that was written in the file ``beside``.

    Caffe takes it relative to the working directory: that comes first for a file that lies there or
    below. Then the folder of ``beside`` and each folder above it (files say
    ``examples/mnist/x.prototxt`` and lie in that very folder). A file from elsewhere is first
    looked for around itself: a like-named file of the working directory is another project's. An
    absolute path that is not there is another machine's: its last parts, the most of them first, are
    looked for in the same folders. Last comes the bare name in the folder of ``beside``. Returns what
    was found, or None, and the tried.
    """
    tried: list[str] = []
    for candidate in _candidates(name, Path(beside)):
        if str(candidate) not in tried:
            tried.append(str(candidate))
            if _exists(candidate):
                return str(candidate), tried
    return None, tried


def find_file(name: str, beside: str | Path, what: str) -> Path:
    """A file that must be there; ModelError with what was tried, and the nearest name, which is neither
    the file that asks nor, unless one is asked for, a solver."""
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
    """The end of a sentence about a file that is not there: the nearest folder or file; "" for none."""
    if not place.parent.is_dir():
        told = nearest_path(place)
        return told if told.endswith("?") else ""
    close = _nearest_file(place, beside)
    return f"; did you mean {str(close)!r}?" if close is not None else ""


def _nearest_file(place: Path, beside: Path) -> Path | None:
    """The file of a name near that of ``place`` in its folder; to end alike is no likeness."""
    try:
        names = sorted(each.name for each in place.parent.iterdir() if each.is_file())
    except OSError:  # a folder that nobody may look into
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
    """A sentence for an absolute path that is not there where another place has the file; else none."""
    absolute = Path(name).is_absolute() or _WINDOWS.match(name.replace("\\", "/"))
    found = find(name, beside)[0] if absolute else None
    if found is None or Path(found) == Path(name):
        return []
    return [f"{what} {name!r} was not found; using {found}"]


def attempts(tried: list[str]) -> str:
    """What was tried, in words: of a long walk upwards the first places and the last."""
    if len(tried) > 5:
        tried = [*tried[:3], f"{len(tried) - 4} places above", tried[-1]]
    return f"tried {', '.join(tried)}"


def located(source: str, beside: str | Path) -> str:
    """A data source with its files where they are found; what is no file's name stays as it is.

    Understands lists with commas, patterns, and options such as ``?split=train`` at the end.
    """
    names, query = _apart(source)
    parts = [find(part.strip(), beside)[0] for part in names.split(",")]
    if not all(parts):
        return source
    return ",".join(part for part in parts if part) + query


def given(source: str) -> str:
    """What a user gives, not a file: paths are the working directory's, made absolute."""
    names, query = _apart(source)
    here = _working_directory() or Path()
    parts = [here / part.strip() for part in names.split(",")]
    return ",".join(map(str, parts)) + query if all(map(_exists, parts)) else source


def _apart(source: str) -> tuple[str, str]:
    """The names, and the options behind them with their mark; a pattern may have that mark, too."""
    mark = re.search(r"\?\w+=", source)
    return (source[: mark.start()], source[mark.start() :]) if mark else (source, "")


def _candidates(name: str, beside: Path) -> Iterator[Path]:
    path = Path(name)
    if "\\" in name:  # Windows's form
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
    """None where it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _folder(file: Path) -> Path:
    """The folder of a file; as it is named where that is relative to a deleted working directory."""
    try:
        return file.parent.resolve()
    except FileNotFoundError:
        return file.parent


def _exists(path: Path) -> bool:
    try:
        if path.exists():  # whatever is in its name
            return True
        return glob.has_magic(str(path)) and any(matching(path))
    except (OSError, ValueError):
        return False
