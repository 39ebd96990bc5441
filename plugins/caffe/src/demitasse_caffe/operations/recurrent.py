"""Recurrences over sequences: T time steps of N streams, (T, N, ...).

``cont`` is 1 if a step continues the sequence of the step before it and 0 if a sequence begins; the
previous state is multiplied by it. Source: Hochreiter and Schmidhuber 1997, with a forget gate (Gers
2000); batches are divided into streams as in Caffe.
"""

from functools import partial

from demitasse.operations import Attributes, Shape, Shapes, count, define, per_element, same_as

_define = partial(define, "recurrent")


def _check(shapes: Shapes, gates: int, states: tuple[str, ...]) -> tuple[int, int, int]:
    """Return (steps, streams, units) of a recurrence whose weights produce ``gates`` numbers for each
    unit. Raise ValueError."""
    z, w, cont, s = shapes["z"], shapes["w"], shapes["cont"], shapes.get("s")
    if len(w) != 2 or w[0] != gates * w[1] or len(z) != 3 or z[2] != w[0]:
        raise ValueError(f"w {w} does not fit z {z}: (gates, units), and (steps, streams, gates)")
    steps, streams, units = z[0], z[1], w[1]
    if cont != (steps, streams):
        raise ValueError(f"cont {cont} should be ({steps}, {streams}): steps, streams")
    for name in states:
        if shapes[name] != (1, streams, units):
            raise ValueError(f"{name} {shapes[name]} should be (1, {streams}, {units})")
    if s is not None and s != (streams, w[0]):
        raise ValueError(f"s {s} should be ({streams}, {w[0]})")
    return steps, streams, units


def _lstm_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    steps, streams, units = _check(shapes, 4, ("h", "c"))
    each, last = (steps, streams, units), (1, streams, units)
    return (each, last, last, each, each, shapes["z"])


def _rnn_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    steps, streams, units = _check(shapes, 1, ("h",))
    return ((steps, streams, units), (1, streams, units), (steps, streams, units))


def _step_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    c, z, cont = shapes["c"], shapes["z"], shapes["cont"]
    if len(c) != 3 or c[0] != 1 or z != (1, c[1], 4 * c[2]) or cont != (1, c[1]):
        raise ValueError(
            f"c {c}, z {z} and cont {cont} should be (1, streams, units), (1, streams, 4 x units) and "
            f"(1, streams)"
        )
    return (c, c, z)


def _state_shapes(shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    if shapes["state"] != shapes["x"]:
        raise ValueError(f"a state {shapes['state']} cannot take x {shapes['x']}")
    return ()


def _gradients(gates: int) -> partial[tuple[Shape, ...]]:
    return partial(_gradient_shapes, gates)


def _gradient_shapes(gates: int, shapes: Shapes, attributes: Attributes) -> tuple[Shape, ...]:
    (steps, streams, units), w = shapes["dy"], shapes["w"]
    return ((steps, streams, gates * units), w, (streams, gates * units))


def _flops(shapes: Shapes, attributes: Attributes) -> float:
    return 2.0 * count(shapes["cont"]) * count(shapes["w"])


OPERATIONS = (
    _define(
        "lstm",
        "i, f, o = sigmoid, g = tanh of the quarters of z[t] + s + w (cont[t] * y[t-1]); cell[t] = "
        "cont[t] * f * cell[t-1] + i * g; y[t] = o * tanh(cell[t]); before the first step y is h and "
        "cell c; hidden and cell are the last ones; carried is cont[t] * y[t-1]; bound is of gradients",
        inputs="z w cont h c s?",
        outputs="y hidden? cell? carried? cells? gates?",
        shapes=_lstm_shapes,
        flops=_flops,
        attributes={"bound": 0.0},
        gradients=["z w s = lstm_backward(dy, w, cont, c, carried, cells, gates)"],
    ),
    _define(
        "lstm_backward",
        "dz, dw and ds of lstm through all its steps; the states before the first one are given; dz is "
        "cut to -bound up to bound at each step, where that is not 0",
        inputs="dy w cont c carried cells gates",
        outputs="dz dw? ds?",
        shapes=_gradients(4),
        attributes={"bound": 0.0},
        flops=lambda shapes, attributes: 2 * _flops(shapes, attributes),
    ),
    _define(
        "lstm_step",
        "one step of lstm: i, f, o = sigmoid, g = tanh of the quarters of z; cell = cont * f * c + i * "
        "g, hidden = o * tanh(cell)",
        inputs="c z cont",
        outputs="cell hidden gates?",
        shapes=_step_shapes,
        flops=per_element("z", 12),
        gradients=["c z = lstm_step_backward(dcell, dhidden, c, cont, cell, gates)"],
    ),
    _define(
        "lstm_step_backward",
        "dc and dz of lstm_step",
        inputs="dcell? dhidden? c cont cell gates",
        outputs="dc? dz?",
        shapes=lambda shapes, attributes: (shapes["c"], shapes["gates"]),
        flops=per_element("gates", 6),
    ),
    _define(
        "rnn",
        "y[t] = tanh(z[t] + s + w (cont[t] * y[t-1])); before the first step y is h; hidden is the last "
        "one; carried is cont[t] * y[t-1]",
        inputs="z w cont h s?",
        outputs="y hidden? carried?",
        shapes=_rnn_shapes,
        flops=_flops,
        gradients=["z w s = rnn_backward(dy, w, cont, y, carried)"],
    ),
    _define(
        "rnn_backward",
        "dz, dw and ds of rnn through all its steps; the state before the first one is given",
        inputs="dy w cont y carried",
        outputs="dz dw? ds?",
        shapes=_gradients(1),
        flops=lambda shapes, attributes: 2 * _flops(shapes, attributes),
    ),
    _define(
        "recall",
        "y = a state that was kept from the step before",
        inputs="state!",
        outputs="y",
        shapes=same_as("state"),
        flops=per_element("state", 0.0),
    ),
    _define(
        "remember",
        "state = x, for the next step",
        inputs="state! x",
        outputs="",
        shapes=_state_shapes,
        flops=per_element("x", 0.0),
    ),
)
