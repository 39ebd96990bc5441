"""Where the files lie that a model file names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from demitasse import ModelError, nearest


def find(name: str, beside: str | Path) -> tuple[str | None, list[str]]:
    """The path (or pattern) ``name`` of a file that was written in the file ``beside``.

    Caffe takes it relative to the working directory. Tried after that: the folder of ``beside``,
    each folder above it (files say ``examples/mnist/x.prototxt`` and lie in that very folder), and
    the bare name in the folder of ``beside``. Returns what was found, or None, and what was tried.
    """
    tried: list[str] = []
    for candidate in _candidates(name, Path(beside)):
        if str(candidate) not in tried:
            tried.append(str(candidate))
            if _exists(candidate):
                return str(candidate), tried
    return None, tried


def find_file(name: str, beside: str | Path, what: str) -> Path:
    """A file that must be there; ModelError with what was tried, and the nearest name."""
    found, tried = find(name, beside)
    if found is None:
        guess = hint(Path(name)) or hint(Path(beside).absolute().with_name(Path(name).name))
        raise ModelError(f"{what} {name!r} is not there; tried {', '.join(tried)}{guess}")
    return Path(found)


def hint(path: Path) -> str:
    """The nearest name in the folder of a missing file, as the end of a sentence."""
    try:
        siblings = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    close = nearest(path.name, siblings)
    return f"; did you mean {str(path.parent / close)!r}?" if close else ""


def _candidates(name: str, beside: Path) -> Iterator[Path]:
    path = Path(name)
    if name.startswith("~/"):
        path = path.expanduser()
    yield path
    if not path.is_absolute():
        folder = beside.absolute().parent
        for parent in (folder, *folder.parents):
            yield parent / path
        yield folder / path.name


def _exists(path: Path) -> bool:
    try:
        if any(character in str(path) for character in "*?["):
            anchor = Path(path.anchor) if path.is_absolute() else Path()
            return any(anchor.glob(str(path.relative_to(path.anchor))))
        return path.exists()
    except (OSError, ValueError):
        return False
