"""Records of nets, solvers, weights, samples, events of training and findings of a diagnosis; and the
protocols of model readers, layer types and data sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from demitasse import Filler, Location, Tensor
    from demitasse.operations import Shape

PRECISIONS = {"f32": "float32", "tf32": "float32", "bf16": "float32", "f64": "float64"}
"""The element type of parameters, sums and losses, by precision. In bf16, activations are stored in 16
bits. In tf32, products may round their factors to 10 bits of mantissa, if the processor is faster that
way."""


@dataclass(frozen=True)
class Layer:
    """A layer as its file defines it. ``parameters`` maps the names that its type declares to values;
    for a type that declares none, it is whatever the reader makes of its format. ``loss_weights`` are
    the file's, one for each top, or () if it gives none; the type's default then applies."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    parameters: Any
    location: Location
    loss_weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class NetDefinition:
    """The layers of one phase, in order: a top is made before it is a bottom.

    - ``left_out``: tops of layers that the file has for other phases or states, each with a sentence
      that says so;
    - ``notes``: a sentence on each thing in the file that the reader ignored;
    - ``foreign``: layer types that no composed plugin provides, each with its origin (a fork's name)."""

    name: str
    phase: str
    layers: tuple[Layer, ...] = field(repr=False)
    location: Location
    left_out: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    foreign: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Solver:
    """How a net is trained.

    - ``rate``: a function of the iteration, counted from 0, that returns its learning rate;
    - ``update``, ``update_attributes``: an operation of the family update, and its attributes without
      ``segments``;
    - ``passes``: the number of forward and backward passes in an iteration; their gradients are summed;
    - ``clip``: gradients with a larger norm are scaled down to this one; 0 leaves them as they are;
    - ``weights``: files that are read at the start;
    - ``snapshot_suffixes``: a snapshot is written in each of these formats; () means the default one;
    - ``record``: a function of the number of iterations done that returns additional items for a
      snapshot's record, for the solver's own formats;
    - ``debug``: listeners receive the sizes of every layer's values and gradients;
    - ``notes``: a sentence on each thing in the file that the reader ignored."""

    train: NetDefinition
    tests: tuple[NetDefinition, ...]
    update: str
    update_attributes: Mapping[str, Any]
    rate: Callable[[int], float]
    max_iterations: int
    passes: int = 1
    test_iterations: tuple[int, ...] = ()
    test_interval: int = 0
    test_first: bool = True
    display_interval: int = 0
    snapshot_interval: int = 0
    snapshot_prefix: str = ""
    snapshot_last: bool = True
    snapshot_suffixes: tuple[str, ...] = ()
    snapshot_gradients: bool = False
    record: Callable[[int], Mapping[str, Any]] | None = field(default=None, compare=False, repr=False)
    average_loss: int = 1
    seed: int | None = None
    clip: float = 0.0
    weights: tuple[str, ...] = ()
    debug: bool = False
    location: Location | None = None
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(eq=False)
class Weights:
    """A net's parameters by layer name, as arrays in logical order, and what a file records about the
    training: the iteration, the solver's state by slot name and layer, gradients, and the writer's own
    record. ``notes`` are sentences on what the reader ignored. Writers receive ``net``, for formats that
    store the layers along with their parameters."""

    parameters: dict[str, list[np.ndarray]] = field(default_factory=dict)
    iteration: int | None = None
    state: dict[str, dict[str, list[np.ndarray]]] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    net: NetDefinition | None = None

    def __repr__(self) -> str:
        numbers = sum(array.size for each in self.parameters.values() for array in each)
        state = f", state of {', '.join(self.state)}" if self.state else ""
        at = "" if self.iteration is None else f", iteration {self.iteration:,}"
        return f"<Weights: {numbers:,} numbers of {len(self.parameters)} layers{state}{at}>"


@dataclass(frozen=True)
class DataSpec:
    """The samples that a net asks for. ``source`` is a path, pattern or name as the user wrote it, or a
    mapping of arrays; ``kind`` is a format, if the user named one. The order of samples is drawn from
    ``seed`` and the epoch. If the user gave this specification in place of the one in the net's file,
    the latter is ``instead_of``."""

    source: Any
    kind: str | None = None
    shuffle: bool = False
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    location: Location | None = None
    instead_of: DataSpec | None = None


