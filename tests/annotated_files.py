"""Databases of images with boxes, as SSD's fork writes them, for tests: the messages are made here, by
their field numbers in its caffe.proto, and written by protobuf's own library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from sample_files import database, packed

_KINDS = {"float": 2, "int32": 5, "bool": 8, "bytes": 12}
_MESSAGES: Mapping[str, Mapping[int, tuple[str, str]]] = {
    "Datum": {
        **{
            1: ("channels", "int32"),
            2: ("height", "int32"),
            3: ("width", "int32"),
            4: ("data", "bytes"),
        },
        **{5: ("label", "int32"), 7: ("encoded", "bool")},
    },
    "NormalizedBBox": {
        **{1: ("xmin", "float"), 2: ("ymin", "float"), 3: ("xmax", "float"), 4: ("ymax", "float")},
        **{5: ("label", "int32"), 6: ("difficult", "bool"), 7: ("score", "float"), 8: ("size", "float")},
    },
    "Annotation": {1: ("instance_id", "int32"), 2: ("bbox", "NormalizedBBox")},
    "AnnotationGroup": {1: ("group_label", "int32"), 2: ("annotation", "Annotation*")},
    "AnnotatedDatum": {
        **{1: ("datum", "Datum"), 2: ("type", "int32"), 3: ("annotation_group", "AnnotationGroup*")},
    },
}


@cache
def message(name: str) -> Any:
    """The class of a message."""
    file = descriptor_pb2.FileDescriptorProto(name="annotated.proto", package="t", syntax="proto2")
    for title, fields in _MESSAGES.items():
        made = file.message_type.add(name=title)
        for number, (field, kind) in fields.items():
            each = made.field.add(name=field, number=number, label=3 if kind.endswith("*") else 1)
            kind = kind.rstrip("*")
            each.type = _KINDS.get(kind, 11)
            if kind not in _KINDS:
                each.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}"))


def annotated(
    pixels: np.ndarray, objects: Iterable[Sequence[float]], encoded: bool = True, kind: int | None = 0
) -> bytes:
    """A record of an image (height, width, channels) and objects: class, number, xmin, ymin, xmax, ymax
    and whether they are difficult."""
    record = message("AnnotatedDatum")()
    height, width, channels = pixels.shape
    if encoded:
        record.datum.data, record.datum.encoded = packed(pixels), True
    else:
        record.datum.data = pixels.transpose(2, 0, 1).tobytes()
        record.datum.channels, record.datum.height, record.datum.width = channels, height, width
    record.datum.label = 3
    if kind is not None:
        record.type = kind
    groups: dict[int, Any] = {}
    for label, number, *corners, difficult in objects:
        if label not in groups:
            groups[int(label)] = record.annotation_group.add(group_label=int(label))
        box = groups[int(label)].annotation.add(instance_id=int(number)).bbox
        box.xmin, box.ymin, box.xmax, box.ymax = corners
        box.difficult = bool(difficult)
    return bytes(record.SerializeToString())


def rectangles(
    count: int, seed: int, height: int = 32, width: int = 32
) -> list[tuple[np.ndarray, list]]:
    """Gray images of one bright (class 1) or dark (2) rectangle in noise, and their objects."""
    dice = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        pixels = dice.normal(128, 15, (height, width, 1))
        (rows, columns), label = dice.integers(7, 14, 2), int(dice.integers(1, 3))
        top, left = int(dice.integers(0, height + 1 - rows)), int(dice.integers(0, width + 1 - columns))
        pixels[top : top + rows, left : left + columns] += 90 if label == 1 else -90
        corners = left / width, top / height, (left + columns) / width, (top + rows) / height
        made.append((pixels.clip(0, 255).astype(np.uint8), [(label, 0, *corners, 0)]))
    return made


def annotated_database(folder: Path, samples: Iterable[tuple[np.ndarray, Any]], **how: Any) -> Path:
    """A folder of LMDB with a record for each image and its objects."""
    return database(
        folder, {f"{n:08d}".encode(): annotated(*each, **how) for n, each in enumerate(samples)}
    )
