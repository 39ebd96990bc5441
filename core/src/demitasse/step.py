"""The step: a plan bound to memory. Running it calls no hook, looks up no name and allocates nothing."""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import demitasse
from demitasse.arena import Memory
from demitasse.errors import NumericsError
from demitasse.operations.kernel import Work
from demitasse.plan import Buffer, Entry, Plan
from demitasse.synchronisation import GradientSync, Span, chain, nested

Update: TypeAlias = Callable[[Span], Work | None]
Measure: TypeAlias = Callable[[Span], Work]
Works: TypeAlias = defaultdict[int, list[Work]]


@dataclass
class Phases:
    """Seconds spent since the step was bound: waiting for samples, computing, synchronising."""

    read: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    synchronise: float = 0.0

    def taken(self, before: "Phases") -> dict[str, float]:
        return {name: value - getattr(before, name) for name, value in vars(self).items()}


class Step:
    """One worker's iteration over a bound plan.

    - ``memory`` has a block for each region; ``reads`` fetch the samples of a pass;
    - ``levels`` synchronise, innermost first;
    - ``update`` returns the solver's work on a span of flat memory. If there is a ``measure``, its work
      runs on all spans first, then ``measured``, and only then all updates;
    - ``clear`` zeroes gradients that several passes add to;
    - each of ``passes`` has ``batch`` samples, of which this worker's begin at ``offset``."""

    def __init__(
        self,
        plan: Plan,
        memory: Mapping[str, Memory],
        reads: Sequence[Work] = (),
        *,
        levels: Sequence[GradientSync] = (),
        update: Update | None = None,
        measure: Measure | None = None,
        measured: Sequence[Work] = (),
        clear: Work | None = None,
        passes: int = 1,
        batch: int = 0,
        offset: int = 0,
    ) -> None:
        self.plan, self.memory, self.reads = plan, memory, list(reads)
        self.passes, self.batch, self.offset = passes, batch, offset
        self.phases = Phases()
        self.numbers = {name: self.array(buffer) for name, buffer in plan.scalars.items()}
        self.told: dict[str, float] = {}
        self.losses = [(self.array(buffer), weight) for buffer, weight in plan.objective]
        read = [v.item if hasattr(v, "item") and v.size == 1 else v.sum for v, _ in self.losses]
        self._loss = [(value, weight) for value, (_, weight) in zip(read, self.losses, strict=True)]
        self.first, self.forward = list[Work](), list[Work]()
        self.backward, self.last = list[Work](), list[Work]()
        self.once, self.works = list[Work](), list[tuple[Entry, Work]]()
        before, after, finish = self._around(levels, update, measure)
        for i, entry in enumerate(plan.entries):
            self._bind(entry, before[i], after[i], update)
        self.last += [*measured, *finish]
        for row in (self.first, self.forward, self.backward, self.last):
            row[:] = in_rows(row)
        prepare((*self.once, *self.first, *self.forward, *self.backward, *self.last))
        self.begin = [w for level in levels if (w := level.begin()) is not None]
        self.end = [self._timed(w) for level in levels if (w := level.end()) is not None]
        if clear is not None and any(e.operation == "accumulate" for e in plan.entries):
            self.begin.append(clear)

    def _around(
        self, levels: Sequence[GradientSync], update: Update | None, measure: Measure | None
    ) -> tuple[Works, Works, list[Work]]:
        """Return the synchronisation and updates before and after each entry, and after measuring."""
        before, after, finish = Works(list), Works(list), list[Work]()
        cut, plan = {e.stretches[0].start for e in self.plan.entries if e.stretches}, self.plan
        for bucket, first, final in zip(plan.buckets, plan.first_read, plan.final, strict=True):
            waits = [level.before_forward(bucket) for level in reversed(levels)]
            before[first] += [self._timed(work) for work in waits if work is not None]
            if bucket.span.start in cut or update is None:
                continue
            if measure is not None:
                outwards, span, inwards = nested(levels, bucket)
                after[final] += [*map(self._timed, outwards), *([measure(span)] if span else [])]
                finish += [*filter(None, [update(span) if span else None]), *map(self._timed, inwards)]
            elif (work := chain(levels, bucket, update)) is not None:
                after[final].append(self._timed(work) if levels else work)
        return before, after, finish

    def _bind(self, entry: Entry, before: list[Work], after: list[Work], update: Update | None) -> None:
        """Bind an entry and queue its work; each stretch is updated before the next is made."""
        if entry.stretches:
            parts = self._bind_parts(entry)
            line = [w for part, s in parts for w in (part, update(s) if update else None) if w]
            work = _one([part for part, _ in parts])
        else:
            sides = list(map(self.array, entry.inputs)), list(map(self.array, entry.outputs))
            work = demitasse.bound(entry, entry.candidate.bind, *sides, self.array(entry.workspace))
            line = [work]
        self.works.append((entry, work))
        if entry.once:
            self.once.append(work)
            return
        ahead = entry.phase == "forward"
        (self.forward if ahead else self.backward).append(work)
        (self.first if ahead else self.last).extend((*before, *line, *after))

    def array(self, buffer: Buffer | None) -> Any:
        """Return the memory of a buffer, in its layout; None for None."""
        if buffer is None:
            return None
        spec = buffer.spec
        return self.memory[buffer.region].view(buffer.offset, spec.physical, spec.array_type)

    def _bind_parts(self, entry: Entry) -> list[tuple[Work, Span]]:
        """Return an entry's work for each stretch of its first output; all use the same memory."""
        first, *others = entry.outputs
        assert first is not None and entry.candidate.bind_part is not None
        inputs, rest = list(map(self.array, entry.inputs)), list(map(self.array, others))
        place, scratch = (len(entry.stretches[0]),), self.array(entry.workspace)
        stretch = self.memory[first.region].view(first.offset, place, first.spec.array_type)
        return [
            (
                demitasse.bound(
                    entry, entry.candidate.bind_part, number, inputs, [stretch, *rest], scratch
                ),
                span,
            )
            for number, span in enumerate(entry.stretches)
        ]

    def run(self, iteration: int, rate: float) -> float:
        """Run one iteration, every pass forward and backward; gradients become final in the last pass.
        Return this worker's share of the loss. If it is not finite, raise NumericsError before it can
        reach a parameter."""
        self.scalars(iteration, rate)
        clock, phases = time.perf_counter, self.phases
        for work in self.begin:
            work()
        loss = 0.0
        for number in range(self.passes):
            self.tell("sample", number * self.batch + self.offset)
            start = clock()
            for work in self.reads:
                work()
            read, before = clock(), phases.synchronise
            for work in self.forward if number else self.first:
                work()
            loss += self.loss() / self.passes
            forward, waited = clock(), phases.synchronise
            if not math.isfinite(loss):
                raise NumericsError(f"iteration {iteration}: the loss is {loss}")
            for work in self.last if number == self.passes - 1 else self.backward:
                work()
            phases.read += read - start
            phases.forward += forward - read - (waited - before)
            phases.backward += clock() - forward - (phases.synchronise - waited)
        for work in self.end:
            work()
        return loss

    def scalars(self, iteration: int, rate: float) -> None:
        """Set the scalars that kernels read."""
        self.tell("iteration", iteration)
        self.tell("sample", self.offset)
        self.tell("rate", rate)

    def tell(self, name: str, value: float) -> None:
        """Set a scalar if it has changed: on an accelerator each write costs a launch."""
        if self.told.get(name) != value:
            self.numbers[name][0] = self.told[name] = value

    def loss(self) -> float:
        """Return the objective of the last forward pass."""
        return sum(self.terms())

    def terms(self) -> list[float]:
        """Return the weighted losses of the last forward pass, whose sum is the objective."""
        return [weight * float(value()) for value, weight in self._loss]

    def _timed(self, work: Work) -> Work:
        clock, phases = time.perf_counter, self.phases

        def run() -> None:
            start = clock()
            work()
            phases.synchronise += clock() - start

        return run


def _one(works: Sequence[Work]) -> Work:
    line = in_rows(works)

    def run() -> None:
        for work in line:
            work()

    return line[0] if len(line) == 1 else run


def prepare(works: Sequence[Work]) -> None:
    """Let works prepare together before the first of them is called. Their attribute ``prepare``, the
    same function for all works of a kind, is called once, without arguments."""
    for ready in dict.fromkeys(getattr(work, "prepare", None) for work in works):
        if ready is not None:
            ready()


def in_rows(works: Sequence[Work]) -> list[Work]:
    """Return the works, after each run of neighbours with the same attribute ``join`` has been merged
    into one work by that function."""
    alike = itertools.groupby(works, lambda work: getattr(work, "join", None))
    rows = ((join, list(row)) for join, row in alike)
    return [work for join, row in rows for work in (row if join is None else [join(row)])]
