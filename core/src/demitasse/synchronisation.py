"""Gradient synchronisation: how the siblings of one level come to agree, and how levels nest. A bucket's
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
    """A part of flat memory, in elements, from ``start`` up to but not including ``stop``."""

    start: int
    stop: int

    def __len__(self) -> int:
        return max(0, self.stop - self.start)


@dataclass(frozen=True)
class Bucket:
    """Parameters that are synchronised together: their span of flat memory (which is in the order in
    which backward finishes the gradients) and the layers that they belong to."""

    index: int
    span: Span
    layers: tuple[str, ...]


@dataclass
class FlatMemory:
    """A worker's trainable parameters, gradients and solver state, as flat arrays in the same order.
    ``numbers`` are the scalars that its update reads (rate, iteration), by operand, if it has its own.
    ``slots`` say where each parameter lies. Elements between slots, and the padding of a slot's layout,
    are zero in all arrays and must stay zero."""

    parameters: Any
    gradients: Any
    state: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Any] = field(default_factory=dict)
    slots: Sequence["Slot"] = ()


class Team:
    """The siblings of one group that share an address space. ``memory`` has an entry for each sibling
    before any of them binds. ``barrier`` lets them wait for each other, and breaks when one fails.
    ``failures`` counts the runs that ended this way; anything that siblings kept from before is void."""

    def __init__(self, size: int, memory: Iterable[FlatMemory] = ()) -> None:
        self.size, self.memory, self.barrier = size, list(memory), threading.Barrier(size)
        self.failures = 0


class Processes:
    """The processes of a run; this one is ``rank`` of ``size``, and ``sharing`` of them use its cores.
    This class is for a single process; a plugin provides more. Code that waits calls ``check``."""

    rank: int = 0
    size: int = 1
    sharing: int = 1

    def gather(self, value: Any) -> list[Any]:
        """Return each process's value, by rank: plain data (numbers, text, bytes, lists, mappings)."""
        return [value]

    def total(self, values: Any) -> Any:
        """Return the sum of a few float64 numbers over all processes, with the same bits in each."""
        return values

    def report(self, iteration: int, layer: str = "") -> None:
        """Record what this process is doing, for the errors of processes that wait for it."""

    def check(self) -> None:
        """Raise WorkerError if one failed or stalled, with its rank, host, layer and last iteration."""

    def fail(self, error: BaseException) -> None:
        """Tell the other processes why this one ends."""

    def close(self) -> None:
        """Disconnect from the other processes."""


ALONE = Processes()


@dataclass(frozen=True)
class Group:
    """A worker's group of siblings, which a synchronisation is asked to serve.

    - ``levels``: the names of its levels, outermost first;
    - ``index``, ``team``: this worker's number among its siblings in this process, and their team (None
      if it has no sibling here);
    - ``remote``: whether some siblings are in other processes; if so, ``collectives`` has the plugins'
      algorithms, by name;
    - ``options``: those of the description's ``sync``;
    - ``engine``: the worker's streams, if it computes in streams."""

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
    """One level's synchronisation, for one worker. A subclass overrides the methods that it needs. The
    work that a method returns runs in each iteration, at the point that the method names.

    - ``index``, ``size``: this worker's number among its siblings, and how many there are;
    - ``shares_parameters``: siblings may read and write one copy of the parameters;
    - ``space``: the memory space that flat memory must be in (None: the worker's own);
    - ``bucket_bytes``: gradients of neighbouring layers are joined until a bucket has this many bytes;
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
        """Receive this worker's memory. Called once, before any work is asked for."""

    def update_memory(self, memory: FlatMemory) -> FlatMemory:
        """Return the memory that the update works on: this worker's own, or a master's parameters and
        state with the gradients to add. Called after all siblings are bound."""
        return memory

    def begin(self) -> Work | None:
        """Return work for the start of an iteration."""

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Return work to do before an iteration's first operation that reads the bucket's parameters."""

    def owned(self, span: Span) -> Span:
        """Return the part of ``span`` that this worker holds complete after ``reduce``: all, a slice, or
        nothing. Only that part goes on to the next level."""
        return span

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that sums the siblings' gradients over ``span`` into the owners' parts."""

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Return work that gives all siblings the parameters of ``span`` from their owners."""

    def schedule(self, bucket: Bucket, chain: Work) -> Work:
        """Return work that runs the bucket's ``chain`` (reduce, update, distribute of all levels). To
        overlap, return work that starts it elsewhere, and wait in ``before_forward`` or ``end``."""
        return chain

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return work that makes ``total``, a few float64 numbers, the sum of the siblings' ``mine``,
        each of the parts that it owns; None if ``mine`` is the sum already (for an owner of everything).
        For updates that need the size of whole gradients: after ``reduce``, before ``distribute``."""
        if self.size == 1:
            return None
        kind = type(self).__name__
        raise PlanError(f"{kind} cannot sum numbers over siblings, as the solver's update needs")

    def end(self) -> Work | None:
        """Return work for the end of an iteration."""

    def quiesce(self) -> None:
        """Finish all that is under way, before a test, a snapshot, and the exit. The first sibling then
        has all parameters and all of the solver's state. The siblings of a process are called in turn,
        so none may wait for another at the barrier."""

    def saved(self) -> Any:
        """Return what it keeps between iterations, for a snapshot, as plain data (numbers, text, bytes,
        lists, mappings), or None. Called for all siblings, with nothing under way."""

    def restore(self, saved: Any) -> None:
        """Restore what ``saved`` returned, for as many workers; after ``bind``, before any work."""

    def spans(self) -> Iterable[tuple[str, float, float]]:
        """Return (name, start, end) of everything that ran beside the step in the last iteration, in
        seconds of ``time.perf_counter``."""
        return ()

    def close(self) -> None:
        """Release threads and connections."""


def nested(levels: Sequence[GradientSync], bucket: Bucket) -> tuple[list[Work], Span, list[Work]]:
    """Return a bucket's reductions from the innermost level outwards, the part that this worker then
    owns, and the distributions back inwards. ``levels`` are innermost first."""
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
    """Return the work on a bucket whose gradients are final: reduce, update, distribute. ``levels`` are
    innermost first; ``update`` is called once, for the part that this worker then owns, if any."""
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
