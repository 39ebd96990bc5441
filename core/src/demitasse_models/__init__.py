"""Nets, solvers, weights, samples, and what a training or a diagnosis tells, as records; what reads,
writes and expands them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    from demitasse import Filler, Location, Tensor
    from demitasse.operations import Shape

PRECISIONS = {"f32": "float32", "tf32": "float32", "bf16": "float32", "f64": "float64"}
"""The element type of parameters, sums and losses by precision; bf16 stores activations in 16 bits, tf32
lets products round what they multiply to 10 bits of mantissa, where a processor is quicker so."""


@dataclass(frozen=True)
class Layer:
    """A layer as its file has it. ``parameters`` maps those that its type declares, else is what the
    reader makes of its format. ``loss_weights`` has a number for each top that the file gives one,
    else the type's own default holds."""

    name: str
    type: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    parameters: Any
    location: Location
    loss_weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class NetDefinition:
    """The layers of one phase, in order, bottoms before use; ``left_out`` are tops of layers that the
    file has for other phases or states, each with the sentence that says so. ``notes`` are sentences on
    what a reader has read over; ``foreign`` says of types that no composed plugin has whose they are."""

    name: str
    phase: str
    layers: tuple[Layer, ...] = field(repr=False)
    location: Location
    left_out: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    notes: tuple[str, ...] = field(default=(), compare=False, repr=False)
    foreign: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class Solver:
    """How a net is trained. ``rate`` maps an iteration (from 0) to the learning rate; ``update`` is an
    operation of family update, with ``update_attributes`` for its attributes (less segments), of
    gradients scaled down to a norm of ``clip`` (0: as they are). ``weights`` are read at the start. A
    snapshot is written for each of ``snapshot_suffixes`` (none: the default), with gradients if asked;
    ``record`` gives what its record has besides after as many iterations, for the solver's own formats;
    ``debug`` has sizes of values and gradients told of every layer; ``notes`` are as a net's."""

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
    """Parameter arrays of a net by layer name, in logical order; and what a file knows of training: the
    iteration, the solver's state by slot name and layer, gradients, and the writer's own record.
    ``notes`` are sentences on what a reader has read over."""

    parameters: dict[str, list[np.ndarray]] = field(default_factory=dict)
    iteration: int | None = None
    state: dict[str, dict[str, list[np.ndarray]]] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, list[np.ndarray]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        numbers = sum(array.size for each in self.parameters.values() for array in each)
        state = f", state of {', '.join(self.state)}" if self.state else ""
        at = "" if self.iteration is None else f", iteration {self.iteration:,}"
        return f"<Weights: {numbers:,} numbers of {len(self.parameters)} layers{state}{at}>"


@dataclass(frozen=True)
class DataSpec:
    """What a net asks for: ``source`` is a path, pattern or name as the user wrote it, or a mapping of
    arrays; ``kind`` a format when the user named one. Shuffling is by ``seed`` and epoch. Where a
    user names one in place of what a net asks for, ``instead_of`` is the latter."""

    source: Any
    kind: str | None = None
    shuffle: bool = False
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    location: Location | None = None
    instead_of: DataSpec | None = None


@dataclass(frozen=True)
class Event:
    """Something that a listener may show: ``kind`` is start, iteration, testing (of long tests), test,
    snapshot or end."""

    kind: str
    iteration: int
    values: Mapping[str, Any] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """What is sent to another process or kept: without functions, which ask the run itself."""
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
    """What a layer type builds on. ``phase`` is train or test, ``dtype`` the real numbers' type,
    ``seed`` the run's, ``stream`` a number of the layer's own for its random numbers, ``workers`` how
    many share a batch; ``counted`` says that nothing will run, or on samples that only stand in, so that
    files need not be there of which only the shape counts."""

    phase: str
    dtype: str
    seed: int
    stream: int
    workers: int
    counted: bool

    def apply(self, operation: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        """Emit an operation: its output tensor, or a tuple where it has several (what nobody reads
        is not computed). Raises ShapeError that names every operand when they do not fit."""

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
        """The layer's next parameter. Layers that give one ``shared`` name have it in common, with the
        first one's filler and multipliers; where it is ``permissive``, in another shape of as many
        elements. A rate of 0 freezes it: no gradient is made."""

    def input(self, name: str, shape: Shape) -> Tensor:
        """A tensor that the caller of the net fills."""

    def constant(self, name: str, value: np.ndarray) -> Tensor:
        """A tensor that is filled once, before the first step."""

    def source(self, spec: DataSpec, batch: int, fields: Mapping[str, str]) -> tuple[Tensor, ...]:
        """Tensors that a data source fills with this worker's part of ``batch`` samples, for each field
        (its name to an element type: ``raw`` as stored, ``real`` the plan's)."""

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
    """A model file, opened. A method that the file cannot serve raises ModelError that says so."""

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """The layers of a phase (``train`` or ``test``)."""

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """The solver with its nets; ``overrides`` are fields in the file's own words."""

    def weights(self) -> Weights:
        """Parameters, and solver state where the file has it."""


class Stream(Protocol):
    """Every ``step``-th run of ``count`` samples of the global order, read ahead by who serves it."""

    if TYPE_CHECKING:  # to be read, so that a narrower type serves; whoever inherits may assign them

        @property
        def cursor(self) -> int:
            """The number, in the endless global order, of the next run's first sample."""

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        """Write the next run into ``out`` (by field name, arrays of count samples, cast to their types)
        and move the cursor by step. Raises DataError that names file and sample."""

    def close(self) -> None:
        """End the read-ahead; no thread is left behind."""


class DataSource(Protocol):
    """Samples in one global order, the same for any number of workers: epoch after epoch, each a
    permutation of all samples when the specification says shuffle."""

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
