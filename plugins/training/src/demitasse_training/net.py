"""A net in one phase: the part that its users call."""

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
"""Called with a batch's number, counted from 0, and its outputs by blob name."""


class Net(PlannedNet, Rooted):
    """A net that runs forward.

    ``path`` is a model file (or a definition); ``weights`` is a file's path, Weights, or several of
    them; ``demitasse.NetOptions`` explains the keywords. ``forward`` takes arrays by input name. It
    plans once for each set of shapes and keeps the latest few plans. A net with ``retain="all"`` can
    also be walked layer by layer (``walk``). If ``backward`` is given, it can be walked backward, too:
    from the objective, or with gradients of every blob. A trainer passes the function that opens data
    sources (``open_source``) and the memory that it has ``lent`` to the net.
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
        # Once a user has arrays through which to write parameters, whatever depends on parameters alone
        # is computed again in every forward pass.
        self._lent = False
        drawn = self.graph.scalars["iteration"]
        self._draws = any(drawn in node.inputs for node in self.graph.nodes)
        if lent is None:
            self._own_parameters()
            self._fill(weights, partial)

    def _fill(self, weights: WeightsFiles | None, partial: bool) -> None:
        """Fill the net's own parameters: first by their fillers, then from the weights given."""
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
        """Run all layers and return copies of the outputs. ``inputs``, by blob name, replace what is
        there; the others are kept. Each pass draws new random numbers; ``rewind`` starts them over.
        Calls from several threads run one after the other.

        Raises ModelError for an unknown input, for values that are not numbers, for NaN, and for
        infinities that a convolution or inner product would read; ShapeError if the net does not support
        a shape (it is then unchanged); DataError if samples that the net reads are not finite;
        WorkerError if reading its samples has been closed.
        """
        about = self.definition, self.graph, self._declared, np.dtype(self.dtype), self._finite
        arrays = {name: given_input(*about, name, value) for name, value in inputs.items()}
        return self._forward(arrays)

    def _forward(
        self, arrays: Mapping[str, np.ndarray], ahead: bool = False, planned: bool = False
    ) -> dict[str, np.ndarray]:
        """Run all layers. ``ahead`` says that more samples follow; ``planned`` is as for ``outputs``."""
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
        """Return copies of the blobs that no layer reads, as the last forward pass left them. With
        ``planned``, all have the shapes that were planned, even if a layer found fewer rows than there
        is room for."""
        views = self._views()
        each = (lambda name: views.values(name, name)) if planned else views.there
        return {name: np.array(each(name)) for name in self.plan.outputs}

    def test(self, iterations: int = 1, told: Told | None = None) -> dict[str, Any]:
        """Return the mean of each output over batches from the start of the data. Per-class outputs are
        lists. If a layer type computes a score from all batches, that score replaces the mean. ``told``
        is called with each batch's number, counted from 0, and its outputs."""
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
        """Return the tally of the outputs over batch ``first`` and every ``every``-th batch after it, up
        to ``iterations`` batches from the start of the data. ``stop`` is called between batches; once it
        returns true, the tally ends there."""
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
        """Return an empty tally, to which the outputs of so many batches will be added."""
        shapes = {name: buffer.spec.shape for name, buffer in self.plan.outputs.items()}
        return Tally(self.graph, shapes, iterations)

    @property
    def blobs(self) -> dict[str, Blob]:
        """Blobs by name."""
        return self._views().blobs

    @property
    def params(self) -> dict[str, list[np.ndarray]]:
        """Parameters by layer name, in logical (NCHW) order: live views if their layouts are plain,
        otherwise read-only copies. With ``retain="all"``, all are live."""
        if not self._lent:
            with self._one_at_a_time:
                self._unfold()
                self._lent = True
        return named_parameters(self.graph, self.plan, self._flat)

    def reshape(self, shapes: Mapping[str, tuple[int, ...]], first: int | None = None) -> None:
        """Plan for other shapes of inputs; arrays that others hold stay valid. With ``first``, plan only
        that many of the layers, for shapes that a later layer does not support. Raises ShapeError if the
        net does not support the shapes; it is then unchanged."""
        for name in shapes:
            if name not in self._declared:
                raise ModelError(unknown("input", name, self._declared, self.definition.location))
        given = {
            name: np.empty(shape).shape for name, shape in shapes.items()
        }  # fails for a shape that no array can have
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
        """The net's walk, to run it layer by layer; another shape has another walk. Needs
        ``retain="all"`` and memory that the host can address."""
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
            feeds, read = enumerate(self.graph.feeds), weakly(self._read)  # the net owns the walk
            reads = [(feed.layer, partial(read, number)) for number, feed in feeds]
            self._made.walk = Walk(self.graph, step, reads, self._flat, self._gradients)
            self._made.walk.iteration = self._walked
        return self._made.walk

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """Return the mean seconds of each entry over some forward passes, except what is computed
        once."""
        at_least_one(iterations)
        with self._one_at_a_time:
            self.forward()
            step = self.step
            reads = [partial(o.take, s) for s, o in zip(self.streams, self._made.outs, strict=True)]
            if self._follows:  # keep the same samples: others may have other shapes
                reads = []
            return timed(step, iterations, reads, self.runtime.engine(self.worker))

    def __repr__(self) -> str:
        inputs = ", ".join(f"{n} {extents(t.shape)}" for n, t in self.graph.inputs.items())
        layers = ", ".join(feed.layer for feed in self.graph.feeds)
        source = f"inputs {inputs}" if inputs else f"samples from {layers or 'nowhere'}"
        named = " ".join(filter(None, ("net", self.definition.name)))
        return f"<{named} ({self.phase}), {len(self.definition.layers)} layers, {source}>"

    # The end of its life.

    def close(self) -> None:
        """End reading ahead, and unbind the threads that ran the net. Its arrays can still be read, and
        a net without data layers can still run."""
        with self._one_at_a_time:
            self.pause()
            self._enter.leave()
            self.closed = True

    def __enter__(self) -> Net:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_made"):  # dropped without close(): end its reading
            self.close()
