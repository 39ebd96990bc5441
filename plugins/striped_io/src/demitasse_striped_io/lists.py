"""Image files from a list (a path and a label per line) or from folders, in the forms that the datasets
plugin reads."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from demitasse import DataError, file_text, images_by_class, is_there
from demitasse_striped_io.contents import Item

HDF5 = (".h5", ".hdf5")
_LABEL = re.compile(r"([+-]?[0-9]{1,20})(?:\.0*)?")
_IMAGE = r"\.(?:bmp|dib|gif|jpe?g|jpe|jp2|p[abgnp]m|png|ras|sr|tiff?|webp)"
_ENDING = re.compile(rf"{_IMAGE}(?=\s|$)", re.IGNORECASE)
_NUMBERS = re.compile(rf"{_IMAGE}(?:\s+[-+.0-9e]+)+$", re.IGNORECASE)

log = logging.getLogger("demitasse.striped_io")


def in_folder(folder: Path) -> list[Item]:
    """Return the images of a folder with the numbers of their classes. Raises DataError."""
    classes = enumerate(images_by_class(folder))
    return [Item(path, str(path), label) for label, images in classes for path in images]


def listed(path: Path, root: str) -> list[Item]:
    """Return the images of a list. Each line has a path (to which ``root`` is prepended, as text), which
    may contain blanks, a blank, and a label; if no line has a label, all are 0. The list may begin with
    a byte order mark, and names need not be UTF-8. A file that does not exist is searched for in the
    list's folder. Raises DataError with the line; for missing files, with the first one and their
    number."""
    text = file_text(path)
    items, absent, bare = list[Item](), list[str](), 0
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        if not (stripped := line.strip()):
            continue
        name, _, label = stripped.replace("\t", " ").rpartition(" ")
        name, found = stripped[: len(name)].rstrip(), _LABEL.fullmatch(label)
        several = name[-1:].isdecimal() and _NUMBERS.search(name)
        lone = [ending.end() for ending in _ENDING.finditer(stripped)] == [len(stripped)]
        if name and found and not several and not bare:
            value = int(found[1])
        elif lone and len(items) == bare:
            name, value, bare = stripped, 0, bare + 1
        else:
            file_text(path, strict=True)  # raises for an image or a database in place of a list
            hint = "; a list of HDF5 files needs --kind hdf5"
            raise DataError(
                f"{path}:{number}: {line[:200]!r} is not a path, a blank and a label (a whole number)"
                f"{hint if stripped.endswith(HDF5) else ''}"
            )
        file = Path(root + name)
        if (place := _place(root + name, path.parent)) is None:
            absent.append(f"{path}:{number}: {file}")
        file = place or file
        items.append(Item(file, f"{path}:{number}: {file}", value))
    if absent:  # report it before hours of writing
        more = f" (and {len(absent) - 1:,} more that it lists)" if len(absent) > 1 else ""
        raise DataError(f"{absent[0]}: no such file{more}")
    if bare:
        log.warning("%s: no line has a label: all %s are 0, as in Caffe", path, f"{bare:,}")
    return items


def _place(name: str, folder: Path) -> Path | None:
    """Return a file's path relative to the working directory or else to the folder; its separators may
    be those of Windows. None if it is in neither."""
    names = [name, name.replace("\\", "/")] if "\\" in name else [name]
    places = [place for each in names for place in (Path(each), folder / each)]
    return next((place for place in places if is_there(place)), None)
