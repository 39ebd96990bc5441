"""Our own convolutions on a GPU: each way of computing one is compared with NumPy in float64, even if it
would not be the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import ours
from cases import Cases, Table

WITHIN = {"f32": 1e-5, "tf32": 2e-3}
"""The largest difference of a result: its length relative to the result's. TF32 cuts numbers to 10
bits."""
FORWARD, OF_FILTERS = 10, 11
KINDS = {FORWARD: "forward", OF_FILTERS: "gradient of filters", 12: "gradient of images"}
FORMS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, int]] = {
    "three by three": ((2, 64, 28, 28), (64, 64, 3, 3), 1, 1),
    "points": ((4, 256, 14, 14), (136, 256, 1, 1), 1, 0),
    "points, each second": ((2, 128, 14, 14), (264, 128, 1, 1), 2, 0),
    "groups": ((2, 96, 13, 13), (256, 48, 5, 5), 1, 2),
    "many tiles": ((8, 64, 56, 56), (64, 64, 3, 3), 1, 1),
    "small images": ((3, 512, 7, 7), (72, 512, 3, 3), 1, 1),
    "a stride of three": ((2, 24, 17, 15), (40, 24, 5, 4), 3, 2),
}
"""Sizes of images and filters, stride and pad. One has so many Winograd tiles that they are made in
several shares."""


def ways(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Try each tile size, in each number of parts, and Winograd's filtering by shares of each size, on
    every convolution of ``FORMS``."""
    from demitasse_gpu.device import device

    found = device("gpu:0", ours.driver(stand_in))
    for form in ("points",) if stand_in else FORMS:
        if form in without:
            continue
        yield {"begun": form, "limit": 120}
        for precision in WITHIN:
            for kind in KINDS:
                yield from _tried(found, form, kind, precision)
            yield from _tried(found, form, FORWARD, precision, rectified=True)


@cache
def _problem(form: str, kind: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return two operands, numbers in float32, and the expected result in float64."""
    from stand_in_cudnn import back_to_data, back_to_weights, convolved

    of_x, of_w, stride, pad = FORMS[form]
    geometry, random = _geometry(form), np.random.default_rng(9)
    rows, columns = ((n + 2 * pad - k) // stride + 1 for n, k in zip(of_x[2:], of_w[2:], strict=True))
    shapes = of_x, of_w, (of_x[0], of_w[0], rows, columns)
    x, w, dy = (random.normal(size=each).astype(np.float32).astype(np.float64) for each in shapes)
    if kind == FORWARD:
        return [x, w], convolved(x, w, *geometry)
    if kind == OF_FILTERS:
        return [x, dy], back_to_weights(dy, x, of_w, *geometry)
    return [w, dy], back_to_data(dy, w, of_x, *geometry)


def _geometry(form: str) -> tuple[tuple[int, int], ...]:
    _, _, stride, pad = FORMS[form]
    return (stride, stride), (pad, pad), (1, 1)


def _tried(found: Any, form: str, kind: int, precision: str, rectified: bool = False) -> Iterator[Table]:
    """Try one convolution; ``rectified`` adds a bias and a ReLU."""
    from demitasse_gpu.array import empty
    from demitasse_gpu.libraries import implicit_gemm, winograd
    from demitasse_gpu.libraries.convolutions import Convolution

    of_x, of_w, *_ = FORMS[form]
    given, expected = _problem(form, kind)
    of_y = (given[1] if kind != FORWARD else expected).shape
    told = kind, of_x, of_w, of_y, _geometry(form), "float32", precision == "tf32"
    asked = Convolution(*told, bias=rectified, relu=rectified)
    if not implicit_gemm.serves(asked):
        return
    bias = None
    if rectified:
        bias = empty(found, (of_w[0],), "float32")
        bias[...] = np.random.default_rng(8).normal(size=of_w[0]).astype(np.float32)
        expected = np.maximum(expected + np.asarray(bias, np.float64)[:, None, None], 0)
    arrays = [empty(found, _innermost(each).shape, "float32") for each in (*given, expected)]
    for array, values in zip(arrays, given, strict=False):
        array[...] = _innermost(values).astype(np.float32)
    made, room = arrays[-1], empty(found, (asked.limit,), "uint8")
    addresses = [array.address for array in arrays[:-1]]
    place = found, asked, addresses, made.address, bias, room.address
    by_tiles = ((f"Winograd {name}", launches) for name, launches in winograd.ways(*place))
    for name, launches in chain(implicit_gemm.ways(*place), by_tiles):
        made[...] = 99
        for launch in launches:
            launch()
        far = np.asarray(made) - _innermost(expected)
        off = float(np.linalg.norm(far) / np.linalg.norm(expected))
        what = f"{form}, {KINDS[kind]}{' with a ReLU' * rectified}, {precision}, {name}"
        yield {"ways": [[what, off]]}
        if not off <= WITHIN[precision]:
            yield {"wrong": [f"{what}: {off:.1e} from float64"]}


def _innermost(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.transpose(0, 2, 3, 1))
