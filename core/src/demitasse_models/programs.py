"""What a runtime's trainer and net offer to their callers, for type checkers and editors. They have at
least this, whichever plugin they come from. To use more of what one plugin's has, get it by
``runtime.program(name, ...)``, whose type promises nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypedDict

from demitasse_models import DataSpec, NetDefinition, Solver, Weights

if TYPE_CHECKING:
    import numpy as np

    from demitasse import Entry, Event, Graph, Plan, Processes

SolverFile: TypeAlias = str | Path | Solver
"""A solver: its file, or what was read from one."""

NetFile: TypeAlias = str | Path | NetDefinition
"""A net: its file, or what was read from one."""

WeightsFiles: TypeAlias = str | Path | Weights | Sequence[str | Path | Weights]
"""Parameters to begin with: a file of them, what was read from one, or several of these, of which a
later one overrides the earlier; a string may have commas between files."""


class TrainerOptions(TypedDict, total=False):
    """Keywords of ``runtime.trainer``.

    - ``weights``: parameters to begin with, matched by layer name. Without ``weights`` and ``resume``
      those that the solver names are read; without these, layers are filled by their fillers.
    - ``resume``: the path of a snapshot to go on from, with its solver state, iteration and place in the
      data, or what ``Trainer.weights`` returned. SnapshotError if it is of another net or was trained
      with other settings.
    - ``overrides``: fields of the solver in its file's own words, ``{"base_lr": 0.1}``; not for a
      ``Solver``.
    - ``data``: for each phase (``train``, ``test``) arrays by the names of the samples' fields, samples
      first, or a ``DataSpec``, in place of the files that the layers name.
    - ``scaling``: ``strong`` (default) shares the file's batch among all workers; with ``weak`` each
      worker has a batch of that size.
    - ``precision``: ``f32``, ``tf32``, ``bf16`` or ``f64``; by default the machine's.
    - ``retain``: ``"all"`` gives every blob memory of its own, for its values and its gradient.
    - ``partial``: layers whose shapes the weights do not fit keep their own values; without it that is
      a ShapeError.
    """

    weights: WeightsFiles | None
    resume: str | Path | Weights | None
    overrides: Mapping[str, Any] | None
    data: Mapping[str, Mapping[str, Any] | DataSpec] | None
    scaling: str
    precision: str | None
    retain: str | None
    partial: bool


class NetOptions(TypedDict, total=False):
    """Keywords of ``runtime.net``.

    - ``weights``: parameters, matched by layer name; the others are filled by their layers' fillers. In
      phase ``test`` a warning names the layers that none of several weights has.
    - ``phase``: ``test`` (default) or ``train``: which layers there are, and what they compute.
    - ``precision``: ``f32``, ``tf32``, ``bf16`` or ``f64``; by default the machine's.
    - ``retain``: ``"all"`` gives every blob memory of its own.
    - ``backward``: ``"objective"`` plans gradients of the loss, ``"every blob"`` also those of any blob.
      Both need ``retain="all"``, and are computed by ``walk``.
    - ``data``: for each phase arrays by the names of the samples' fields, or a ``DataSpec``, for layers
      that read samples.
    - ``overrides``: fields of the net in its file's own words; not for a ``NetDefinition``.
    - ``seed``: of fillers and random numbers, a whole number of 64 bits; 0 by default.
    - ``passes``: gradients are divided so that their sum over so many passes is the mean; 1 by default.
    - ``partial``: layers whose shapes the weights do not fit keep their own values; without it that is
      a ShapeError.
    """

    weights: WeightsFiles | None
    phase: str
    precision: str | None
    retain: str | None
    backward: str | None
    data: Mapping[str, Mapping[str, Any] | DataSpec] | None
    overrides: Mapping[str, Any] | None
    seed: int
    passes: int
    partial: bool


class Blob(Protocol):
    """A named tensor of a net; NumPy takes it as an array of its ``data``."""

    @property
    def name(self) -> str:
        """As the net's layers call it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents that are planned, the batch's first; images are NCHW."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""

    @property
    def data(self) -> np.ndarray:
        """The values in logical order, a live array if the layout is plain. Raises ModelError if other
        blobs share the memory, which without ``retain="all"`` holds for all but inputs and outputs."""

    @property
    def diff(self) -> np.ndarray:
        """The gradient of the objective, in the shape of ``data``. Raises ModelError where no such
        gradient is planned and kept (``retain="all"``)."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


class TrainedNet(Protocol):
    """A net to look at: its arrays are in logical (NCHW) order."""

    @property
    def params(self) -> dict[str, list[np.ndarray]]:
        """Parameters by layer name, each layer's in order: weights, then biases (a convolution's weights
        are output channels x input channels of a group x height x width). Those whose layout is plain,
        with ``retain="all"`` all, are live arrays; others are copies that cannot be written to."""

    @property
    def blobs(self) -> Mapping[str, Blob]:
        """Blobs by name."""

    @property
    def graph(self) -> Graph:
        """The operations that its layers became."""


class Net(TrainedNet, Protocol):
    """What ``runtime.net`` gives: a net that runs forward; ``with`` closes it."""

    @property
    def definition(self) -> NetDefinition:
        """Its layers, as they were read."""

    @property
    def phase(self) -> str:
        """``test`` or ``train``."""

    @property
    def precision(self) -> str:
        """``f32``, ``tf32``, ``bf16`` or ``f64``."""

    @property
    def loaded(self) -> dict[str, Any]:
        """What each of the weights gave, by file (``the weights given`` for those in memory): names of
        layers, ``loaded``, ``missing`` in the file, ``unfit`` (of other shapes there), ``unused`` in the
        net and ``not_finite``, and the ``notes`` of the file's reader."""

    def forward(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Run all layers; copies of the outputs by blob name, which are the caller's.

        ``inputs`` are arrays by the names of the net's inputs, in logical order (NCHW), of the declared
        rank and any batch size; what NumPy takes is cast to the net's real numbers. An input that is not
        given stays as it was, zero at first. The net is planned again for shapes that it was not planned
        for. Raises ModelError for what is no input, is no real numbers, is NaN, or is infinite in the
        net's type where a convolution or a product comes to read it; ShapeError where the net cannot
        take a shape; DataError where samples cannot be read; and WorkerError where they are to be and
        the net is closed.
        """

    def outputs(self) -> dict[str, np.ndarray]:
        """Copies of the outputs, as the last forward left them."""

    def test(
        self, iterations: int = 1, told: Callable[[int, Mapping[str, np.ndarray]], object] | None = None
    ) -> dict[str, Any]:
        """The mean of each output over so many batches from the start of the data, by blob name: a
        number, or a list for an output of several. ``told`` is called with each batch's number, from 0,
        and its outputs."""

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weights of the blobs that count in the loss."""

    def reshape(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Plan for other shapes of inputs, whole and with the batch, by name; others keep theirs. Raises
        ShapeError where the net cannot take them, and is then as it was."""

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """The mean seconds of each entry of the plan that every pass runs, over forward passes."""

    @property
    def plan(self) -> Plan:
        """The operations with their kernels and memory, for the present shapes; ``str()`` of it is a
        table. Its activations and scratch memory take ``arena_bytes``, inputs and constants
        ``fixed_bytes``, and there are ``parameters`` numbers."""

    @property
    def walk(self) -> Any:
        """The net as one walks it layer by layer, and backward; needs ``retain="all"``, else raises
        ModelError."""

    def close(self) -> None:
        """End the reading ahead. A net that reads samples runs no more; what it has can be looked at,
        and one that is given its inputs still runs."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Result(Protocol):
    """What some iterations came to."""

    @property
    def iteration(self) -> int:
        """How many iterations the trainer has done, those before included."""

    @property
    def loss(self) -> float:
        """The loss of the last iteration, or its mean over the solver's ``average_loss``; NaN where
        there was none."""

    @property
    def seconds(self) -> float:
        """How long they took by the clock, a run's tests and snapshots included."""

    @property
    def phases(self) -> Mapping[str, float]:
        """Of that, the first worker's seconds by phase: ``read`` (waiting for samples), ``forward``,
        ``backward`` and ``synchronise``."""


class Trainer(Protocol):
    """What ``runtime.trainer`` gives; ``with`` closes it. It is one thread's at a time: a second one
    gets a WorkerError."""

    @property
    def solver(self) -> Solver:
        """How it trains; nets, rates and intervals."""

    @property
    def precision(self) -> str:
        """``f32``, ``tf32``, ``bf16`` or ``f64``."""

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type of parameters, sums and losses."""

    @property
    def processes(self) -> Processes:
        """The processes that train together, of which this one is number ``rank`` of ``size``."""

    @property
    def batch(self) -> int:
        """Samples of an iteration, of all workers and passes; 0 where no layer reads any."""

    @property
    def workers(self) -> int:
        """How many train together, in all processes."""

    @property
    def plan(self) -> Plan:
        """The first worker's plan; its sizes are as a net's."""

    @property
    def listeners(self) -> list[Callable[[Event], None]]:
        """Called with every event, in turn, by the thread that trains; append yours. What one raises
        comes out of what was called."""

    @property
    def loaded(self) -> dict[str, Any]:
        """What each of the weights gave, by file; see ``Net.loaded``."""

    @property
    def iteration(self) -> int:
        """How many iterations were done. Where it is set, the next ones are those that follow: their
        rate and random numbers and, where it is set before the first one, their samples."""

    @iteration.setter
    def iteration(self, iteration: int) -> None: ...

    @property
    def rate(self) -> float:
        """The learning rate of the next iteration."""

    @property
    def net(self) -> TrainedNet:
        """The net being trained, as the first worker has it."""

    @property
    def notes(self) -> list[str]:
        """How the first worker's gradients are synchronised, innermost level first."""

    @property
    def stopped(self) -> bool:
        """Whether the last iteration, or a run's test, ended with a wish to stop, in any process."""

    def step(self, iterations: int = 1) -> Result:
        """Train for so many iterations, at least 1, without tests and snapshots. Raises NumericsError
        where a loss or parameter is no finite number, DataError where samples cannot be read, and
        WorkerError where another thread is at work or it is closed."""

    def run(
        self,
        stop: Callable[[], bool] | None = None,
        save: Callable[[], bool] | None = None,
        until: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> Result:
        """Train to the solver's last iteration, with its tests and snapshots. ``stop`` is asked after
        each iteration and between the batches of a test, whose scores are then dropped: once it is true,
        a snapshot of what was trained is written and the run ends. Where ``save`` is true after an
        iteration, a snapshot is written and the run goes on. ``until`` is asked after each test, with
        its scores: once it is true, the run ends as at its last iteration. Raises what ``step`` raises,
        and SnapshotError, before it begins where that can be known."""

    def test(self) -> dict[str, Any]:
        """The mean scores of the test nets over the solver's test iterations, by blob name: numbers, or
        lists for outputs of several. A second net's have its number in front, ``1.accuracy``."""

    def snapshot(self, prefix: str | Path | None = None) -> Path:
        """Write weights, solver state and the place in the data to ``PREFIX_iter_ITERATION.demitasse``,
        and to the formats that the solver asks for, each whole or not at all; the first one's path. The
        prefix is by default the solver's. Raises SnapshotError, and NumericsError where parameters are
        not finite."""

    def weights(self) -> Weights:
        """Copies of what a snapshot has, in memory: parameters, solver state, iteration, to be given as
        ``resume`` or ``weights``. Raises WorkerError where there are several processes, NumericsError
        where parameters are not finite."""

    def check_snapshots(self) -> None:
        """Raise SnapshotError where the solver's snapshots could not be written, CompositionError where
        no plugin writes them."""

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """The mean seconds of each entry of the first worker's plan; nothing is updated."""

    def arrays(self) -> Iterator[tuple[int, str, Any]]:
        """(worker, name, array) of all that has memory in this process, as it lies there."""

    def close(self) -> None:
        """End workers and reading; what it has can be looked at, and a snapshot written. Where another
        thread is at work, this waits for the iteration under way, or a test's batch."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
