"""Convolutions by our own kernels as an alternative to cuDNN's, as products of matrices that are never
written to memory (implicit GEMM): in exact float32, which tensor cores compute from split numbers, and
in TF32.

cuDNN's engines for these are few, or slow, once those are excluded whose order of summation varies from
run to run. For exact float32 they support only planes, for which normalisations take twice as long, and
do not use tensor cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_gpu.kernels.launches import (
    DIVISOR,
    THREADS,
    Source,
    blocks,
    divisor,
    structure,
    text_of,
)
from demitasse_gpu.libraries import cudnn
from demitasse_gpu.libraries.tiles import AROUND, Tiles, tiles_for

if TYPE_CHECKING:
    from demitasse_gpu.device import Device
    from demitasse_gpu.launch import Launch
    from demitasse_gpu.libraries.convolutions import Convolution

PACK, OUTPUTS = 4, 8
"""The channels that are read at once (images with fewer are convolved as copies with more), and the
number of which y's channels are a multiple, as they are in all nets where time matters."""
OFFSETS, EXTENTS = 2**31, 2**14
"""Upper bounds of offsets in elements, and of positions along an axis."""
_DEPTH = 16
_MOST_PARTS = 512
_NAMES = (
    *("samples", "groups", "channels", "outputs", "height", "width", "rows", "columns"),
    *("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w"),
)


def serves(asked: Convolution) -> bool:
    """Return whether a convolution is computed here: images with channels innermost, and a multiple of
    four channels per group, or few channels, which become four."""
    if asked.stored != "float32" or not asked.own:
        return False
    outputs, channels, *kernel = asked.w
    groups = asked.x[1] // channels
    few = asked.kind != cudnn.BACKWARD_DATA and groups == 1 and channels < PACK
    stride, pad, dilation = asked.geometry
    reach = max(
        extent + 2 * p + k * d
        for extent, p, k, d in zip(asked.x[2:], pad, kernel, dilation, strict=True)
    )
    return (
        (channels % PACK == 0 or few)
        and outputs % (OUTPUTS * groups) == 0
        and (asked.kind != cudnn.BACKWARD_DATA or stride == (1, 1) or dilation == (1, 1))
        and reach < EXTENTS
        and max(prod(asked.x), prod(asked.y), prod(asked.w) + 128 * prod(asked.w[1:])) < OFFSETS
    )


def ways(
    device: Device,
    asked: Convolution,
    given: Sequence[int],
    made: int,
    bias: Any,
    workspace: int,
    only: str = "",
) -> Iterator[tuple[str, Sequence[Launch]]]:
    """Yield named ways: launches, one after the other, that convolve what is at the addresses ``given``
    (x and w, w and dy, or x and dy) into ``made``, with ``asked.limit`` bytes of scratch memory. There
    is one way per size of tiles, two for filters' gradients, or ``only`` the one of that name; none if
    channels are not a multiple of four. Names are the same for images of other sizes."""
    if not serves(asked) or asked.w[1] % PACK:
        return
    of = Tiled(asked)
    for tiles in tiles_for(device, asked.tf32):
        name = tiles.name
        if asked.kind == cudnn.BACKWARD_WEIGHTS:
            counts = of.weights_parts(tiles)
            few_or_many = {f"{name} in {size} parts": counts[size] for size in counts}
            for told, parts in wanted_of(few_or_many, only).items():
                yield told, of.backward_weights(device, tiles, parts, given, made, workspace)
        elif only not in ("", name):
            continue
        elif asked.kind == cudnn.BACKWARD_DATA:
            if of.turned <= asked.limit:
                yield name, of.backward_data(device, tiles, given, made, workspace)
        else:
            yield name, of.forward(device, tiles, given, made, bias, workspace)


def wanted_of(numbers: Mapping[str, int], only: str) -> dict[str, int]:
    """Return the one named ``only``, or if that is empty, the first of each group of equal numbers."""
    if only:
        return {name: number for name, number in numbers.items() if name == only}
    found = dict[str, int]()
    for name, number in numbers.items():
        if number not in found.values():
            found[name] = number
    return found


