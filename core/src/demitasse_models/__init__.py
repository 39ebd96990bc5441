"""Records of nets, solvers, weights and samples, and of what a training or a diagnosis tells; the
protocols of what reads, expands and feeds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from demitasse import Filler, Location, Tensor
    from demitasse.operations import Shape

PRECISIONS = {"f32": "float32", "tf32": "float32", "bf16": "float32", "f64": "float64"}
"""By precision, the element type of parameters, sums and losses. In bf16 activations are stored in 16
bits; in tf32 products may round their factors to 10 bits of mantissa, if a processor is quicker so."""


@dataclass(frozen=True)
class Layer:
    """A layer as its file has it. ``parameters`` is a mapping of those that its type declares; for a
    type that declares none, whatever the reader makes of its format. ``loss_weights`` are the file's,
    one for each top; () if it gives none, then the type's default holds."""

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
    - ``foreign``: types that no composed plugin has, each with whose it is."""

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

    - ``rate``: the learning rate of an iteration, which counts from 0;
    - ``update``, ``update_attributes``: an operation of the family update, and its attributes, without
      ``segments``;
    - ``passes``: forward and backward passes, whose gradients are summed, in an iteration;
    - ``clip``: gradients of a larger norm are scaled down to this one; 0 leaves them as they are;
    - ``weights``: files that are read at the start;
    - ``snapshot_suffixes``: a snapshot is written in each of these formats; () is the default one;
    - ``record``: what a snapshot's record has besides, after so many iterations, for the solver's own
      formats;
    - ``debug``: listeners are told the sizes of every layer's values and gradients;
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
    """A net's parameters by layer name, as arrays in logical order, and what a file knows of the
    training: the iteration, the solver's state by slot name and layer, gradients, and the writer's own
    record. ``notes`` are sentences on what the reader ignored. ``net`` is given to writers, for formats
    that keep the layers with their parameters."""

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
    mapping of arrays; ``kind`` is a format if the user named one. The order is drawn from ``seed`` and
    epoch. If a user gave this one in place of what the net's file asks for, the latter is
    ``instead_of``."""

    source: Any
    kind: str | None = None
    shuffle: bool = False
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    location: Location | None = None
    instead_of: DataSpec | None = None


@dataclass(frozen=True)
class Event:
    """What a listener is told: ``kind`` is start, iteration, testing (during a long test), test,
    snapshot or end."""

    kind: str
    iteration: int
    values: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """The event without the functions among its values: they ask the run, which stays here."""
        values = {name: value for name, value in self.values.items() if not callable(value)}
        return {**vars(self), "values": values}


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis: ``level`` is ok, note or problem; ``remedy`` says how to mend it."""

    level: str
    subject: str
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Field:
    """One part of a sample (its image, its label): shape without the batch, and element type."""

    shape: tuple[int, ...]
    dtype: str


class GraphBuilder(Protocol):
    """What a layer type builds on.

    - ``phase``: ``train`` or ``test``;
    - ``dtype``: the type of real numbers;
    - ``seed``, ``stream``: the run's seed and the layer's own number, for its random numbers;
    - ``workers``: how many workers share a batch;
    - ``counted``: nothing will run, or only on stand-ins for samples, so that a file of which only the
      shape matters need not exist."""

    phase: str
    dtype: str
    seed: int
    stream: int
    workers: int
    counted: bool

    def apply(self, operation: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        """Emit an operation. Returns its output tensor, or a tuple if it has several; one that nobody
        reads is not computed. Raises ShapeError, which names every operand, when shapes do not fit."""

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
        """The layer's next parameter. Layers that give the same ``shared`` name have one parameter, with
        the first layer's filler and multipliers; a ``permissive`` layer may see it in another shape of
        as many elements. A rate of 0 freezes it: no gradient is made."""

    def input(self, name: str, shape: Shape) -> Tensor:
        """A tensor that the caller of the net fills."""

    def constant(self, name: str, value: np.ndarray) -> Tensor:
        """A tensor that is filled once, before the first step."""

    def source(self, spec: DataSpec, batch: int, fields: Mapping[str, str]) -> tuple[Tensor, ...]:
        """A tensor for each field, filled by a data source with this worker's part of ``batch`` samples.
        ``fields`` maps a field's name to an element type: ``raw`` as stored, ``real`` the plan's."""

    def scalar(self, name: str) -> Tensor:
        """``iteration``, ``sample`` or ``rate`` as a one-element tensor."""


class LayerType(Protocol):
    """What a layer of one type means in operations."""

    if TYPE_CHECKING:  # to be read, so that a narrower type serves; whoever inherits may assign them

        @property
        def name(self) -> str:
            """The type, as files name it."""

        @property
        def parameters(self) -> Mapping[str, Any]:
            """Names and defaults of what the type itself declares; empty for none. A reader accepts them
            in its own form (a message ``swish_param { beta: 2 }`` for a type Swish)."""

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        """Emit the layer's operations with ``graph.apply`` and return a tensor for each top."""


class ModelReader(Protocol):
    """A model file that was opened. A method that the file cannot serve raises ModelError."""

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """The layers of a phase (``train`` or ``test``)."""

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """The solver with its nets; ``overrides`` are fields in the file's own words."""

    def weights(self) -> Weights:
        """Parameters, and solver state where the file has it."""


class Stream(Protocol):
    """Every ``step``-th run of ``count`` samples of the global order; its source reads ahead."""

    if TYPE_CHECKING:  # to be read, so that a narrower type serves; whoever inherits may assign them

        @property
        def cursor(self) -> int:
            """The number, in the endless global order, of the next run's first sample."""

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the next run of samples into ``out``, an array of count samples for each field, cast to
        the array's type, and move the cursor by step. Raises DataError that names file and sample."""

    def close(self) -> None:
        """End the read-ahead; no thread is left behind."""


class DataSource(Protocol):
    """Samples in one global order, the same for any number of workers: epoch after epoch, each a
    permutation of all samples when the specification says shuffle. It may have ``origin(number)``, which
    says in messages where the sample of that number is from."""

    if TYPE_CHECKING:  # to be read, so that a narrower type serves; whoever inherits may assign them

        @property
        def fields(self) -> Mapping[str, Field]:
            """The parts of a sample by name."""

        @property
        def size(self) -> int:
            """How many samples there are; an epoch is so many."""

    def stream(self, first: int, count: int, step: int) -> Stream:
        """A stream that starts at sample number ``first``; count and step are at least 1."""

    def close(self) -> None:
        """Release files."""
