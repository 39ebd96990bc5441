"""Images and what they show, written as an LMDB database of AnnotatedDatum records."""

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
    """Write the LMDB database ``target`` (a folder, whole or not at all) and return how many records it
    has, as SSD's convert_annoset does.

    ``source`` lists an image and a file about it a line, after ``root``. The files are VOC's ``xml``, a
    ``json`` for each image of COCO's, or ``txt``, as ``form`` says; ``labels`` is the label map that
    gives classes their numbers, which ``txt`` does not need; with ``check_labels`` a name may be in it
    once only. Images are resized to ``height`` and ``width``, or in proportion, the shorter side to
    ``shorter``, but the other one to ``longest`` at most. ``encoded``, ``gray``, ``check_size``,
    ``progress`` are those of ``convert_samples``. Raises DataError that names file and line.
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
    """A list of images and files about them: a path, a blank, a path a line; the latter by line. Raises
    DataError with the line."""
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
