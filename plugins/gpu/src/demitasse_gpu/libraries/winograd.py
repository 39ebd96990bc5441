"""3 x 3 convolutions in exact float32 by Winograd's minimal filtering, F(4 x 4, 3 x 3), with a quarter
of the products (Lavin and Gray 2015, section 4).

Images and filters are transformed into tiles of 36 positions. At each position there is a product of
matrices: together, one 1 x 1 convolution in 36 groups, by the kernels of implicit_gemm.py. The
intermediate data is 2.25 times the size of the images, so it is made in shares of the tiles that fit the
device's cache.

Rounding errors are some 1e-6 of the largest result, as in plugin cpu and in cuDNN's engines of this
kind: several times those of direct sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_gpu.kernels.launches import DIVISOR, THREADS, blocks, divisor, structure
from demitasse_gpu.libraries import cudnn, implicit_gemm
from demitasse_gpu.libraries.tiles import WINOGRAD, Tiles, tiles_for

if TYPE_CHECKING:
    from demitasse_gpu.device import Device
    from demitasse_gpu.launch import Launch
    from demitasse_gpu.libraries.convolutions import Convolution

SIDE, TAPS = 4, 3
POSITIONS = (SIDE + TAPS - 1) ** 2
AT_ONCE = {"small": 24 * 2**20, "large": 96 * 2**20}
"""The bytes of intermediate data per share that are tried: half of an H100's L2 cache, and more for
cases where that makes many small launches. A share has at least as many bytes as the filters, which
every share reads."""
_FEWEST = 256
"""The fewest tiles of a share, if there are that many: the rows of a product."""
_DEEP = 128
"""The fewest tiles that a part of a filter's gradient sums."""
_MOST_PARTS = 64
_NUMBERS = ("height", "width", "pairs", "pad_h", "pad_w")
"""The first fields of the kernels' structure for an image's tiles."""


def serves(asked: Convolution) -> bool:
    """Return whether a convolution is computed here: in float32, with 3 x 3 taps, no dilation, stride 1
    and no groups, and with channels that implicit_gemm supports."""
    stride, pad, dilation = asked.geometry
    return (
        not asked.tf32
        and implicit_gemm.serves(asked)
        and asked.w[1:] == (asked.x[1], TAPS, TAPS)
        and asked.x[1] % implicit_gemm.PACK == 0
        and stride == dilation == (1, 1)
        and max(pad) < TAPS
        and POSITIONS * prod(asked.w[:2]) + 128 * max(asked.w[:2]) < implicit_gemm.OFFSETS
    )


def room(asked: Convolution) -> int:
    """Return the least scratch memory, in bytes, for computing it here; 0 for what is not served."""
    if not serves(asked):
        return 0
    form = _Form(asked)
    return form.filters + min(form.tiles, _FEWEST) * form.between


def ways(
    device: Device,
    asked: Convolution,
    given: Sequence[int],
    made: int,
    bias: Any,
    workspace: int,
    only: str = "",
) -> Iterator[tuple[str, Sequence[Launch]]]:
    """Yield launches as ``implicit_gemm.ways`` does: one way per size of shares."""
    if not serves(asked) or room(asked) > asked.limit or not (sizes := tiles_for(device, False)):
        return
    form = _Form(asked)
    shares = {f"in {size} shares": form.share(nbytes) for size, nbytes in AT_ONCE.items()}
    for name, share in implicit_gemm.wanted_of(shares, only).items():
        if asked.kind == cudnn.BACKWARD_WEIGHTS:
            launches = form.weights_gradient(device, sizes, share, given, made, workspace)
        else:
            launches = form.images(device, sizes, share, given, made, bias, workspace)
        yield name, launches


