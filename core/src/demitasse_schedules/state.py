"""What all ranks hold while a schedule in rounds runs on symbols: a table, or runs of equal cells."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from demitasse import PlanError
from demitasse_schedules.expressions import Expressions
from demitasse_schedules.record import Array, Round

Fault = Callable[[str, int], PlanError]


def spread(first: Array, last: Array) -> tuple[Array, Array]:
    """Return (i, number) for each number in the ranges first[i] up to last[i], all in a row."""
    lengths = last - first
    which = np.repeat(np.arange(len(first)), lengths)
    begins = np.cumsum(lengths) - lengths
    return which, np.arange(len(which)) - begins[which] + first[which]


def layers(target: Array) -> Iterator[Array]:
    """Yield indices of messages with different targets, in the order in which each target gets them."""
    order = np.argsort(target, kind="stable")
    line = target[order]
    turn = np.empty(len(target), int)
    turn[order] = np.arange(len(target)) - np.searchsorted(line, line)
    by_turn = np.argsort(turn, kind="stable")
    edges = np.searchsorted(turn[by_turn], np.arange(int(turn.max(initial=-1)) + 2))
    for start, stop in pairwise(edges):
        yield by_turn[start:stop]


class State(ABC):
    """The number of an expression for each rank and cell."""

    @abstractmethod
    def __init__(self, ranks: int, cells: int) -> None: ...

    @abstractmethod
    def begin(self, first: Array, last: Array, number: Array) -> None:
        """Give every rank expression number[rank] in its cells first[rank] up to last[rank]."""

    @abstractmethod
    def apply(
        self, each: Round, first: Array, last: Array, expressions: Expressions, fault: Fault
    ) -> None:
        """Do all sends of a round, of cells first[i] up to last[i], and then all receives in turn."""

    @abstractmethod
    def final(self, first: Array, last: Array) -> tuple[Array, Array, Array]:
        """Return (rank, first cell, number) of everything in cells first[rank] up to last[rank]."""


class Table(State):
    """An entry for each rank and cell."""

    def __init__(self, ranks: int, cells: int) -> None:
        self.held = np.zeros((ranks, cells), np.int32)

    def begin(self, first: Array, last: Array, number: Array) -> None:
        rank, cell = spread(first, last)
        self.held[rank, cell] = number[rank]

    def apply(
        self, each: Round, first: Array, last: Array, expressions: Expressions, fault: Fault
    ) -> None:
        which, cell = spread(first, last)
        sent = self.held[each.source[which], cell]
        begins = np.searchsorted(which, np.arange(len(first) + 1))
        adds = np.broadcast_to(each.reduces, each.source.shape)
        for layer in layers(each.target):
            _, at = spread(begins[layer], begins[layer + 1])
            into, new, more = (each.target[which[at]], cell[at]), sent[at], adds[which[at]]
            if more.any():
                ours = self.held[into][more]
                new[more] = expressions.sums(ours, new[more], which[at][more], fault)
            self.held[into] = new

    def final(self, first: Array, last: Array) -> tuple[Array, Array, Array]:
        rank, cell = spread(first, last)
        return rank, cell, self.held[rank, cell]


class Runs(State):
    """Runs of cells with the same expression, for each rank; there are few if ranks halve and double."""

    def __init__(self, ranks: int, cells: int) -> None:
        self._ranks, self._cells, self._wide = ranks, cells, cells + 1
        # A run begins at rank * wide + cell; a run of nothing ends every rank's line.
        self._begin, self._number = np.empty(0, np.int64), np.empty(0, np.int64)

    def begin(self, first: Array, last: Array, number: Array) -> None:
        rank = np.arange(self._ranks)
        keys = np.stack([rank * 0, first, last, rank * 0 + self._cells], axis=1)
        numbers = np.stack([rank * 0, number, rank * 0, rank * 0], axis=1)
        self._replace((keys + rank[:, None] * self._wide).reshape(-1), numbers.reshape(-1))

    def apply(
        self, each: Round, first: Array, last: Array, expressions: Expressions, fault: Fault
    ) -> None:
        sent = self._pieces(each.source, first, last)
        adds = np.broadcast_to(each.reduces, each.source.shape)
        for layer in layers(each.target):
            inside = np.zeros(len(first), bool)
            inside[layer] = True
            which, cell, number = (column[inside[sent[0]]] for column in sent)
            mine = self._pieces(each.target[layer], first[layer], last[layer])
            keys = np.unique(
                np.concatenate([which * self._wide + cell, layer[mine[0]] * self._wide + mine[1]])
            )
            order = np.argsort(which, kind="stable")
            theirs = number[order][
                np.searchsorted((which * self._wide + cell)[order], keys, "right") - 1
            ]
            line = np.argsort(layer, kind="stable")
            own = self._pieces(each.target[layer[line]], first[layer[line]], last[layer[line]])
            ours = own[2][np.searchsorted(layer[line][own[0]] * self._wide + own[1], keys, "right") - 1]
            message, cells = np.divmod(keys, self._wide)
            new, more = theirs.copy(), adds[message]
            if more.any():
                new[more] = expressions.sums(ours[more], theirs[more], message[more], fault)
            self._write(each.target[layer], first[layer], last[layer], each.target[message], cells, new)

    def _pieces(self, rank: Array, first: Array, last: Array) -> tuple[Array, Array, Array]:
        """Return (i, first cell, number) of the runs in cells first[i] up to last[i] of rank[i]."""
        low = np.searchsorted(self._begin, rank * self._wide + first, "right") - 1
        high = np.searchsorted(self._begin, rank * self._wide + last, "left")
        which, at = spread(low, high)
        cell = np.maximum(self._begin[at] - rank[which] * self._wide, first[which])
        return which, cell, self._number[at]

    def _write(
        self, rank: Array, first: Array, last: Array, into: Array, cell: Array, number: Array
    ) -> None:
        """Replace what rank[i] has in cells first[i] up to last[i] with the runs of ranks ``into``."""
        low, high = rank * self._wide + first, rank * self._wide + last
        after = self._number[np.searchsorted(self._begin, high, "right") - 1]
        gone = spread(np.searchsorted(self._begin, low), np.searchsorted(self._begin, high))[1]
        stays = np.ones(len(self._begin), bool)
        stays[gone] = False
        # A run that continues behind the replaced cells begins anew there, unless it began there anyway.
        split = self._begin[np.searchsorted(self._begin, high)] != high
        keys = [self._begin[stays], into * self._wide + cell, high[split]]
        numbers = [self._number[stays], number, after[split]]
        begin, values = np.concatenate(keys), np.concatenate(numbers)
        order = np.argsort(begin, kind="stable")
        self._replace(begin[order], values[order])

    def _replace(self, begin: Array, number: Array) -> None:
        """Store the runs: of those that begin at one place only the last is not empty, and equal
        neighbours become one run."""
        full = np.append(begin[1:] != begin[:-1], True)
        begin, number = begin[full], number[full]
        news = np.append(True, (number[1:] != number[:-1]) | (begin[1:] % self._wide == 0))
        news |= begin % self._wide == self._cells
        self._begin, self._number = begin[news], number[news]

    def final(self, first: Array, last: Array) -> tuple[Array, Array, Array]:
        return self._pieces(np.arange(self._ranks), first, last)
