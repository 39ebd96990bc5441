"""Writing images and their annotations as an LMDB database of AnnotatedDatum records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from demitasse import DataError, image_size, unknown
from demitasse_datasets.annotated.annotations import READERS, read_label_map
from demitasse_datasets.annotated.record import serialize_annotated
from demitasse_datasets.convert import check_target, form_of, from_files, write_lmdb
from demitasse_datasets.datum import Datum
from demitasse_datasets.image_list import Listed, beside, lines, read_bytes


def convert_annotated(
    runtime: Any,
    source: str | Path,
    target: str | Path,
    *,
    labels: str | Path = "",
    form: str = "xml",
    root: str = "",
    height: int = 0,
    width: int = 0,
    shorter: int = 0,
    longest: int = 0,
    gray: bool = False,
    encoded: bool | str = False,
    shuffle: bool = False,
    seed: int = 0,
    force: bool = False,
    check_size: bool = False,
    check_labels: bool = False,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Write the LMDB database ``target`` (a folder, written whole or not at all) as SSD's
    convert_annoset does, and return the number of its records.

    Each line of ``source`` has an image and a file about it; ``root`` is put in front of both. The files
    have the ``form`` ``xml`` (VOC), ``json`` (COCO, one for each image) or ``txt``. ``labels`` is the
    label map that gives classes their numbers, which ``txt`` does not need; with ``check_labels``, a
    name may occur in it only once. Images are resized to ``height`` and ``width``, or in proportion: the
    shorter side to ``shorter``, but the other one to at most ``longest``. ``encoded``, ``gray``,
    ``check_size`` and ``progress`` are as for ``convert_samples``. Raises DataError that names file and
    line.
    """
    target, path = Path(target), Path(source)
    check_target(target, force)
    if form not in READERS:
        raise DataError(unknown("form of annotations", form, READERS))
    if min(shorter, longest) < 0 or (height and (shorter or longest)):
        raise DataError("give a height and a width, or the shorter and the longest side, not both")
    if not labels and form != "txt":
        raise DataError(
            f"{form} files name classes; give a label map (--label_map_file) with their numbers"
        )
    written = replace(form_of(height, width, gray, encoded), shorter=shorter, longest=longest)
    names = read_label_map(Path(labels), check_labels) if labels else {}
    listed, about = read_pairs(path)

    def finish(each: Listed, datum: Datum) -> bytes:
        size = image_size(read_bytes(root + each.path, path)) or (datum.width, datum.height)
        file = beside(root + about[each.line], path)
        return serialize_annotated(datum, READERS[form](file, size, names))

    entries = from_files(listed, root, path, written, shuffle, seed, check_size, finish)
    return write_lmdb(target, entries, progress)


def read_pairs(path: Path) -> tuple[list[Listed], dict[int, str]]:
    """Read a list of images and files about them: two paths on each line, separated by a blank. Returns
    the images, and the files by line. Raises DataError with the line."""
    listed, about = [], {}
    for number, line in lines(path):
        words = line.split()
        if len(words) != 2:
            raise DataError(f"{path}:{number}: {line[:200]!r} is not an image and a file about it")
        listed.append(Listed(number, words[0], 0))
        about[number] = words[1]
    if not listed:
        raise DataError(f"{path}: lists no images")
    return listed, about
