"""How tensors whose channels are normalised or scaled lie in memory, and how loops go over them."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, inf, prod
from typing import Any, NamedTuple

from demitasse import PLAIN, Layout, Request, TensorSpec, Work
from demitasse_cpu.kernels.layouts import by_channels, is_by_channels
from demitasse_cpu.kernels.requests import aligned, cut, flat, parts_for
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once
from demitasse_cpu.threads import divide

_LINE = 512  # elements; in a line of this length, the overhead at the ends of a loop is small
_TOGETHER = 4  # lines the loops in vectors take at a time; parts start at multiples, for equal results
_STEP = 64  # the loops that are written in vectors need lines whose length is a multiple of this
_CACHE_LINE = 64
_LONGEST = 2048  # elements to which a line may be lengthened for those loops; its data stays near

_LOST = 48 << 20, 24 << 20
"""Bytes of a result, in total and per thread, from which on the caches have lost it by the time it is
read. Lower limits do not pay: two threads of a Zen 4 with 32 MiB write 13 MB past the caches in two
thirds of the time, but whoever reads them then loses more than that (ResNet-50 in bf16)."""


class Channels(NamedTuple):
    """``outer`` x ``channels`` x ``plane`` elements in memory, in ``layout``. If ``plane`` is 1, they
    form ``lines`` of ``width`` elements, of which the last may be shorter."""

    layout: Layout
    outer: int
    channels: int
    plane: int
    width: int
    lines: int
    parts: int

    dtype: str

    @property
    def in_lines(self) -> bool:
        return self.plane == 1

    @property
    def in_vectors(self) -> bool:
        """Whether the loops that are written in vectors serve."""
        return self.in_lines and self.dtype == "float32" and self.width % _STEP == 0


def channels_of(
    request: Request, leader: TensorSpec, axis: int = 1, extents: int = 1, apart: bool = False
) -> Channels:
    """Return how the tensors of a request are laid out, with the ``extents`` axes from ``axis`` on as
    the channels. If nothing is summed (``apart``), the work is divided into planes, otherwise into
    channels."""
    shape, layout = leader.shape, by_channels(request, leader)
    if is_by_channels(layout) and (axis, extents) != (1, 1):
        layout = PLAIN
    outer, channels = prod(shape[:axis]), prod(shape[axis : axis + extents])
    plane = prod(shape[axis + extents :])
    if is_by_channels(layout):
        outer, plane = outer * plane, 1
    width = channels * max(1, min(outer, _pixels(channels)))
    lines = -(-outer * channels // width)
    units = lines if plane == 1 else outer * channels if apart else channels
    parts = parts_for(request, units, prod(shape))
    return Channels(layout, outer, channels, plane, width, lines, parts, leader.dtype)


def _pixels(channels: int) -> int:
    """Return the number of pixels in a line: enough to make it long and, unless that makes it too long,
    a whole number of vectors."""
    enough, whole = -(-_LINE // channels), _STEP // gcd(channels, _STEP)
    more = -(-enough // whole) * whole
    return more if more * channels <= _LONGEST else enough


def over_lines(form: Channels) -> Any:
    """Return the module of the fastest loops over these lines."""
    from demitasse_cpu.loops import batch_normalization, line_vectors

    return line_vectors if form.in_vectors else batch_normalization


def line_arrays(workspace: Any, dtype: str, form: Channels, count: int) -> list[Any]:
    """Return ``count`` lines of real numbers at the start of the workspace."""
    return cut(workspace, dtype, *[form.width * _size(dtype)] * count)


def room_for(form: Channels, dtype: str, count: int, sums: bool) -> int:
    """Return the bytes for ``count`` lines and, with ``sums``, for the sums of each part."""
    line = aligned(form.width * _size(dtype))
    return count * line + sums * (2 * form.parts * line + 2 * aligned(form.parts * form.width * 8))


def sums_in(workspace: Any, dtype: str, form: Channels, count: int) -> tuple[list[Any], Any, Any]:
    """Return the sums in the workspace after ``count`` lines: two lines for each part, and two float64
    arrays, each with a line for every part, one after the other."""
    room = workspace[count * aligned(form.width * _size(dtype)) :]
    near = cut(room, dtype, *[form.width * _size(dtype)] * 2 * form.parts)
    far = room[2 * form.parts * aligned(form.width * _size(dtype)) :]
    first, second = cut(far, "float64", *[form.parts * form.width * 8] * 2)
    return near, first, second


def in_parts(
    loop: Any, arguments: Sequence[Any], form: Channels, near: Any, first: Any, second: Any
) -> Work:
    """Return work that takes two sums over lines, each part in lines of its own."""
    shares = []
    for i, part in enumerate(divide(form.lines, form.parts)):
        mine = slice(i * form.width, (i + 1) * form.width)
        room = (*near[2 * i : 2 * i + 2], first[mine], second[mine])
        shares.append(ready(loop, *arguments, *room, form.width, *part))
    return at_once(shares)


def everywhere(
    form: Channels, what: str, sources: Sequence[Any], target: Any, numbers: Sequence[Any]
) -> Work:
    """Return work that applies the loop ``what`` to each line, or to each plane."""
    from demitasse_cpu.loops import plane_normalization as planes

    arguments = (*sources, target, *numbers)
    if form.in_lines:
        loop = getattr(over_lines(form), f"line_{what}")
        how = (is_lost(target, sources, form.parts),) if form.in_vectors else ()
        return spread(loop, (*arguments, *how, form.width), form.lines, form.parts, _TOGETHER)
    planar, units = (form.channels, form.plane), form.outer * form.channels
    return spread(getattr(planes, f"plane_{what}"), (*arguments, *planar), units, form.parts)


def is_lost(target: Any, sources: Sequence[Any], threads: int) -> bool:
    """Return whether a result is larger than what the caches keep, and may be written past them. It may
    not if its memory was read just before, or does not start at a cache line."""
    at = target.ctypes.data
    own = all(source.ctypes.data != at for source in sources)
    return bool(target.nbytes >= max(_LOST[0], threads * _LOST[1]) and own and at % _CACHE_LINE == 0)


def _size(dtype: str) -> int:
    return 4 if dtype == "float32" else 8


def learned_or(instead: Any, w: Any, b: Any) -> tuple[Any, Any, bool, bool]:
    """Return w and b, with ``instead`` in place of an absent one, and whether each is present."""
    given = [instead if each is None else flat(each) for each in (w, b)]
    return given[0], given[1], w is not None, b is not None


def limits_of(request: Request) -> tuple[float, float]:
    """Return the smallest and the largest possible result."""
    given = request.attributes
    least, most = float(given.get("least", -inf)), float(given.get("most", inf))
    return (min(max(least, 0.0), most), most) if given["relu"] else (least, most)


def passing_of(request: Request, dtype: str) -> tuple[float, float]:
    """Return the two results, both excluded, between which a gradient passes: above 0 for a ReLU and,
    for a clip, from its lower to its upper limit, that is, between the numbers next to these on the
    outside."""
    import numpy as np

    real = np.dtype(dtype).type
    least, most = (real(limit) for limit in limits_of(request))
    low, high = float(np.nextafter(least, real(-inf))), float(np.nextafter(most, real(inf)))
    return (max(low, 0.0) if request.attributes["relu"] else low), high


def name_of(form: Channels) -> str:
    return "numba loop over lines" if form.in_lines else "numba loop over planes"
