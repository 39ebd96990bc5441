"""Gradients of convolutions with one tap that skip pixels, by the kernels for convolutions that skip
none. The pixels that count are gathered first, or their gradients scattered afterwards.

oneDNN's kernels with strides gather while they multiply, and do so again for each block of outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from demitasse import Candidate, Request, TensorSpec, Work
from demitasse_cpu import onednn
from demitasse_cpu.kernels import pixel_products
from demitasse_cpu.kernels.layouts import is_by_channels
from demitasse_cpu.kernels.requests import aligned, flat, parts_for, spec
from demitasse_cpu.kernels.work import spread
from demitasse_cpu.native import in_order

_LEAST = 32  # from this number of channels on, a pixel is moved in whole vectors


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Yield candidates for dw and db: matrix products, after gathering the pixels of x."""
    dy, x = map(spec, request.inputs)
    skipping = _Skipping(request, x, dy.shape)
    if not skipping.serves(spec(request.outputs[0]), few=True):
        return
    dense = skipping.dense(inputs=(dy, skipping.met))
    by_channels = [each for each in onednn.candidates(dense) if is_by_channels(each.input_layouts[1])]
    for inner in (*by_channels[-1:], *pixel_products.backward_weights(dense)):

        def bind(
            sources: Sequence[Any], targets: Sequence[Any], workspace: Any, inner: Candidate = inner
        ) -> Work:
            dy, x = sources
            near, rest = skipping.cut(workspace, x.dtype)
            image = near.reshape(inner.input_layouts[1].physical(skipping.met.shape))
            gather = skipping.moves("gathered", (x, near), skipping.met.shape)
            return in_order([gather, inner.bind((dy, image), targets, rest)])

        yield skipping.around(inner, bind, "gathered")


def backward_data(request: Request) -> Iterable[Candidate]:
    """Yield candidates for dx: the gradients of the pixels that count, scattered to their places."""
    (dy, w), dx = map(spec, request.inputs), spec(request.outputs[0])
    skipping = _Skipping(request, dx, dy.shape)
    if not skipping.serves(w):
        return
    dense = skipping.dense(outputs=(skipping.met,))
    for inner in onednn.candidates(dense):
        if not is_by_channels(inner.output_layouts[0]):
            continue

        def bind(
            sources: Sequence[Any], targets: Sequence[Any], workspace: Any, inner: Candidate = inner
        ) -> Work:
            (dx,) = targets
            near, rest = skipping.cut(workspace, dx.dtype)
            image = near.reshape(inner.output_layouts[0].physical(skipping.met.shape))
            put = skipping.moves("spread", (near, dx), skipping.image.shape)
            return in_order([inner.bind(sources, (image,), rest), put])

        yield skipping.around(inner, bind, "spread")


FACTORIES = {
    "convolution_backward_data": backward_data,
    "convolution_backward_weights": backward_weights,
}


@dataclass(frozen=True)
class _Skipping:
    """A request's convolution: the ``image`` whose pixels it skips, and the shape of its results."""

    request: Request
    image: TensorSpec
    result: tuple[int, ...]

    @property
    def met(self) -> TensorSpec:
        """The pixels that count, as an image."""
        return replace(self.image, shape=(*self.image.shape[:2], *self.result[2:]))

    @property
    def room(self) -> int:
        """The size of these pixels in bytes."""
        halved = self.request.precision == "bf16"
        return aligned(prod(self.met.shape) * (2 if halved else 4))

    def serves(self, w: TensorSpec, few: bool = False) -> bool:
        """Return whether each result depends on one pixel and some pixels are skipped. The image must
        have many channels or, with ``few``, so few that oneDNN's kernels that skip pixels do not
        serve."""
        given, kinds = self.request.attributes, {self.image.dtype, w.dtype}
        if kinds != {"float32"} or len(self.image.shape) != 4:
            return False
        if self.image.shape[1] < _LEAST and not (
            few and onednn.convolution.skips_of_few_channels(self.request, self.image)
        ):
            return False
        skips = given["groups"] == 1 and max(given["stride"]) > 1 and not any(given["pad"])
        return skips and set(w.shape[2:]) == {1}

    def dense(self, **operands: Any) -> Request:
        """Return the request for the pixels that count."""
        attributes = {**self.request.attributes, "stride": (1, 1)}
        return replace(self.request, attributes=attributes, **operands)

    def cut(self, workspace: Any, dtype: Any) -> tuple[Any, Any]:
        """Return the room for these pixels in the workspace, flat, and the rest, which is left to the
        kernel."""
        near = workspace[: self.room].view(dtype)[: prod(self.met.shape)]
        rest = workspace[self.room :]
        return near, rest if rest.size else None

    def moves(self, loop: str, arrays: Sequence[Any], to: tuple[int, ...]) -> Work:
        """Return work that moves pixels from one array to another, which is an image of shape ``to``."""
        from demitasse_cpu.loops import strides as loops

        images, channels, *extents = self.image.shape
        grid = loops.Grid(
            channels, *extents, *self.result[2:], *map(int, self.request.attributes["stride"])
        )
        rows = images * to[2]
        arguments = (grid, *map(flat, arrays))
        return spread(getattr(loops, loop), arguments, rows, parts_for(self.request, rows, prod(to)))

    def around(self, inner: Candidate, bind: Any, how: str) -> Candidate:
        """Return the kernel for gathered pixels as a kernel for this convolution."""
        name = f"{inner.kernel}, {how}"
        return replace(inner, kernel=name, bind=bind, workspace=self.room + inner.workspace)
