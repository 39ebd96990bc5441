"""Files that describe the objects in an image (VOC's XML, COCO's JSON for one image, lines of text), and
label maps, which number the classes; all in the forms that SSD's fork reads."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from demitasse import DataError, file_text, unknown
from demitasse_datasets.annotated.record import BOX

Boxes = NDArray[np.float64]
Size = tuple[int, int]
"""Width and height of an image."""
_SIDES = ("xmin", "ymin", "xmax", "ymax")


def read_label_map(path: Path, strict: bool = True) -> dict[str, int]:
    """Return the number of each class by name, from a text with ``item { name: "car" label: 1 }`` for
    each. Raises DataError for anything else and, if ``strict``, for a name that is given twice."""
    text = re.sub(r'("[^"]*")|#[^\n]*', lambda found: found[1] or "", file_text(path))
    items = r'\s*item\s*\{((?:[^{}"]|"[^"]*")*)\}'
    left = re.sub(items, "", text).strip()
    if left:
        raise DataError(
            f"{path}: {left[:60]!r} is not an item {{ name: ... label: ... }} of a label map"
        )
    found: dict[str, int] = {}
    for number, item in enumerate(re.findall(items, text), 1):
        fields = dict(re.findall(r'(\w+)\s*:\s*("[^"]*"|\'[^\']*\'|-?\w+)', item))
        name, label = fields.get("name", "").strip("\"'"), fields.get("label", "")
        if not name or not re.fullmatch(r"-?\d{1,9}", label):
            raise DataError(f"{path}: item {number} needs a name and a label that is a whole number")
        if strict and name in found:
            raise DataError(f"{path}: item {number}: the name {name!r} was given before")
        found[name] = int(label)
    if not found:
        raise DataError(f"{path}: is not a label map: it has no items")
    return found


def from_xml(path: Path, size: Size, labels: Mapping[str, int]) -> Boxes:
    """Read VOC's or ILSVRC's annotation of an image: ``object`` with ``name``, ``bndbox`` and perhaps
    ``difficult``, in pixels of the size given there or, if missing, ``size``."""
    try:
        root = ElementTree.fromstring(file_text(path))
    except ElementTree.ParseError as error:
        raise DataError(f"{path}: is not XML: {error}") from error
    said = [_number(root.find(f"size/{side}"), 0.0) or 0.0 for side in ("width", "height")]
    if not np.isfinite(said).all():
        raise DataError(f"{path}: it says that the image is {said[0]:g} x {said[1]:g}")
    width, height = said if all(said) else size
    rows = []
    for number, thing in enumerate(root.iter("object"), 1):
        where = f"{path}: object {number}"
        name = (thing.findtext("name") or "").strip()
        if name not in labels:
            raise DataError(f"{where}: {unknown('class', name, labels, rest='of the label map')}")
        corners = [_number(thing.find(f"bndbox/{side}"), None) for side in _SIDES]
        if any(corner is None for corner in corners):
            raise DataError(f"{where} ({name}): has no bndbox of numbers {', '.join(_SIDES)}")
        difficult = _number(thing.find("difficult"), 0.0)
        rows.append((where, labels[name], corners, difficult))
    return _boxes(rows, (int(width), int(height)))


def from_json(path: Path, size: Size, labels: Mapping[str, int]) -> Boxes:
    """Read the annotation of a single COCO image: ``image`` with its size, and ``annotation``, a list of
    ``category_id`` (the name of a class in the label map), ``bbox`` (x, y, width, height),
    ``iscrowd``."""
    try:
        said = json.loads(file_text(path))
        image, things = said.get("image", {}), said["annotation"]
        size = int(float(image.get("width", size[0]))), int(float(image.get("height", size[1])))
        rows = []
        for number, thing in enumerate(things, 1):
            where = f"{path}: annotation {number}"
            name = str(thing["category_id"])
            if name not in labels:
                raise DataError(f"{where}: {unknown('class', name, labels, rest='of the label map')}")
            x, y, width, height = map(float, thing["bbox"])
            corners = [x, y, x + width, y + height]
            rows.append((where, labels[name], corners, float(thing.get("iscrowd", 0))))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        told = f"{type(error).__name__}: {error}"
        raise DataError(
            f"{path}: is not the JSON of an image, {{image: {{width, height}}, annotation: "
            f"[{{category_id, bbox}}]}} ({told})"
        ) from error
    return _boxes(rows, size)


def from_text(path: Path, size: Size, labels: Mapping[str, int]) -> Boxes:
    """Read lines with a label and xmin, ymin, xmax, ymax in pixels."""
    rows = []
    for number, line in enumerate(file_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            label, *corners = map(float, line.split())
            if len(corners) != 4 or label != int(label):
                raise ValueError
        except (ValueError, OverflowError) as error:
            told = f"{line[:80]!r} is not a label and xmin ymin xmax ymax"
            raise DataError(f"{path}:{number}: {told}") from error
        if not -(1 << 31) <= label < 1 << 31:  # it is an int32 in the record
            raise DataError(f"{path}:{number}: the label {label:g} does not fit 32 bits")
        rows.append((f"{path}:{number}", int(label), corners, 0.0))
    return _boxes(rows, size)


READERS: Mapping[str, Callable[[Path, Size, Mapping[str, int]], Boxes]] = MappingProxyType(
    {"xml": from_xml, "json": from_json, "txt": from_text}
)
"""The functions that read a file about an image of a given size, by the name of the form."""


def _boxes(rows: list[tuple[str, int, Any, Any]], size: Size) -> Boxes:
    """Return rows of class, number within its class, corners as fractions of the image, and whether the
    object is difficult. Raises DataError for an invalid box."""
    width, height = size
    made, counts = np.zeros((len(rows), BOX)), dict[int, int]()
    for row, (where, label, corners, difficult) in zip(made, rows, strict=True):
        if width < 1 or height < 1:
            raise DataError(f"{where}: the size of the image is not known: {width} x {height}")
        corners = np.array(corners, np.float64)
        if not np.isfinite(corners).all() or (corners[2:] < corners[:2]).any():
            told = ", ".join(f"{side} {corner:g}" for side, corner in zip(_SIDES, corners, strict=True))
            raise DataError(f"{where}: is not a box: {told}")
        row[:2] = label, counts.get(label, 0)
        row[2:6], row[6] = corners / ([width, height] * 2), bool(difficult)
        counts[label] = counts.get(label, 0) + 1
    return made


def _number(element: Any, default: float | None) -> float | None:
    """Return the number in an element; ``default`` if there is no element."""
    try:
        return float(element.text)
    except (AttributeError, TypeError, ValueError):
        return default
