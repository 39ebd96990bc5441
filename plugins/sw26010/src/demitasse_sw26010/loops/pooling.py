"""Pooling. LDM holds rows of the image, for several windows on top of each other if they fit. Otherwise
it holds columns of them, fetched by strided DMA (Section IV.D)."""

from __future__ import annotations

import numpy as np

from demitasse_sw26010.model.mesh import ELAPSED, FLOPS, GET, PUT, transfer, work
from demitasse_sw26010.model.programs import Array, program

ROOM = 6144
"""The numbers in a CPE's buffer of rows: 24 KiB, so that the next rows can be on their way."""


@program
def moving(count: Array, planes: int, shape: Array, large: int, small: int, cycles: float) -> None:
    """Count the transfers of all planes. ``large`` is GET if the image is read (and the small plane
    put), or PUT if it is written. ``small`` is the number of small planes (values, and where they
    were)."""
    h, w, p, q, r, sh = shape[0], shape[1], shape[2], shape[3], shape[4], shape[6]
    if r * w <= ROOM:
        together = max(1, min(p, (ROOM // w - r) // sh + 1))
        blocks, block = 1.0, 4.0 * w * min(h, (together - 1) * sh + r)
        parts, put = -(-p // together), 4.0 * q * together
    else:
        wide = ROOM // r
        blocks, block = 1.0 * r, 4.0 * wide
        parts, put = p * -(-w // wide), 4.0 * q * wide / w
    rounds = 1.0 * -(-planes * parts // 64)
    other = PUT if large == GET else GET
    seconds = transfer(count, large, 64, blocks, block, rounds)
    seconds += small * transfer(count, other, 64, 1.0, put, rounds)
    count[FLOPS] += 1.0 * planes * p * q * r * shape[5]
    # A scalar load, a comparison or sum, and what keeps its place, for each number of a window.
    count[ELAPSED] += max(seconds, work(count, 0.0, planes * p * q * r * shape[5] * cycles / 64.0))


@program
def largest(
    count: Array, touch: bool, rows: Array, x: Array, y: Array, argmax: Array, planes: int, shape: Array
) -> None:
    """Compute the largest of each window and its place. ``shape`` holds H, W, P, Q, window, strides,
    pads."""
    moving(count, planes, shape, GET, 2 if argmax.size > 0 else 1, 3.0)
    if not touch:
        return
    h, w, p, q = shape[0], shape[1], shape[2], shape[3]
    for plane in range(planes):
        for o in range(p):
            top = o * shape[6] - shape[8]
            first, last = max(top, 0), min(top + shape[4], h)
            for i in range((last - first) * w):
                rows[i] = x[(plane * h + first) * w + i]
            for v in range(q):
                left = v * shape[7] - shape[9]
                begin, end = max(left, 0), min(left + shape[5], w)
                best, at = rows[begin], first * w + begin
                for i in range(last - first):
                    for j in range(begin, end):
                        value = rows[i * w + j]
                        # NaN counts as the largest, so that it is passed on.
                        if not value <= best and best == best:
                            best, at = value, (first + i) * w + j
                y[(plane * p + o) * q + v] = best
                if argmax.size > 0:
                    argmax[(plane * p + o) * q + v] = at


@program
def largest_backward(
    count: Array,
    touch: bool,
    rows: Array,
    dy: Array,
    argmax: Array,
    dx: Array,
    planes: int,
    shape: Array,
) -> None:
    """Add each dy where its window's largest was."""
    moving(count, planes, shape, PUT, 2, 1.0)
    if not touch:
        return
    image, plane_size = shape[0] * shape[1], shape[2] * shape[3]
    for plane in range(planes):
        target = dx[plane * image : (plane + 1) * image]
        for i in range(image):
            target[i] = 0.0
        for i in range(plane_size):
            rows[0] = dy[plane * plane_size + i]
            target[argmax[plane * plane_size + i]] += rows[0]


@program
def average(
    count: Array, touch: bool, rows: Array, x: Array, y: Array, planes: int, shape: Array
) -> None:
    """Compute the sum of each window's part in x, divided by the window's size, which includes padding
    up to one pad."""
    moving(count, planes, shape, GET, 1, 2.0)
    if not touch:
        return
    h, w, p, q = shape[0], shape[1], shape[2], shape[3]
    for plane in range(planes):
        for o in range(p):
            top = o * shape[6] - shape[8]
            bottom = min(top + shape[4], h + shape[8])
            first, last = max(top, 0), min(bottom, h)
            for i in range((last - first) * w):
                rows[i] = x[(plane * h + first) * w + i]
            for v in range(q):
                left = v * shape[7] - shape[9]
                right = min(left + shape[5], w + shape[9])
                total = 0.0
                for i in range(last - first):
                    for j in range(max(left, 0), min(right, w)):
                        total += rows[i * w + j]
                y[(plane * p + o) * q + v] = total / ((bottom - top) * (right - left))


@program
def average_backward(
    count: Array, touch: bool, rows: Array, dy: Array, dx: Array, planes: int, shape: Array
) -> None:
    """Spread each dy evenly over its window."""
    moving(count, planes, shape, PUT, 1, 2.0)
    if not touch:
        return
    h, w, p, q = shape[0], shape[1], shape[2], shape[3]
    for plane in range(planes):
        target = dx[plane * h * w : (plane + 1) * h * w]
        for i in range(h * w):
            target[i] = 0.0
        for o in range(p):
            top = o * shape[6] - shape[8]
            bottom = min(top + shape[4], h + shape[8])
            for v in range(q):
                left = v * shape[7] - shape[9]
                right = min(left + shape[5], w + shape[9])
                rows[0] = dy[(plane * p + o) * q + v]
                share = rows[0] / np.float32((bottom - top) * (right - left))
                for i in range(max(top, 0), min(bottom, h)):
                    for j in range(max(left, 0), min(right, w)):
                        target[i * w + j] += share
