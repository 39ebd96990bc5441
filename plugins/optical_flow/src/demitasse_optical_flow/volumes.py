"""Cost volumes: the similarity of each place of one image to the places around it in another.

Dosovitskiy et al. 2015, *FlowNet: Learning Optical Flow with Convolutional Networks*, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
Box: TypeAlias = tuple[slice, slice, slice, slice]


def volume(a: Any, b: Any, about: Mapping[str, Any]) -> Reals:
    """Return the cost volume of two images, in float64."""
    near, far = _surrounded(a, about), _surrounded(b, about)
    made = np.zeros((len(a), len(about["down"]) * len(about["across"]), *about["size"]))
    for number, here, there in _pairs(a.shape, about):
        if about["difference"]:
            made[:, number] += np.abs(near[here] - far[there]).sum(1)
        else:
            made[:, number] += np.einsum("nchw,nchw->nhw", near[here], far[there])
    return np.asarray(made / (about["kernel"] ** 2 * a.shape[1]))


def volume_backward(dy: Any, a: Any, b: Any, about: Mapping[str, Any]) -> tuple[Reals, Reals]:
    """Return da and db, in float64."""
    near, far = _surrounded(a, about), _surrounded(b, about)
    slopes, others = np.zeros_like(near), np.zeros_like(far)
    arriving = np.asarray(dy, np.float64) / (about["kernel"] ** 2 * a.shape[1])
    for number, here, there in _pairs(a.shape, about):
        given = arriving[:, number, None]
        if about["difference"]:
            signed = given * np.where(near[here] >= far[there], 1.0, -1.0)
            slopes[here] += signed
            others[there] -= signed
        else:
            slopes[here] += given * far[there]
            others[there] += given * near[here]
    inside = _inside(a.shape, about)
    return slopes[inside], others[inside]


def _reach(shape: tuple[int, ...], about: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return how many rows and columns of zeros come before and after an image, so
    that all taps exist."""
    reach = []
    for axis, steps in enumerate((about["down"], about["across"])):
        first = about["first"][axis]
        last = first + (about["size"][axis] - 1) * about["stride"] + about["kernel"] - 1
        least, most = first + min(0, *steps), last + max(0, *steps)
        reach.append((max(0, -least), max(0, most - shape[2 + axis] + 1)))
    return reach


def _surrounded(x: Any, about: Mapping[str, Any]) -> Reals:
    return np.pad(np.asarray(x, np.float64), [(0, 0), (0, 0), *_reach(x.shape, about)])


def _inside(shape: tuple[int, ...], about: Mapping[str, Any]) -> Box:
    (top, _), (left, _) = _reach(shape, about)
    every = slice(None)
    return every, every, slice(top, top + shape[2]), slice(left, left + shape[3])


def _pairs(shape: tuple[int, ...], about: Mapping[str, Any]) -> Iterator[tuple[int, Box, Box]]:
    """Yield, for each displacement and tap, the displacement's number and the parts of both images that
    are compared."""
    (top, _), (left, _) = _reach(shape, about)
    every = slice(None)

    def seen(begin: int, axis: int) -> slice:
        return slice(begin, begin + (about["size"][axis] - 1) * about["stride"] + 1, about["stride"])

    for i in range(about["kernel"]):
        for j in range(about["kernel"]):
            row, column = about["first"][0] + top + i, about["first"][1] + left + j
            here = (every, every, seen(row, 0), seen(column, 1))
            for e, down in enumerate(about["down"]):
                for f, across in enumerate(about["across"]):
                    there = (every, every, seen(row + down, 0), seen(column + across, 1))
                    yield e * len(about["across"]) + f, here, there
