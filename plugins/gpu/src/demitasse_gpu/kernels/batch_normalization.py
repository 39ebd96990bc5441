"""Batch normalisation by a batch's or by running statistics, and scales along an axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec, Work
from demitasse_gpu.kernels.launches import (
    THREADS,
    Source,
    blocks,
    cut,
    device_of,
    real_type,
    room,
    spec,
    structure,
)
from demitasse_gpu.kernels.layouts import by_channels, is_innermost
from demitasse_gpu.kernels.united import ChannelSums, GradientSums

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

KERNEL = "CUDA"
_EXTENTS = (("outer", "i8"), ("channels", "i4"), ("inner", "i4"))
_ADDED = 6  # the place of a sum's other tensor, behind a normalisation's inputs
_COLUMNS, _SHARES = 32, 16  # a block's channels, and threads per channel, when slabs are added up
_MULTIPROCESSORS = 132
"""The number of multiprocessors for which sums are split up, on every device, so that all give the same
bits. It is that of an H100 or an H200, which run all blocks at the same time."""


class Channels(NamedTuple):
    """``outer`` x ``channels`` x ``inner`` elements, in ``layout``, and how kernels walk them."""

    layout: Layout
    outer: int
    channels: int
    inner: int
    source: Source

    @property
    def extents(self) -> Any:
        return structure(_EXTENTS, self.outer, self.channels, self.inner)

    @property
    def _pack(self) -> int:
        return self.source.pack if self.channels % self.source.pack == 0 else 1

    @property
    def block(self) -> tuple[int, int]:
        """The block's extents. Channels innermost: groups of channels, and lines. Planes: elements of a
        plane, and planes."""
        units = -(-self.channels // self._pack) if self.inner == 1 else self.inner
        most, wide = 32 if self.inner == 1 else THREADS, 1
        while wide < min(most, units):
            wide *= 2
        return wide, THREADS // wide

    @property
    def across(self) -> int:
        """The number of blocks side by side that cover all channels."""
        if self.inner > 1:
            return self.channels
        return -(-self.channels // (self.block[0] * self._pack))

    @property
    def slabs(self) -> int:
        """The number of parts in which sums are made. Each thread has at least eight lines (or
        elements). There are no more blocks than run at the same time, as all others would wait for one
        more."""
        wide, high = self.block
        each = 1 if self.inner == 1 else -(-self.inner // wide)  # elements of a plane per thread
        stored = self.source.stored or self.source.real
        resident = 4 if stored == "float32" else 3  # by the launch bounds in channels.cuh
        at_once = resident * _MULTIPROCESSORS // self.across
        return max(1, min(at_once, -(-self.outer * each // (8 * high))))

    @property
    def sums(self) -> tuple[int, int]:
        """The grid of kernels that sum."""
        return self.across, self.slabs

    def everywhere(self, device: Device) -> tuple[int, int]:
        """Return the grid of kernels that write every element."""
        if self.inner > 1:
            return blocks(device, self.outer * self.channels * self.block[0]), 1
        return self.across, max(1, min(-(-self.outer // (4 * self.block[1])), -(-4096 // self.across)))

    @property
    def settled(self) -> tuple[int, tuple[int, int]]:
        """The grid and block of kernels that add up slabs."""
        return -(-self.channels // _COLUMNS), (_COLUMNS, _SHARES)

    @property
    def partial(self) -> tuple[str, int]:
        """The element type and size of the memory for partial sums."""
        return self.source.real, 2 * self.slabs * self.channels


def channels_of(
    request: Request, leader: TensorSpec, real: str, axis: int = 1, extents: int = 1, file: str = ""
) -> Channels:
    """Return how a request's tensors lie in memory; ``extents`` axes from ``axis`` on are channels."""
    shape, layout = leader.shape, by_channels(request, leader)
    if is_innermost(layout) and (axis, extents) != (1, 1):
        layout = Layout(layout.name, stored=layout.stored) if layout.stored else PLAIN
    outer, channels = prod(shape[:axis]), prod(shape[axis : axis + extents])
    inner = prod(shape[axis + extents :])
    if is_innermost(layout):
        outer, inner = outer * inner, 1
    source = Source(file or "batch_normalization.cu", real, layout.stored)
    return Channels(layout, outer, channels, inner, source)


def statistics(source: Source, mean: Any, spread: Any, factor: Any, epsilon: float, kept: bool) -> Any:
    """Return the structure that tells a kernel where the statistics of channels are."""
    fields = (
        ("mean", "u8"),
        ("spread", "u8"),
        ("factor", "u8"),
        ("epsilon", source.real),
        ("kept", "i4"),
    )
    addresses = (0 if array is None else array.address for array in (mean, spread, factor))
    return structure(fields, *addresses, epsilon, int(kept))


