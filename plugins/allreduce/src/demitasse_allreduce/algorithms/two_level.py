"""A pipelined allreduce for groups of ranks that are joined by a thin trunk.

Each chunk passes through four stages:

1. The members of a group each sum the part that they own over the group.
2. The owners of the same elements in different groups each sum a part of these over the groups.
3. They give the sums back to each other.
4. The members of a group give each other the parts that they own.

Stages of different chunks run at the same time, so the trunk works while the links inside groups do.

The time for n bytes and p ranks in g groups of q, with beta seconds per byte on a rank's link and a
trunk as wide as q/o links, is

- on each link 2 (p-1)/p n beta, the minimum of any allreduce: each element needs p - 1 messages until
  some rank knows the sum, and p - 1 more until all do;
- on each trunk 2 (g-1)/g n beta o/q, where a ring takes 2 (p-1)/p n beta o/q.

Eight ranks in two groups at 4:1 take 1.75 n beta, as with a ring, but the trunk is busy for only 1.0 of
it; at 8:1 they take 2.0 where a ring takes 3.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from demitasse import InRounds, Round, Schedule, joined

Array = np.ndarray[Any, np.dtype[Any]]

CHUNKS, LEAST_CHUNK = 8, 65_536
"""Most chunks of the pipeline, and the fewest elements in one: a smaller chunk costs more latency than
it hides."""


def pieces(ranks: int, size: int) -> int:
    """Return the default number of chunks."""
    return max(1, min(CHUNKS, size // LEAST_CHUNK))


def _inside(groups: tuple[tuple[int, ...], ...], start: int, stop: int) -> Round | None:
    """Return the round in which every member sends each other member of its group the part that the
    receiver owns. Each sender starts with the member after it, so no receiver gets everything at
    once."""
    made = []
    for group in groups:
        members, q = np.array(group), len(group)
        place, shift = np.tile(np.arange(q), q - 1), np.repeat(np.arange(1, q), q)
        owner = (place + shift) % q
        low, high = (start + (stop - start) * (owner + end) // q for end in (0, 1))
        made.append((shift, Round(members[place], members[owner], low, high, True)))
    whole = joined([each for _, each in made])
    order = np.argsort(np.concatenate([shift for shift, _ in made]), kind="stable")
    return whole.kept(order) if len(order) else None


def _across(groups: tuple[tuple[int, ...], ...], start: int, stop: int) -> Round | None:
    """Return the round in which the owners of the same elements in different groups send each other the
    parts that the receivers sum. If groups differ in size, elements are cut wherever any group cuts
    them."""
    g, size = len(groups), stop - start
    bounds = [start + size * np.arange(len(group) + 1) // len(group) for group in groups]
    cuts = np.unique(np.concatenate(bounds))
    low, high = cuts[:-1], cuts[1:]
    owners = np.array(
        [
            np.array(group)[np.searchsorted(bound, low, "right") - 1]
            for group, bound in zip(groups, bounds, strict=True)
        ]
    )
    made = []
    for shift in range(1, g):
        sums = (np.arange(g)[:, None] + shift) % g
        first, last = (low + (high - low) * (sums + end) // g for end in (0, 1))
        peers = np.roll(owners, -shift, axis=0)
        flat = [column.reshape(-1) for column in (owners, peers, first, last)]
        made.append(Round(flat[0], flat[1], flat[2], flat[3], True))
    return joined(made) if made and len(low) else None


def two_level(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """Yield the rounds. Each has one stage of each of up to four consecutive chunks."""
    size, chunks, groups = schedule.size, program.chunks, program.groups
    edges = [size * i // chunks for i in range(chunks + 1)]
    inside = [_inside(groups, *edge) for edge in pairwise(edges)]
    across = [_across(groups, *edge) for edge in pairwise(edges)]
    stages = (
        (0, inside, False),
        (3, inside, True),
        (1, across, False),  # the trunk's messages come last: what they bring is waited for last
        (2, across, True),
    )
    for now in range(chunks + 3):
        together = []
        for late, rounds, back in stages:
            if 0 <= now - late < chunks and (each := rounds[now - late]) is not None:
                together.append(each.mirrored() if back else each)
        if together:
            yield joined(together)
