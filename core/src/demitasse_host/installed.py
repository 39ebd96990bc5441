"""The packages installed in a group of entry points, found without importing them."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from zipimport import zipimporter


@dataclass(frozen=True)
class Installed:
    """An entry point: its name and module (or the text in place of one), its distribution and version,
    and the folder of its package, or None if that does not exist. A package in a zip file also has the
    file's reader."""

    name: str
    module: str
    distribution: str
    version: str
    folder: Path | None
    zipped: zipimporter | None = None

    def text(self, name: str) -> str:
        """Return the text of a file in the package. Raises OSError or ValueError."""
        path = (self.folder or Path()) / name
        if self.zipped is None:
            return path.read_text("utf-8")
        return self.zipped.get_data(str(path)).decode()


def installed(group: str) -> tuple[Installed, ...]:
    """Return the entry points of a group, sorted by name. They are read again when ``sys.path`` or one
    of its folders changes, as it does when something is installed."""
    return _installed(group, tuple((path, _changed(path)) for path in sys.path))


@functools.lru_cache(maxsize=4)
def _installed(group: str, searched: object) -> tuple[Installed, ...]:
    points = importlib.metadata.entry_points(group=group)
    return tuple(map(_read, sorted(points, key=lambda point: point.name)))


def _read(point: importlib.metadata.EntryPoint) -> Installed:
    about = point.dist.metadata if point.dist else {"Name": "", "Version": ""}  # parsed at each access
    module = point.module if point.pattern.match(point.value) else point.value
    package, *inner = module.split(".")
    names = all(name.isidentifier() for name in (package, *inner))
    spec = importlib.util.find_spec(package) if names else None
    folders = spec.submodule_search_locations if spec is not None else None
    folder = Path(folders[0]) if folders else None
    loader = spec.loader if spec is not None else None
    zipped = loader if isinstance(loader, zipimporter) else None
    return Installed(point.name, module, about["Name"], about["Version"], folder, zipped)


def _changed(path: str) -> int:
    """Return when a folder of ``sys.path`` last changed; 0 if it does not exist."""
    try:
        return os.stat(path or ".").st_mtime_ns  # noqa: PTH116 - thirty of them for each composition
    except OSError:
        return 0