def batch_norm(request: Request) -> Iterable[Candidate]:
    """Return candidates for ``batch_norm``, ``batch_norm_sum`` and ``batch_norm_sum_relu``. The last two
    add the tensor that follows w and b."""
    x = spec(request.inputs[0])
    real = real_type(*request.inputs, *request.outputs)
    if not real or len(request.inputs) > _ADDED + 1:
        return ()
    form = channels_of(request, x, real)
    keep, epsilon = (float(request.attributes[name]) for name in ("keep", "epsilon"))
    rectified, sum_rectified = int(request.attributes["relu"]), _sum_is_rectified(request)
    pieces = (form.partial, (real, form.channels), (real, form.channels))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        given, mean, variance, factor, w, b, other = (*inputs, *(None,) * 3)[: _ADDED + 1]
        partial, *instead = cut(workspace, *pieces)
        average, inverse = (
            spare if array is None else array
            for array, spare in zip((*outputs, None, None)[1:3], instead, strict=True)
        )
        device, number = device_of(inputs), form.source.number
        grid, block = form.settled
        known = statistics(form.source, average, inverse, None, epsilon, kept=False)
        divisor = None if request.attributes["averaged"] else factor
        kept = (number(keep), number(epsilon), mean, variance, divisor, average, inverse)
        launch, extents = form.source.launch, form.extents
        return in_order(
            [
                launch(device, "moments", form.sums, form.block, extents, given, partial),
                launch(device, "settle", grid, block, extents, given, partial, form.slabs, *kept),
                launch(
                    device,
                    "normalise",
                    form.everywhere(device),
                    form.block,
                    *(extents, known, given, w, b, outputs[0], rectified, other, sum_rectified),
                ),
            ]
        )

    layouts = _with_sum(request, form.layout), _outputs(request, form.layout)
    return (Candidate(KERNEL, bind, *layouts, workspace=room(*pieces)),)


def batch_norm_inference(request: Request) -> Iterable[Candidate]:
    """Return candidates by running statistics, also with a sum, as in batch_norm."""
    x = spec(request.inputs[0])
    real = real_type(*request.inputs, *request.outputs)
    if not real or len(request.inputs) > _ADDED + 1:
        return ()
    form = channels_of(request, x, real)
    epsilon, rectified = float(request.attributes["epsilon"]), int(request.attributes["relu"])
    sum_rectified = _sum_is_rectified(request)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        given, mean, variance, factor, w, b, other = (*inputs, *(None,) * 3)[: _ADDED + 1]
        known = statistics(form.source, mean, variance, factor, epsilon, kept=True)
        device = device_of(inputs)
        arguments = (form.extents, known, given, w, b, outputs[0], rectified, other, sum_rectified)
        grid = form.everywhere(device)
        return form.source.launch(device, "normalise", grid, form.block, *arguments)

    layouts = _with_sum(request, form.layout), (form.layout,)
    return (Candidate(KERNEL, bind, *layouts),)


def _sum_is_rectified(request: Request) -> int:
    return int(request.operation.name.endswith("_sum_relu"))


def _with_sum(request: Request, layout: Layout) -> tuple[Layout, ...]:
    """Return the layouts of a normalisation's inputs, with that of the tensor added to its result."""
    count = len(request.inputs)
    return (layout, *(PLAIN,) * (_ADDED - 1), *(layout,) * (count - _ADDED))[:count]


def batch_norm_backward(request: Request) -> Iterable[Candidate]:
    return _backward(request, of_batch=True)


def batch_norm_inference_backward(request: Request) -> Iterable[Candidate]:
    return _backward(request, of_batch=False)


def _backward(request: Request, of_batch: bool) -> Iterable[Candidate]:
    """Return candidates by the batch's statistics (which follow w and b) or by the running ones (which
    precede them)."""
    x = spec(request.inputs[1])  # as the forward pass left it
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    form = channels_of(request, x, real)
    rectified = int(request.attributes["relu"])
    wanted = [each is not None for each in (*request.outputs, None, None)[:3]]
    summed = of_batch or any(wanted[1:])
    pieces = (form.partial, (real, form.channels), (real, form.channels)) if summed else ()
    share = 1.0 / (form.outer * form.inner) if of_batch else 0.0

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        dx, dw, db = (*outputs, None, None)[:3]
        if of_batch:
            dy, given, w, b, average, inverse = inputs
            known = statistics(form.source, average, inverse, None, 0.0, kept=False)
        else:
            dy, given, mean, variance, factor, w, b = (*inputs, None, None)[:7]
            epsilon = float(request.attributes["epsilon"])
            known = statistics(form.source, mean, variance, factor, epsilon, kept=True)
        device, launch, extents, stages = (
            device_of(inputs),
            form.source.launch,
            form.extents,
            list[Work](),
        )
        if summed:
            partial, *instead = cut(workspace, *pieces)
            dw, db = (
                spare if array is None else array for array, spare in zip((dw, db), instead, strict=True)
            )
            rest = given, w, b, rectified, partial
            sums = launch(device, "gradient_sums", form.sums, form.block, extents, known, dy, *rest)
            sums.told = GradientSums(form, dy, known, rest)
            stages.append(sums)
            settled = (extents, known, partial, form.slabs, dw, db)
            stages.append(launch(device, "settle_gradients", *form.settled, *settled))
        if dx is not None:
            grid = form.everywhere(device)
            last = (extents, known, dy, given, w, b, dw, db, dx, rectified, form.source.number(share))
            stages.append(launch(device, "normalise_backward", grid, form.block, *last))
        return in_order(stages)

    layouts = (form.layout, form.layout, *(PLAIN,) * 5)[: len(request.inputs)]
    return (Candidate(KERNEL, bind, layouts, _outputs(request, form.layout), workspace=room(*pieces)),)


