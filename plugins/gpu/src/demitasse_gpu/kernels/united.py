"""Launches in a row whose work others do with less of it read (``Launch.with_next``): what they tell of
themselves, and what takes their place. What one makes the next need not read again.

Memory of a plan serves one entry after the other: what the second writes may lie where the first reads,
which is done by then, and is not where both are one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from demitasse_gpu.kernels.batch_normalization import Channels
    from demitasse_gpu.kernels.launches import Source
    from demitasse_gpu.launch import Launch


class GradientSums(NamedTuple):
    """The launch of a normalisation's gradient that reads dy to sum it: with what."""

    form: Channels
    dy: Any
    known: Any
    rest: tuple[Any, ...]


class RectifiedGradient(NamedTuple):
    """The launch that makes a ReLU's gradient, of what the ReLU has given."""

    dy: Any
    y: Any
    made: Any
    slope: float


class ChannelSums(NamedTuple):
    """The launch that reads dy to sum it alone, and where to."""

    form: Channels
    dy: Any
    partial: Any


class Conversion(NamedTuple):
    """An array that is converted, where to, and from which address to which each lies."""

    x: Any
    y: Any
    read: tuple[int, int]
    written: tuple[int, int]

    @classmethod
    def of(cls, x: Any, y: Any) -> Conversion:
        """That of x to y."""
        read, written = ((each.address, each.address + each.nbytes) for each in (x, y))
        return cls(x, y, read, written)


class Conversions(NamedTuple):
    """The launch that converts arrays, whose elements stay in their order, between types; and how it is
    told of several."""

    source: Source
    arrays: tuple[Conversion, ...]
    table: Any = None


MOST_CONVERSIONS = 128
"""Arrays that a launch takes: as many as a kernel's parameters have room for."""


def converted_with_next(
    of: Conversions, together: Callable[[Conversions, Conversions], Launch]
) -> Callable[[Launch], Launch | None]:
    """For a launch that converts arrays: what ``together`` gives for its own and those of the next."""

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
    """For a launch that makes the sum of two gradients, 0 where mask is not above 0: one that also does
    what a normalisation's gradient behind it does first, which is to read it all."""

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
    """For a launch that makes a ReLU's gradient: one that also does what a bias's gradient behind it
    does first, which is to read it all."""

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
    """For a launch that makes dx: what ``made`` gives with what a ReLU has given, where the ReLU's
    gradient is next, and takes its place in memory."""

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
    """For the launch of a maximum's gradient dx, where each element of dy comes to one of dx, added to
    what others bring there: itself, and the sums of dx's channels made of dy, which is smaller. They
    have other bits than those of dx, and round less. Both are told as outer x channels x inner; sums
    over other axes, as an inner product's bias may be of, are made of dx."""

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
    """Whether two arrays are the same elements in memory."""
    return bool(one.address == other.address and one.size == other.size)


def are_aligned(*arrays: Any) -> bool:
    """Whether threads may move 16 bytes of each at once."""
    return not any(array.address % 16 for array in arrays)


def meet(one: Any, *others: Any) -> bool:
    """Whether an array shares memory with any of the others."""
    end = one.address + one.nbytes
    return any(each.address < end and one.address < each.address + each.nbytes for each in others)
