"""Sequences whose labels are shorter than the sequences (Graves et al. 2006). x is (steps, samples,
classes). A label has ``length`` numbers, ends at the first -1, and its blanks are left out. Its states
are its classes, with a blank before, between and after them. A sample has all steps, or the number in
``taken`` unless that is empty. Labels and numbers of steps are checked beforehand (``first_wrong``,
``indexing.first_wrong``).

Probabilities are logarithms in float64. That of the impossible is ``_NEVER``, far below all others, and
it stays so when others are added. Loops over states therefore need no special case, and run as vectors.
A row of probabilities has two extra states before the first, or after the last, from which no path
comes. ``scratch`` holds numbers for one sample: the softmax's sum for each step, the label's classes,
which states a path may skip to, the probabilities of a step's states and of its classes, and rows of
states, two more than there are steps.
"""

from __future__ import annotations

import math

from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.exponentials import exponential, logarithm
from demitasse_cpu.native import WrongError

_NEVER = -1e30


@compiled()
def first_wrong(label: Array, length: int, classes: int, wrong: Array) -> None:
    """Raise WrongError, with the place in ``wrong``, if a number of a label is neither a class nor the
    -1 that ends it. Numbers after the end may be anything."""
    for begin in range(0, label.size, length):
        for i in range(begin, begin + length):
            if not (label[i] >= -1 and label[i] < classes and math.floor(label[i]) == label[i]):
                wrong[0] = i
                raise WrongError
            if label[i] < 0:
                break


@compiled()
def _ends(label: Array) -> int:
    """Return how many numbers come before the first negative one."""
    for i in range(label.size):
        if label[i] < 0:
            return i
    return int(label.size)


@compiled()
def _parts(scratch: Array, x: Array, length: int) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Return the parts of ``scratch``."""
    steps, classes, width = x.shape[0], x.shape[2], 2 * length + 3
    sums, rest = scratch[:steps], scratch[steps:]
    kept, rest = rest[:length], rest[length:]
    skips, logs, rest = rest[:width], rest[width : 2 * width], rest[2 * width :]
    return sums, kept, skips, logs, rest[:classes], rest[classes:].reshape(steps + 2, width)


@compiled()
def _kept(label: Array, blank: int, kept: Array, skips: Array) -> int:
    """Write the label's classes to ``kept``, and return their number. For each state, ``skips`` becomes
    0 if a path may reach it directly from the previous class, without the blank in between, otherwise
    ``_NEVER``."""
    count = 0
    for i in range(_ends(label)):
        if label[i] != blank:
            kept[count] = label[i]
            count += 1
    skips[:] = _NEVER
    for i in range(1, count):
        if kept[i] != kept[i - 1]:
            skips[2 * i + 1] = 0
    return count


@compiled(reassociate=True)
def _sum(x: Array) -> float:
    total = 0.0
    for i in range(x.size):
        total += x[i]
    return total


@compiled()
def _logarithm_of_sum(x: Array, powers: Array) -> float:
    """Return log of the sum of exp(x)."""
    most = float(x[0])
    for c in range(1, x.size):
        most = max(most, float(x[c]))
    for c in range(x.size):
        powers[c] = exponential(float(x[c]) - most)
    return float(most + logarithm(_sum(powers)))


@compiled()
def _chances(x: Array, kept: Array, count: int, blank: int, total: float, logs: Array) -> None:
    """Compute the log-probabilities of a step's states by themselves."""
    silent = float(x[blank]) - total
    for i in range(count):
        logs[2 * i] = silent
        logs[2 * i + 1] = float(x[int(kept[i])]) - total
    logs[2 * count] = silent


@compiled()
def _by_three_ways(stays: Array, goes: Array, leaps: Array, skips: Array, made: Array) -> None:
    for s in range(made.size):
        a, b, c = stays[s], goes[s], leaps[s] + skips[s]
        most = max(a, b, c)
        made[s] = most + logarithm(exponential(a - most) + exponential(b - most) + exponential(c - most))


@compiled()
def _forward(
    x: Array,
    kept: Array,
    count: int,
    blank: int,
    sums: Array,
    skips: Array,
    logs: Array,
    powers: Array,
    rows: Array,
) -> float:
    """Compute the log-probability of all paths to each state of a sample x (steps, classes), in a row
    for each step. Return that of all paths to the end."""
    states = 2 * count + 1
    for t in range(x.shape[0]):
        sums[t] = _logarithm_of_sum(x[t], powers)
        _chances(x[t], kept, count, blank, sums[t], logs)
        rows[t, :2] = _NEVER
        here = rows[t, 2 : 2 + states]
        if t == 0:
            for s in range(states):
                here[s] = 0.0 if s < 2 else _NEVER
        else:
            before = rows[t - 1]
            stays, goes, leaps = before[2 : 2 + states], before[1 : 1 + states], before[:states]
            _by_three_ways(stays, goes, leaps, skips[:states], here)
        for s in range(states):
            here[s] += logs[s]
    end = rows[x.shape[0] - 1]
    _by_three_ways(
        end[1 + states : 2 + states], end[states : 1 + states], end[:1], skips[:1], powers[:1]
    )
    return float(powers[0])


