"""Fusing consecutive launches (``Launch.with_next``): what launches tell about themselves, and what
replaces two of them. What the first makes, the second need not read again.

Memory of a plan is reused: what the second launch writes may lie where the first one reads. Between two
launches this is safe, as the first is done by then; in one launch it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from demitasse_gpu.kernels.batch_normalization import Channels
    from demitasse_gpu.kernels.launches import Source
    from demitasse_gpu.launch import Launch


class GradientSums(NamedTuple):
    """A launch of a normalisation's gradient that reads dy to sum it, and its arguments."""

    form: Channels
    dy: Any
    known: Any
    rest: tuple[Any, ...]


class RectifiedGradient(NamedTuple):
    """A launch that makes a ReLU's gradient from the ReLU's output."""

    dy: Any
    y: Any
    made: Any
    slope: float


class ChannelSums(NamedTuple):
    """A launch that reads only dy, to sum it, and where the sums go."""

    form: Channels
    dy: Any
    partial: Any


class Conversion(NamedTuple):
    """An array to be converted, its target, and the address ranges of both."""

    x: Any
    y: Any
    read: tuple[int, int]
    written: tuple[int, int]

    @classmethod
    def of(cls, x: Any, y: Any) -> Conversion:
        """Return the conversion of x to y."""
        read, written = ((each.address, each.address + each.nbytes) for each in (x, y))
        return cls(x, y, read, written)


class Conversions(NamedTuple):
    """A launch that converts the types of arrays without changing the order of elements, and the table
    that tells it about several arrays."""

    source: Source
    arrays: tuple[Conversion, ...]
    table: Any = None


MOST_CONVERSIONS = 128
"""The most arrays per launch: as many as fit into a kernel's parameters."""


def converted_with_next(
    of: Conversions, together: Callable[[Conversions, Conversions], Launch]
) -> Callable[[Launch], Launch | None]:
    """Return a ``with_next`` for a launch that converts arrays: ``together`` converts its arrays and
    those of the next launch."""

    def with_next(following: Launch) -> Launch | None:
        told = following.told
        if not isinstance(told, Conversions) or told.source != of.source:
            return None
        if len(of.arrays) + len(told.arrays) > MOST_CONVERSIONS:
            return None
        for one in of.arrays:
            for other in told.arrays:
                pairs = (
                    (one.written, other.written),
                    (one.written, other.read),
                    (one.read, other.written),
                )
                if any(a[0] < b[1] and b[0] < a[1] for a, b in pairs):
                    return None
        return together(of, told)

    return with_next


def made_with_sums(one: Any, other: Any, mask: Any, made: Any) -> Callable[[Launch], Launch | None]:
    """Return a ``with_next`` for a launch that sums two gradients, with 0 where mask is not above 0: one
    launch that also does the first part of the following normalisation's gradient, which would read all
    of the sum."""

    def with_next(following: Launch) -> Launch | None:
        told = following.told
        if not isinstance(told, GradientSums) or not is_same(told.dy, made):
            return None
        *_, partial = told.rest
        if not are_aligned(one, other, mask, made) or meet(partial, one, other, mask):
            return None
        form = told.form
        arguments = form.extents, told.known, one, other, mask, made, *told.rest
        return form.source.launch(made.device, "made_gradient_sums", form.sums, form.block, *arguments)

    return with_next


def rectified_with_sums(of: RectifiedGradient) -> Callable[[Launch], Launch | None]:
    """Return a ``with_next`` for a launch that makes a ReLU's gradient: one launch that also does the
    first part of the following bias's gradient, which would read all of it."""

    def with_next(following: Launch) -> Launch | None:
        told = following.told
        if not isinstance(told, ChannelSums) or not is_same(told.dy, of.made):
            return None
        if not are_aligned(of.dy, of.y, of.made) or meet(told.partial, of.dy, of.y):
            return None
        form = told.form
        arguments = form.extents, of.dy, of.y, of.made, form.source.number(of.slope), told.partial
        return form.source.launch(of.made.device, "rectified_sums", form.sums, form.block, *arguments)

    return with_next


def made_rectified(dx: Any, made: Callable[[Any, float], Launch]) -> Callable[[Launch], Launch | None]:
    """Return a ``with_next`` for a launch that makes dx. If a ReLU's gradient follows and works in
    place, ``made`` is called with the ReLU's output and slope, and replaces both launches."""

    def with_next(following: Launch) -> Launch | None:
        told = following.told
        if not isinstance(told, RectifiedGradient) or not is_same(told.dy, dx):
            return None
        in_place = is_same(told.made, dx) and are_aligned(told.y)
        return made(told.y, told.slope) if in_place else None

    return with_next


def summed_before(
    launch: Launch, dy: Any, dx: Any, of_dy: tuple[int, int, int], of_dx: tuple[int, int, int]
) -> Callable[[Launch], Sequence[Launch] | None]:
    """Return a ``with_next`` for a launch of max pooling's gradient dx, in which each element of dy is
    added to one of dx. It returns that launch, and sums over dx's channels that are made of dy, which is
    smaller. They have other bits than sums of dx, and round less. Both shapes are given as outer x
    channels x inner. Sums over other axes, such as those of an inner product's bias, are made of dx."""

    def with_next(following: Launch) -> Sequence[Launch] | None:
        told = following.told
        if not isinstance(told, ChannelSums) or not is_same(told.dy, dx) or dy.size >= dx.size:
            return None
        if told.form[1:4] != of_dx or not are_aligned(dy) or meet(told.partial, dy):
            return None
        outer, _, inner = of_dy
        form = told.form._replace(outer=outer, inner=inner)
        grid, arguments = (form.across, told.form.slabs), (form.extents, dy, None, told.partial)
        sums = form.source.launch(dx.device, "product_sums", grid, form.block, *arguments)
        return [launch, sums]

    return with_next


def is_same(one: Any, other: Any) -> bool:
    """Return whether two arrays are the same elements in memory."""
    return bool(one.address == other.address and one.size == other.size)


def are_aligned(*arrays: Any) -> bool:
    """Return whether threads may move 16 bytes of each array at once."""
    return not any(array.address % 16 for array in arrays)


def meet(one: Any, *others: Any) -> bool:
    """Return whether an array overlaps any of the others in memory."""
    end = one.address + one.nbytes
    return any(each.address < end and one.address < each.address + each.nbytes for each in others)
