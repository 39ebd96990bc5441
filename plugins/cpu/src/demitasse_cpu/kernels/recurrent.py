"""Recurrences. Each time step is a matrix product and a loop over streams; all steps are one table of
calls.

Work that need not be done in order is one product of all steps at once: here the gradient of the
weights, and the products with the input where those are operations of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

from demitasse import Candidate, Request, TensorSpec, Work
from demitasse.operations import VOCABULARY
from demitasse_cpu.kernels import inner_product
from demitasse_cpu.kernels.requests import aligned, cut, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import spread
from demitasse_cpu.native import in_order

KERNEL = "product and loop a step"
_CARRIED = 4  # the index of the operand ``carried`` in a backward pass
_FUNCTION = 8  # a sigmoid or tanh takes as long as moving this many elements


class _Sizes(NamedTuple):
    """The number of time steps, streams and units, and the bytes of a number."""

    steps: int
    streams: int
    units: int
    item: int

    @property
    def state(self) -> int:
        """The bytes of one number for each unit of each stream."""
        return self.streams * self.units * self.item


def lstm(request: Request) -> Iterable[Candidate]:
    sizes = _sizes(request)
    if not is_real(*request.inputs[:2], *request.inputs[3:], *request.outputs):
        return ()
    product = _forward_product(request, sizes, gates=4)
    rooms = product.workspace, sizes.state, sizes.state, 4 * sizes.state
    parts = parts_for(request, sizes.streams, 5 * _FUNCTION * sizes.streams * sizes.units)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import recurrent as loops

        z, w, cont, h, c, s = (*inputs, None)[:6]
        y, hidden, cell, kept_carried, kept_cells, kept_gates = (*outputs, *[None] * 6)[:6]
        rest, *spare = cut(workspace, z.dtype, *rooms)
        carried, cells, gates = (
            _each_step(kept, room, sizes.steps)
            for kept, room in zip((kept_carried, kept_cells, kept_gates), spare, strict=True)
        )
        fixed = flat(z)[:0] if s is None else flat(s)
        before, stages = flat(c), list[Work]()
        for t in range(sizes.steps):
            totals = gates[t].reshape(sizes.streams, -1)
            stages.append(_carry(y[t - 1] if t else h, cont[t], carried[t], sizes, parts))
            stages.append(product.bind([_rows(carried[t], sizes), w], [totals], rest.view("uint8")))
            operands = flat(z[t]), fixed, cont[t], before, cells[t], flat(y[t]), gates[t]
            stages.append(spread(loops.lstm_step, (*operands, True, sizes.units), sizes.streams, parts))
            before = cells[t]
        for last, source in ((hidden, flat(y[-1])), (cell, before)):
            if last is not None:
                stages.append(spread(loops.copied, (source, flat(last)), source.size, 1))
        return in_order(stages)

    return (Candidate(KERNEL, bind, workspace=sum(map(aligned, rooms)), in_place=False),)


def lstm_backward(request: Request) -> Iterable[Candidate]:
    sizes = _sizes(request)
    if not is_real(*request.inputs[:2], *request.inputs[3:], *request.outputs):
        return ()
    parts = parts_for(request, sizes.streams, 2 * _FUNCTION * sizes.streams * sizes.units)
    bound = float(request.attributes["bound"])

    def steps(inputs: Sequence[Any], dz: Any, dhidden: Any, room: Any) -> list[tuple[Work, int]]:
        from demitasse_cpu.loops import recurrent as loops

        dy, _, cont, c, _, cells, gates = inputs
        made, nothing, dcell = [], flat(dy)[:0], flat(dy)[:0]
        for t in reversed(range(sizes.steps)):
            before = flat(cells[t - 1] if t else c)
            after = cont[t + 1] if t + 1 < sizes.steps else nothing
            operands = flat(dy[t]), dhidden, after, dcell, before, cont[t], flat(cells[t])
            targets = flat(gates[t]), room, flat(dz[t]), bound
            loop = loops.lstm_step_backward
            made.append((spread(loop, (*operands, *targets, sizes.units), sizes.streams, parts), t))
            dcell = room
        return made

    return _backward(request, sizes, 4, steps)


def rnn(request: Request) -> Iterable[Candidate]:
    sizes = _sizes(request)
    if not is_real(*request.inputs[:2], *request.inputs[3:], *request.outputs):
        return ()
    product = _forward_product(request, sizes, gates=1)
    rooms = product.workspace, sizes.state
    parts = parts_for(request, sizes.streams, _FUNCTION * sizes.streams * sizes.units)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import recurrent as loops

        z, w, cont, h, s = (*inputs, None)[:5]
        y, hidden, kept = (*outputs, None, None)[:3]
        rest, spare = cut(workspace, z.dtype, *rooms)
        carried = _each_step(kept, spare, sizes.steps)
        fixed = flat(z)[:0] if s is None else flat(s)
        stages = []
        for t in range(sizes.steps):
            stages.append(_carry(y[t - 1] if t else h, cont[t], carried[t], sizes, parts))
            stages.append(product.bind([_rows(carried[t], sizes), w], [y[t]], rest.view("uint8")))
            operands = flat(z[t]), fixed, flat(y[t]), sizes.units
            stages.append(spread(loops.rnn_step, operands, sizes.streams, parts))
        if hidden is not None:
            stages.append(spread(loops.copied, (flat(y[-1]), flat(hidden)), y[-1].size, 1))
        return in_order(stages)

    return (Candidate(KERNEL, bind, workspace=sum(map(aligned, rooms)), in_place=False),)


def rnn_backward(request: Request) -> Iterable[Candidate]:
    sizes = _sizes(request)
    if not is_real(*request.inputs[:2], *request.inputs[3:], *request.outputs):
        return ()
    parts = parts_for(request, sizes.streams, 3 * sizes.streams * sizes.units)

    def steps(inputs: Sequence[Any], dz: Any, dhidden: Any, room: Any) -> list[tuple[Work, int]]:
        from demitasse_cpu.loops import recurrent as loops

        dy, _, cont, y, _ = inputs
        made, nothing = [], flat(dy)[:0]
        for t in reversed(range(sizes.steps)):
            after = cont[t + 1] if t + 1 < sizes.steps else nothing
            operands = flat(dy[t]), dhidden, after, flat(y[t]), flat(dz[t]), sizes.units
            made.append((spread(loops.rnn_step_backward, operands, sizes.streams, parts), t))
        return made

    return _backward(request, sizes, 1, steps)


def lstm_step(request: Request) -> Iterable[Candidate]:
    c, z, _ = request.inputs
    if not is_real(c, z, *request.outputs):
        return ()
    _, streams, units = spec(c).shape
    parts = parts_for(request, streams, 5 * _FUNCTION * streams * units)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import recurrent as loops

        c, z, cont = map(flat, inputs)
        cell, hidden, gates = (*outputs, None)[:3]
        room = workspace.view(z.dtype) if gates is None else flat(gates)
        operands = z, z[:0], cont, c, flat(cell), flat(hidden), room, False, units
        return spread(loops.lstm_step, operands, streams, parts)

    kept = len(request.outputs) > 2 and request.outputs[2] is not None
    room = 0 if kept else prod(spec(z).shape) * _item(spec(z))
    return (Candidate(KERNEL, bind, workspace=room, in_place=False),)


def lstm_step_backward(request: Request) -> Iterable[Candidate]:
    dcell, dhidden, c, _, cell, gates = request.inputs
    if not is_real(dcell, dhidden, c, cell, gates, *request.outputs):
        return ()
    _, streams, units = spec(c).shape
    parts = parts_for(request, streams, 2 * _FUNCTION * streams * units)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import recurrent as loops

        nothing = flat(inputs[2])[:0]
        dcell, dhidden, c, cont, cell, gates, dc, dz = (
            nothing if array is None else flat(array) for array in (*inputs, *outputs)
        )
        operands = dhidden, nothing, nothing, dcell, c, cont, cell, gates, dc, dz, 0.0, units
        return spread(loops.lstm_step_backward, operands, streams, parts)

    return (Candidate(KERNEL, bind, in_place=False),)


def recall(request: Request) -> Iterable[Candidate]:
    return _copy(request, lambda inputs, outputs: (inputs[0], outputs[0]))


def remember(request: Request) -> Iterable[Candidate]:
    return _copy(request, lambda inputs, outputs: (inputs[1], inputs[0]))


def _copy(request: Request, ends: Any) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    size = prod(spec(request.inputs[0]).shape)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import recurrent as loops

        source, target = map(flat, ends(inputs, outputs))
        return spread(loops.copied, (source, target), size, parts_for(request, size, size))

    return (Candidate("numba copy", bind, in_place=False),)


FACTORIES = {
    "lstm": lstm,
    "lstm_backward": lstm_backward,
    "lstm_step": lstm_step,
    "lstm_step_backward": lstm_step_backward,
    "rnn": rnn,
    "rnn_backward": rnn_backward,
    "recall": recall,
    "remember": remember,
}


def _backward(request: Request, sizes: _Sizes, gates: int, steps: Any) -> Iterable[Candidate]:
    """Return the backward pass of a recurrence. ``steps`` binds the loop of each step, from the last to
    the first, which computes its part of dz. A product of that with the weights is passed to the step
    before."""
    count, streams, units, _ = sizes
    trains = len(request.outputs) > 1 and request.outputs[1] is not None
    wide = gates * units
    back = _product(
        request,
        "inner_product_backward_data",
        [(streams, wide), (wide, units)],
        (streams, units),
        {"axis": 1, "transpose": False, "shape": (streams, units)},
    )
    weights = _product(
        request,
        "inner_product_backward_weights",
        [(count * streams, wide), (count * streams, units)],
        (wide, units),
        {"axis": 1, "transpose": False, "shape": (wide, units)},
    )
    rest = max(back.workspace, weights.workspace if trains else 0)
    rooms = rest, sizes.state, sizes.state

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import recurrent as loops

        dz, dw, ds = (*outputs, None, None)[:3]
        w, scratch = inputs[1], workspace[: aligned(rest)]
        _, dhidden, room = cut(workspace, dz.dtype, *rooms)
        stages: list[Work] = []
        for work, t in steps(inputs, dz, dhidden, room):
            stages.append(work)
            if t:
                stages.append(back.bind([dz[t], w], [_rows(dhidden, sizes)], scratch))
        if dw is not None:
            rows = [array.reshape(count * streams, -1) for array in (dz, inputs[_CARRIED])]
            stages.append(weights.bind(rows, [dw, None], scratch))
        if ds is not None:
            parts = parts_for(request, ds.size, dz.size)
            stages.append(spread(loops.sum_of_steps, (flat(dz), flat(ds)), ds.size, parts))
        return in_order(stages)

    return (Candidate(KERNEL, bind, workspace=sum(map(aligned, rooms)), in_place=False),)


def _forward_product(request: Request, sizes: _Sizes, gates: int) -> Candidate:
    """Return the product carried[t] w^T."""
    rows, wide = (sizes.streams, sizes.units), gates * sizes.units
    given = {"axis": 1, "transpose": False}
    return _product(request, "inner_product", [rows, (wide, sizes.units)], (sizes.streams, wide), given)


def _product(
    request: Request,
    name: str,
    inputs: Sequence[tuple[int, ...]],
    output: tuple[int, ...],
    attributes: dict[str, Any],
) -> Candidate:
    """Return the plugin's own kernel for a product of plain matrices of the request's type."""
    dtype = spec(request.inputs[0]).dtype
    operands = tuple(TensorSpec(shape, dtype) for shape in inputs)
    outputs = (
        (TensorSpec(output, dtype), None) if name.endswith("weights") else (TensorSpec(output, dtype),)
    )
    asked = Request(VOCABULARY[name], operands, outputs, attributes, request.place)
    (candidate,) = inner_product.FACTORIES[name](asked)
    return candidate


def _carry(h: Any, cont: Any, carried: Any, sizes: _Sizes, parts: int) -> Work:
    from demitasse_cpu.loops import recurrent as loops

    return spread(loops.carry, (flat(h), cont, carried, sizes.units), sizes.streams, parts)


def _each_step(kept: Any, room: Any, steps: int) -> list[Any]:
    """Return where each step's values are: in ``kept``, or all in the same ``room`` if nothing is
    kept."""
    return [room] * steps if kept is None else [flat(kept[t]) for t in range(steps)]


def _rows(array: Any, sizes: _Sizes) -> Any:
    return array.reshape(sizes.streams, sizes.units)


def _sizes(request: Request) -> _Sizes:
    first, w = spec(request.inputs[0]), spec(request.inputs[1])
    return _Sizes(first.shape[0], first.shape[1], w.shape[1], _item(first))


def _item(of: TensorSpec) -> int:
    return TensorSpec((), of.dtype).nbytes