def _outputs(request: Request, layout: Layout) -> tuple[Layout, ...]:
    """Return the layouts of the outputs: the first in ``layout``, those per channel plain."""
    return (layout, PLAIN, PLAIN)[: len(request.outputs)]


def fold_normalization(request: Request) -> Iterable[Candidate]:
    """Return candidates on plain float weights and biases: a plan rounds and reorders them, once."""
    w = spec(request.inputs[0])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    axis, epsilon = int(request.attributes["axis"]), float(request.attributes["epsilon"])
    outer, channels, inner = prod(w.shape[:axis]), w.shape[axis], prod(w.shape[axis + 1 :])
    form = Channels(PLAIN, outer, channels, inner, Source("batch_normalization.cu", real))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        given, b, mean, variance, factor, slope, level = (*inputs, *[None] * 6)[:7]
        made, bias = outputs
        kept = mean is not None
        known = statistics(form.source, mean, variance, factor, epsilon if kept else 0.0, kept)
        device, launch = device_of(inputs), form.source.launch
        weights = (form.extents, known, slope, given, made)
        rest = (channels, known, slope, level, b, bias)
        return in_order(
            [
                launch(device, "fold", form.everywhere(device), form.block, *weights),
                launch(device, "fold_bias", -(-channels // THREADS), THREADS, *rest),
            ]
        )

    return (Candidate(KERNEL, bind, in_place=False),)


def scale(request: Request) -> Iterable[Candidate]:
    """Return candidates for ``scale`` and ``scale_relu``."""
    x, w = spec(request.inputs[0]), spec(request.inputs[1])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    form = channels_of(request, x, real, int(request.attributes["axis"]), len(w.shape))
    rectified = int(request.operation.name == "scale_relu")

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        arguments = (form.extents, *(*inputs, None)[:3], outputs[0], rectified)
        device = device_of(inputs)
        return form.source.launch(device, "scale", form.everywhere(device), form.block, *arguments)

    layouts = (form.layout, PLAIN, PLAIN)[: len(request.inputs)]
    return (Candidate(KERNEL, bind, layouts, (form.layout,)),)


def scale_backward(request: Request) -> Iterable[Candidate]:
    x, w = spec(request.inputs[1]), spec(request.inputs[2])
    if not (real := real_type(*request.inputs, *request.outputs)):
        return ()
    form = channels_of(request, x, real, int(request.attributes["axis"]), len(w.shape))
    summed = any(each is not None for each in request.outputs[1:])
    pieces = (form.partial,) if summed else ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_gpu.launch import in_order

        dy, given, w = inputs
        dx, dw, db = (*outputs, None, None)[:3]
        device, stages = device_of(inputs), list[Work]()
        if summed:
            stages += channel_sums(form, dy, given, dw, db, cut(workspace, *pieces)[0])
        if dx is not None:
            arguments = (form.extents, dy, w, None, dx, 0)
            grid = form.everywhere(device)
            stages.append(form.source.launch(device, "scale", grid, form.block, *arguments))
        return in_order(stages)

    layouts = (form.layout, form.layout, PLAIN), _outputs(request, form.layout)
    return (Candidate(KERNEL, bind, *layouts, workspace=room(*pieces)),)


def channel_sums(form: Channels, dy: Any, x: Any, dw: Any, db: Any, partial: Any) -> list[Work]:
    """Return the works that put each channel's sum of dy * x into dw, and that of dy into db, whichever
    are wanted."""
    none = statistics(form.source, None, None, None, 0.0, kept=False)
    grid, block = form.settled
    launch, extents, device = form.source.launch, form.extents, dy.device
    sums = launch(device, "product_sums", form.sums, form.block, extents, dy, x, partial)
    if x is None:
        sums.told = ChannelSums(form, dy, partial)
    return [
        sums,
        launch(device, "settle_gradients", grid, block, extents, none, partial, form.slabs, dw, db),
    ]


FACTORIES = {
    "batch_norm": batch_norm,
    "batch_norm_sum": batch_norm,
    "batch_norm_sum_relu": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "batch_norm_inference": batch_norm_inference,
    "batch_norm_inference_sum": batch_norm_inference,
    "batch_norm_inference_sum_relu": batch_norm_inference,
    "batch_norm_inference_backward": batch_norm_inference_backward,
    "fold_normalization": fold_normalization,
    "scale": scale,
    "scale_relu": scale,
    "scale_backward": scale_backward,
}
