"""Collectives along trees to a root and back: binomial, chunked chains, two-level chains, binary trees.

Sources: Thakur, Rabenseifner and Gropp (2005) for the binomial tree; Awan et al. (S-Caffe), section 5,
for the chunked chain and for chains below a chain or a binomial tree (HR).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from demitasse import InRounds, Round, Schedule

Array = np.ndarray[Any, np.dtype[Any]]

CHUNKS = 16
"""Most pieces of a pipeline: enough that filling it takes a small part of the time, and few enough that
latencies do too."""

LEAST_CHUNK = 1024
"""The smallest chunk, in elements: a smaller one costs more latency than it hides."""

ARITY = 2
"""Children of a rank in the tree. With more, each chunk occupies a parent's link for longer than the
saved levels would take."""


def pieces(ranks: int, size: int) -> int:
    """Return the default number of chunks."""
    return max(1, min(CHUNKS, size // LEAST_CHUNK))


def _up(nodes: Array, parent: Array, turn: Array, size: int, chunks: int) -> Iterator[Round]:
    """Yield the rounds that send chunk after chunk from nodes to parents: node i sends its first chunk
    in round turn[i], and the next ones in the rounds that follow."""
    order = np.argsort(turn, kind="stable")
    nodes, parent, turn = nodes[order], parent[order], turn[order]
    for now in range(int(turn[-1]) + chunks if len(turn) else 0):
        which = slice(*np.searchsorted(turn, [now - chunks + 1, now + 1]))
        chunk = now - turn[which]
        start, stop = size * chunk // chunks, size * (chunk + 1) // chunks
        yield Round(nodes[which], parent[which], start, stop, True)


def _there_and_back(schedule: Schedule, reduce: Iterable[Round]) -> Iterator[Round]:
    """Yield a reduction to the root, its mirror image (a broadcast), or both, as the goal requires."""
    rounds = list(reduce)
    if schedule.goal != "broadcast":
        yield from rounds
    if schedule.goal != "reduce":
        yield from (each.mirrored() for each in reversed(rounds))


def _binomial(line: Array, size: int) -> Iterator[Round]:
    """Yield the rounds that reduce whole vectors to line[0], over distances 1, 2, 4, ..."""
    distance = 1
    while distance < len(line):
        source = np.arange(distance, len(line), 2 * distance)
        none = source * 0
        yield Round(line[source], line[source - distance], none, none + size, True)
        distance *= 2


def _chains(lines: Iterable[Array], size: int, chunks: int) -> Iterator[Round]:
    """Yield the rounds that reduce chunks along every line to its first rank, all lines at the same time
    (S-Caffe, section 5)."""
    lines = [line for line in lines if len(line) > 1]
    if lines:
        nodes = np.concatenate([line[1:] for line in lines])
        parent = np.concatenate([line[:-1] for line in lines])
        turn = np.concatenate([np.arange(len(line) - 2, -1, -1) for line in lines])
        yield from _up(nodes, parent, turn, size, chunks)


def _line(schedule: Schedule) -> Array:
    """Return all ranks, starting with the root."""
    return (np.arange(schedule.ranks) + schedule.root) % schedule.ranks


def binomial(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """A binomial tree joins pairs, then pairs of pairs, and so on: few rounds, each with the whole
    vector."""
    return _there_and_back(schedule, _binomial(_line(schedule), schedule.size))


def chain(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """A chain passes chunks from the last rank to the root, each rank adding its own, and back."""
    return _there_and_back(schedule, _chains([_line(schedule)], schedule.size, program.chunks))


def tree(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """A tree passes chunks up a complete binary tree, and back. Each direction takes as many rounds as
    the tree is deep, plus one for each further chunk."""
    line, place = _line(schedule), np.arange(1, schedule.ranks)
    first = np.cumsum(ARITY ** np.arange(schedule.ranks.bit_length()))  # first place of depth 1, 2, ...
    depth = np.searchsorted(first, place, "right")
    turn = depth.max(initial=0) - depth
    up = _up(line[place], line[(place - 1) // ARITY], turn, schedule.size, program.chunks)
    return _there_and_back(schedule, up)


def _two_levels(schedule: Schedule, program: InRounds) -> tuple[list[Array], Array]:
    """Return a line for each group, its leader first, and the line of leaders, the root first."""
    root = schedule.root
    groups = sorted(program.groups, key=lambda group: root not in group)
    lines = [np.array(sorted(group, key=lambda rank: rank != root)) for group in groups]
    return lines, np.array([line[0] for line in lines])


def chain_chain(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """S-Caffe's CC: a chunked chain in every group, then a chunked chain of their leaders."""
    lines, leaders = _two_levels(schedule, program)
    lower = list(_chains(lines, schedule.size, program.chunks))
    upper = list(_chains([leaders], schedule.size, program.chunks))
    return _there_and_back(schedule, lower + upper)


def chain_binomial(schedule: Schedule, program: InRounds) -> Iterator[Round]:
    """S-Caffe's CB: a chunked chain in every group, then a binomial tree of their leaders."""
    lines, leaders = _two_levels(schedule, program)
    lower = list(_chains(lines, schedule.size, program.chunks))
    return _there_and_back(schedule, lower + list(_binomial(leaders, schedule.size)))
