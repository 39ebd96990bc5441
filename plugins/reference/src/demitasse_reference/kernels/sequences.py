"""Sequences whose labels are shorter than they: Graves et al. 2006, sections 3 and 4, a sample at a time
in logarithms."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from demitasse import DataError
from demitasse_reference.kernels.arrays import Kernels, Reals, Values


def ctc_loss(x: Reals, label: Values, *, blank: int) -> Reals:
    logs, labels = _logarithms(x), _labels(label, x.shape[2], blank)
    likelihoods = [_forward(logs[:, n], _extended(each, blank))[1] for n, each in enumerate(labels)]
    return np.array([-each if np.isfinite(each) else 0.0 for each in likelihoods])


def ctc_loss_backward(dlosses: Reals, x: Reals, label: Values, *, blank: int) -> Reals:
    logs, dx = _logarithms(x), np.zeros_like(x)
    for n, each in enumerate(_labels(label, x.shape[2], blank)):
        states = _extended(each, blank)
        alphas, likelihood = _forward(logs[:, n], states)
        if np.isfinite(likelihood):
            # Backwards in time, from the last state: the same, without a state's own step.
            betas = _forward(logs[::-1, n], states[::-1])[0][::-1, ::-1] - logs[:, n][:, states]
            shares = np.exp(alphas + betas - likelihood)
            dx[:, n] = dlosses[n] * np.exp(logs[:, n])
            for s, state in enumerate(states):
                dx[:, n, state] -= dlosses[n] * shares[:, s]
    return dx


def sequences_right(x: Reals, label: Values, *, blank: int) -> Reals:
    best, labels = x.argmax(2), _labels(label, x.shape[2], blank)
    joined = [row[np.insert(row[1:] != row[:-1], 0, True)] for row in best]
    right = [np.array_equal(row[row != blank], each) for row, each in zip(joined, labels, strict=True)]
    return np.array(right, np.float64)


def _logarithms(x: Reals) -> Reals:
    shifted = x - x.max(2, keepdims=True)
    made: Reals = shifted - np.log(np.exp(shifted).sum(2, keepdims=True))
    return made


def _labels(label: Values, classes: int, blank: int) -> list[Values]:
    """Each sample's label without blanks. Raises DataError for a label that is no class."""
    rows = label.reshape(len(label), -1)
    wrong = ~((rows >= 0) & (rows < classes) & (rows == np.floor(rows)))
    if wrong.any():
        n, i = np.argwhere(wrong)[0]
        raise DataError(
            f"label {rows[n, i]:g} of sample {n} of the batch is none of the {classes} classes (valid: "
            f"whole numbers from 0 to {classes - 1})"
        )
    return [row[row != blank].astype(np.int64) for row in rows]


def _extended(label: Values, blank: int) -> Values:
    """A label with a blank before, between and behind its classes."""
    states = np.full(2 * len(label) + 1, blank)
    states[1::2] = label
    return states


def _forward(logs: Reals, states: Values) -> tuple[Reals, float]:
    """The logarithms of the chances to be in each state at each step, by all paths to it, and of those
    to end in one of the last two."""
    skips = np.zeros(len(states), bool)
    skips[2:] = (np.arange(2, len(states)) % 2 == 1) & (states[2:] != states[:-2])
    alphas = np.full((len(logs), len(states)), -np.inf)
    alphas[0, :2] = logs[0, states[:2]]
    for t in range(1, len(logs)):
        before = alphas[t - 1]
        ways = np.full((3, len(states)), -np.inf)
        ways[0], ways[1, 1:], ways[2, 2:] = before, before[:-1], before[:-2]
        ways[2, ~skips] = -np.inf
        alphas[t] = np.logaddexp.reduce(ways) + logs[t, states]
    return alphas, float(np.logaddexp.reduce(alphas[-1, -2:]))


KERNELS: Kernels = MappingProxyType(
    {
        "ctc_loss": ctc_loss,
        "ctc_loss_backward": ctc_loss_backward,
        "sequences_right": sequences_right,
    }
)