@dataclass(frozen=True)
class Event:
    """What a listener is called with: ``kind`` is start, iteration, testing (during a long test), test,
    snapshot or end."""

    kind: str
    iteration: int
    values: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out functions among the event's values: they query the run, which stays here."""
        values = {name: value for name, value in self.values.items() if not callable(value)}
        return {**vars(self), "values": values}


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis: ``level`` is ok, note or problem; ``remedy`` says how to fix it."""

    level: str
    subject: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Field:
    """One part of a sample (its image, its label): the shape without the batch, and the element type."""

    shape: tuple[int, ...]
    dtype: str


class GraphBuilder(Protocol):
    """What a layer type uses to build its operations.

    - ``phase``: ``train`` or ``test``;
    - ``dtype``: the type of real numbers;
    - ``seed``, ``stream``: the run's seed and the layer's own number, for its random numbers;
    - ``workers``: how many workers share a batch;
    - ``counted``: True if nothing will run, or only on stand-ins for samples, so that a file of which
      only the shape matters need not exist."""

    phase: str
    dtype: str
    seed: int
    stream: int
    workers: int
    counted: bool

    def apply(self, operation: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        """Emit an operation and return its output tensor, or a tuple if it has several outputs. An
        output that nobody reads is not computed. Raises ShapeError, which names every operand, if shapes
        do not fit."""

    def parameter(
        self,
        shape: Shape,
        filler: Filler,
        *,
        rate: float = 1.0,
        decay: float = 1.0,
        trainable: bool = True,
        shared: str | None = None,
        permissive: bool = False,
    ) -> Tensor:
        """Return the layer's next parameter. ``rate`` and ``decay`` multiply the solver's; a rate of 0
        freezes the parameter, so no gradient is made. Layers that give the same ``shared`` name have one
        parameter in common, with the first layer's filler and multipliers; a ``permissive`` layer may
        see it in another shape with the same number of elements."""

    def input(self, name: str, shape: Shape) -> Tensor:
        """Return a tensor that the caller of the net fills."""

    def constant(self, name: str, value: np.ndarray) -> Tensor:
        """Return a tensor that is filled once, before the first step."""

    def source(self, spec: DataSpec, batch: int, fields: Mapping[str, str]) -> tuple[Tensor, ...]:
        """Return a tensor for each field; a data source fills it with this worker's part of ``batch``
        samples. ``fields`` maps a field's name to an element type: ``raw`` is the stored type, ``real``
        the plan's."""

    def scalar(self, name: str) -> Tensor:
        """Return ``iteration``, ``sample`` or ``rate`` as a one-element tensor."""


class LayerType(Protocol):
    """Expands layers of one type into operations. ``name`` is the type's name in files, ``parameters``
    the names and defaults of what a file may set. A type may have more: ``loss_weight``, how much its
    first top counts in the loss unless the file says so (default 0), and the methods ``found`` and
    ``score`` that docs/plugins.md explains."""

    if TYPE_CHECKING:  # read-only, so that a narrower type fits; subclasses may assign them

        @property
        def name(self) -> str:
            """The name of the type in files."""

        @property
        def parameters(self) -> Mapping[str, Any]:
            """Names and defaults of the parameters that the type declares; empty if there are none. A
            reader accepts them in its own form (a message ``swish_param { beta: 2 }`` for a type
            Swish)."""

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations with ``graph.apply`` and return a tensor for each top."""


class ModelReader(Protocol):
    """An open model file. A method raises ModelError if the file does not have what it returns."""

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """Return the layers of a phase (``train`` or ``test``)."""

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Return the solver with its nets; ``overrides`` are fields by their names in the file."""

    def weights(self) -> Weights:
        """Return the parameters, and the solver state if the file has it."""


class Stream(Protocol):
    """Runs of ``count`` samples in the global order, each beginning ``step`` samples after the one
    before; the source reads ahead."""

    if TYPE_CHECKING:  # read-only, so that a narrower type fits; subclasses may assign them

        @property
        def cursor(self) -> int:
            """The number of the next run's first sample in the endless global order."""

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the next run of samples into ``out``, which has an array of ``count`` samples for each
        field, cast to the array's type, and advance the cursor by ``step``. Raises DataError that names
        the file and the sample."""

    def close(self) -> None:
        """Stop reading ahead; no thread is left behind."""


class DataSource(Protocol):
    """Samples in one global order, which is the same for any number of workers: epoch after epoch, each
    a permutation of all samples if the specification says shuffle. A source may have a method
    ``origin(number)`` that says, for messages, where the sample of that number comes from."""

    if TYPE_CHECKING:  # read-only, so that a narrower type fits; subclasses may assign them

        @property
        def fields(self) -> Mapping[str, Field]:
            """The parts of a sample, by name."""

        @property
        def size(self) -> int:
            """The number of samples, which is the length of an epoch."""

    def stream(self, first: int, count: int, step: int) -> Stream:
        """Return a stream that starts at sample number ``first``; count and step are at least 1."""

    def close(self) -> None:
        """Release files."""
