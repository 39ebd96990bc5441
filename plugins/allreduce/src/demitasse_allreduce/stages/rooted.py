"""S-Caffe's stages: one rank, the root, updates. Gradients are reduced to it, parameters broadcast from
it.

Source: Awan et al., "S-Caffe: Co-designing MPI Runtimes and Caffe for Scalable Deep Learning on Modern
GPU Clusters" (PPoPP 2017), sections 4.1 (SC-B), 4.2 (SC-OB and figure 4's naive variant), 4.3 (SC-OBR).
"""

from __future__ import annotations

from typing import Any

from demitasse import Bucket, Group, Span, Work
from demitasse_allreduce.stages.base import InLine, ProcessSync
from demitasse_allreduce.stages.forecast import forecast
from demitasse_allreduce.stages.lane import Task, Ticket
from demitasse_allreduce.stages.network import Network
from demitasse_allreduce.stages.options import NAIVE, SC_B, Options
from demitasse_allreduce.stages.parcels import Parcel, merged

AT_ONCE = 8
"""The most broadcasts under way at the same time. More would not use the link better, and each needs a
communicator."""


class RootedSync(ProcessSync):
    """The root holds the solver's state and updates. An iteration begins with broadcasts of its
    parameters.

    SC-B broadcasts all parameters before the forward pass and reduces all gradients after the backward
    pass. SC-OB posts a broadcast for each bucket (a layer) when the iteration begins, and waits for it
    just before the layer that needs it. The naive variant posts the broadcast of the next layer only
    when the wait for the current one ends. In SC-OBR a helper thread also reduces a layer's gradients
    while the layer before it computes.
    """

    def __init__(self, group: Group, options: Options, stage: str, network: Network) -> None:
        super().__init__(group, options, stage, at_once=False)
        self._network, self.told = network, network.notes
        self._read: dict[int, Bucket] = {}
        self._order: list[int] = []
        self._needed: list[int] = []
        self._posted = 0
        self._casts: dict[int, Task] = {}
        self._cast: dict[int, Ticket] = {}
        self._whole: list[Task] = []

    def owned(self, span: Span) -> Span:
        """Return the whole span for the root, and an empty span for all other ranks."""
        return span if self.index == 0 else Span(span.start, span.start)

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Return work that waits for the bucket's broadcast; in the naive variant it then also posts the
        next one."""
        self._read[bucket.index] = bucket
        if self.stage == SC_B:
            return super().before_forward(bucket)

        def work() -> None:
            self.reach(bucket.layers[-1])
            self._arrived(bucket.index)

        return work

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Return None: the next iteration begins with a broadcast."""
        return None

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return work that only copies: the root owns everything and updates alone, so no other rank
        needs the total."""

        def take() -> None:
            total[...] = mine

        return take

    def forecast(self) -> list[str]:
        """Return the algorithms for broadcasts and reductions, with their predicted times."""
        return forecast(self._network, ("broadcast", "reduce"))

    def sum_of(self, parcel: Parcel) -> Task:
        """Return the reduction of a parcel to the root."""
        return self._over("reduce", self.memory.gradients, parcel.pieces)

    def parcel_bytes(self) -> int:
        """Return 1: each layer has a reduction of its own (section 4.3)."""
        return 1

    def complete(self) -> None:
        """Give all ranks the root's parameters after the last iteration. An iteration that was
        interrupted may still have broadcasts to wait for, which were begun on all ranks."""
        self._all_arrived()
        self._broadcast_all("broadcast")

    def _over(self, goal: str, array: Any, pieces: list[Span], line: int = 0) -> Task:
        tasks = (self._network.task(goal, array[each.start : each.stop], line) for each in pieces)
        return InLine(list(tasks))

    def _spans(self) -> list[Span]:
        return merged(part.span for part in self._parts.values())

    def _broadcast_all(self, name: str) -> None:
        if not self._whole:
            self._whole = [self._over("broadcast", self.memory.parameters, self._spans())]
        self._do(self._whole[0], name)

    def _begin(self) -> None:
        super()._begin()
        if self.stage == SC_B:
            self._broadcast_all("broadcast")
            return
        if not self._casts:
            spans = {number: bucket.span for number, bucket in self._read.items()}
            array = self.memory.parameters
            self._casts = {
                number: self._over("broadcast", array, [span], number % AT_ONCE)
                for number, span in spans.items()
                if span
            }
            # The first forward pass shows in which order layers need their parameters. Until then, the
            # last bucket comes first.
            self._order = sorted(self._casts, reverse=True)
        if len(self._needed) == len(self._casts):
            self._order = self._needed
        self._needed, self._posted = [], 0
        self._post(1 if self.stage == NAIVE else len(self._order))

    def _post(self, count: int) -> None:
        """Begin the next broadcasts together, in the order in which layers need them."""
        numbers = self._order[self._posted : self._posted + count]
        self._posted += len(numbers)
        while numbers:
            # Buckets that are read one after the other have consecutive numbers, except in nets with
            # branches. Each line can be used only once in a posting.
            lines = [number % AT_ONCE for number in numbers]
            first = next((i for i, line in enumerate(lines) if line in lines[:i]), len(lines))
            now, numbers = numbers[:first], numbers[first:]
            named = [(self._casts[n], f"broadcast {self._read[n].layers[0]}") for n in now]
            self._cast |= dict(zip(now, self.lane().post(named), strict=True))

    def _arrived(self, number: int) -> None:
        """Wait until a bucket's parameters have arrived."""
        if number not in self._casts:
            return
        self._needed.append(number)
        while number not in self._cast:  # naive variant, and another bucket than expected is needed
            self._post(1)
        self.waited(self._cast.pop(number))
        if self.stage == NAIVE:
            self._post(1)

    def _all_arrived(self) -> None:
        """Wait for all remaining broadcasts, including those of layers that nobody has read."""
        self._post(len(self._order))
        for number in list(self._cast):
            self.waited(self._cast.pop(number))

    def _finish(self) -> None:
        self._all_arrived()
        super()._finish()
