"""The plain sum: sibling threads add their gradients in order of index; the first one owns all."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse import (
    Bucket,
    CompositionError,
    GradientSync,
    Group,
    Span,
    Team,
    Work,
    check_sync_options,
    sync_place,
)


class OrderedSum(GradientSync):
    """Sums the gradients of sibling threads into the memory of index 0, and copies its parameters
    to all.

    The sum runs over siblings in order of index, in float64, and is rounded once: the same bits on
    every run. Everyone waits for everyone twice a bucket; nothing overlaps. One worker has no work.
    It has no options. Raises DescriptionError for one, CompositionError for siblings elsewhere.
    """

    def __init__(self, group: Group) -> None:
        check_sync_options(group)
        if group.team is None or group.remote:
            raise CompositionError(
                f"{sync_place(group)}: plugin 'reference' synchronises threads of one process, but the "
                f"siblings here are other processes; name a plugin in the sync that synchronises "
                f"processes"
            )
        self.team: Team = group.team
        self.index = group.index
        self.size = group.team.size

    def owned(self, span: Span) -> Span:
        """All for index 0, nothing for the others."""
        return span if self.index == 0 else Span(span.start, span.start)

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Sum the siblings' gradients over ``span`` in the memory of index 0."""
        if self.size == 1:
            return None
        team, part = self.team, slice(span.start, span.stop)
        if self.index > 0:
            return wait(team)
        gradients = [memory.gradients[part] for memory in team.memory]
        total = np.empty(len(span), np.float64)

        def add() -> None:
            team.barrier.wait()
            # What is not finite is passed on, as by kernels; who watches the loss reports it.
            with np.errstate(all="ignore"):
                total.fill(0.0)
                for gradient in gradients:
                    np.add(total, np.asarray(gradient), out=total)
                gradients[0][...] = total

        return add

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Copy the parameters of ``span`` from index 0 to this sibling.

        Index 0 may go on while others still copy: it changes parameters again only after the next
        reduce, where it waits for all.
        """
        if self.size == 1:
            return None
        team, part = self.team, slice(span.start, span.stop)
        if self.index == 0:
            return wait(team)
        source = team.memory[0].parameters[part]
        target = team.memory[self.index].parameters[part]

        def copy() -> None:
            team.barrier.wait()
            target[...] = source

        return copy

    def total(self, mine: Any, total: Any) -> Work | None:
        """Everything is index 0's, which alone updates: nobody else needs a number."""
        if self.size == 1:
            return None

        def take() -> None:
            total[...] = mine

        return take


def wait(team: Team) -> Work:
    """Work that waits for all siblings; threading.BrokenBarrierError when one of them failed."""

    def work() -> None:
        team.barrier.wait()

    return work
