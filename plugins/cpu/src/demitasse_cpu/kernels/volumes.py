"""Cost volumes and warped images of nets for optical flow. These are operations of the optical_flow
plugin."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from demitasse import PLAIN, Candidate, Request, TensorSpec, Work
from demitasse_cpu.kernels.requests import aligned, cut, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

if TYPE_CHECKING:
    from demitasse_cpu.loops.volumes import Volume

KERNEL = "numba loop over rows in tiles of displacements"
_BACKWARD = "numba loop over rows in tiles of channels"
_MOST = 12
"""The sums of a tile. Of 16 registers this leaves two for the factors."""
_PITCH = 64
_FLOPS_OF_MOVE = 64  # take as long as moving a number


class _Line(NamedTuple):
    """Rows surrounded by zeros: how many zeros come before a row, and the length of a row with them."""

    left: int
    pitch: int


def _line(width: int, read: int, offsets: Sequence[int]) -> _Line:
    """Return the row that holds ``width`` numbers, if ``read`` numbers, and up to a vector more, are
    read from each of the ``offsets`` on."""
    left = max(0, -min(offsets))
    behind = -(-read // _PITCH) * _PITCH + max(0, *offsets)
    return _Line(left, left + max(width, behind))


def _tile(count: int) -> int:
    """Return the number of sums in a tile such that few are computed twice."""
    return -(-count // -(-count // _MOST))


def _even(steps: Sequence[int]) -> bool:
    return len({b - a for a, b in itertools.pairwise(steps)}) <= 1


def _serves(request: Request) -> bool:
    about = request.attributes
    plain = not about["difference"] and about["stride"] == 1 and _even(about["across"])
    return plain and is_real(*request.inputs, *request.outputs)


def cost_volume(request: Request) -> Iterable[Candidate]:
    a, y, about = spec(request.inputs[0]), spec(request.outputs[0]), request.attributes
    if not _serves(request):
        return ()
    images, channels, height, width = a.shape
    columns, size = y.shape[3], np.dtype(a.dtype).itemsize
    offset, kernel = about["first"][1], about["kernel"]
    seen = [offset + tap + step for tap in range(kernel) for step in (0, *about["across"])]
    line = _line(width, columns, seen)
    units = images * len(about["down"]) * y.shape[2]
    parts = parts_for(request, units, channels * kernel**2 * prod(y.shape) / (_FLOPS_OF_MOVE / 2))
    tile = _tile(len(about["across"]))
    copied = images * channels * height * line.pitch * size
    each = tile * -(-columns // _PITCH) * _PITCH
    workspace = 2 * aligned(copied) + aligned(parts * each * size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], space: Any) -> Work:
        from demitasse_cpu.loops import volumes as loops

        first, second, sums = cut(space, a.dtype, copied, copied, parts * each * size)
        rows = loops.Rows(channels, height, line.pitch, line.left)
        steps = np.array(
            [c * line.pitch + offset + tap for c in range(channels) for tap in range(kernel)]
        )
        tables = (steps, steps, np.array(about["down"]), np.array(about["across"]))
        g, form = _geometry(request, a, y), (0,) * tile
        arguments = (g, rows, form, first, second, flat(outputs[0]), sums, *tables)
        return in_order(
            [
                *(
                    spread(
                        loops.widened, (rows, flat(x), wide, width), images * channels * height, parts
                    )
                    for x, wide in zip(inputs, (first, second), strict=True)
                ),
                at_once(
                    [
                        ready(loops.volume, *arguments, number * each, *part)
                        for number, part in enumerate(divide(units, parts))
                    ]
                ),
            ]
        )

    return (Candidate(KERNEL, bind, (PLAIN, PLAIN), (PLAIN,), workspace, in_place=False),)


def cost_volume_backward(request: Request) -> Iterable[Candidate]:
    dy, a, _ = map(spec, request.inputs)
    about = request.attributes
    if not _serves(request):
        return ()
    images, channels, height, width = a.shape
    columns, size = dy.shape[3], np.dtype(a.dtype).itemsize
    offset, kernel, across = about["first"][1], about["kernel"], about["across"]
    wanted = [number for number, output in enumerate(request.outputs) if output is not None]
    # For the first image's gradient, dy is read at a place minus a tap, and the other image a
    # displacement further on. For the second's, both are read a displacement back.
    tables = {
        0: [(-offset - tap, step) for step in across for tap in range(kernel)],
        1: [(-step - offset - tap, -step) for step in across for tap in range(kernel)],
    }
    moves = [pair for number in wanted for pair in tables[number]]
    dy_line = _line(columns, width, [0, *(near for near, _ in moves)])
    line = _line(width, width, [0, *(far for _, far in moves)])
    units = images * height
    work = len(wanted) * channels * kernel**2 * prod(dy.shape)
    parts = parts_for(request, units, work / (_FLOPS_OF_MOVE / 2))
    tile = _tile(channels)
    dy_copied = prod(dy.shape[:3]) * dy_line.pitch * size
    copied = images * channels * height * line.pitch * size
    each = tile * -(-width // _PITCH) * _PITCH
    workspace = aligned(dy_copied) + aligned(copied) + aligned(parts * each * size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], space: Any) -> Work:
        from demitasse_cpu.loops import volumes as loops

        wide_dy, wide, sums = cut(space, a.dtype, dy_copied, copied, parts * each * size)
        displacements = dy.shape[1]
        dy_rows = loops.Rows(displacements, dy.shape[2], dy_line.pitch, dy_line.left)
        rows = loops.Rows(channels, height, line.pitch, line.left)
        g, form = _geometry(request, a, dy), (0,) * tile
        down = np.array(about["down"])
        copy_dy = (dy_rows, flat(inputs[0]), wide_dy, columns)
        stages: list[Work] = [spread(loops.widened, copy_dy, prod(dy.shape[:3]), parts)]
        for number in wanted:
            copy = (rows, flat(inputs[2 - number]), wide, width)
            stages.append(spread(loops.widened, copy, images * channels * height, parts))
            near = np.array(
                [n // kernel * dy_line.pitch + move for n, (move, _) in enumerate(tables[number])]
            )
            far = np.array([move for _, move in tables[number]])
            result = flat(outputs[number])
            arguments = (g, dy_rows, rows, form, wide_dy, wide, result, sums, near, far, down)
            stages.append(
                at_once(
                    [
                        ready(loops.volume_gradient, *arguments, 1 - 2 * number, n * each, *part)
                        for n, part in enumerate(divide(units, parts))
                    ]
                )
            )
        return in_order(stages)

    layouts = (PLAIN,) * 3, (PLAIN,) * len(request.outputs)
    return (Candidate(_BACKWARD, bind, *layouts, workspace, in_place=False),)


def _geometry(request: Request, a: TensorSpec, volume: TensorSpec) -> Volume:
    from demitasse_cpu.loops.volumes import Volume

    about, kernel = request.attributes, int(request.attributes["kernel"])
    _, channels, height, width = a.shape
    _, _, rows, columns = volume.shape
    return Volume(
        channels,
        height,
        width,
        rows,
        columns,
        len(about["down"]),
        len(about["across"]),
        kernel,
        int(about["first"][0]),
        1 / (kernel**2 * channels),
    )


def channel_norm(request: Request) -> Iterable[Candidate]:
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    if not is_real(x, y):
        return ()
    channels, plane, places = x.shape[1], prod(x.shape[2:]), prod(y.shape)
    parts = parts_for(request, places, prod(x.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], space: Any) -> Work:
        from demitasse_cpu.loops import volumes as loops

        arguments = (flat(inputs[0]), flat(outputs[0]), channels, plane)
        return spread(loops.channel_norm, arguments, places, parts)

    return (Candidate("numba loop over channels", bind, (PLAIN,), (PLAIN,), in_place=False),)


def channel_norm_backward(request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[1])
    if not is_real(*request.inputs, *request.outputs):
        return ()
    channels, plane = x.shape[1], prod(x.shape[2:])
    parts = parts_for(request, x.shape[0] * channels, 3 * prod(x.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], space: Any) -> Work:
        from demitasse_cpu.loops import volumes as loops

        arguments = (*map(flat, inputs), flat(outputs[0]), channels, plane)
        return spread(loops.channel_norm_backward, arguments, x.shape[0] * channels, parts)

    return (Candidate("numba loop over planes", bind, (PLAIN,) * 3, (PLAIN,), in_place=False),)


FACTORIES = {
    "cost_volume": cost_volume,
    "cost_volume_backward": cost_volume_backward,
    "channel_norm": channel_norm,
    "channel_norm_backward": channel_norm_backward,
}
