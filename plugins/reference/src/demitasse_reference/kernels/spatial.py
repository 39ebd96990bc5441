"""Windows over images: as columns of a matrix, pooled at random, and unpooled; affine sampling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from demitasse import DataError, philox4x32, random_key
from demitasse_reference.kernels.arrays import Extents, Index, Kernels, Reals, Values
from demitasse_reference.kernels.pooling import output_extents

_LOW = 2**32 - 1


Fixed = Sequence[float | None]


class _Sampled:
    """The pixels that an affine transformation of a grid reads: for each place, the four around it, by
    row and column, with their weights. Arrays are samples x places."""

    def __init__(self, x: Reals, theta: Reals, size: Extents, fixed: Fixed) -> None:
        samples, _, height, width = x.shape
        learned = [number for number, value in enumerate(fixed) if value is None]
        numbers = np.tile([0.0 if value is None else value for value in fixed], (samples, 1))
        numbers[:, learned] = theta
        rows, columns = np.indices(size).reshape(2, -1)
        self.grid = np.stack([2 * rows / size[0] - 1, 2 * columns / size[1] - 1, np.ones(rows.size)])
        places = numbers.reshape(samples, 2, 3) @ self.grid
        down, across = (places[:, 0] + 1) / 2 * height, (places[:, 1] + 1) / 2 * width
        self.x, self.learned, self.size = x, learned, size
        self.low = np.floor(down), np.floor(across)
        self.share = down - self.low[0], across - self.low[1]

    def corner(self, below: int, right: int) -> tuple[Values, Values, Values]:
        """Return the row and column of one of the four, and whether it is in the image."""
        height, width = self.x.shape[2:]
        row, column = self.low[0] + below, self.low[1] + right
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return np.where(inside, row, 0).astype(int), np.where(inside, column, 0).astype(int), inside

    def pixels(self, below: int, right: int) -> Reals:
        """Return x there, samples x channels x places; 0 outside the image."""
        row, column, inside = self.corner(below, right)
        samples = np.arange(len(self.x))[:, None]
        there: Reals = np.moveaxis(self.x[samples, :, row, column], -1, 1) * inside[:, None]
        return there

    def weight(self, below: int, right: int) -> Reals:
        """Return the weight of a pixel, samples x places."""
        (b, a) = self.share
        made: Reals = (b if below else 1 - b) * (a if right else 1 - a)
        return made


_CORNERS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def affine_sampling(x: Reals, theta: Reals, *, size: Extents, fixed: Fixed) -> Reals:
    at = _Sampled(x, theta, size, fixed)
    y = sum(at.weight(*corner)[:, None] * at.pixels(*corner) for corner in _CORNERS)
    made: Reals = np.reshape(y, (*x.shape[:2], *size))
    return made


def affine_sampling_backward(
    dy: Reals, x: Reals, theta: Reals, *, size: Extents, fixed: Fixed
) -> tuple[Reals, Reals]:
    at = _Sampled(x, theta, size, fixed)
    samples, channels, height, width = x.shape
    given = dy.reshape(samples, channels, -1)
    dx = np.zeros(x.shape)
    for corner in _CORNERS:
        row, column, inside = at.corner(*corner)
        place = (
            np.arange(samples)[:, None, None],
            np.arange(channels)[:, None],
            row[:, None],
            column[:, None],
        )
        np.add.at(dx, place, given * (at.weight(*corner) * inside)[:, None])
    (b, a) = (share[:, None] for share in at.share)
    upper, lower = at.pixels(1, 0) - at.pixels(0, 0), at.pixels(1, 1) - at.pixels(0, 1)
    down = (given * ((1 - a) * upper + a * lower)).sum(1) * height / 2
    left, right = at.pixels(0, 1) - at.pixels(0, 0), at.pixels(1, 1) - at.pixels(1, 0)
    across = (given * ((1 - b) * left + b * right)).sum(1) * width / 2
    slopes = np.concatenate([down @ at.grid.T, across @ at.grid.T], 1)
    return dx, slopes[:, at.learned]


def im2col(x: Values, *, kernel: Extents, stride: Extents, pad: Extents, dilation: Extents) -> Values:
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])
    reaches = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    spatial = tuple(range(2, x.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(padded, reaches, spatial)
    steps: Index = (..., *(slice(None, None, step) for step in (*stride, *dilation)))
    seen = seen[steps]
    outputs = seen.shape[2 : x.ndim]
    taps_first = np.moveaxis(seen, range(-len(kernel), 0), range(2, x.ndim))
    return taps_first.reshape(x.shape[0], -1, *outputs)


def col2im(
    dy: Reals,
    *,
    kernel: Extents,
    stride: Extents,
    pad: Extents,
    dilation: Extents,
    shape: Extents,
) -> Reals:
    """Add each element of dy to the place from which im2col took it; place 0 is the padding."""
    places = 1 + np.arange(prod(shape)).reshape(shape)
    origins = im2col(places, kernel=kernel, stride=stride, pad=pad, dilation=dilation)
    dx: Values = np.bincount(origins.ravel(), weights=dy.ravel(), minlength=1 + prod(shape))
    return dx[1:].reshape(shape)


def pooling_stochastic(
    x: Reals,
    iteration: Values,
    sample: Values,
    *,
    kernel: Extents,
    stride: Extents,
    pad: Extents,
    rounding: str,
    seed: int,
    stream: int,
) -> tuple[Reals, Values]:
    """Zeiler and Fergus 2013: one of a window's values at random, in proportion to the values."""
    outputs = output_extents(x.shape, kernel, stride, pad, rounding)
    y = np.zeros((*x.shape[:2], *outputs))
    choice = np.zeros(y.shape, np.int32)
    share = (_words(y.shape, int(iteration[0]), int(sample[0]), int(seed), int(stream)) + 1.0) / 2**32
    plane = np.arange(prod(x.shape[2:])).reshape(x.shape[2:])
    for output, window in _windows(outputs, kernel, stride):
        values = x[window].reshape(*x.shape[:2], -1)
        sums = np.cumsum(values, axis=-1)
        reached = sums >= (share[output] * sums[..., -1])[..., None]
        reached[..., -1] = True
        chosen = reached.argmax(axis=-1)
        y[output] = np.take_along_axis(values, chosen[..., None], -1)[..., 0]
        choice[output] = plane[window].ravel()[chosen]
    return y, choice


