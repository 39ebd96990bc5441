"""Pooling extents that are lists in forks for volumes, rewritten as shapes, which Caffe's text format
allows.

Caffe's Pooling has one ``kernel_size``. Forks with more axes (3D U-Net's, Caffe Neural Tool's) repeat
the field, with a number for each axis, as Caffe's own Convolution does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from demitasse_caffe.outline import Block, Entry

LISTED = {"kernel_size": "kernel_shape", "stride": "stride_shape", "pad": "pad_shape"}
"""Fields of a PoolingParameter that such forks repeat, and the shapes that they are read as."""


def with_shapes(text: str, entries: Iterable[Entry], block: Block) -> str:
    """Return a text in which the pooling_param ``block`` has shapes instead of repeated numbers, on the
    same lines. A single number applies to every axis."""
    inside = [entry for entry in entries if entry.block is block and entry.name in LISTED]
    values = {name: [each.value or "" for each in inside if each.name == name] for name in LISTED}
    axes = max(map(len, values.values()))
    lines = text.split("\n")
    for entry in reversed(inside):  # from the end, so that earlier columns stay valid
        given = values[entry.name]
        numbers = given * axes if len(given) == 1 else given
        dims = " ".join(f"dim: {number}" for number in numbers)
        first = next(each for each in inside if each.name == entry.name)
        shape = f"{LISTED[entry.name]} {{ {dims} }}" if entry is first else ""
        line, place = lines[entry.line - 1], entry.column - 1
        given_here = re.compile(rf"{entry.name}\s*:?\s*{re.escape(entry.value or '')}[;,]?")
        lines[entry.line - 1] = line[:place] + given_here.sub(shape, line[place:], count=1)
    return "\n".join(lines)
