"""Four core groups: each computes a quarter of the mini-batch, and core group 0 sums (Section V.A, Fig.
5)."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from demitasse import (
    Bucket,
    CompositionError,
    DescriptionError,
    GradientSync,
    Group,
    Span,
    Team,
    Work,
    check_sync_options,
    process_lock,
    sync_place,
    unknown,
)
from demitasse_sw26010.kernels.elementwise import X, Z
from demitasse_sw26010.kernels.program import PLACES, Program, count
from demitasse_sw26010.model.ldm import Ldm

OPTIONS = ("scheme",)
SCHEMES = ("handshake",)
PATIENCE = 0.05
"""The interval, in seconds, at which a sibling that waits for its semaphore checks whether another has
failed."""

SUMS = {
    dtype: Ldm("gradient sum", (replace(X, dtype=dtype), replace(Z, dtype=dtype)))
    for dtype in ("float32", "float64")
}
"""The LDM of a sum for each element type of the gradients, in which the sum is taken."""


class Handshake:
    """Semaphores in both directions between core group 0 and each other one, in the memory that they
    share: one initiates, the other confirms."""

    def __init__(self, team: Team) -> None:
        self.barrier = team.barrier
        self.initiated = [threading.Semaphore(0) for _ in range(team.size)]
        self.confirmed = [threading.Semaphore(0) for _ in range(team.size)]

    def initiate(self, sibling: int) -> None:
        """Report that the sibling has done its part, and wait until core group 0 has done its own."""
        self.initiated[sibling].release()
        self._wait(self.confirmed[sibling])

    def _wait(self, semaphore: threading.Semaphore) -> None:
        while not semaphore.acquire(timeout=PATIENCE):
            if self.barrier.broken:
                for each in (*self.initiated, *self.confirmed):
                    while each.acquire(blocking=False):
                        pass
                raise threading.BrokenBarrierError

    def gather(self) -> None:
        """Wait, as core group 0, until all others have initiated."""
        for semaphore in self.initiated[1:]:
            self._wait(semaphore)

    def confirm(self) -> None:
        """Let all others continue, as core group 0."""
        for semaphore in self.confirmed[1:]:
            semaphore.release()


_LOCK = process_lock()
_TEAMS: WeakKeyDictionary[Team, Handshake] = WeakKeyDictionary()


def _shared(team: Team) -> Handshake:
    with _LOCK:
        return _TEAMS.setdefault(team, Handshake(team))


class HandshakeSum(GradientSync):
    """Sums the gradients of core groups on the CPEs of core group 0, which owns all of them and updates;
    the others then copy its parameters. Raises CompositionError for siblings in other processes, and
    DescriptionError for an unknown option or scheme."""

    def __init__(self, group: Group) -> None:
        check_sync_options(group, OPTIONS)
        where = sync_place(group)
        scheme = group.options.get("scheme", "handshake")
        if scheme not in SCHEMES:
            raise DescriptionError(unknown("scheme", str(scheme), SCHEMES, where))
        if group.team is None or group.remote:
            raise CompositionError(
                f"{where}: plugin 'sw26010' synchronises core groups of one node, which are threads of "
                f"one process, but the siblings here are other processes: name a plugin in the sync "
                f"that synchronises processes"
            )
        self.team, self.index, self.size = group.team, group.index, group.team.size
        self.handshake = _shared(group.team)

    def owned(self, span: Span) -> Span:
        """Return all of the span for core group 0, and nothing for the others."""
        return span if self.index == 0 else Span(span.start, span.start)

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that adds the siblings' gradients to those of core group 0, in order, through its
        LDM."""
        if self.size == 1:
            return None
        handshake, index = self.handshake, self.index
        if index > 0:
            return lambda: handshake.initiate(index)
        import numpy as np

        from demitasse_sw26010.loops.elementwise import add_scaled
        from demitasse_sw26010.model.mesh import COUNTERS
        from demitasse_sw26010.model.programs import machine_code

        add_to = machine_code(add_scaled)
        part, counters = slice(span.start, span.stop), np.zeros(COUNTERS)
        first, *others = (memory.gradients[part] for memory in self.team.memory)
        ldm = SUMS[str(first.dtype)]

        def add() -> None:
            handshake.gather()
            for other in others:
                x, z = PLACES.arrays(ldm)
                add_to(counters, True, x, z, other, first, len(span), 1.0, False)
            handshake.confirm()

        return add

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that copies the parameters of core group 0. Meanwhile, core group 0 may continue,
        because it changes parameters again only after the next reduce, in which it waits for all
        others."""
        if self.size == 1:
            return None
        handshake, index, team = self.handshake, self.index, self.team
        if index == 0:

            def release() -> None:
                handshake.gather()
                handshake.confirm()

            return release
        part = slice(span.start, span.stop)
        source, target = team.memory[0].parameters[part], team.memory[index].parameters[part]

        def take() -> None:
            handshake.initiate(index)
            target[...] = source

        return take

    def costs(self, bucket: Bucket, span: Span) -> tuple[float, float]:
        """Return the seconds of ``reduce`` and of ``distribute``, as counted by the programs."""
        return exchange_seconds(len(span), self.size)

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return work that copies ``mine``. Core group 0 owns everything and alone updates, so no other
        core group needs the number."""
        if self.size == 1:
            return None

        def take() -> None:
            total[...] = mine

        return take


def exchange_seconds(elements: int, core_groups: int) -> tuple[float, float]:
    """Return how many seconds core group 0 takes to sum ``elements`` gradients of this many core groups,
    and how many the others take to copy as many parameters, all at once."""
    if core_groups == 1 or not elements:
        return 0.0, 0.0
    operands, numbers = ("float32", "float32"), (elements, 1.0, False)
    add = Program("gradient sum", ("elementwise", "add_scaled"), SUMS["float32"], operands, numbers)
    places = (1, elements, 0, elements, 0, elements)
    copy = Program("parameter copy", ("elementwise", "copy_blocks"), Ldm("copy", (X,)), operands, places)
    return (core_groups - 1) * count(add).seconds, count(copy).seconds


def sum_seconds(elements: int, core_groups: int) -> float:
    """Return the sum of both ``exchange_seconds``."""
    return sum(exchange_seconds(elements, core_groups))
