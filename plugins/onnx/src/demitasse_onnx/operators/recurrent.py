"""Recurrences over sequences: steps x samples x features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse import Tensor
from demitasse_onnx.call import Call, Operands, Operator, constant_of, has
from demitasse_onnx.operators.resampling import boxed, taken

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ORDER = (0, 2, 1, 3)
"""The positions, among ONNX's gates i, o, f, c, of the vocabulary's gates i, f, o, g."""

_DEFAULT = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _directions(attributes: Mapping[str, Any]) -> tuple[bool, ...]:
    """Return for each direction of a call whether it runs backward."""
    known = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if attributes["direction"] not in known:
        raise ValueError(f"unknown direction {attributes['direction']!r} (valid: {', '.join(known)})")
    return known[attributes["direction"]]


def _arrays(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    """Return for each direction the weights of inputs and of states, and the biases of both."""
    gates, ways = _GATES[call.operator], len(_directions(attributes))
    w, r = constant_of(call, 1, "the inputs' weights"), constant_of(call, 2, "the states' weights")
    units = r.shape[-1]
    rows = gates * units
    if w.ndim != 3 or w.shape[:2] != (ways, rows) or r.shape != (ways, rows, units):
        raise ValueError(f"its weights {w.shape} and {r.shape} do not have {ways} x {rows} rows")
    b = constant_of(call, 3, "its biases") if has(call, 3) else np.zeros((ways, 2 * rows), w.dtype)
    if b.shape != (ways, 2 * rows):
        raise ValueError(f"its biases have the shape {b.shape}, not {(ways, 2 * rows)}")
    made = []
    for way in range(ways):
        parts = (w[way], r[way], b[way, :rows], b[way, rows:])
        made += [_ordered(part, units) if call.operator == "LSTM" else part.copy() for part in parts]
    return made


def _ordered(array: np.ndarray, units: int) -> np.ndarray:
    """Return the rows of the four gates in the vocabulary's order."""
    gates = array.reshape(4, units, *array.shape[1:])
    return np.ascontiguousarray(gates[list(_ORDER)]).reshape(array.shape)


def _as_lstm(call: Call) -> Call:
    """Return ONNX Runtime's LSTM with weights of eight bits, in their own scales, as an ordinary one."""
    weights = [_real(call, position) for position in (1, 2)]
    return replace(call, operator="LSTM", operands=(call.operands[0], *weights, *call.operands[3:8]))


def _real(call: Call, position: int) -> np.ndarray:
    """Return weights, given as directions x inputs x rows, as ONNX's LSTM takes them. Each direction, or
    each of its rows, has a scale and a zero point."""
    w, scale, zero = (
        call.operands[each] if each < len(call.operands) else None
        for each in (position, 6 + 2 * position, 7 + 2 * position)
    )
    if not isinstance(w, np.ndarray) or not isinstance(scale, np.ndarray) or isinstance(zero, int):
        raise ValueError("its weights, their scales and zero points must be constants in the file")
    if w.ndim != 3 or w.dtype.kind not in "iu" or scale.dtype.kind != "f":
        raise ValueError(f"its weights are {w.dtype.name} of {w.ndim} axes, with scales {scale.dtype}")
    zero = np.zeros(scale.shape, w.dtype) if zero is None else zero
    if any(each.shape not in (w.shape[:1], (w.shape[0], w.shape[2])) for each in (scale, zero)):
        raise ValueError(f"scales {scale.shape} and zero points {zero.shape} do not fit {w.shape}")
    scale, zero = (each.reshape(w.shape[0], 1, -1) for each in (scale, zero))
    real = (w.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)
    return np.ascontiguousarray(real.transpose(0, 2, 1))


def _recurrence(given: Operands) -> Sequence[Tensor]:
    call, x = given.call, given.tensor()
    ways = _directions(given.attributes)
    _check(given, len(ways))
    steps, samples = x.shape[:2]
    units = given["hidden_size"] or given.learned[1].shape[-1]
    outputs: list[list[Tensor]] = []
    for way, backwards in enumerate(ways):
        read = taken(given, x, 0, np.arange(steps)[::-1]) if backwards and steps > 1 else x
        states = [_state(given, position, way, samples, units) for position in (5, 6)]
        y, *ends = _RUNS[call.operator](given, read, given.learned[4 * way : 4 * way + 4], states)
        last = boxed(given, y, {0: (steps - 1, 1)})
        y = taken(given, y, 0, np.arange(steps)[::-1]) if backwards and steps > 1 else y
        outputs.append([given.apply("reshape", y, shape=(steps, 1, samples, units)), last, *ends])
    axes = (1, 0, 0)
    return [
        each[0] if len(each) == 1 else given.apply("concat", *each, axis=axis)
        for each, axis in zip(zip(*outputs, strict=True), axes, strict=False)
    ]


