"""A replica that executes nothing, but predicts what its scheme takes on the described machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from demitasse import Bucket, CompositionError, DescriptionError, FlatMemory, GradientSync, Group, Span
from demitasse_cgdp.chunks import ChunkSearch, chunks
from demitasse_cgdp.model.definitions import LayerTimes, best_chunk, in_turn, joined
from demitasse_cgdp.model.rates import Rates, Tree, rates_of, tree_of
from demitasse_cgdp.options import Options

Stage = tuple[str, str, float]
"""Where a stage runs (``compute``: on the accelerator itself), its name, and its seconds."""


class Predicted(GradientSync):
    """One replica's part in a simulation. ``stages`` says what is exchanged when; ``workspace_bytes``,
    how much memory the scheme needs on the accelerator; ``sources``, where the numbers come from.
    ``rates`` and ``tree`` hold the description's numbers; for the scheme not chosen, they are None if
    the description lacks a number. Raises DescriptionError if the chosen scheme's number is missing."""

    def __init__(self, group: Group, options: Options, where: str) -> None:
        self.index, self.size = group.index, group.team.size if group.team is not None else 1
        self.options, self._item = options, np.dtype(group.dtype).itemsize
        self.sources: list[str] = []
        self.rates: Rates | None = None
        self.tree: Tree | None = None
        self._lacks = ""
        typical = options.scheme == "typical"
        try:
            self.rates = rates_of(group, where)
        except DescriptionError as error:
            if not typical:
                raise
            self._lacks = str(error)
        try:
            self.tree = tree_of(group)
        except DescriptionError as error:
            if typical:
                raise
            self._lacks = str(error)

    def bind(self, memory: FlatMemory) -> None:
        """Raise CompositionError: there are no streams in which anything could run."""
        raise CompositionError(
            "plugin 'cgdp' only predicts the time of this exchange: the workers have no streams here"
        )

    def owned(self, span: Span) -> Span:
        """Return the whole span for each replica of CGDP, and for the typical scheme's accelerator 0."""
        everything = self.options.scheme == "cgdp" or self.index == 0
        return span if everything else Span(span.start, span.start)

    def workspace_bytes(self, elements: int) -> int:
        """Return the bytes on accelerator 0 for others' gradients (section 5.2.4): none for CGDP."""
        if self.options.scheme != "typical" or self.tree is None:
            return 0
        return self.tree.room(elements * self._item)

    def stages(
        self, buckets: Sequence[Bucket], ready: Sequence[float]
    ) -> list[tuple[tuple[int, ...], list[Stage], list[Stage]]]:
        """Return, for each group of buckets that are sent together: the buckets' indices, the stages
        between the last of their gradients and their update, and the stages after it. ``buckets`` are in
        the order in which backward finishes them, at the times ``ready``."""
        layers = self._layers(buckets, ready)
        self._say(buckets, layers)
        every = tuple(bucket.index for bucket in buckets)
        size = float(sum(len(bucket.span) for bucket in buckets) * self._item)
        if self.options.scheme == "typical":
            assert self.tree is not None
            collect = [("compute", "collect gradients", self.tree.collect(size))]
            return [(every, collect, [("compute", "broadcast", self.tree.broadcast(size))])]
        return [self._chunk(chunk) for chunk in chunks(buckets, self._size(layers))]

    def _chunk(self, chunk: Sequence[Bucket]) -> tuple[tuple[int, ...], list[Stage], list[Stage]]:
        assert self.rates is not None
        size = float(sum(len(bucket.span) for bucket in chunk) * self._item)
        down, add, up = self.rates.transfers(size, self.size)
        slower = self.rates.slower(size, self.size)
        first, last = chunk[0].layers[0], chunk[-1].layers[-1]
        name = first if first == last else f"{first} to {last}"
        before = [
            ("compute", f"synchronise {name}", self.rates.synchronise),
            ("compute", f"beside copies of {name}", slower),
            ("d2h", f"copy {name} to the host", down),
            ("host", f"accumulate {name}", add),
            ("h2d", f"copy {name} back", up),
        ]
        return tuple(bucket.index for bucket in chunk), before, []

    def _layers(self, buckets: Sequence[Bucket], ready: Sequence[float]) -> list[LayerTimes]:
        """Return the model's terms for each bucket. Backward begins with the first bucket's layer."""
        times = [after - before for before, after in pairwise((ready[0], *ready))] if ready else []
        if self.rates is None:
            return [LayerTimes(time) for time in times]
        found = []
        for bucket, time in zip(buckets, times, strict=True):
            sent = float(len(bucket.span) * self._item)
            down, add, up = self.rates.transfers(sent, self.size)
            slower = self.rates.slower(sent, self.size)
            found.append(LayerTimes(time + slower, self.rates.synchronise, down + add, up, down))
        return found

    def _size(self, layers: Sequence[LayerTimes]) -> int:
        return self.options.chunk or best_chunk(layers)[0]

    def _say(self, buckets: Sequence[Bucket], layers: Sequence[LayerTimes]) -> None:
        """Add to ``sources`` which scheme pays, and with which chunk size."""
        self.sources = [*(self.rates.sources if self.rates else ())]
        self.sources += self.tree.sources if self.tree else ()
        if self.rates is None or self.tree is None:
            self.sources.append(f"the other scheme is not compared: {self._lacks}")
            return
        size = float(sum(len(bucket.span) for bucket in buckets) * self._item)
        alone = sum(layer.bp for layer in layers) - self.rates.slower(size, self.size)
        chunk = self._size(layers)
        over = in_turn(joined(layers, chunk)) - alone
        other = self.tree.collect(size) + self.tree.broadcast(size)
        better, by = ("cgdp pays", other - over) if over < other else ("typical pays", over - other)
        self.sources.append(
            f"cost model: beyond backward, cgdp takes {over * 1e3:.3f} ms in chunks of {chunk}, typical "
            f"{other * 1e3:.3f} ms: {better}, by {by * 1e3:.3f} ms (simulated)"
        )
        if self.options.chunk is None:
            sizes = range(1, len(layers) + 1)
            found = self._searched(layers)
            self.sources.append(
                f"chunks of {chunk}: the best of {len(sizes)} sizes; Algorithm 1 (step "
                f"{self.options.step}, range {self.options.reach}) finds {found}"
            )

    def _searched(self, layers: Sequence[LayerTimes]) -> int:
        """Return the size that Algorithm 1 settles on if iterations take the predicted time."""
        search = ChunkSearch(self.options.step, self.options.reach, 1)
        while not search.done:
            search.iterated(in_turn(joined(layers, search.chunk)))
        return search.best_chunk
