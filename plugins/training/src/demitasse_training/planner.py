"""How a net is planned for shapes of its inputs, and its plans that are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from demitasse import (
    PRECISIONS,
    DataSource,
    DataSpec,
    Kernels,
    NetDefinition,
    Parameter,
    Plan,
    Runtime,
    ShapeError,
    Slot,
    Step,
    WorkerPlace,
    make_plan,
)
from demitasse_training.alike import Alike
from demitasse_training.clipping import clip_normalisations
from demitasse_training.folding import fold_normalisations
from demitasse_training.graph import NetGraph
from demitasse_training.own_shapes import SampleShapes
from demitasse_training.recomputing import recompute
from demitasse_training.samples import Destination
from demitasse_training.shares import Share
from demitasse_training.walk import Walk

PLANS_KEPT = 8
TOGETHER = 1 << 23
"""Up to this many bytes, tensors computed from parameters alone, such as 16-bit copies, are all made at
the beginning of a step on an accelerator, many by one launch. Larger ones take longer than a launch of
their own (5 us), and would occupy memory long before they are read."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class Planned:
    """A net planned for one set of shapes, and what its user has made of the plan since: the step (the
    plan bound to memory), the destinations of its samples, and the walk. ``samples`` are the shapes of
    samples that differ from their source's first."""

    graph: NetGraph
    plan: Plan
    samples: SampleShapes
    step: Step | None = None
    outs: list[Destination] = field(default_factory=list)
    walk: Walk | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs."""
        return {name: tensor.shape for name, tensor in self.graph.inputs.items()}

    def forget(self) -> None:
        """Drop samples that are on their way here."""
        for out in self.outs:
            out.forget()

    def unbind(self) -> None:
        """Drop what was bound; the next use binds the plan anew."""
        self.forget()
        self.step, self.outs, self.walk = None, [], None


@dataclass
class Planner:
    """Plans a net at a worker's place. Parameters lie where ``slots`` has them or, without slots, where
    the plan puts them. ``backward`` is ``"objective"``, ``"every blob"`` or None; ``passes`` is as in a
    solver."""

    runtime: Runtime
    definition: NetDefinition
    worker: WorkerPlace
    kernels: Kernels
    open_source: Callable[[DataSpec], DataSource]
    phase: str
    precision: str
    seed: int
    retain: str | None
    backward: str | None
    passes: int
    slots: tuple[Slot, ...]
    owns_parameters: bool
    """Whether nobody but the net writes them. What depends on parameters alone is then computed once."""
    frees: bool = False
    """Whether parameters with rate 0 have gradients, too."""
    folds: bool = True
    """Whether layers may be folded into the weights before them, if parameters stay fixed."""
    tries: bool = True
    """Whether kernels are tried for each new set of input shapes. New shapes of samples reuse what was
    tried for other shapes, if there is something that fits."""
    alike: Alike | None = field(repr=False, default=None)
    """What was tried for other shapes."""
    share: Share = field(default_factory=Share)
    """The worker's share of the samples."""
    _kept: dict[Any, Planned] = field(init=False, repr=False, default_factory=dict)

    def planned(
        self, shapes: Shapes, first: int | None = None, samples: SampleShapes | None = None
    ) -> Planned:
        """Return the net planned for ``shapes`` of its inputs (a missing one has its declared shape) and
        for ``samples`` whose shapes differ from their source's first; with ``first``, only that many of
        its layers. The latest few plans are kept. Raises ModelError, or ShapeError if the shapes do not
        fit the layers or the parameters that the net has."""
        samples = samples or {}
        found = self._kept.pop(_key(shapes, first, samples), None) or self._plan(shapes, first, samples)
        key = _key(found.shapes, first, samples)
        self._kept.pop(key, None)
        self._kept[key] = found
        while len(self._kept) > PLANS_KEPT:
            self._kept.pop(next(iter(self._kept))).forget()
        return found

    def unbind(self) -> None:
        """Drop what is bound of all kept plans; the next use binds each anew."""
        for planned in self._kept.values():
            planned.unbind()

    def _plan(self, shapes: Shapes, first: int | None, samples: SampleShapes) -> Planned:
        kernels = self._kernels(self.tries and not samples)
        graph = NetGraph(
            self.runtime.vocabulary,
            phase=self.phase,
            dtype=PRECISIONS[self.precision],
            open_source=self.open_source,
            share=self.share,
            seed=self.seed,
            input_shapes=shapes,
            sample_shapes=samples,
            retain=self.retain,
            frees=self.frees,
        ).build(self._present(first), self.runtime.layer_types)
        if self.backward and self.retain is None:
            clip_normalisations(graph, kernels, self.worker.place)
        if self.backward:
            everything = self.backward == "every blob" or first is not None
            graph.differentiate(self.passes, every_blob=everything)
            if self.retain is None:
                recompute(graph, kernels, self.worker.place, self.worker.streams)
        for parameter in graph.parameters if shapes or samples else ():
            self._check_fit(parameter)
        fixed = self.owns_parameters and not self.backward
        if fixed and self.folds and self.retain is None:
            fold_normalisations(graph, kernels, self.worker.place)
        plan = make_plan(
            graph,
            kernels,
            self.worker.place,
            name=self.definition.name,
            slots=self.slots,
            retain=self.retain,
            precision=self.precision,
            fixed_parameters=fixed,
            parameters_first=TOGETHER if self.backward and self.worker.streams else 0,
        )
        return Planned(graph, plan, dict(samples))

    def _kernels(self, tries: bool) -> Kernels:
        """The kernels to plan with. Unless it ``tries``, they are chosen by what was tried for other
        shapes, if that fits."""
        if self.kernels.tuner is None:
            return self.kernels
        if self.alike is None:
            self.alike = Alike(self.kernels.tuner)
        return replace(self.kernels, tuner=replace(self.alike, tries=tries))

    def _present(self, first: int | None) -> NetDefinition:
        """The net, cut to the layers that are planned."""
        layers = self.definition.layers[:first]
        return self.definition if first is None else replace(self.definition, layers=layers)

    def _check_fit(self, parameter: Parameter) -> None:
        """Raise ShapeError if the parameter's shape differs from that in the net's first plan."""
        layer, number = parameter.owners[0]
        slot = next((slot for slot in self.slots if (layer, number) in slot.owners), None)
        if slot is not None and slot.spec.shape != parameter.tensor.shape:
            raise ShapeError(
                f"layer {layer!r} cannot take this input: its parameter {number} has shape "
                f"{slot.spec.shape}, but would need {parameter.tensor.shape}"
            )


def _key(shapes: Shapes, first: int | None, samples: SampleShapes) -> Any:
    return first, *(
        tuple(sorted((name, tuple(shape)) for name, shape in each.items())) for each in (shapes, samples)
    )
