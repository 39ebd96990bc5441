"""Convolutions of images of few channels, such as a net's first, with more channels, of zeros.

Engines for tensor cores read 16 bytes of a point at a time, or 8: three channels innermost are no such.
Images and filters are copied with channels of zeros behind theirs, which takes a fraction of what the
convolution is quicker by; measuring tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse_gpu.kernels.launches import FOR_LIBRARIES
from demitasse_gpu.libraries import cudnn
from demitasse_gpu.libraries.epilogue import channels_fitted

if TYPE_CHECKING:
    from demitasse_gpu.device import Device
    from demitasse_gpu.launch import Launch
    from demitasse_gpu.libraries.convolutions import Convolution

FEW = 8
"""Images of fewer channels than this are considered."""


def wider(asked: Convolution) -> Iterator[Convolution]:
    """The convolution with as many channels as engines may like better; nothing where it has enough, or
    its gradient is that of the images."""
    channels = asked.x[1]
    if not asked.order or asked.kind == cudnn.BACKWARD_DATA or channels >= FEW or asked.w[1] != channels:
        return
    for more in (4, 8) if asked.half else (4,):
        if more > channels:
            x, w = ((shape[0], more, *shape[2:]) for shape in (asked.x, asked.w))
            yield replace(asked, x=x, w=w, most=asked.limit)


def room(asked: Convolution) -> int:
    """The scratch memory, in bytes, that copies take."""
    return max((sum(_pieces(wide)) for wide in wider(asked)), default=0)


def _pieces(wide: Convolution) -> tuple[int, int]:
    width = 2 if wide.half else 4
    x, w = (-(-prod(shape) * width // FOR_LIBRARIES) * FOR_LIBRARIES for shape in (wide.x, wide.w))
    return x, w


@dataclass(frozen=True)
class Copies:
    """The images and filters of a wider convolution, in scratch memory from address ``at`` on."""

    device: Device
    asked: Convolution
    wide: Convolution
    at: int

    @property
    def x(self) -> int:
        """Where the images are."""
        return self.at

    @property
    def w(self) -> int:
        """Where the filters are, or their gradient."""
        return self.at + _pieces(self.wide)[0]

    def images(self, x: Any) -> Launch:
        """Copy the images."""
        shape = self.asked.x
        return self._fitted(x.address, self.x, shape[0] * prod(shape[2:]), shape[1], self.wide.x[1])

    def filters(self, w: Any) -> Launch:
        """Copy the filters."""
        return self._fitted(w.address, self.w, self._taps, self.asked.w[1], self.wide.w[1])

    def gradient(self, made: int) -> Launch:
        """Copy the filters' gradient to where it is wanted, without the channels that there are not."""
        return self._fitted(self.w, made, self._taps, self.wide.w[1], self.asked.w[1])

    @property
    def _taps(self) -> int:
        shape = self.asked.w
        return shape[0] * prod(shape[2:])

    def _fitted(self, x: int, y: int, points: int, channels: int, wanted: int) -> Launch:
        return channels_fitted(self.device, x, y, points, (channels, wanted), self.asked.stored)
