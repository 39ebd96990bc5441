"""Gradient synchronisation: what one level does so that siblings agree, and how levels nest. A bucket's
gradients are reduced from the innermost level outwards, each part is updated once by the worker that
then owns it, and the parameters are distributed from the outermost level inwards."""

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
    """Parameters that are synchronised together: their span of flat memory, where they lie in the order
    in which backward finishes their gradients, and the layers that they belong to."""

    index: int
    span: Span
    layers: tuple[str, ...]


@dataclass
class FlatMemory:
    """A worker's trainable parameters, gradients and solver state, as flat arrays in the same order.
    ``numbers`` are the scalars that its update reads (rate, iteration), by operand, if it has some of
    its own. ``slots`` say where each parameter lies. Elements between slots and the padding of a slot's
    layout are zero in all of the arrays, and have to stay zero."""

    parameters: Any
    gradients: Any
    state: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    slots: Sequence["Slot"] = ()


class Team:
    """The siblings of one group that share an address space. ``memory`` has an entry for each sibling
    before any of them binds. ``barrier`` lets them wait for each other, and breaks when one fails.
    ``failures`` counts the runs that ended like that: what siblings kept from before is void then."""

    def __init__(self, size: int, memory: Iterable[FlatMemory] = ()) -> None:
        self.size, self.memory, self.barrier = size, list(memory), threading.Barrier(size)
        self.failures = 0


class Processes:
    """The processes of a run; this one is ``rank`` of ``size``, and ``sharing`` of them use its cores.
    This class is a process alone; a plugin serves more. Whoever waits for others calls ``check``."""

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
        """Raise WorkerError if one failed or stalled, with its rank, host, layer and last iteration."""

    def fail(self, error: BaseException) -> None:
        """Tell the others why this process ends."""

    def close(self) -> None:
        """Part from the others."""


ALONE = Processes()


@dataclass(frozen=True)
class Group:
    """What a synchronisation is asked to serve.

    - ``levels``: their names, outermost first;
    - ``index``, ``team``: this worker's number among its siblings in this process, and their team (None
      if it has no sibling here);
    - ``remote``: whether some siblings are in other processes; then ``collectives`` has the algorithms
      that plugins give, by name;
    - ``options``: those of the description's ``sync``;
    - ``engine``: the worker's streams, if it computes in some."""

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
    """One level's synchronisation, for one worker. Every method may be left as it is here; the work that
    one returns is done in each iteration, at the point that the method names.

    - ``index``, ``size``: this worker's number among how many siblings;
    - ``shares_parameters``: siblings may read and write one copy of the parameters;
    - ``space``: the memory space that flat memory must be in (None: the worker's own);
    - ``bucket_bytes``: gradients of neighbouring layers are joined until a bucket has so many bytes;
    - ``asynchronous``: siblings may be at different iterations;
    - ``apart``: siblings' parameters are meant to differ after an iteration;
    - ``joined``: a process's threads are joined after each iteration; False if siblings wait for each
      other by themselves;
    - ``notes``: what was chosen and why, for the user."""

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
        """The memory that the update works on, asked once all siblings are bound: this worker's own, or
        a master's parameters and state with the gradients to add."""
        return memory

    def begin(self) -> Work | None:
        """At the start of an iteration."""

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Before the first operation of an iteration that reads the bucket's parameters."""

    def owned(self, span: Span) -> Span:
        """The part of ``span`` that this worker holds complete after ``reduce``: all of it, a slice, or
        nothing. Only what a worker holds goes on to the next level."""
        return span

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Sum the siblings' gradients over ``span`` into the owners' parts."""

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Give all siblings the parameters of ``span`` from their owners."""

    def schedule(self, bucket: Bucket, chain: Work) -> Work:
        """The work that runs the bucket's ``chain`` (reduce, update, distribute of all levels). One that
        overlaps returns work that starts it elsewhere, and waits in ``before_forward`` or ``end``."""
        return chain

    def total(self, mine: Any, total: Any) -> Work | None:
        """``total``, a few float64 numbers, becomes the sum of what the siblings have in ``mine``, each
        of the parts that it owns; None where ``mine`` is that already, for one who owns all. For updates
        that need the size of whole gradients: after ``reduce``, before ``distribute``."""
        if self.size == 1:
            return None
        kind = type(self).__name__
        raise PlanError(f"{kind} cannot sum numbers over siblings, as the solver's update needs")

    def end(self) -> Work | None:
        """At the end of an iteration."""

    def quiesce(self) -> None:
        """Finish all that is under way: before a test, a snapshot, and the exit. The first sibling then
        has all parameters and all of the solver's state. Siblings of a process are asked in turn, so
        none may wait for another at the barrier."""

    def saved(self) -> Any:
        """What it keeps from one iteration to the next, for a snapshot, as plain data (numbers, text,
        bytes, lists, mappings), or None. All siblings are asked, with nothing under way."""

    def restore(self, saved: Any) -> None:
        """Take back what ``saved`` gave, with as many workers: after ``bind``, before any work."""

    def spans(self) -> Iterable[tuple[str, float, float]]:
        """(name, start, end) of what ran beside the step in the last iteration, in seconds of
        ``time.perf_counter``."""
        return ()

    def close(self) -> None:
        """Release threads and connections."""


def nested(levels: Sequence[GradientSync], bucket: Bucket) -> tuple[list[Work], Span, list[Work]]:
    """(reduces from the innermost level outwards, the part that this worker then owns, distributions
    back inwards) of a bucket; ``levels`` are innermost first."""
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
    """The work on a bucket whose gradients are final: reduce, update, distribute, ``levels`` innermost
    first. ``update`` is asked once, for the part that this worker then owns, if it owns some."""
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
