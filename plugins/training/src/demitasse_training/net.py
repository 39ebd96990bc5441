"""A net in one phase: what its users call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from demitasse import (
    PRECISIONS,
    DataSource,
    DataSpec,
    Entry,
    ModelError,
    NetDefinition,
    Rooted,
    Runtime,
    WeightsFiles,
    arrange,
    blamed_inside,
    unknown,
)
from demitasse_training import parameters
from demitasse_training.arguments import (
    at_least_one,
    check_backward,
    check_overrides,
    check_retain,
    chosen_precision,
    read_weights,
    whole_seed,
)
from demitasse_training.entrance import Entrance
from demitasse_training.inputs import given_input
from demitasse_training.lent import Lent
from demitasse_training.planned_net import PlannedNet
from demitasse_training.planner import Planner
from demitasse_training.profiling import timed
from demitasse_training.samples import opener
from demitasse_training.shares import Share
from demitasse_training.tally import Tally
from demitasse_training.terms import loss_weights
from demitasse_training.views import Blob, extents, named_parameters
from demitasse_training.walk import Walk
from demitasse_training.weak_methods import weakly

Told: TypeAlias = Callable[[int, Mapping[str, np.ndarray]], object]
"""Takes a batch's number, from 0, and its outputs by blob name."""


class Net(PlannedNet, Rooted):
    """A net that runs forward.

    ``path`` is a model file (or a definition), ``weights`` a file's path, Weights, or several;
    ``demitasse.NetOptions`` explains the keywords. ``forward`` takes arrays by input name and plans
    again, once for each set of shapes (the latest few are kept). A net with ``retain="all"`` can also be
    walked layer by layer (``walk``), and backward if it is asked for: from the objective, or with
    gradients of every blob. A trainer gives a net of its own where it reads samples (``open_source``)
    and what it has ``lent`` the net.
    """

    elsewhere = "make another there, by runtime.net(path, weights=...)"

    def __init__(
        self,
        runtime: Runtime,
        path: str | Path | NetDefinition,
        *,
        weights: WeightsFiles | None = None,
        phase: str = "test",
        precision: str | None = None,
        retain: str | None = None,
        backward: str | None = None,
        data: Mapping[str, Mapping[str, Any] | DataSpec] | None = None,
        overrides: Mapping[str, Any] | None = None,
        seed: int = 0,
        passes: int = 1,
        partial: bool = False,
        open_source: Callable[[DataSpec], DataSource] | None = None,
        lent: Lent | None = None,
    ) -> None:
        self._one_at_a_time = threading.RLock()
        self.loaded: dict[str, parameters.Loaded] = {}
        check_overrides(overrides)
        check_retain(retain)
        has_gradients = lent is not None and lent.gradients is not None
        check_backward(backward, "all" if has_gradients else retain)
        seed, precision = whole_seed(seed), chosen_precision(runtime, precision)
        if isinstance(path, NetDefinition):
            definition = path
        else:
            definition = runtime.read(path).net(phase, overrides)
        if lent is not None:
            worker = lent.worker
        else:
            worker = arrange(runtime.machine, PRECISIONS[precision], runtime.processes)[0]
        self._enter = Entrance(runtime.allocator(worker.space))
        planner = Planner(
            runtime,
            definition,
            worker,
            runtime.kernels(worker),
            open_source or opener(runtime, data, phase),
            phase=phase,
            precision=precision,
            seed=seed,
            retain=retain,
            backward=backward,
            passes=passes,
            slots=() if lent is None else lent.slots,
            owns_parameters=lent is None,
            frees=lent is None and backward == "every blob",
            share=Share() if lent is None else lent.share,
        )
        super().__init__(runtime, planner, lent)
        if phase in (data or {}) and not self.graph.feeds:
            raise ModelError(
                f"{self.definition.location}: data is given for phase {phase!r}, but the net has no "
                f"layer that reads samples; give arrays to forward() by input name instead (inputs: "
                f"{', '.join(self.graph.inputs) or 'none'})"
            )
        # Once somebody has arrays to write parameters through, what depends on parameters alone is done
        # again at every forward.
        self._lent = False
        drawn = self.graph.scalars["iteration"]
        self._draws = any(drawn in node.inputs for node in self.graph.nodes)
        if lent is None:
            self._own_parameters()
            self._fill(weights, partial)

    def _fill(self, weights: WeightsFiles | None, partial: bool) -> None:
        """Fill the net's own parameters: by their fillers, then by the weights that are given."""
        parameters.fill(self.graph, self.plan, self._flat, self.seed)
        for each, record in read_weights(self.runtime, weights):
            self.loaded[each] = parameters.load(
                *(self.graph, self.plan, self._flat, record.parameters, each),
                partial=partial,
                notes=record.notes,
            )
        level = logging.WARNING if self.phase == "test" else logging.INFO
        parameters.tell_missing(level, self.definition.location, self.loaded)

    # What a user calls.

    def forward(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Run all layers; ``inputs`` by blob name replace what is there. Copies of the outputs. Random
        numbers are new in every pass, and those of the first again after ``rewind``. Threads that call
        at once are served one after the other.

        Raises ModelError for what is no input, no numbers, NaN, or infinite where a convolution or an
        inner product reads it, ShapeError when the net cannot take a shape, the net being then as it
        was; DataError for samples that it reads and that are not finite; WorkerError where its samples'
        reading was closed.
        """
        about = self.definition, self.graph, self._declared, np.dtype(self.dtype), self._finite
        arrays = {name: given_input(*about, name, value) for name, value in inputs.items()}
        return self._forward(arrays)

    def _forward(
        self, arrays: Mapping[str, np.ndarray], ahead: bool = False, planned: bool = False
    ) -> dict[str, np.ndarray]:
        """``ahead``: samples follow; ``planned``: as ``outputs`` has it."""
        engine = self.runtime.engine(self.worker)
        with self._one_at_a_time, blamed_inside(engine, self.worker.space):
            self._check_open()
            self._enter()
            given, present = {name: array.shape for name, array in arrays.items()}, self._made.shapes
            if (wanted := {**present, **given}) != present:
                self._replan(wanted, given)

            def run(again: bool) -> None:
                step = self.step
                if self._draws:
                    step.scalars(self._batch, 0.0)
                if not again:
                    for name, array in arrays.items():
                        self._input(name)[...] = array
                    self.read(ahead and not self._follows)
                    self._check_samples()
                if self._lent or self._once is not step:
                    self._do_once(step)
                for work in step.forward:
                    work()

            self.run_through(self.coming(), run)
            self._batch += self._every
            return self.outputs(planned)

    def outputs(self, planned: bool = False) -> dict[str, np.ndarray]:
        """Copies of the blobs that no layer reads, as the last forward left them; in the shapes that
        were ``planned`` also those of which a layer has not found as many rows as there is room for."""
        views = self._views()
        each = (lambda name: views.values(name, name)) if planned else views.there
        return {name: np.array(each(name)) for name in self.plan.outputs}

    def test(self, iterations: int = 1, told: Told | None = None) -> dict[str, Any]:
        """The mean of each output over batches from the start of the data; per-class outputs are
        lists, and where a layer type scores its own from all batches that stands in their place.
        ``told`` is called with each batch's number, from 0, and its outputs."""
        return self.tally(iterations, told=told).scores()

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weights of the blobs that count in the loss."""
        return dict(loss_weights(self.definition, self.runtime.layer_types))

    def tally(
        self,
        iterations: int,
        first: int = 0,
        every: int = 1,
        told: Told | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Tally:
        """What the outputs come to over batches number ``first`` and each ``every`` after it, of
        ``iterations`` from the start of the data; of fewer once ``stop``, asked between two of them, is
        true."""
        with self._one_at_a_time:
            self.rewind(first, every)
            tally = self.empty_tally(iterations)
            for number in range(first, iterations, every):
                if stop is not None and number > first and stop():
                    break
                outputs = self._forward({}, number + every < iterations, planned=True)
                tally.add(number, outputs)
                if told is not None:
                    told(number, outputs)
            return tally

    def empty_tally(self, iterations: int) -> Tally:
        """One to which the outputs of so many batches are added."""
        shapes = {name: buffer.spec.shape for name, buffer in self.plan.outputs.items()}
        return Tally(self.graph, shapes, iterations)

    @property
    def blobs(self) -> dict[str, Blob]:
        """Blobs by name."""
        return self._views().blobs

    @property
    def params(self) -> dict[str, list[np.ndarray]]:
        """Parameters by layer name, in logical (NCHW) order; live views where layouts are plain,
        else read-only copies; with ``retain="all"`` all are live."""
        if not self._lent:
            with self._one_at_a_time:
                self._unfold()
                self._lent = True
        return named_parameters(self.graph, self.plan, self._flat)

    def reshape(self, shapes: Mapping[str, tuple[int, ...]], first: int | None = None) -> None:
        """Plan for other shapes of inputs; what others hold is kept. With ``first`` only that many of
        the layers, for shapes that a later one cannot take. Raises ShapeError when the net cannot take
        them, and is then as it was."""
        for name in shapes:
            if name not in self._declared:
                raise ModelError(unknown("input", name, self._declared, self.definition.location))
        given = {
            name: np.empty(shape).shape for name, shape in shapes.items()
        }  # an array must be able to have it
        with self._one_at_a_time:
            present, before = self._made.shapes, self._first
            wanted = {**present, **given}
            if wanted != present or first != before:
                self._first = first
                try:
                    self._replan(wanted, given)
                except ModelError:
                    self._first = before
                    raise

    @property
    def walk(self) -> Walk:
        """The net as one walks it layer by layer; another one for other shapes. Needs
        ``retain="all"``, and memory that the host addresses."""
        if self._planner.retain != "all":
            raise ModelError("to run a net layer by layer, plan it with retain='all'")
        if not isinstance(self._flat, np.ndarray):
            there = f"level {self.worker.place.level!r} has it in {self.worker.space!r}"
            raise ModelError(
                f"{self.definition.location}: running a net layer by layer needs host memory, but "
                f"{there}; compose for a machine whose workers compute on the host"
            )
        self._enter()
        step = self.step
        if self._made.walk is None:
            feeds, read = enumerate(self.graph.feeds), weakly(self._read)  # the net has the walk
            reads = [(feed.layer, partial(read, number)) for number, feed in feeds]
            self._made.walk = Walk(self.graph, step, reads, self._flat, self._gradients)
            self._made.walk.iteration = self._walked
        return self._made.walk

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """The mean seconds of each entry over some forward passes, but for what is done once."""
        at_least_one(iterations)
        with self._one_at_a_time:
            self.forward()
            step = self.step
            reads = [partial(o.take, s) for s, o in zip(self.streams, self._made.outs, strict=True)]
            if self._follows:  # the same samples again: others may have other shapes
                reads = []
            return timed(step, iterations, reads, self.runtime.engine(self.worker))

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n} {extents(t.shape)}" for n, t in self.graph.inputs.items())
        layers = ", ".join(feed.layer for feed in self.graph.feeds)
        source = f"inputs {inputs}" if inputs else f"samples from {layers or 'nowhere'}"
        named = " ".join(filter(None, ("net", self.definition.name)))
        return f"<{named} ({self.phase}), {len(self.definition.layers)} layers, {source}>"

    # Its end.

    def close(self) -> None:
        """End the reading ahead; threads that ran the net are bound no longer. What it has can still be
        looked at, and one that is given its inputs still runs."""
        with self._one_at_a_time:
            self.pause()
            self._enter.leave()
            self.closed = True

    def __enter__(self) -> Net:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_made"):  # dropped without a word: its reading ends with it
            self.close()