class Tiled:
    """A convolution in the form that the kernels take."""

    def __init__(self, asked: Convolution) -> None:
        self._asked = asked
        self._samples, of_x, *x = asked.x
        of_y, self._channels, *kernel = asked.w
        y, (stride, pad, dilation) = asked.y[2:], asked.geometry
        self._groups, self._taps = of_x // self._channels, prod(kernel)
        self._outputs, self._classes = of_y // self._groups, prod(stride)
        self._points, self._image = self._samples * prod(y), (x, stride)
        numbers = (self._samples, self._groups, self._channels, self._outputs, *x, *y)
        pairs = *kernel, *stride, *pad, *dilation
        divisors = ((name, list(DIVISOR)) for name in ("by_rows", "by_columns"))
        fields = [*((name, "i4") for name in _NAMES), *divisors]
        self._told = structure(fields, *numbers, *pairs, *map(divisor, y))

    @property
    def turned(self) -> int:
        """The bytes of the filters, transposed for the gradient of images."""
        return -(-4 * prod(self._asked.w) // 256) * 256

    def forward(
        self, device: Device, tiles: Tiles, given: Sequence[int], made: int, bias: Any, workspace: int
    ) -> Sequence[Launch]:
        rectified, size = int(self._asked.relu), prod(self._asked.y)
        count = tiles.count(self._points, self._outputs)
        parts = self._parts(tiles, count * self._groups, self._taps * self._channels, size, 0)
        if parts == 1:
            return [self.forward_launch(device, tiles, given, made, bias, rectified)]
        return [
            self.forward_launch(device, tiles, given, workspace, None, 0, parts),
            _joined(device, workspace, bias, made, parts, rectified, self._asked.y[1], size),
        ]

    def forward_launch(
        self,
        device: Device,
        tiles: Tiles,
        given: Sequence[int],
        made: int,
        bias: Any = None,
        rectified: int = 0,
        parts: int = 1,
    ) -> Launch:
        """Return the launch for y of x and w, or for ``parts`` consecutive partial sums of y."""
        grid = tiles.count(self._points, self._outputs), 1, self._groups * parts
        numbers = *given, bias, made, *map(np.int32, (rectified, parts))
        name = f"convolution_{tiles.name}"
        return launch(device, tiles.source, name, grid, tiles.threads, self._told, *numbers)

    def backward_data(
        self, device: Device, tiles: Tiles, given: Sequence[int], made: int, workspace: int
    ) -> Sequence[Launch]:
        (w, dy), filters = given, prod(self._asked.w)
        numbers = *map(np.int32, (self._taps, self._channels, self._outputs)), np.uint32(filters)
        grid = blocks(device, filters)
        turn = launch(device, AROUND, "filters_turned", grid, THREADS, w, workspace, *numbers)
        image, stride = self._image
        most = self._samples * prod(-(-extent // s) for extent, s in zip(image, stride, strict=True))
        count, size = tiles.count(most, self._channels), prod(self._asked.x)
        classes = self._groups * self._classes
        depth = self._taps * self._outputs // self._classes
        parts = self._parts(tiles, count * classes, depth, size, self.turned)
        partial = workspace + self.turned
        target = made if parts == 1 else partial
        name, grid_of = f"backward_data_{tiles.name}", (count, 1, classes * parts)
        numbers_of = self._told, dy, workspace, target, np.int32(parts)
        product = launch(device, tiles.source, name, grid_of, tiles.threads, *numbers_of)
        if parts == 1:
            return [turn, product]
        return [turn, product, _joined(device, partial, None, made, parts, 0, self._asked.x[1], size)]

    def weights_parts(self, tiles: Tiles) -> dict[str, int]:
        """Return the numbers of parts for sums over points: as many as run at a time, or twice that."""
        count = tiles.count(self._outputs, self._taps * self._channels) * self._groups
        most = min(-(-self._points // (8 * _DEPTH)), self._asked.limit // (4 * prod(self._asked.w)))
        least = max(1, tiles.at_once // count)
        wished = {"few": least, "many": 2 * least}
        return {size: max(1, min(parts, most, _MOST_PARTS)) for size, parts in wished.items()}

    def backward_weights(
        self,
        device: Device,
        tiles: Tiles,
        parts: int,
        given: Sequence[int],
        made: int,
        workspace: int,
    ) -> Sequence[Launch]:
        target, size = made if parts == 1 else workspace, prod(self._asked.w)
        sums = self.weights_launch(device, tiles, parts, given, target)
        if parts == 1:
            return [sums]
        return [sums, _joined(device, workspace, None, made, parts, 0, PACK, size)]

    def weights_launch(
        self,
        device: Device,
        tiles: Tiles,
        parts: int,
        given: Sequence[int],
        made: int,
        added: bool = False,
    ) -> Launch:
        """Return the launch for ``parts`` partial sums of the filters' gradient of x and dy, one behind
        the other. ``added``: add them to what is there."""
        grid = tiles.count(self._outputs, self._taps * self._channels), 1, self._groups * parts
        numbers = self._told, *reversed(given), made, *map(np.int32, (parts, added))
        name = f"backward_weights_{tiles.name}"
        return launch(device, tiles.source, name, grid, tiles.threads, *numbers)

    def _parts(self, tiles: Tiles, count: int, depth: int, size: int, taken: int) -> int:
        """Return the number of parts for sums of ``depth`` terms: more than one if ``count`` blocks
        would leave multiprocessors idle."""
        room = (self._asked.limit - taken) // (4 * size)
        return max(1, min(tiles.at_once // count, depth // (8 * _DEPTH), room, _MOST_PARTS))


def _joined(
    device: Device,
    partial: int,
    bias: Any,
    made: int,
    parts: int,
    rectified: int,
    channels: int,
    size: int,
) -> Launch:
    units = size // PACK
    told = *map(np.int32, (parts, rectified, channels // PACK)), np.int64(units)
    grid = blocks(device, units)
    return launch(device, AROUND, "join_parts", grid, THREADS, partial, bias, made, *told)


def launch(
    device: Device, source: Source, name: str, grid: int | Sequence[int], block: int, *arguments: Any
) -> Launch:
    """Return a launch of a kernel. Python integers are addresses."""
    from demitasse_gpu.launch import Launch

    function = device.function(text_of(source.file), name, source.options)
    return Launch(device, function, grid, block, arguments)