@compiled()
def ctc_loss(
    x: Array,
    label: Array,
    taken: Array,
    losses: Array,
    scratch: Array,
    length: int,
    blank: int,
    begin: int,
    end: int,
) -> None:
    sums, kept, skips, logs, powers, rows = _parts(scratch, x, length)
    for n in range(begin, end):
        steps = int(taken[n]) if taken.size else x.shape[0]
        losses[n] = 0
        if steps > 0:
            count = _kept(label[n * length : (n + 1) * length], blank, kept, skips)
            chance = _forward(x[:steps, n], kept, count, blank, sums, skips, logs, powers, rows)
            if chance > _NEVER / 2:
                losses[n] = -chance


@compiled()
def ctc_loss_backward(
    dlosses: Array,
    x: Array,
    label: Array,
    taken: Array,
    dx: Array,
    scratch: Array,
    length: int,
    blank: int,
    begin: int,
    end: int,
) -> None:
    classes = x.shape[2]
    sums, kept, skips, logs, powers, rows = _parts(scratch, x, length)
    for n in range(begin, end):
        steps, count, chance = int(taken[n]) if taken.size else x.shape[0], 0, _NEVER
        if steps > 0:
            count = _kept(label[n * length : (n + 1) * length], blank, kept, skips)
            chance = _forward(x[:steps, n], kept, count, blank, sums, skips, logs, powers, rows)
        if chance <= _NEVER / 2:
            steps = 0
        for t in range(steps, x.shape[0]):
            dx[t, n, :] = 0
        if steps == 0:
            continue
        states, factor = 2 * count + 1, float(dlosses[n])
        # Two rows: the step after this one, including its own probabilities, and this step.
        later, now = rows[x.shape[0]], rows[x.shape[0] + 1, :states]
        later[states : states + 2] = _NEVER
        for t in range(steps - 1, -1, -1):
            if t == steps - 1:
                for s in range(states):
                    now[s] = 0.0 if s >= states - 2 else _NEVER
            else:
                goes, leaps = later[1 : 1 + states], later[2 : 2 + states]
                _by_three_ways(later[:states], goes, leaps, skips[2 : 2 + states], now)
            given, made, reached = x[t, n], dx[t, n], rows[t, 2 : 2 + states]
            for c in range(classes):
                made[c] = factor * exponential(float(given[c]) - sums[t])
            _chances(given, kept, count, blank, sums[t], logs)
            for s in range(states):
                later[s] = now[s] + logs[s]
                logs[s] = factor * exponential(reached[s] + now[s] - chance)
            made[blank] -= logs[2 * count]
            for i in range(count):
                made[blank] -= logs[2 * i]
                made[int(kept[i])] -= logs[2 * i + 1]


@compiled()
def sequences_right(
    x: Array, label: Array, right: Array, length: int, blank: int, begin: int, end: int
) -> None:
    _, steps, classes = x.shape
    for n in range(begin, end):
        at, before, same = n * length, -1, True
        stop = at + _ends(label[at : at + length])
        for t in range(steps):
            best = 0
            for c in range(1, classes):
                if x[n, t, c] > x[n, t, best]:
                    best = c
            if best != before and best != blank:
                while at < stop and label[at] == blank:
                    at += 1
                if at < stop and label[at] == best:
                    at += 1
                else:
                    same = False
            before = best
        while at < stop and label[at] == blank:
            at += 1
        right[n] = 1 if same and at == stop else 0


@compiled()
def ctc_greedy_decode(
    x: Array, taken: Array, y: Array, scores: Array, blank: int, merge: bool, begin: int, end: int
) -> None:
    for n in range(begin, end):
        steps = int(taken[n]) if taken.size else x.shape[0]
        count, before, total = 0, -1, 0.0
        for t in range(steps):
            row, best = x[t, n], 0
            for c in range(1, row.size):
                if row[c] > row[best]:
                    best = c
            total -= row[best]
            if best != blank and not (merge and best == before):
                y[n, count] = best
                count += 1
            before = best
        y[n, count:] = -1
        if scores.size:
            scores[n] = total


@compiled()
def edit_distances(
    y: Array,
    label: Array,
    distances: Array,
    right: Array,
    scratch: Array,
    length: int,
    blank: int,
    begin: int,
    end: int,
) -> None:
    wanted, row = scratch[:length], scratch[length:]
    for n in range(begin, end):
        given, count = label[n * length : (n + 1) * length], 0
        for i in range(_ends(given)):
            if given[i] != blank:
                wanted[count] = given[i]
                count += 1
        said = y[n, : _ends(y[n])]
        for j in range(count + 1):
            row[j] = j
        for i in range(said.size):
            corner, row[0] = row[0], i + 1
            for j in range(count):
                changed = corner if said[i] == wanted[j] else corner + 1
                corner = row[j + 1]
                row[j + 1] = min(changed, min(corner, row[j]) + 1)
        longer = max(count, said.size)
        distances[n] = row[count] / longer if longer else 0
        right[n] = 1 if row[count] == 0 else 0


@compiled()
def labels_of_samples(label: Array, lengths: Array, y: Array, shift: int, begin: int, end: int) -> None:
    for n in range(begin, end):
        count = int(lengths[n]) if lengths.size else label.shape[0]
        for i in range(label.shape[0]):
            y[n, i] = label[i, n] + shift if i < count and label[i, n] >= 0 else -1


@compiled()
def sequence_lengths(cont: Array, label: Array, steps: Array, length: int, begin: int, end: int) -> None:
    for n in range(begin, end):
        count = 1
        while count < cont.shape[0] and cont[count, n] >= 0.5:
            count += 1
        steps[n] = 0 if count == 1 and label.size and label[n * length] < 0 else count
