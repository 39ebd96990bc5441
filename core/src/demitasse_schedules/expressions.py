"""Sums of contributions as numbered expressions; equal expressions have the same number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from demitasse import PlanError

Array = np.ndarray[Any, np.dtype[Any]]

NOTHING = 0
"""The number that stands for elements that a rank was not given."""


class Expressions:
    """Number 0 is nothing, 1 to ``ranks`` are the ranks' own contributions (rank r has r + 1), and every
    other number is a sum of two earlier ones, regardless of their order. ``stage`` is where sums are
    currently made: a round or a move."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.stage = ranks, 0
        self._left, self._right = [0] * (ranks + 1), [0] * (ranks + 1)
        self._count = [0] + [1] * ranks  # contributions in each, by number
        self._made = [(0, 0)] * (ranks + 1)  # stage and message that first made each
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def sums(self, ours: Array, theirs: Array, message: Array, fault: Callable[..., PlanError]) -> Array:
        """Return the numbers of ours[i] + theirs[i]. A sum with nothing, or of more contributions than
        there are ranks, raises ``fault(problem, message[i])``."""
        low, high = (pick(ours, theirs).astype(np.int64) for pick in (np.minimum, np.maximum))
        keys, first, back = np.unique((low << 32) | high, return_index=True, return_inverse=True)
        numbers = []
        for key, where in zip(keys.tolist(), first.tolist(), strict=True):
            number = self._numbers.get(key)
            if number is None:
                one, other = key >> 32, key & 0xFFFFFFFF
                number, count = len(self._count), self._count[one] + self._count[other]
                self._left.append(one)
                self._right.append(other)
                self._count.append(count)
                self._made.append((self.stage, int(message[where])))
                self._numbers[key] = number
                if one == NOTHING:
                    raise fault("adds to elements that hold nothing", int(message[where]))
                if count > self.ranks:  # then some contribution is in it twice
                    doubled = self._twice(number)[0]
                    raise fault(f"rank {doubled} is counted twice", int(message[where]))
            numbers.append(number)
        return np.array(numbers, np.int64)[back]

    def incomplete(self, numbers: Array) -> tuple[int, int, int | None, tuple[int, int]] | None:
        """Return one of these expressions that does not have each contribution exactly once, or None:
        (its number, a rank that is missing or -1, a rank that is doubled or None, the stage and message
        that doubled it)."""
        left, right = np.array(self._left), np.array(self._right)
        for some in np.array_split(numbers, -(-len(numbers) * self.ranks // (1 << 24)) or 1):
            times = np.zeros((len(some), self.ranks + 1), np.int64)
            owner, each = np.arange(len(some)), some.astype(np.int64)
            while len(each):
                leaf = each <= self.ranks
                np.add.at(times, (owner[leaf], each[leaf]), 1)
                owner, each = owner[~leaf], each[~leaf]
                owner, each = np.tile(owner, 2), np.concatenate([left[each], right[each]])
            wrong = np.any(times[:, 1:] != 1, axis=1)
            if not wrong.any():
                continue
            i = int(np.argmax(wrong))
            number, row = int(some[i]), times[i, 1:]
            if row.max() > 1:
                doubled, stage = self._twice(number)
                return number, -1, doubled, stage
            return number, int(np.argmin(row)), None, (0, 0)
        return None

    def _twice(self, number: int) -> tuple[int, tuple[int, int]]:
        """Return the contribution that an expression has twice, with the first such stage and
        message."""
        below, todo = {number}, [number]
        while todo:
            for each in (self._left[at := todo.pop()], self._right[at]):
                if each not in below:
                    below.add(each)
                    todo.append(each)
        has: dict[int, set[int]] = {}
        for each in sorted(below):  # a sum's parts have smaller numbers than the sum
            if each <= self.ranks:
                has[each] = {each - 1} if each else set()
                continue
            one, other = has[self._left[each]], has[self._right[each]]
            if both := one & other:
                return min(both), self._made[each]
            has[each] = one | other
        raise ValueError(f"expression {number} has nothing twice")
