"""The interfaces of a runtime's trainer and net, for type checkers and editors. Trainers and nets have
at least these members, whichever plugin they come from. To use further members of one plugin's trainer
or net, get it from ``runtime.program(name, ...)``, whose return type is Any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypedDict

from demitasse_models import DataSpec, NetDefinition, Solver, Weights

if TYPE_CHECKING:
    import numpy as np

    from demitasse import Entry, Event, Graph, Plan, Processes

SolverFile: TypeAlias = str | Path | Solver
"""A solver: the path of its file, or what was read from one."""

NetFile: TypeAlias = str | Path | NetDefinition
"""A net: the path of its file, or what was read from one."""

WeightsFiles: TypeAlias = str | Path | Weights | Sequence[str | Path | Weights]
"""Parameters to begin with: the path of a file, what was read from one, or several of these, where later
ones override earlier ones. A string may list several files, separated by commas."""


class TrainerOptions(TypedDict, total=False):
    """Keywords of ``runtime.trainer``.

    - ``weights``: parameters to begin with, matched by layer name. If neither ``weights`` nor ``resume``
      is given, the files that the solver names are read; if it names none, fillers fill the layers.
    - ``resume``: the path of a snapshot to continue from, with its solver state, iteration and position
      in the data, or what ``Trainer.weights`` returned. Raises SnapshotError if it is of another net or
      was trained with other settings.
    - ``overrides``: fields of the solver, by the names that its file's format uses:
      ``{"base_lr": 0.1}``; not allowed with a ``Solver``.
    - ``data``: for each phase (``train``, ``test``), arrays by the names of the samples' fields, samples
      first, or a ``DataSpec``; used in place of the files that the layers name.
    - ``scaling``: ``strong`` (default) divides the file's batch among all workers; with ``weak``, each
      worker has a batch of that size.
    - ``statistics``: ``global`` (default) takes the statistics of batch normalisation, and the number of
      labels that are not ignored, over the samples of all workers; with ``local``, as in Caffe, each
      worker has its own.
    - ``precision``: ``f32``, ``tf32``, ``bf16`` or ``f64``; by default the machine's.
    - ``retain``: ``"all"`` gives every blob memory of its own, for its values and its gradient.
    - ``partial``: layers for which the weights have other shapes keep their own values; without it,
      such weights raise ShapeError.
    """

    weights: WeightsFiles | None
    resume: str | Path | Weights | None
    overrides: Mapping[str, Any] | None
    data: Mapping[str, Mapping[str, Any] | DataSpec] | None
    scaling: str
    statistics: str
    precision: str | None
    retain: str | None
    partial: bool


class NetOptions(TypedDict, total=False):
    """Keywords of ``runtime.net``.

    - ``weights``: parameters, matched by layer name; the others are filled by their layers' fillers. In
      phase ``test``, a warning names the layers that none of several weights has.
    - ``phase``: ``test`` (default) or ``train``; decides which layers exist and what they compute.
    - ``precision``: ``f32``, ``tf32``, ``bf16`` or ``f64``; by default the machine's.
    - ``retain``: ``"all"`` gives every blob memory of its own.
    - ``backward``: ``"objective"`` plans the gradients of the loss, ``"every blob"`` also those of any
      blob. Both need ``retain="all"``; ``walk`` computes the gradients.
    - ``data``: for each phase, arrays by the names of the samples' fields, or a ``DataSpec``, for layers
      that read samples.
    - ``overrides``: fields of the net, by the names that its file's format uses; not allowed with a
      ``NetDefinition``.
    - ``seed``: the seed of fillers and random numbers, a whole number of 64 bits; 0 by default.
    - ``passes``: gradients are divided by this number, so that their sum over so many passes is the
      mean; 1 by default.
    - ``partial``: layers for which the weights have other shapes keep their own values; without it,
      such weights raise ShapeError.
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
    """A named tensor of a net; NumPy treats it as an array of its ``data``."""

    @property
    def name(self) -> str:
        """Its name in the net's layers."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The planned shape, batch first; images are NCHW."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""

    @property
    def data(self) -> np.ndarray:
        """The values in logical order, as a live array if the layout is plain. Raises ModelError if
        other blobs share the memory; without ``retain="all"``, all but inputs and outputs may."""

    @property
    def diff(self) -> np.ndarray:
        """The gradient of the objective, in the shape of ``data``. Raises ModelError if the gradient is
        not planned and kept (``retain="all"``)."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


