"""Convolutions of our own on a GPU: each way to compute one beside NumPy in float64, whichever would be
the quickest."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import ours
from cases import Cases, Table

WITHIN = {"f32": 1e-5, "tf32": 2e-3}
"""How far a result may be: the difference's length, of the result's. TF32 cuts numbers to 10 bits."""
KINDS = {10: "forward", 11: "gradient of filters", 12: "gradient of images"}
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {
    "three by three": ((2, 64, 28, 28), (64, 64, 3, 3), 1, 1),
    "points": ((4, 256, 14, 14), (136, 256, 1, 1), 1, 0),
    "points, each second": ((2, 128, 14, 14), (264, 128, 1, 1), 2, 0),
    "groups": ((2, 96, 13, 13), (256, 48, 5, 5), 1, 2),
    "small images": ((3, 512, 7, 7), (72, 512, 3, 3), 1, 1),
    "a stride of three": ((2, 24, 17, 15), (40, 24, 5, 4), 3, 2),
}
"""Extents of images and filters, stride and pad."""


def ways(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Each size of tiles, in each number of parts, and Winograd's filtering by shares of each size, of
    every convolution of ``FORMS``."""
    from demitasse_gpu.device import device

    found = device("gpu:0", ours.driver(stand_in))
    for form in ("points",) if stand_in else FORMS:
        if form in without:
            continue
        yield {"begun": form, "limit": 60}
        for precision in WITHIN:
            for kind in KINDS:
                yield from _tried(found, form, kind, precision)


def _tried(found: Any, form: str, kind: int, precision: str) -> Iterator[Table]:
    from stand_in_cudnn import back_to_data, back_to_weights, convolved

    from demitasse_gpu.array import empty
    from demitasse_gpu.libraries import implicit_gemm, winograd
    from demitasse_gpu.libraries.convolutions import Convolution

    of_x, of_w, stride, pad = FORMS[form]
    geometry = (stride, stride), (pad, pad), (1, 1)
    random = np.random.default_rng(9)
    x, w = (random.normal(size=shape).astype(np.float32).astype(np.float64) for shape in (of_x, of_w))
    y = convolved(x, w, *geometry)
    asked = Convolution(kind, of_x, of_w, y.shape, geometry, "float32", precision == "tf32")
    if not implicit_gemm.serves(asked):
        return
    dy = random.normal(size=y.shape).astype(np.float32).astype(np.float64)
    given, expected = {
        10: ((x, w), y),
        11: ((x, dy), back_to_weights(dy, x, of_w, *geometry)),
        12: ((w, dy), back_to_data(dy, w, of_x, *geometry)),
    }[kind]
    arrays = [empty(found, _innermost(each).shape, "float32") for each in (*given, expected)]
    for array, values in zip(arrays, given, strict=False):
        array[...] = _innermost(values).astype(np.float32)
    made, room = arrays[-1], empty(found, (asked.limit,), "uint8")
    addresses = [array.address for array in arrays[:-1]]
    told = found, asked, addresses, made.address, None, room.address
    by_tiles = ((f"Winograd {name}", launches) for name, launches in winograd.ways(*told))
    for name, launches in chain(implicit_gemm.ways(*told), by_tiles):
        made[...] = 99
        for launch in launches:
            launch()
        far = np.asarray(made) - _innermost(expected)
        off = float(np.linalg.norm(far) / np.linalg.norm(expected))
        what = f"{form}, {KINDS[kind]}, {precision}, {name}"
        yield {"ways": [[what, off]]}
        if not off <= WITHIN[precision]:
            yield {"wrong": [f"{what}: {off:.1e} from float64"]}


def _innermost(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1))
