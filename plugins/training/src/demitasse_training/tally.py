"""The outputs of a test's batches, added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Processes
from demitasse_training.graph import NetGraph, Scoring
from demitasse_training.own_shapes import varying


class Tally:
    """The sum of each output over batches, in float64; its mean is the output's score. If an output's
    layer type computes the score itself, from all batches together, the rows of all batches are kept
    instead. An output whose shape differs between batches has no mean, and no score."""

    def __init__(self, graph: NetGraph, shapes: Mapping[str, tuple[int, ...]], iterations: int) -> None:
        """Begin a tally of outputs with these planned ``shapes``, over ``iterations`` batches."""
        self._scoring: dict[str, Scoring] = {
            name: graph.scoring[tensor]
            for name in shapes
            if (tensor := graph.blobs[name]) in graph.scoring
        }
        self._iterations, self._graph, self._outputs = iterations, graph, tuple(shapes)
        self.sums = {n: np.zeros(shape) for n, shape in shapes.items() if n not in self._scoring}
        self.rows: dict[str, dict[int, np.ndarray]] = {name: {} for name in self._scoring}
        self._batches, self._unlike = 0, set[str]()
        self._follows = bool(varying(graph))  # the same in all processes

    def add(self, number: int, outputs: Mapping[str, np.ndarray]) -> None:
        """Add the outputs of batch ``number``, in their planned shapes."""
        for name, value in outputs.items():
            if name in self.sums:
                self._add(name, value)
                continue
            found = self._graph.found.get(self._graph.blobs[name])
            kept = np.array(value if found is None else found(value), np.float64)
            self.rows[name][number] = kept.reshape(-1, kept.shape[-1])
        self._batches += 1

    def _add(self, name: str, value: np.ndarray) -> None:
        if not self._batches and value.shape != self.sums[name].shape:
            self.sums[name] = np.zeros(value.shape)  # it was planned for other samples
        if value.shape == self.sums[name].shape:
            self.sums[name] += value
        else:
            self._unlike.add(name)

    def merge(self, others: Sequence[Tally]) -> Tally:
        """Add what others of the same net have of other batches; return self."""
        for other in (other for other in others if other._batches):
            self._unlike |= other._unlike
            for name, value in other.sums.items():
                self._add(name, value)
            for name, rows in other.rows.items():
                self.rows[name] |= rows
            self._batches += other._batches
        return self

    def total(self, processes: Processes) -> Tally:
        """Add what other processes have; return self. All processes must call this."""
        if self._follows:
            self._agree(processes)
        flat = np.concatenate([np.zeros(0), *(np.ravel(value) for value in self.sums.values())])
        cuts = np.cumsum([np.size(value) for value in self.sums.values()])
        whole = np.split(processes.total(flat), cuts)
        for (name, value), part in zip(self.sums.items(), whole, strict=False):
            self.sums[name] = part.reshape(np.shape(value))
        if self.rows:
            mine = {
                name: [[number, part.shape[-1], part.tobytes()] for number, part in rows.items()]
                for name, rows in self.rows.items()
            }
            for theirs in processes.gather(mine):
                for name, parts in theirs.items():
                    for number, width, data in parts:
                        self.rows[name][number] = np.frombuffer(data).reshape(-1, width)
        return self

    def _agree(self, processes: Processes) -> None:
        """Give sums the same shape in all processes; if shapes differ, the output has no sum."""
        shapes = {name: list(value.shape) for name, value in self.sums.items()}
        told = processes.gather([self._batches, shapes, sorted(self._unlike)])
        some = [(theirs, unlike) for batches, theirs, unlike in told if batches]
        for theirs, unlike in some:
            self._unlike |= {name for name in shapes if theirs[name] != some[0][0][name]} | {*unlike}
        for name, value in self.sums.items():
            shape = (0,) if name in self._unlike else some[0][0][name] if some else value.shape
            if list(value.shape) != list(shape):
                self.sums[name] = np.zeros(shape)

    def scores(self) -> dict[str, Any]:
        """Return means, as numbers, or lists for outputs with several elements; and layer types' own
        scores."""
        found: dict[str, Any] = {}
        for name in self._outputs:
            if name in self._unlike:
                continue
            if name in self.sums:
                mean = self.sums[name] / self._iterations
                found[name] = float(mean.reshape(-1)[0]) if mean.size == 1 else mean.tolist()
            else:
                batches = [rows for _, rows in sorted(self.rows[name].items())]
                made = self._scoring[name](batches)
                found |= {f"{name}{ending}": value for ending, value in made.items()}
        return found
