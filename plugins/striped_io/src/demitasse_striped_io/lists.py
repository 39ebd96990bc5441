"""Image files by a list (a path and a label a line) or by their folders, as the datasets plugin takes
them."""

from __future__ import annotations

import re
from pathlib import Path

from demitasse import DataError, file_text, images_by_class, is_there
from demitasse_striped_io.contents import Item

HDF5 = (".h5", ".hdf5")
_LABEL = re.compile(r"[+-]?[0-9]{1,20}")


def in_folder(folder: Path) -> list[Item]:
    """The images of a folder, with the numbers of their classes. Raises DataError."""
    classes = enumerate(images_by_class(folder))
    return [Item(path, str(path), label) for label, images in classes for path in images]


def listed(path: Path, root: str) -> list[Item]:
    """The images of a list: a path (after ``root``, as text), which may have blanks in it, a blank, a
    label. It may begin with the mark of a byte order, and names need not be UTF-8. A file that is not
    there is looked for beside the list. Raises DataError with the line, for files that are not there
    with the first one's and how many."""
    text = file_text(path)
    items, absent = [], []
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        if not (stripped := line.strip()):
            continue
        name, _, label = stripped.replace("\t", " ").rpartition(" ")
        name = stripped[: len(name)].rstrip()
        if not name or not _LABEL.fullmatch(label):
            file_text(path, strict=True)  # an image or a database given for a list
            hint = "; a list of HDF5 files is of kind hdf5 (--kind hdf5)"
            raise DataError(
                f"{path}:{number}: {line[:200]!r} is not a path, a blank and a label (a whole number)"
                f"{hint if stripped.endswith(HDF5) else ''}"
            )
        file = Path(root + name)
        if not is_there(file):
            if is_there(path.parent / file):
                file = path.parent / file
            else:
                absent.append(f"{path}:{number}: {file}")
        items.append(Item(file, f"{path}:{number}: {file}", int(label)))
    if absent:  # told before hours of writing
        more = f" (and {len(absent) - 1:,} others that it lists)" if len(absent) > 1 else ""
        raise DataError(f"{absent[0]}: there is no such file{more}")
    return items
