"""Convolution in one or two dimensions, with groups, strides, padding and dilation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels import depthwise
from demitasse_cpu.kernels.requests import LINE, aligned, cut, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

if TYPE_CHECKING:
    from demitasse_cpu.loops.correlation import Correlation, WeightGradient

KERNEL = "direct, vectors of channels"
_RANKS = (3, 4)
_MOST = 2**36
_FLOP_A_UNIT_OF_WORK = 64
_STRIP_BYTES = 48 * 4 * LINE
_SPARE_ROWS = 8


class _Sizes(NamedTuple):
    """A convolution's sizes and attributes, as (rows, columns); a convolution in one dimension has one
    row."""

    samples: int
    groups: int
    inputs: int
    outputs: int
    image: tuple[int, int]
    result: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilation: tuple[int, int]
    dtype: str
    itemsize: int

    @property
    def taps(self) -> int:
        return self.inputs * prod(self.kernel)

    @property
    def padded(self) -> tuple[int, int]:
        rows, columns = (e + 2 * p for e, p in zip(self.image, self.pad, strict=True))
        return rows, columns

    @property
    def units_of_work(self) -> float:
        flop = 2 * self.samples * self.groups * self.outputs * prod(self.result) * self.taps
        return flop / _FLOP_A_UNIT_OF_WORK


def forward(request: Request) -> Iterable[Candidate]:
    x, w, b = (*request.inputs, None)[:3]
    y = request.outputs[0]
    if not is_real(x, w, b, y) or len(spec(x).shape) not in _RANKS:
        return ()
    return (_correlating(request, _sizes(request, spec(x).shape, spec(w).shape, spec(y).shape)),)


def backward_data(request: Request) -> Iterable[Candidate]:
    dy, w = request.inputs
    dx = request.outputs[0]
    if depthwise.serves(request, spec(w).shape):
        return depthwise.backward_data(request)
    if not is_real(dy, w, dx) or len(spec(dy).shape) not in _RANKS:
        return ()
    if max(prod(spec(each).shape) for each in (dy, w, dx)) > _MOST:
        return ()  # more than memory can hold, which the plan will report; here each phase takes time
    sizes = _sizes(request, spec(dx).shape, spec(w).shape, spec(dy).shape)
    return (_correlating(request, sizes, to_data=True),)


def _correlating(request: Request, s: _Sizes, to_data: bool = False) -> Candidate:
    """Return the kernel of a forward pass or of one to the data. Both gather from padded images."""
    parts = parts_for(request, s.samples, s.units_of_work)
    channels, outputs = (s.outputs, s.inputs) if to_data else (s.inputs, s.outputs)
    extents = _backward_padding(s)[1] if to_data else s.padded
    padded_outputs = _whole_lines(outputs, s.itemsize)
    panel = s.groups * channels * prod(s.kernel) * padded_outputs * s.itemsize
    biases = s.groups * padded_outputs * s.itemsize
    room = aligned(channels * prod(extents) * s.itemsize) + _STRIP_BYTES

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import correlation as loops
        from demitasse_cpu.loops import tiles

        geometry = _to_data(s) if to_data else _forward(s)
        packed, bias_lines, *rooms = cut(workspace, s.dtype, panel, biases, *[room] * parts)
        lanes = tiles.lanes(s.itemsize)
        padded_bias = bias_lines[: s.groups * lanes * int(geometry.columns[:, 1].sum())]
        b = inputs[2] if len(inputs) > 2 and inputs[2] is not None else packed[:0]
        pack = ready(loops.pack, geometry, flat(inputs[1]), b, packed, padded_bias, lanes)
        x, y = flat(inputs[0]), flat(targets[0])
        shares = [
            ready(loops.correlate, geometry, x, y, packed, padded_bias, mine, lanes, *images)
            for mine, images in zip(rooms, divide(s.samples, parts), strict=True)
        ]
        return in_order([pack, at_once(shares)])

    workspace = aligned(panel) + aligned(biases) + parts * room
    return Candidate(KERNEL, bind, workspace=workspace, in_place=False)


def backward_weights(request: Request) -> Iterable[Candidate]:
    dy, x = request.inputs
    dw, db = (*request.outputs, None)[:2]
    if depthwise.serves(request, spec(dw).shape):
        return depthwise.backward_weights(request)
    if not is_real(dy, x, dw, db) or len(spec(x).shape) not in _RANKS:
        return ()
    s = _sizes(request, spec(x).shape, spec(dw).shape, spec(dy).shape)
    parts = parts_for(request, s.samples, s.units_of_work)
    padded_outputs = _whole_lines(s.outputs, s.itemsize)
    sums = s.groups * (s.taps + _SPARE_ROWS) * padded_outputs * s.itemsize
    bias_sums = s.groups * padded_outputs * s.itemsize
    room = aligned(s.inputs * prod(s.padded) * s.itemsize)
    room += prod(s.result) * padded_outputs * s.itemsize

    def bind(inputs: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import correlation as loops
        from demitasse_cpu.loops import tiles

        geometry = _to_weights(s)
        lanes = tiles.lanes(s.itemsize)
        width = s.groups * lanes * int(geometry.columns[:, 1].sum())
        all_sums, all_bias_sums, *rooms = cut(
            workspace, s.dtype, parts * sums, parts * bias_sums, *[room] * parts
        )
        all_sums = all_sums.reshape(parts, -1)
        all_bias_sums = all_bias_sums[: parts * width].reshape(parts, -1)
        dy, x = map(flat, inputs)
        dw, db = (*targets, None)[:2]
        shares = [
            ready(
                loops.weight_gradient,
                geometry,
                dy,
                x,
                all_sums[i],
                all_bias_sums[i],
                rooms[i],
                lanes,
                *part,
            )
            for i, part in enumerate(divide(s.samples, parts))
        ]
        db = all_sums[0, :0] if db is None else db
        add_up = ready(loops.add_up, geometry, all_sums, all_bias_sums, flat(dw), db, lanes)
        return in_order([at_once(shares), add_up])

    workspace = aligned(parts * sums) + aligned(parts * bias_sums) + parts * aligned(room)
    return (Candidate(KERNEL, bind, workspace=workspace, in_place=False),)


FACTORIES = {
    "convolution": forward,
    "convolution_backward_data": backward_data,
    "convolution_backward_weights": backward_weights,
}


def _sizes(request: Request, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> _Sizes:
    import numpy as np

    given = request.attributes
    dtype = spec(request.inputs[0]).dtype
    return _Sizes(
        samples=x[0],
        groups=given["groups"],
        inputs=w[1],
        outputs=w[0] // given["groups"],
        image=_two(x[2:], 1),
        result=_two(y[2:], 1),
        kernel=_two(w[2:], 1),
        stride=_two(given["stride"], 1),
        pad=_two(given["pad"], 0),
        dilation=_two(given["dilation"], 1),
        dtype=dtype,
        itemsize=np.dtype(dtype).itemsize,
    )


def _two(numbers: Sequence[int], missing: int) -> tuple[int, int]:
    """Return a number for rows and one for columns; ``missing`` is that of rows if only one is given."""
    rows, columns = (missing, *numbers) if len(numbers) == 1 else numbers
    return rows, columns


def _whole_lines(channels: int, itemsize: int) -> int:
    """Return the number of channels padded to a multiple of 64 bytes, the widest vector of any
    processor."""
    return aligned(channels * itemsize) // itemsize


def _forward(s: _Sizes) -> Correlation:
    import numpy as np

    from demitasse_cpu.loops import correlation as loops
    from demitasse_cpu.loops import tiles

    base = _grid(s.result, s.stride, s.padded[1])
    return loops.Correlation(
        groups=s.groups,
        channels=s.inputs,
        height=s.image[0],
        width=s.image[1],
        top=s.pad[0],
        left=s.pad[1],
        padded_height=s.padded[0],
        padded_width=s.padded[1],
        outputs=s.outputs,
        plane=base.size,
        in_order=True,
        phase_taps=np.array([0, s.taps]),
        phase_rows=np.array([0, base.size]),
        base=_with_spare_rows(base),
        target=np.arange(base.size),
        steps=_taps(s),
        weight_of_tap=np.arange(s.taps),
        weights_of_group=s.outputs * s.taps,
        weights_of_output=s.taps,
        columns=np.array(tiles.columns(s.outputs, s.itemsize)),
    )


def _to_weights(s: _Sizes) -> WeightGradient:
    import numpy as np

    from demitasse_cpu.loops import correlation as loops
    from demitasse_cpu.loops import tiles

    return loops.WeightGradient(
        groups=s.groups,
        channels=s.inputs,
        height=s.image[0],
        width=s.image[1],
        top=s.pad[0],
        left=s.pad[1],
        padded_height=s.padded[0],
        padded_width=s.padded[1],
        outputs=s.outputs,
        taps=s.taps,
        base=_with_spare_rows(_taps(s)),
        steps=_grid(s.result, s.stride, s.padded[1]),
        columns=np.array(tiles.columns(s.outputs, s.itemsize)),
    )


def _to_data(s: _Sizes) -> Correlation:
    """Return the numbers and tables of a pass to the data.

    dx[i] is the sum of dy[o] * w[tap] over all o and taps with o * stride + tap * dilation = i + pad.
    The positions i of one phase (i modulo the stride) share their taps: those for which (i + pad - tap *
    dilation) is a multiple of the stride. Then o = i // stride + a shift that depends on the tap.
    """
    import numpy as np

    from demitasse_cpu.loops import correlation as loops
    from demitasse_cpu.loops import tiles

    (top, left), extents = _backward_padding(s)
    area, padded_area = prod(s.kernel), prod(extents)
    steps, weights, base, target = [], [], [], []
    phase_taps, phase_rows = [0], [0]
    rows, columns = (_phases(s, d) for d in (0, 1))
    for row_phase, row_shifts in enumerate(rows):
        for column_phase, column_shifts in enumerate(columns):
            steps += [
                k * padded_area + (dy + top) * extents[1] + dx + left
                for k in range(s.outputs)
                for _, dy in row_shifts
                for _, dx in column_shifts
            ]
            weights += [
                k * s.inputs * area + ky * s.kernel[1] + kx
                for k in range(s.outputs)
                for ky, _ in row_shifts
                for kx, _ in column_shifts
            ]
            places = [
                (y, x)
                for y in range(row_phase, s.image[0], s.stride[0])
                for x in range(column_phase, s.image[1], s.stride[1])
            ]
            base += [y // s.stride[0] * extents[1] + x // s.stride[1] for y, x in places]
            target += [y * s.image[1] + x for y, x in places]
            phase_taps.append(len(steps))
            phase_rows.append(len(base))
    return loops.Correlation(
        groups=s.groups,
        channels=s.outputs,
        height=s.result[0],
        width=s.result[1],
        top=top,
        left=left,
        padded_height=extents[0],
        padded_width=extents[1],
        outputs=s.inputs,
        plane=prod(s.image),
        in_order=s.stride == (1, 1),
        phase_taps=np.array(phase_taps),
        phase_rows=np.array(phase_rows),
        base=_with_spare_rows(np.array(base)),
        target=np.array(target),
        steps=np.array(steps, np.int64),
        weight_of_tap=np.array(weights, np.int64),
        weights_of_group=s.outputs * s.taps,
        weights_of_output=area,
        columns=np.array(tiles.columns(s.inputs, s.itemsize)),
    )


def _phases(s: _Sizes, dimension: int) -> list[list[tuple[int, int]]]:
    """Return the taps that each phase along a dimension meets, each with its shift in dy. Only phases
    that have an element are included."""
    stride, pad, dilation = s.stride[dimension], s.pad[dimension], s.dilation[dimension]
    return [
        [
            (tap, (phase + pad - tap * dilation) // stride)
            for tap in range(s.kernel[dimension])
            if (phase + pad - tap * dilation) % stride == 0
        ]
        for phase in range(min(stride, s.image[dimension]))
    ]


def _backward_padding(s: _Sizes) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the number of zeros before dy, and its extents with the zeros before and after it that keep
    every tap inside."""
    before, extents = [], []
    for d in (0, 1):
        shifts = [shift for phase in _phases(s, d) for _, shift in phase] or [0]
        lowest, highest = min(shifts), max(shifts) + (s.image[d] - 1) // s.stride[d]
        before.append(max(0, -lowest))
        extents.append(before[d] + max(s.result[d], highest + 1))
    return (before[0], before[1]), (extents[0], extents[1])


def _taps(s: _Sizes) -> Any:
    """Return the offset of each tap (c, ky, kx) in a padded image from a window's first element."""
    import numpy as np

    planes = np.arange(s.inputs) * prod(s.padded)
    window = _grid(s.kernel, s.dilation, s.padded[1])
    return (planes[:, None] + window).reshape(-1)


def _grid(extents: tuple[int, int], strides: tuple[int, int], width: int) -> Any:
    """Return the offsets of a grid of points in planes of ``width`` columns."""
    import numpy as np

    rows, columns = (np.arange(e) * s for e, s in zip(extents, strides, strict=True))
    return (rows[:, None] * width + columns).reshape(-1)


def _with_spare_rows(base: Any) -> Any:
    """Return the rows followed by copies of the last one, for a tile that is not full."""
    import numpy as np

    return np.concatenate([base, np.full(_SPARE_ROWS, base[-1])])
