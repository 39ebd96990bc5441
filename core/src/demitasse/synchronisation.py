"""Gradient synchronisation: one level's part in making siblings agree, and how levels nest. A bucket's
gradients are reduced from the innermost level outwards, updated once, by whoever then owns a part of
them, and the parameters distributed from the outermost level inwards."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from demitasse.errors import PlanError
from demitasse.operations.kernel import Work


@dataclass(frozen=True)
class Span:
    """A part of flat memory in elements, from start up to, not including, stop."""

    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


@dataclass(frozen=True)
class Bucket:
    """Parameters that are synchronised together: a span of flat memory, where parameters and gradients
    lie in the order in which backward finishes them, and the layers they belong to."""

    index: int
    span: Span
    layers: tuple[str, ...]


@dataclass
class FlatMemory:
    """A worker's trainable parameters, gradients and solver state: flat arrays in the same order."""

    parameters: Any
    gradients: Any
    state: Mapping[str, Any] = field(default_factory=dict)


class Team:
    """The siblings of one group that share an address space. ``memory`` has an entry for each,
    complete before anyone binds; ``barrier`` lets them wait, and breaks when one of them fails."""

    def __init__(self, size: int, memory: Iterable[FlatMemory] = ()) -> None:
        self.size, self.memory, self.barrier = size, list(memory), threading.Barrier(size)


@dataclass(frozen=True)
class Group:
    """What a synchronisation is asked to serve: the levels' names, outermost first, this worker's
    index among its siblings in this process and their team (None where there are none), whether
    some are in other processes, the element type, and the options of the description's ``sync``."""

    levels: tuple[str, ...]
    index: int
    team: Team | None
    dtype: str
    options: Mapping[str, Any]
    remote: bool = False


class GradientSync:
    """One level's synchronisation, for one worker: its ``index`` among ``size`` siblings, and whether
    they may read and write one copy of the parameters. Every method may be left as it is; the work
    that one returns is bound into the plan and done each iteration at its point."""

    index: int = 0
    size: int = 1
    shares_parameters: bool = False

    def bind(self, memory: FlatMemory) -> None:
        """Called once, with this worker's memory, before any work is asked for."""

    def begin(self) -> Work | None:
        """At the start of an iteration."""

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Before the first operation of an iteration that reads the bucket's parameters."""

    def owned(self, span: Span) -> Span:
        """The part of ``span`` that this worker holds complete after ``reduce``: all, a slice, or
        nothing. What nobody here holds, nobody passes on to the next level."""
        return span

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Sum the siblings' gradients over ``span`` into the owners' parts."""

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Give all siblings the parameters of ``span`` from their owners."""

    def schedule(self, bucket: Bucket, chain: Work) -> Work:
        """When the bucket's chain (reduce, update, distribute of all levels) runs: at once. A level that
        overlaps returns work that starts it elsewhere, and waits in ``before_forward`` or ``end``."""
        return chain

    def total(self, mine: Any, total: Any) -> Work | None:
        """``total``, a few float64 numbers, becomes the sum of what the siblings have in ``mine``, each
        of the parts that it owns; None where ``mine`` is that already, for one who owns all. For updates
        that need the size of whole gradients: after ``reduce``, before ``distribute``."""
        if self.size == 1:
            return None
        kind = type(self).__name__
        raise PlanError(f"{kind} cannot add up numbers of siblings, which the solver's update needs")

    def end(self) -> Work | None:
        """At the end of an iteration."""

    def quiesce(self) -> None:
        """Finish all that is under way: before a test, a snapshot, and the exit."""

    def close(self) -> None:
        """Release threads and connections."""


def nested(levels: Sequence[GradientSync], bucket: Bucket) -> tuple[list[Work], Span, list[Work]]:
    """A bucket's reduces outwards (``levels`` innermost first), the part that this worker then owns, and
    the distributions inwards."""
    span, outwards, inwards = bucket.span, list[Work | None](), list[Work | None]()
    for level in levels:
        if span:
            outwards.append(level.reduce(bucket, span))
            inwards.insert(0, level.distribute(bucket, span))
            span = level.owned(span)
    return [work for work in outwards if work], span, [work for work in inwards if work]


def chain(
    levels: Sequence[GradientSync], bucket: Bucket, update: Callable[[Span], Work | None]
) -> Work | None:
    """The work that makes a bucket final: ``levels`` innermost first; ``update`` is asked once, for
    the part that this worker owns after the outermost reduce, and not at all when that is empty."""
    outwards, span, inwards = nested(levels, bucket)
    middle = update(span) if span else None
    steps = [*outwards, *filter(None, [middle]), *inwards]

    def run() -> None:
        for step in steps:
            step()

    work: Work = steps[0] if len(steps) == 1 else run
    for level in levels:
        work = level.schedule(bucket, work)
    return work if steps else None
