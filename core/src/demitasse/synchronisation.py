"""Gradient synchronisation: one level's part in making siblings agree, and how levels nest. A bucket's
gradients are reduced from the innermost level outwards, updated once, by whoever then owns a part of
them, and the parameters distributed from the outermost level inwards."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from demitasse.errors import PlanError
from demitasse.machine import Machine
from demitasse.operations.kernel import Work

if TYPE_CHECKING:
    from demitasse.plan import Slot
    from demitasse_schedules import Algorithm
    from demitasse_streams import StreamEngine


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
    """A worker's trainable parameters, gradients and solver state: flat arrays in the same order; the
    ``numbers`` that its update reads besides (rate, iteration), by operand, if it has its own; and
    the ``slots`` of the parameters, with their shapes. Elements between them, and the padding of a
    slot's layout, are zero in all of these and have to stay so."""

    parameters: Any
    gradients: Any
    state: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    slots: Sequence["Slot"] = ()


class Team:
    """The siblings of one group that share an address space. ``memory`` has an entry for each,
    complete before anyone binds; ``barrier`` lets them wait, and breaks when one of them fails.
    ``failures`` counts the runs that ended so: nothing that siblings kept from before one holds."""

    def __init__(self, size: int, memory: Iterable[FlatMemory] = ()) -> None:
        self.size, self.memory, self.barrier = size, list(memory), threading.Barrier(size)
        self.failures = 0


class Processes:
    """The processes of a run, of which this one is number ``rank`` of ``size``; alone, unless a plugin
    serves more. ``sharing`` of them have this one's cores. Whoever waits for others calls ``check``."""

    rank: int = 0
    size: int = 1
    sharing: int = 1

    def gather(self, value: Any) -> list[Any]:
        """What each process gives, by rank: plain data (numbers, text, bytes, lists, mappings)."""
        return [value]

    def total(self, values: Any) -> Any:
        """The sum of a few float64 numbers over all processes, the same bits in each."""
        return values

    def report(self, iteration: int, layer: str = "") -> None:
        """What this process is at, for the errors of those who wait for it."""

    def check(self) -> None:
        """Raise WorkerError with rank, host, layer and last iteration of one that failed or stalled."""

    def fail(self, error: BaseException) -> None:
        """Tell the others why this process ends."""

    def close(self) -> None:
        """Part from the others."""


ALONE = Processes()


@dataclass(frozen=True)
class Group:
    """What a synchronisation is asked to serve: the levels' names, outermost first, this worker's
    index among its siblings in this process and their team (None where there are none), whether
    some are in other processes, the element type, the options of the description's ``sync``, the
    machine and processes of the run, the worker's streams, where it computes in some, and where some
    are in other processes the algorithms of collectives that plugins give, by name."""

    levels: tuple[str, ...]
    index: int
    team: Team | None
    dtype: str
    options: Mapping[str, Any]
    remote: bool = False
    machine: Machine | None = None
    processes: Processes = ALONE
    engine: "StreamEngine | None" = None
    collectives: Mapping[str, "Algorithm"] = field(default_factory=dict, hash=False)


class GradientSync:
    """One level's synchronisation, for one worker: its ``index`` among ``size`` siblings, whether they
    may read and write one copy of the parameters, in which ``space`` flat memory must lie (None: the
    worker's own), from how many bytes on gradients are a bucket (neighbouring layers' are joined), and
    whether siblings may be at different iterations (``asynchronous``), whether they are meant to differ
    after one (``apart``, as where they agree every few), and whether a process's must be joined after
    each (``joined``) or wait for each other by themselves; ``notes`` tell a user what was chosen and
    why. Every method may be left as it is; the work that one returns is done each iteration at its
    point."""

    index: int = 0
    size: int = 1
    shares_parameters: bool = False
    space: str | None = None
    bucket_bytes: int = 0
    asynchronous: bool = False
    apart: bool = False
    joined: bool = True
    notes: Sequence[str] = ()

    def bind(self, memory: FlatMemory) -> None:
        """Called once, with this worker's memory, before any work is asked for."""

    def update_memory(self, memory: FlatMemory) -> FlatMemory:
        """What the update works on, asked once when all siblings are bound: this worker's ``memory``, or
        a master's parameters and state with the gradients to add."""
        return memory

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
        """Finish all that is under way: before a test, a snapshot, and the exit. The first sibling then
        has all parameters and all of the solver's state. Siblings of a process are asked in turn, so
        none may wait for another at the barrier."""

    def saved(self) -> Any:
        """What it keeps from one iteration to the next, for a snapshot, as plain data (numbers, text,
        bytes, lists, mappings); None for nothing. All siblings are asked, with nothing under way."""

    def restore(self, saved: Any) -> None:
        """Keep again what ``saved`` gave in as many workers: after ``bind``, before any work."""

    def spans(self) -> Iterable[tuple[str, float, float]]:
        """What it did beside the step in the last iteration: a name, from when, until when (seconds of
        ``time.perf_counter``)."""
        return ()

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