def _check(given: Operands, ways: int) -> None:
    x, operator = given.tensor(), given.call.operator
    if len(x.shape) != 3 or given["layout"]:
        raise ValueError(f"works on steps x samples x features (layout 0); its input is {x!r}")
    default = _DEFAULT[operator] * ways
    if given["activations"] not in ((), default):
        raise ValueError(f"activations {given['activations']}: only {default} are supported")
    units = given.learned[1].shape[-1]
    if given["hidden_size"] not in (0, units):
        raise ValueError(f"hidden_size {given['hidden_size']} is not the {units} of its weights")
    if given["clip"] or given.attributes.get("input_forget"):
        raise ValueError("clip and input_forget are not supported")
    if given.has(7):
        raise ValueError("peepholes (input 7) are not supported")
    lengths = given.constant(4)
    if lengths is not None and (lengths != x.shape[0]).any():
        raise ValueError(f"sequence_lens other than all {x.shape[0]} steps are not supported")


def _state(given: Operands, position: int, way: int, samples: int, units: int) -> Tensor:
    """Return a direction's initial state: 1 x samples x units."""
    value = given.values[position] if given.has(position) else None
    if isinstance(value, Tensor):
        return boxed(given, value, {0: (way, 1)})
    start = np.zeros((1, samples, units)) if value is None else value[way : way + 1]
    return given.fixed(f"state{position}.{way}", np.broadcast_to(start, (1, samples, units)))


def _inputs(given: Operands, x: Tensor, w: Tensor, *biases: Tensor) -> Tensor:
    """Return the contribution of the inputs to the gates of every step."""
    z = given.apply("inner_product", x, w, biases[0], axis=2)
    for b in biases[1:]:
        z = given.apply("scale", z, given.fixed(f"one{b.name}", np.ones(b.shape)), b, axis=2)
    made: Tensor = z
    return made


def _lstm(
    given: Operands, x: Tensor, learned: Sequence[Tensor], states: Sequence[Tensor]
) -> list[Tensor]:
    w, r, *biases = learned
    z = _inputs(given, x, w, *biases)
    goes_on = given.fixed(f"goes on {w.name}", np.ones(x.shape[:2]))
    y, _, cell, *_ = given.apply("lstm", z, r, goes_on, *states)
    return [y, cell]


def _rnn(
    given: Operands, x: Tensor, learned: Sequence[Tensor], states: Sequence[Tensor]
) -> list[Tensor]:
    w, r, *biases = learned
    goes_on = given.fixed(f"goes on {w.name}", np.ones(x.shape[:2]))
    y, *_ = given.apply("rnn", _inputs(given, x, w, *biases), r, goes_on, states[0])
    return [y]


def _gru(
    given: Operands, x: Tensor, learned: Sequence[Tensor], states: Sequence[Tensor]
) -> list[Tensor]:
    """Compute a GRU (Cho et al. 2014) step by step: no single operation provides it."""
    w, r, wb, rb = learned
    steps, samples = x.shape[:2]
    z, units = _inputs(given, x, w, wb), r.shape[1]
    h = given.apply("reshape", states[0], shape=(samples, units))
    made = []
    for step in range(steps):
        here = given.apply("reshape", boxed(given, z, {0: (step, 1)}), shape=(samples, 3 * units))
        h = _gru_step(given, here, h, r, rb)
        made.append(given.apply("reshape", h, shape=(1, samples, units)))
    return [made[0] if steps == 1 else given.apply("concat", *made, axis=0)]


def _gru_step(given: Operands, z: Tensor, h: Tensor, r: Tensor, rb: Tensor) -> Tensor:
    units = r.shape[1]

    def part(of: Tensor, gate: int) -> Tensor:
        return boxed(given, of, {1: (gate * units, units)})

    u = given.apply("inner_product", h, r, rb)
    update, reset = (
        given.apply("sigmoid", given.apply("sum", part(z, gate), part(u, gate))) for gate in (0, 1)
    )
    if given["linear_before_reset"]:
        carried = given.apply("product", reset, part(u, 2))
    else:
        again = given.apply("inner_product", given.apply("product", reset, h), r, rb)
        carried = part(again, 2)
    new = given.apply("tanh", given.apply("sum", part(z, 2), carried))
    kept = given.apply("product", update, given.apply("sum", h, new, coefficients=(1.0, -1.0)))
    made: Tensor = given.apply("sum", new, kept)
    return made


_RUNS = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
_ATTRIBUTES = {
    "activations": (),
    "clip": 0.0,
    "direction": "forward",
    "hidden_size": 0,
    "layout": 0,
}

OPERATORS = (
    Operator(
        "DynamicQuantizeLSTM",
        lambda given: _recurrence(replace(given, call=_as_lstm(given.call))),
        {**_ATTRIBUTES, "input_forget": 0},
        lambda call, attributes: _arrays(_as_lstm(call), attributes),
    ),
    Operator("LSTM", _recurrence, {**_ATTRIBUTES, "input_forget": 0}, _arrays),
    Operator("GRU", _recurrence, {**_ATTRIBUTES, "linear_before_reset": 0}, _arrays),
    Operator("RNN", _recurrence, _ATTRIBUTES, _arrays),
)
