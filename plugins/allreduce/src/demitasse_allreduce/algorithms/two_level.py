"""The pipelined allreduce for groups of ranks that a thin trunk joins.

A chunk passes four stages: members of a group sum what each of them owns; owners of the same elements in
different groups sum a part each; they give it back; members give each other what they own. The stages of
different chunks go at once, so that the trunk works while links inside the groups do.

What it takes for n bytes and p ranks in g groups of q, with beta seconds a byte on a rank's link and a
trunk as wide as q/o links: on each link 2 (p-1)/p n beta, which is the least of any allreduce (for each
element p - 1 messages until someone knows the sum, and p - 1 until all do); on each trunk
2 (g-1)/g n beta o/q, where a ring has 2 (p-1)/p n beta o/q. Eight ranks in two groups at 4:1 take 1.75
n beta as a ring does, but the trunk is busy for 1.0 of it; at 8:1 it is 2.0 where a ring takes 3.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from demitasse import InRounds, Round, Schedule, joined

Array = np.ndarray[Any, np.dtype[Any]]

CHUNKS, LEAST_CHUNK = 8, 65_536
"""Chunks of the pipeline, and the elements below which one more costs more latency than it hides."""


def pieces(ranks: int, size: int) -> int:
    """Chunks where nobody says how many."""
    return max(1, min(CHUNKS, size // LEAST_CHUNK))


def _inside(groups: tuple[tuple[int, ...], ...], start: int, stop: int) -> Round | None:
    """Every member sends every other one of its group the part that he owns; each begins with the next
    one, so that nobody gets all at once."""
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
    """Owners of the same elements in different groups: each sends each other one the part that he sums.
    Groups may differ in size: then elements are cut wherever one of them cuts."""
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
    """The rounds: in each, one stage of each of four chunks in a row."""
    size, chunks, groups = schedule.size, program.chunks, program.groups
    edges = [size * i // chunks for i in range(chunks + 1)]
    inside = [_inside(groups, *edge) for edge in pairwise(edges)]
    across = [_across(groups, *edge) for edge in pairwise(edges)]
    stages = (
        (0, inside, False),
        (3, inside, True),
        (1, across, False),  # the trunk's last: what it brings is waited for last
        (2, across, True),
    )
    for now in range(chunks + 3):
        together = []
        for late, rounds, back in stages:
            if 0 <= now - late < chunks and (each := rounds[now - late]) is not None:
                together.append(each.mirrored() if back else each)
        if together:
            yield joined(together)