@dataclass(frozen=True)
class _Form:
    """A convolution, or one of its gradients, in tiles."""

    asked: Convolution

    @property
    def _back(self) -> bool:
        return self.asked.kind == cudnn.BACKWARD_DATA

    @property
    def _from(self) -> tuple[int, ...]:
        """The extents of the tensor that the tiles of 6 x 6 points are taken from."""
        return self.asked.y if self._back else self.asked.x

    @property
    def _to(self) -> tuple[int, ...]:
        """The extents of the tensor that the tiles of 4 x 4 points belong to."""
        return self.asked.x if self._back else self.asked.y

    @property
    def _grid(self) -> tuple[int, int]:
        down, across = (-(-extent // SIDE) for extent in self._to[2:])
        return down, across

    @property
    def tiles(self) -> int:
        return self._to[0] * prod(self._grid)

    @property
    def between(self) -> int:
        """The bytes of intermediate data per tile."""
        return 4 * POSITIONS * (self.asked.x[1] + self.asked.y[1])

    @property
    def filters(self) -> int:
        """The bytes of the transformed filters, or of their gradients."""
        return 4 * POSITIONS * self.asked.x[1] * self.asked.y[1]

    def share(self, nbytes: int) -> int:
        """Return the number of tiles per share for about ``nbytes`` of intermediate data. All shares but
        the last are equal, and a multiple of a product's rows."""
        most = min(max(nbytes, self.filters), self.asked.limit - self.filters) // self.between
        if self.tiles <= max(most, _FEWEST):
            return self.tiles
        rows = max(_FEWEST, most // _FEWEST * _FEWEST)
        shares = -(-self.tiles // rows)
        return -(-self.tiles // (shares * _FEWEST)) * _FEWEST

    def _shares(self, share: int) -> Iterator[tuple[int, int]]:
        """Yield the first tile and the number of tiles of each share."""
        for first in range(0, self.tiles, share):
            yield first, min(share, self.tiles - first)

    def images(
        self,
        device: Device,
        sizes: Sequence[Tiles],
        share: int,
        given: Sequence[int],
        made: int,
        bias: Any,
        workspace: int,
    ) -> Sequence[Launch]:
        """Return the launches for y of x and w, or dx of w and dy."""
        w, image = reversed(given) if not self._back else given
        columns, rows = self._from[1], self._to[1]
        u = workspace
        v = u + self.filters
        m = v + 4 * POSITIONS * share * columns
        pad = [TAPS - 1 - p if self._back else p for p in self.asked.geometry[1]]
        told = map(np.int32, (self._back, rows, columns))
        launches = [self._launch(device, "filters_to_positions", rows * columns, w, u, *told)]
        for first, count in self._shares(share):
            size = _fitting(sizes, count, rows)
            points = self._points(count, columns, rows)
            images = self._told(self._from, pad, first, count)
            results = self._told(self._to, (0, 0), first, count)
            rectified = np.int32(self.asked.relu)
            units = count * columns // 2, count * rows // 2
            launches += [
                self._launch(device, "images_to_positions", units[0], images, image, v),
                points.forward_launch(device, size, (v, u), m),
                self._launch(
                    device, "positions_to_results", units[1], results, m, bias, made, rectified
                ),
            ]
        return launches

    def weights_gradient(
        self,
        device: Device,
        sizes: Sequence[Tiles],
        share: int,
        given: Sequence[int],
        made: int,
        workspace: int,
    ) -> Sequence[Launch]:
        """Return the launches for dw of x and dy."""
        (x, dy), (channels, outputs) = given, (self.asked.x[1], self.asked.y[1])
        v = workspace
        m = v + 4 * POSITIONS * share * channels
        sums = m + 4 * POSITIONS * share * outputs
        size = _fitting(sizes, outputs, channels)
        idle = size.at_once // (POSITIONS * size.count(outputs, channels))
        left = (self.asked.limit - share * self.between) // self.filters
        parts = max(1, min(idle, share // _DEEP, left, _MOST_PARTS))
        launches = list[Any]()
        for first, count in self._shares(share):
            points = self._points(count, channels, outputs)
            images = self._told(self._from, self.asked.geometry[1], first, count)
            results = self._told(self._to, (0, 0), first, count)
            units = count * channels // 2, count * outputs // 2
            launches += [
                self._launch(device, "images_to_positions", units[0], images, x, v),
                self._launch(device, "gradients_to_positions", units[1], results, dy, m),
                points.weights_launch(device, size, parts, (v, m), sums, added=first > 0),
            ]
        told = map(np.int32, (parts, outputs, channels))
        last = self._launch(device, "positions_to_filters", outputs * channels, sums, made, *told)
        return [*launches, last]

    def _points(self, count: int, channels: int, outputs: int) -> implicit_gemm.Tiled:
        """Return the products at a share's positions, as a 1 x 1 convolution in groups."""
        from demitasse_gpu.libraries.convolutions import Convolution

        x, y = ((count, POSITIONS * each, 1, 1) for each in (channels, outputs))
        w, geometry = (POSITIONS * outputs, channels, 1, 1), ((1, 1), (0, 0), (1, 1))
        return implicit_gemm.Tiled(Convolution(cudnn.FORWARD, x, w, y, geometry, "float32", False))

    def _told(self, extents: Sequence[int], pad: Sequence[int], first: int, count: int) -> Any:
        """Return the structure ``Tiles`` of winograd.cu, for images of these extents."""
        pairs, image, (down, across) = extents[1] // 2, extents[2:], self._grid
        fields = [
            *((name, "i4") for name in _NUMBERS),
            *((name, "u4") for name in ("first", "count")),
            *((name, list(DIVISOR)) for name in ("by_pairs", "by_across", "by_down")),
        ]
        numbers = *image, pairs, *pad, first, count * pairs
        return structure(fields, *numbers, *map(divisor, (pairs, across, down)))

    def _launch(self, device: Device, name: str, units: int, *arguments: Any) -> Launch:
        grid = blocks(device, units)
        return implicit_gemm.launch(device, WINOGRAD, name, grid, THREADS, *arguments)


def _fitting(sizes: Sequence[Tiles], rows: int, columns: int) -> Tiles:
    """Return the size that leaves the least of a product's tiles empty; the first such size."""
    return min(sizes, key=lambda each: each.count(rows, columns) * each.down * each.across)
