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
"""What is made of parameters alone, such as copies in 16 bits, an accelerator makes in line at a step's
beginning, many by one launch, unless it has more bytes: those take longer than their own launch (5 us),
and would take memory long before they are read."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass
class Planned:
    """A net planned for one set of shapes, and what its user has made of the plan since: the step that
    it is when bound to memory, where that has its samples, and the walk over it. ``samples`` are those
    shapes of samples that are not their source's."""

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
        """Have no samples on their way to it."""
        for out in self.outs:
            out.forget()

    def unbind(self) -> None:
        """Have it bound anew when it is next used."""
        self.forget()
        self.step, self.outs, self.walk = None, [], None


@dataclass
class Planner:
    """Plans a net at a worker's place, its parameters where ``slots`` has them; its own where there are
    none. ``backward`` is ``"objective"``, ``"every blob"`` or None; ``passes`` as in a solver."""

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
    """Whether only the net itself writes them: what depends on them alone is then done once."""
    frees: bool = False
    """Whether parameters whose rate is 0 have gradients, too."""
    folds: bool = True
    """Whether layers may be folded into the weights before them, where it is so."""
    tries: bool = True
    """Whether kernels are tried for each set of shapes of the inputs; for those of samples they are not,
    where they were for others."""
    alike: Alike | None = field(repr=False, default=None)
    """What was tried for others."""
    share: Share = field(default_factory=Share)
    """The worker's, of the samples."""
    _kept: dict[Any, Planned] = field(init=False, repr=False, default_factory=dict)

    def planned(
        self, shapes: Shapes, first: int | None = None, samples: SampleShapes | None = None
    ) -> Planned:
        """The net planned for ``shapes`` of its inputs (the declared one where one is missing), and for
        ``samples`` that are not shaped as their source's first; with ``first`` only that many of its
        layers. The latest few are kept. Raises ModelError, or ShapeError where the shapes do not go with
        the layers or with the parameters that the net has."""
        samples = samples or {}
        found = self._kept.pop(_key(shapes, first, samples), None) or self._plan(shapes, first, samples)
        key = _key(found.shapes, first, samples)
        self._kept.pop(key, None)
        self._kept[key] = found
        while len(self._kept) > PLANS_KEPT:
            self._kept.pop(next(iter(self._kept))).forget()
        return found

    def unbind(self) -> None:
        """Have all kept plans bound anew when they are next used."""
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
        """Those that plan; unless it ``tries``, what was tried for other shapes tells which."""
        if self.kernels.tuner is None:
            return self.kernels
        if self.alike is None:
            self.alike = Alike(self.kernels.tuner)
        return replace(self.kernels, tuner=replace(self.alike, tries=tries))

    def _present(self, first: int | None) -> NetDefinition:
        """The layers that are planned."""
        layers = self.definition.layers[:first]
        return self.definition if first is None else replace(self.definition, layers=layers)

    def _check_fit(self, parameter: Parameter) -> None:
        """Raise ShapeError unless the parameter is as the net has it since its first plan."""
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
