"""The plain sum: sibling threads add their gradients in order of index; the first one owns them all."""

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
    """Sums the gradients of sibling threads into the memory of index 0, and copies its parameters to
    all.

    The sum runs over siblings in order of index, in float64, and is rounded once, so every run gives the
    same bits. All siblings wait for each other twice per bucket; nothing overlaps. A single worker has
    nothing to do. There are no options. Raises DescriptionError for an option, and CompositionError if
    siblings are in other processes.
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
        """Return the whole span for index 0, and nothing for the others."""
        return span if self.index == 0 else Span(span.start, span.start)

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that sums the siblings' gradients over ``span`` in the memory of index 0."""
        if self.size == 1:
            return None
        team, part = self.team, slice(span.start, span.stop)
        if self.index > 0:
            return wait(team)
        gradients = [memory.gradients[part] for memory in team.memory]
        total = np.empty(len(span), np.float64)

        def add() -> None:
            team.barrier.wait()
            # Infinities and NaNs are passed on, as in kernels; the check of the loss reports them.
            with np.errstate(all="ignore"):
                total.fill(0.0)
                for gradient in gradients:
                    np.add(total, np.asarray(gradient), out=total)
                gradients[0][...] = total

        return add

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that copies the parameters of ``span`` from index 0 to this sibling.

        Index 0 may continue while others still copy: it changes parameters again only after the next
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
        """Return work that copies ``mine``: index 0 owns everything and alone updates, so only it needs
        the numbers."""
        if self.size == 1:
            return None

        def take() -> None:
            total[...] = mine

        return take


def wait(team: Team) -> Work:
    """Return work that waits for all siblings; it raises threading.BrokenBarrierError if one failed."""

    def work() -> None:
        team.barrier.wait()

    return work
