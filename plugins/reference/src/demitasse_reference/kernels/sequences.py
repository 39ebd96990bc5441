"""Sequences with labels shorter than themselves: Graves et al. 2006, sections 3 and 4, one sample at a
time, in logarithms."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from demitasse import SampleError
from demitasse_reference.kernels.arrays import Kernels, Reals, Values


def ctc_loss(x: Reals, label: Values, steps: Values | None, *, blank: int) -> Reals:
    logs, labels = _logarithms(x), _labels(label, x.shape[2], blank)
    losses = np.zeros(len(labels))
    for n, (each, last) in enumerate(zip(labels, _steps(steps, x), strict=True)):
        likelihood = _forward(logs[:last, n], _extended(each, blank))[1] if last else -np.inf
        losses[n] = -likelihood if np.isfinite(likelihood) else 0.0
    return losses


def ctc_loss_backward(
    dlosses: Reals, x: Reals, label: Values, steps: Values | None, *, blank: int
) -> Reals:
    all_logs, dx = _logarithms(x), np.zeros_like(x)
    labels = _labels(label, x.shape[2], blank)
    for n, (each, last) in enumerate(zip(labels, _steps(steps, x), strict=True)):
        states, logs = _extended(each, blank), all_logs[:last, n]
        alphas, likelihood = _forward(logs, states) if last else (logs, -np.inf)
        if np.isfinite(likelihood):
            # The same backwards in time, from the last state, without a state's own step.
            betas = _forward(logs[::-1], states[::-1])[0][::-1, ::-1] - logs[:, states]
            shares = np.exp(alphas + betas - likelihood)
            dx[:last, n] = dlosses[n] * np.exp(logs)
            for s, state in enumerate(states):
                dx[:last, n, state] -= dlosses[n] * shares[:, s]
    return dx


def sequences_right(x: Reals, label: Values, *, blank: int) -> Reals:
    best, labels = x.argmax(2), _labels(label, x.shape[2], blank)
    joined = [row[np.insert(row[1:] != row[:-1], 0, True)] for row in best]
    right = [np.array_equal(row[row != blank], each) for row, each in zip(joined, labels, strict=True)]
    return np.array(right, np.float64)


def ctc_greedy_decode(x: Reals, steps: Values | None, *, blank: int, merge: bool) -> tuple[Reals, Reals]:
    best = x.argmax(2)
    y, scores = np.full((x.shape[1], x.shape[0]), -1.0), np.zeros(x.shape[1])
    for n, last in enumerate(_steps(steps, x)):
        path = best[:last, n]
        changes = np.insert(path[1:] != path[:-1], 0, True)[:last]
        said = path[(path != blank) & (changes if merge else True)]
        y[n, : len(said)] = said
        scores[n] = -x[np.arange(last), n, path].sum()
    return y, scores


def edit_distances(y: Reals, label: Values, *, blank: int) -> tuple[Reals, Reals]:
    distances = np.zeros(len(y))
    for n, (said, row) in enumerate(zip(y, label.reshape(len(label), -1), strict=True)):
        said, wanted = _ended(said), _ended(row)
        wanted = wanted[wanted != blank]
        if longer := max(len(said), len(wanted)):
            distances[n] = _distance(said, wanted) / longer
    return distances, (distances == 0).astype(np.float64)


def labels_of_samples(label: Values, lengths: Values | None, *, shift: int) -> Reals:
    y: Reals = np.where(label < 0, -1.0, label + shift).T
    if lengths is not None:
        _check_lengths(lengths, len(label), "length")
        y[np.arange(len(label)) >= lengths[:, None]] = -1
    return y


def sequence_lengths(cont: Values, label: Values | None) -> Reals:
    # A step's indicator counts as 0 if it rounds to 0.
    begins = np.concatenate([cont[1:] < 0.5, np.ones((1, cont.shape[1]), bool)])
    lengths: Reals = begins.argmax(0).astype(np.float64) + 1
    if label is not None:
        empty = label.reshape(len(label), -1)[:, :1].min(1, initial=0) < 0
        lengths[empty & (lengths == 1)] = 0
    return lengths


def _logarithms(x: Reals) -> Reals:
    shifted = x - x.max(2, keepdims=True)
    made: Reals = shifted - np.log(np.exp(shifted).sum(2, keepdims=True))
    return made


def _steps(steps: Values | None, x: Reals) -> Sequence[int]:
    """Return the number of steps of each sample of x (T, N, C). Raises DataError if it is more than T or
    not a whole number."""
    if steps is None:
        return [len(x)] * x.shape[1]
    _check_lengths(steps, len(x), "number of steps")
    return [int(each) for each in steps]


def _check_lengths(lengths: Values, most: int, what: str) -> None:
    wrong = ~((lengths >= 0) & (lengths <= most) & (lengths == np.floor(lengths)))
    if wrong.any():
        n = int(wrong.argmax())
        raise SampleError(
            f"{what} {lengths[n]:g} of sample {n} of the batch is not a whole number from 0 to {most}",
            n,
            len(lengths),
        )


def _labels(label: Values, classes: int, blank: int) -> list[Values]:
    """Return each sample's label up to a -1, without blanks. Raises DataError for one that is not a
    class."""
    rows = label.reshape(len(label), -1)
    wrong = ~((rows >= -1) & (rows < classes) & (rows == np.floor(rows)))
    wrong &= (rows == -1).cumsum(1) == 0  # what follows the end does not count
    if wrong.any():
        n, i = np.argwhere(wrong)[0]
        raise SampleError(
            f"label {rows[n, i]:g} of sample {n} of the batch is not one of the {classes} classes "
            f"(valid: whole numbers from 0 to {classes - 1}, and -1, which ends a label)",
            int(n),
            len(rows),
        )
    return [row[row != blank].astype(np.int64) for row in map(_ended, rows)]


def _ended(row: Values) -> Values:
    """Return what precedes the first negative number."""
    ends = np.flatnonzero(row < 0)
    return row[: ends[0]] if len(ends) else row


def _distance(a: Values, b: Values) -> int:
    """Return the Levenshtein distance, computed row by row."""
    row = np.arange(len(b) + 1)
    for i, each in enumerate(a, 1):
        before, row = row, np.full(len(b) + 1, i)
        for j, other in enumerate(b, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (each != other))
    return int(row[-1])


def _extended(label: Values, blank: int) -> Values:
    """Return a label with a blank before, between and after its classes."""
    states = np.full(2 * len(label) + 1, blank)
    states[1::2] = label
    return states


def _forward(logs: Reals, states: Values) -> tuple[Reals, float]:
    """Return the logarithms of the probabilities to be in each state at each step, over all paths to it,
    and of ending in one of the last two."""
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
        "ctc_greedy_decode": ctc_greedy_decode,
        "edit_distances": edit_distances,
        "labels_of_samples": labels_of_samples,
        "sequence_lengths": sequence_lengths,
    }
)
