"""Convolutions of images with few channels, such as a net's first, on copies with more channels.

Engines for tensor cores read 16 or 8 bytes of a point at a time, which three channels innermost do not
fill. So images and filters are copied, with channels of zeros added, or with squares of points turned
into channels. A copy may take only a fraction of what it saves; measuring decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse_gpu.kernels.launches import FOR_LIBRARIES
from demitasse_gpu.libraries import cudnn
from demitasse_gpu.libraries.epilogue import Squares, channels_fitted, channels_split, points_gathered

if TYPE_CHECKING:
    from demitasse_gpu.device import Device
    from demitasse_gpu.launch import Launch
    from demitasse_gpu.libraries.convolutions import Convolution

FEW = 8
"""Copies are considered for images with fewer channels than this."""
COUNTED = 2**31
"""Copies have fewer elements than this, because kernels count them in 32 bits."""


def tried(asked: Convolution, at: int = 0) -> Iterator[Copies]:
    """Yield the copies that may suit engines better, in scratch memory from address ``at`` on. There are
    none if there are enough channels, or for the gradient of the images."""
    channels = asked.x[1]
    if not asked.order or asked.kind == cudnn.BACKWARD_DATA or channels >= FEW or asked.w[1] != channels:
        return
    for more in (4, 8) if asked.half else (4,):
        if more > channels:
            yield WithZeros(asked, _with_zeros(asked, more), at)
    (side, other), _, dilation = asked.geometry
    if side == other > 1 and dilation == (1, 1):
        wide = _space_to_depth(asked)
        if prod(wide.x) < COUNTED:
            yield SpaceToDepth(asked, wide, at)


def room(asked: Convolution) -> int:
    """Return the scratch memory, in bytes, that copies need."""
    return max((sum(copies.nbytes) for copies in tried(asked)), default=0)


@dataclass(frozen=True)
class Copies(ABC):
    """Copies of a convolution's images and filters, and ``wide``, the convolution of the copies, which
    has the same y."""

    asked: Convolution
    wide: Convolution
    at: int

    @property
    def nbytes(self) -> tuple[int, int]:
        """The bytes of scratch memory for the images, and for the filters."""
        width = 2 if self.wide.half else 4
        shapes = self.wide.x, self.wide.w
        x, w = (-(-prod(shape) * width // FOR_LIBRARIES) * FOR_LIBRARIES for shape in shapes)
        return x, w

    @property
    def x(self) -> int:
        """The address of the images."""
        return self.at

    @property
    def w(self) -> int:
        """The address of the filters, or of their gradient."""
        return self.at + self.nbytes[0]

    @abstractmethod
    def images(self, device: Device, x: Any) -> Launch:
        """Copy the images."""

    @abstractmethod
    def filters(self, device: Device, w: Any) -> Launch:
        """Copy the filters."""

    @abstractmethod
    def gradient(self, device: Device, made: int) -> Launch:
        """Copy the filters' gradient to ``made``, without the added channels and taps."""


class WithZeros(Copies):
    """Copies with channels of zeros added."""

    def images(self, device: Device, x: Any) -> Launch:
        points = self.asked.x[0] * prod(self.asked.x[2:])
        return self._fitted(device, x.address, self.x, points, (self.asked.x[1], self.wide.x[1]))

    def filters(self, device: Device, w: Any) -> Launch:
        channels = self.asked.w[1], self.wide.w[1]
        return self._fitted(device, w.address, self.w, self._taps, channels)

    def gradient(self, device: Device, made: int) -> Launch:
        return self._fitted(device, self.w, made, self._taps, (self.wide.w[1], self.asked.w[1]))

    @property
    def _taps(self) -> int:
        shape = self.asked.w
        return shape[0] * prod(shape[2:])

    def _fitted(self, device: Device, x: int, y: int, points: int, channels: tuple[int, int]) -> Launch:
        return channels_fitted(device, x, y, points, channels, self.asked.stored)


class SpaceToDepth(Copies):
    """Copies in which the points of a square, as wide as the stride, become the channels of one point.
    Beyond the filters there are zeros, and so there are in the padding: the convolution of the copies
    has stride 1 and no padding."""

    def images(self, device: Device, x: Any) -> Launch:
        squares = Squares(self.asked.x, self.wide.x, self._side, self.asked.geometry[1])
        return points_gathered(device, x.address, self.x, squares, self.asked.stored)

    def filters(self, device: Device, w: Any) -> Launch:
        return points_gathered(device, w.address, self.w, self._of_filters, self.asked.stored)

    def gradient(self, device: Device, made: int) -> Launch:
        return channels_split(device, self.w, made, self._of_filters, self.asked.stored)

    @property
    def _side(self) -> int:
        return self.asked.geometry[0][0]

    @property
    def _of_filters(self) -> Squares:
        return Squares(self.asked.w, self.wide.w, self._side)


def _with_zeros(asked: Convolution, channels: int) -> Convolution:
    x, w = ((shape[0], channels, *shape[2:]) for shape in (asked.x, asked.w))
    return replace(asked, x=x, w=w, most=asked.limit)


def _space_to_depth(asked: Convolution) -> Convolution:
    side, pack = asked.geometry[0][0], 8 if asked.half else 4
    channels = -(-side * side * asked.x[1] // pack) * pack
    taps = [-(-extent // side) for extent in asked.w[2:]]
    rows = (y + k - 1 for y, k in zip(asked.y[2:], taps, strict=True))
    x, w = (asked.x[0], channels, *rows), (asked.w[0], channels, *taps)
    return replace(asked, x=x, w=w, geometry=((1, 1), (0, 0), (1, 1)), most=asked.limit)