class TrainedNet(Protocol):
    """A net to inspect; its arrays are in logical (NCHW) order."""

    @property
    def params(self) -> dict[str, list[np.ndarray]]:
        """Parameters by layer name, each layer's in order: weights, then biases (a convolution's weights
        are output channels x input channels of a group x height x width). Parameters in the plain layout
        (with ``retain="all"``, all of them) are live arrays; the others are read-only copies."""

    @property
    def blobs(self) -> Mapping[str, Blob]:
        """Blobs by name."""

    @property
    def graph(self) -> Graph:
        """The operations that the layers were expanded into."""


class Net(TrainedNet, Protocol):
    """What ``runtime.net`` returns: a net that runs forward. Use ``with`` to close it."""

    @property
    def definition(self) -> NetDefinition:
        """The layers, as they were read."""

    @property
    def phase(self) -> str:
        """``test`` or ``train``."""

    @property
    def precision(self) -> str:
        """``f32``, ``tf32``, ``bf16`` or ``f64``."""

    @property
    def loaded(self) -> dict[str, Any]:
        """What was loaded from each of the weights, by file (``the weights given`` if they were in
        memory): names of layers that are ``loaded``, ``missing`` in the file, ``unfit`` (of other shapes
        there), ``unused`` in the net or ``not_finite``, and the ``notes`` of the file's reader."""

    def forward(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Run all layers and return copies of the outputs, by blob name.

        ``inputs`` are arrays by the names of the net's inputs, in logical order (NCHW), of the declared
        rank and any batch size; anything that NumPy accepts is cast to the net's real type. An input
        that is not given keeps its values, which are zero at first. For shapes that it was not planned
        for, the net is planned again.

        Raises ModelError if a name is not an input, or if an array is not of real numbers, has a NaN, or
        has a number that is infinite in the net's type and reaches a convolution or a product;
        ShapeError if the net does not support a shape; DataError if samples cannot be read; and
        WorkerError if the net reads samples and is closed.
        """

    def outputs(self) -> dict[str, np.ndarray]:
        """Return copies of the outputs of the last forward pass."""

    def test(
        self, iterations: int = 1, told: Callable[[int, Mapping[str, np.ndarray]], object] | None = None
    ) -> dict[str, Any]:
        """Return the mean of each output over ``iterations`` batches from the start of the data, by blob
        name: a number, or a list if the output has several. ``told`` is called with each batch's number,
        from 0, and its outputs."""

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weights of the blobs that contribute to the loss."""

    def reshape(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Plan the net for other shapes of inputs: complete shapes, batch included, by name; other
        inputs keep theirs. Raises ShapeError if the net does not support them; the net then stays as it
        was."""

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """Return the mean time in seconds, over ``iterations`` forward passes, of each entry of the plan
        that every pass runs."""

    @property
    def plan(self) -> Plan:
        """The operations with their kernels and memory, for the present shapes; ``str()`` of it is a
        table. Activations and scratch memory take ``arena_bytes``, inputs and constants ``fixed_bytes``;
        ``parameters`` is the number of parameters."""

    @property
    def walk(self) -> Any:
        """An object that steps through the net layer by layer, forward and backward. Raises ModelError
        unless the net has ``retain="all"``."""

    def close(self) -> None:
        """Stop reading ahead. A net that reads samples cannot run afterwards, but can still be
        inspected; a net that is given its inputs still runs."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Result(Protocol):
    """The result of some iterations."""

    @property
    def iteration(self) -> int:
        """The number of iterations that the trainer has done, earlier ones included."""

    @property
    def loss(self) -> float:
        """The loss of the last iteration, or its mean over the solver's ``average_loss`` iterations; NaN
        if there was none."""

    @property
    def seconds(self) -> float:
        """The elapsed time in seconds, including a run's tests and snapshots."""

    @property
    def phases(self) -> Mapping[str, float]:
        """The first worker's part of that time, in seconds by phase: ``read`` (waiting for samples),
        ``forward``, ``backward`` and ``synchronise``."""


class Trainer(Protocol):
    """What ``runtime.trainer`` returns. Use ``with`` to close it. Only one thread can use it at a time;
    a second one gets a WorkerError."""

    @property
    def solver(self) -> Solver:
        """How the trainer trains: nets, learning rates and intervals."""

    @property
    def precision(self) -> str:
        """``f32``, ``tf32``, ``bf16`` or ``f64``."""

    @property
    def dtype(self) -> str:
        """The element type of parameters, sums and losses, by NumPy's name."""

    @property
    def processes(self) -> Processes:
        """The processes that train together, of which this one is number ``rank`` of ``size``."""

    @property
    def batch(self) -> int:
        """The number of samples per iteration, of all workers and passes; 0 if no layer reads any."""

    @property
    def workers(self) -> int:
        """The number of workers that train together, in all processes."""

    @property
    def plan(self) -> Plan:
        """The first worker's plan; for its sizes, see ``Net.plan``."""

    @property
    def listeners(self) -> list[Callable[[Event], None]]:
        """Functions that the training thread calls, one after the other, with every event; append yours.
        An exception in one of them propagates out of the method that was called."""

    @property
    def loaded(self) -> dict[str, Any]:
        """What was loaded from each of the weights, by file; see ``Net.loaded``."""

    @property
    def iteration(self) -> int:
        """The number of iterations done. If you set it, the next iterations continue from that number
        with its learning rate and random numbers and, if you set it before the first iteration, its
        samples."""

    @iteration.setter
    def iteration(self, iteration: int) -> None: ...

    @property
    def rate(self) -> float:
        """The learning rate of the next iteration."""

    @property
    def net(self) -> TrainedNet:
        """The net being trained, with the first worker's arrays."""

    @property
    def notes(self) -> list[str]:
        """How the first worker's gradients are synchronised, innermost level first."""

    @property
    def stopped(self) -> bool:
        """Whether a stop was requested, in any process, after the last iteration or in a run's test."""

    def step(self, iterations: int = 1) -> Result:
        """Train for this number of iterations, at least 1, without tests and snapshots. Raises
        NumericsError if a loss or parameter is not a finite number, DataError if samples cannot be read,
        and WorkerError if another thread is using the trainer or it is closed."""

    def run(
        self,
        stop: Callable[[], bool] | None = None,
        save: Callable[[], bool] | None = None,
        until: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> Result:
        """Train to the solver's last iteration, with its tests and snapshots.

        - ``stop`` is called after each iteration and between the batches of a test. Once it returns
          true, a snapshot of what was trained is written and the run ends; the scores of an interrupted
          test are dropped.
        - ``save`` is called after each iteration; if it returns true, a snapshot is written and the run
          continues.
        - ``until`` is called after each test, with its scores; once it returns true, the run ends as at
          its last iteration.

        Raises what ``step`` raises, and SnapshotError, before the run begins if the cause is known by
        then."""

    def test(self) -> dict[str, Any]:
        """Return the mean scores of the test nets over the solver's test iterations, by blob name: a
        number, or a list if the output has several. The names of a second net's scores begin with its
        number: ``1.accuracy``."""

    def snapshot(self, prefix: str | Path | None = None) -> Path:
        """Write weights, solver state and the position in the data to
        ``PREFIX_iter_ITERATION.demitasse``, and in other formats that the solver asks for, each file
        completely or not at all. Return the path of the first. The default prefix is the solver's.
        Raises SnapshotError, and NumericsError if parameters are not finite."""

    def weights(self) -> Weights:
        """Return copies, in memory, of what a snapshot has: parameters, solver state and iteration. Pass
        the result as ``resume`` or ``weights``. Raises WorkerError if there are several processes, and
        NumericsError if parameters are not finite."""

    def check_snapshots(self) -> None:
        """Raise SnapshotError if the solver's snapshots could not be written, and CompositionError if no
        plugin writes their format."""

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """Return the mean seconds of each entry of the first worker's plan; nothing is updated."""

    def arrays(self) -> Iterator[tuple[int, str, Any]]:
        """Yield (worker, name, array) for everything in this process's memory, as it lies there."""

    def close(self) -> None:
        """End the workers and stop reading. The trainer can still be inspected, and a snapshot written.
        If another thread is using the trainer, wait for its current iteration or test batch."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
