"""How often predictions are correct. Arrays are as in ``loops.loss``."""

from __future__ import annotations

from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.loops.loss import is_class
from demitasse_cpu.native import WrongError


@compiled()
def _better_of_one(x: Array, own: float, wanted: int) -> int:
    """Return how many classes of a row rank before the wanted one, whose value is ``own``. NaN is
    neither below nor equal to anything, so predictions that are NaN never score. Of equal values, the
    later class ranks first."""
    better = 0
    for c in range(x.size):
        better += 1 if (not (x[c] <= own)) | ((x[c] == own) & (c > wanted)) else 0
    return better


@compiled()
def _better(x: Array, classes: int, inner: int, own: Array, wanted: Array, better: Array) -> None:
    """Count the same for as many adjacent rows as ``own`` has places."""
    n = own.size
    for i in range(n):
        better[i] = 0
    for c in range(classes):
        scores, number_of = x[c * inner : c * inner + n], float(c)
        for i in range(n):
            score, mine = scores[i], own[i]
            later = (score == mine) & (number_of > wanted[i])
            better[i] += 1.0 if (not (score <= mine)) | later else 0.0


@compiled()
def accuracy(
    x: Array,
    label: Array,
    result: Array,
    per_class: Array,
    counters: Array,
    wrong: Array,
    own: Array,
    wanted: Array,
    better: Array,
    ignored: float,
    top_k: int,
    classes: int,
    inner: int,
) -> None:
    """Compute the accuracy. ``counters`` (2, classes) are int64; ``per_class`` is empty if nobody reads
    it. ``own`` and, in float64, ``wanted`` and ``better`` have room for the rows that are taken
    together. Raise WrongError if a label is not a class, with the first such row in ``wrong``."""
    counters[:] = 0
    all_hits, all_counted, row = 0, 0, 0
    while row < label.size:
        at, n = row // inner * classes * inner + row % inner, min(own.size, inner - row % inner)
        for i in range(n):
            value = float(label[row + i])
            if value != ignored and not is_class(value, classes):
                wrong[0] = row + i
                raise WrongError
            wanted[i] = value
            own[i] = x[at + int(0 if value == ignored else value) * inner + i]
        if inner == 1:
            better[0] = _better_of_one(x[at : at + classes], own[0], int(wanted[0]))
        else:
            _better(x[at:], classes, inner, own[:n], wanted, better)
        for i in range(n):
            if wanted[i] == ignored:
                continue
            hit = better[i] < top_k
            counters[0, int(wanted[i])] += hit
            counters[1, int(wanted[i])] += 1
            all_hits += hit
            all_counted += 1
        row += n
    result[0] = all_hits / max(1, all_counted)
    for c in range(per_class.size):
        per_class[c] = counters[0, c] / max(1, counters[1, c])


@compiled()
def segment_scores(
    x: Array,
    label: Array,
    result: Array,
    table: Array,
    wrong: Array,
    ignored: Array,
    classes: int,
    inner: int,
) -> None:
    """Compute segmentation scores. ``table`` (classes, classes), int64, counts how often a class is
    taken for another. Raise WrongError if a label is not a class, with the first such row in
    ``wrong``."""
    table[:] = 0
    for row in range(label.size):
        value, left_out = float(label[row]), False
        for i in range(ignored.size):
            left_out |= value == ignored[i]
        if left_out:
            continue
        if not is_class(value, classes):
            wrong[0] = row
            raise WrongError
        at = row // inner * classes * inner + row % inner
        best = 0
        for c in range(1, classes):  # of equal values, the later class
            if x[at + c * inner] >= x[at + best * inner]:
                best = c
        table[int(value), best] += 1
    right, counted, there, recall, shares = 0, 0, 0, 0.0, 0.0
    for c in range(classes):
        own, taken, both = 0, 0, table[c, c]
        for other in range(classes):
            own += table[c, other]
            taken += table[other, c]
        right += both
        counted += own
        there += own > 0
        recall += both / max(1, own)
        union = own + taken - both
        shares += both / union if union > 0 else 1.0
    result[0] = right / max(1, counted)
    result[1] = recall / max(1, there)
    result[2] = shares / classes
