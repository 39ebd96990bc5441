"""Recurrences over (steps, streams, units), one step after the other: long short-term memory (Hochreiter
and Schmidhuber 1997, with the forget gates of Gers, Schmidhuber and Cummins 2000) and the plain net.

- ``z`` (steps, streams, gates) comes from the layer below. There are four gates per unit (input, forget,
  output, candidate: all units of one, then all of the next) or, in the plain net, one.
- ``w`` (gates, units) are the weights of the previous step's hidden state.
- ``cont`` (steps, streams) is 0 where a sequence begins, else 1.
- ``h`` and ``c`` (1, streams, units) are the hidden state and the cell before the first step.
- ``s`` (streams, gates) is added at every step.
- ``carried`` is the hidden state that a step takes over: ``cont`` times the previous one.

Gradients have the shapes of what they are gradients of.
"""

from __future__ import annotations

import numpy as np

from demitasse_reference.kernels.arrays import Kernels, Reals


def lstm(
    z: Reals, w: Reals, cont: Reals, h: Reals, c: Reals, s: Reals | None
) -> tuple[Reals, Reals, Reals, Reals, Reals, Reals]:
    """Return all hidden states, the last one, the last cell, and what backward reads: the carried hidden
    states, the cells, and the gates after their functions."""
    goes_on = cont[:, :, None]
    (steps, streams, _), units = z.shape, w.shape[1]
    y, carried, cells = np.zeros((3, steps, streams, units))
    gates = np.zeros(z.shape)
    hidden, cell = h[0], c[0]
    for t in range(steps):
        carried[t] = goes_on[t] * hidden
        total = z[t] + carried[t] @ w.T + (0.0 if s is None else s)
        cell, hidden, gates[t] = _step(cell, total, goes_on[t])
        y[t], cells[t] = hidden, cell
    return y, hidden[None], cell[None], carried, cells, gates


def lstm_backward(
    dy: Reals,
    w: Reals,
    cont: Reals,
    c: Reals,
    carried: Reals,
    cells: Reals,
    gates: Reals,
    *,
    bound: float = 0.0,
) -> tuple[Reals, Reals, Reals]:
    """Return dz, dw and ds of ``lstm``, computed from the last step to the first."""
    goes_on = cont[:, :, None]
    dz = np.zeros(gates.shape)
    dhidden, dcell = np.zeros((2, *dy.shape[1:]))
    for t in reversed(range(len(dy))):
        before = cells[t - 1] if t else c[0]
        dcell, dz[t] = _step_backward(dcell, dhidden + dy[t], before, goes_on[t], cells[t], gates[t])
        if bound:
            dz[t] = dz[t].clip(-bound, bound)
        dhidden = goes_on[t] * (dz[t] @ w)
    return dz, np.einsum("tng,tnu->gu", dz, carried), dz.sum(0)


def lstm_step(c: Reals, z: Reals, cont: Reals) -> tuple[Reals, Reals, Reals]:
    """Return the cell, the hidden state and the gates of a single step, all (1, streams, ...)."""
    return _step(c, z, cont[:, :, None])


def lstm_step_backward(
    dcell: Reals | None, dhidden: Reals | None, c: Reals, cont: Reals, cell: Reals, gates: Reals
) -> tuple[Reals, Reals]:
    """Return dc and dz of ``lstm_step``; a gradient that is None counts as 0."""
    nothing = np.zeros(c.shape)
    given = (nothing if dcell is None else dcell, nothing if dhidden is None else dhidden)
    return _step_backward(*given, c, cont[:, :, None], cell, gates)


def _step(c: Reals, z: Reals, cont: Reals) -> tuple[Reals, Reals, Reals]:
    """Return the next cell, the hidden state, and the gates: input, forget, output, and candidate."""
    sigmoids, candidate = np.split(z, [3 * c.shape[-1]], -1)
    gates = np.concatenate([1 / (1 + np.exp(-sigmoids)), np.tanh(candidate)], -1)
    i, f, o, g = np.split(gates, 4, -1)
    cell = np.where(cont == 0, 0.0, cont * f * c) + i * g
    return cell, o * np.tanh(cell), gates


def _step_backward(
    dcell: Reals, dhidden: Reals, c: Reals, cont: Reals, cell: Reals, gates: Reals
) -> tuple[Reals, Reals]:
    """Return the gradients of the previous cell and of the gates before their functions."""
    i, f, o, g = np.split(gates, 4, -1)
    through = np.tanh(cell)
    total = dcell + dhidden * o * (1 - through**2)
    before = np.where(cont == 0, 0.0, cont * c)
    parts = (
        total * g * i * (1 - i),
        total * before * f * (1 - f),
        dhidden * through * o * (1 - o),
        total * i * (1 - g**2),
    )
    return total * f * cont, np.concatenate(parts, -1)


def rnn(z: Reals, w: Reals, cont: Reals, h: Reals, s: Reals | None) -> tuple[Reals, Reals, Reals]:
    """Return all hidden states, the last one, and the carried ones, which backward reads."""
    y, carried = np.zeros((2, *z.shape))
    hidden = h[0]
    for t in range(len(z)):
        carried[t] = cont[t][:, None] * hidden
        hidden = y[t] = np.tanh(z[t] + carried[t] @ w.T + (0.0 if s is None else s))
    return y, hidden[None], carried


def rnn_backward(
    dy: Reals, w: Reals, cont: Reals, y: Reals, carried: Reals
) -> tuple[Reals, Reals, Reals]:
    """Return dz, dw and ds of ``rnn``, computed from the last step to the first."""
    dz = np.zeros(dy.shape)
    dhidden = np.zeros(dy.shape[1:])
    for t in reversed(range(len(dy))):
        dz[t] = (dhidden + dy[t]) * (1 - y[t] ** 2)
        dhidden = cont[t][:, None] * (dz[t] @ w)
    return dz, np.einsum("tng,tnu->gu", dz, carried), dz.sum(0)


def recall(state: Reals) -> tuple[Reals, Reals]:
    """Return the state that the previous call left; the state itself is kept."""
    return state, state


def remember(state: Reals, x: Reals) -> Reals:
    """Return what the next call finds as ``state``."""
    return x


KERNELS: Kernels = {
    "lstm": lstm,
    "lstm_backward": lstm_backward,
    "lstm_step": lstm_step,
    "lstm_step_backward": lstm_step_backward,
    "rnn": rnn,
    "rnn_backward": rnn_backward,
    "recall": recall,
    "remember": remember,
}