def _words(shape: Extents, iteration: int, sample: int, seed: int, stream: int) -> Values:
    """Return the random words that keep_mask compares, one for each element."""
    samples, elements = shape[0], prod(shape[1:])
    counters = np.zeros((samples, -(-elements // 4), 4), np.uint64)
    counters[..., 0] = np.arange(counters.shape[1])
    counters[..., 1] = ((np.arange(samples) + sample) & _LOW)[:, None]
    counters[..., 2], counters[..., 3] = iteration & _LOW, iteration >> 32
    words: Values = philox4x32(counters, random_key(seed, stream)).reshape(samples, -1)[:, :elements]
    return words.reshape(shape)


def pooling_self_weighted(
    x: Reals, *, kernel: Extents, stride: Extents, pad: Extents, rounding: str
) -> Reals:
    """Return what stochastic pooling gives on average: values weighted by themselves."""
    outputs = output_extents(x.shape, kernel, stride, pad, rounding)
    y = np.zeros((*x.shape[:2], *outputs))
    spatial = tuple(range(2, x.ndim))
    for output, window in _windows(outputs, kernel, stride):
        total = x[window].sum(axis=spatial)
        y[output] = np.where(total > 0, (x[window] ** 2).sum(axis=spatial) / total, 0)
    return y


def pooling_self_weighted_backward(
    dy: Reals, x: Reals, y: Reals, *, kernel: Extents, stride: Extents
) -> Reals:
    dx = np.zeros(x.shape)
    apart = (*x.shape[:2], *[1] * len(kernel))
    for output, window in _windows(dy.shape[2:], kernel, stride):
        total = x[window].sum(axis=tuple(range(2, x.ndim))).reshape(apart)
        slope = (2 * x[window] - y[output].reshape(apart)) / total
        dx[window] += np.where(total > 0, dy[output].reshape(apart) * slope, 0)
    return dx


def _windows(outputs: Extents, kernel: Extents, stride: Extents) -> Iterator[tuple[Index, Index]]:
    """Yield each output and its window's part in x, which has no padding and bounds the window."""
    for position in np.ndindex(*outputs):
        window = (slice(p * s, p * s + k) for p, k, s in zip(position, kernel, stride, strict=True))
        yield (..., *position), (..., *window)


def unpooling(x: Reals, place: Values, *, size: Extents, source: str) -> Reals:
    wrong = ~((place >= 0) & (place < prod(size)) & (place == np.floor(place)))
    if wrong.any():
        raise DataError(
            f"{source}: {place[wrong][0]:g} is not a place in {size[0]} x {size[1]} "
            f"(valid: whole numbers from 0 to {prod(size) - 1})"
        )
    y = np.zeros((*x.shape[:2], prod(size)))
    for plane in np.ndindex(x.shape[:2]):
        y[plane][place[plane].astype(np.int64).ravel()] = x[plane].ravel()
    return y.reshape(*x.shape[:2], *size)


def unpooling_backward(dy: Reals, place: Values) -> Reals:
    there = place.astype(np.int64).reshape(*place.shape[:2], -1)
    dx: Reals = np.take_along_axis(dy.reshape(*dy.shape[:2], -1), there, 2)
    return dx.reshape(place.shape)


KERNELS: Kernels = {
    "affine_sampling": affine_sampling,
    "affine_sampling_backward": affine_sampling_backward,
    "im2col": im2col,
    "col2im": col2im,
    "pooling_stochastic": pooling_stochastic,
    "pooling_self_weighted": pooling_self_weighted,
    "pooling_self_weighted_backward": pooling_self_weighted_backward,
    "unpooling": unpooling,
    "unpooling_backward": unpooling_backward,
}
