"""What a runtime's trainer and net are to whoever calls them: for type checkers and editors. Whichever
plugin offers these programs, they have at least this; more of what it has is reached by
``runtime.program(name, ...)``, which promises nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypedDict

from demitasse_models import NetDefinition, Solver, Weights

if TYPE_CHECKING:
    import numpy as np

    from demitasse import Entry, Event, Graph, Plan, Processes

SolverFile: TypeAlias = str | Path | Solver
"""A solver: its file, or what was read from one."""

NetFile: TypeAlias = str | Path | NetDefinition
"""A net: its file, or what was read from one."""

WeightsFiles: TypeAlias = str | Path | Weights | Sequence[str | Path | Weights]
"""Parameters to begin with: a file of them, what was read from one, or several of these, of which the
later ones count; a string may have commas between files."""


class TrainerOptions(TypedDict, total=False):
    """Keywords of ``runtime.trainer``."""

    weights: WeightsFiles | None
    resume: str | Path | None
    overrides: Mapping[str, Any] | None
    data: Mapping[str, Mapping[str, Any]] | None
    scaling: str
    precision: str | None
    retain: str | None
    partial: bool


class NetOptions(TypedDict, total=False):
    """Keywords of ``runtime.net``."""

    weights: WeightsFiles | None
    phase: str
    precision: str | None
    retain: str | None
    backward: str | None
    data: Mapping[str, Mapping[str, Any]] | None
    overrides: Mapping[str, Any] | None
    seed: int
    passes: int
    partial: bool


class Blob(Protocol):
    """A named tensor of a net; NumPy takes it as an array of its ``data``."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def data(self) -> np.ndarray:
        """The values. Raises ModelError where the plan lets other blobs use the memory."""

    @property
    def diff(self) -> np.ndarray:
        """The gradient of the objective, where the net was planned with ``retain="all"``."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...


class TrainedNet(Protocol):
    """A net as one looks at it: arrays in logical (NCHW) order."""

    @property
    def params(self) -> dict[str, list[np.ndarray]]:
        """Parameters by layer name."""

    @property
    def blobs(self) -> Mapping[str, Blob]:
        """Blobs by name."""

    @property
    def graph(self) -> Graph:
        """The operations that its layers are."""


class Net(TrainedNet, Protocol):
    """What ``runtime.net`` gives: a net that runs forward; ``with`` closes it."""

    definition: NetDefinition
    phase: str
    precision: str
    loaded: dict[str, Any]

    def forward(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Run all layers; copies of the outputs by blob name."""

    def outputs(self) -> dict[str, np.ndarray]:
        """Copies of the outputs, as the last forward left them."""

    def test(
        self, iterations: int = 1, told: Callable[[int, Mapping[str, np.ndarray]], object] | None = None
    ) -> dict[str, Any]:
        """The mean of each output over batches from the start of the data. ``told`` is called with each
        batch's number, from 0, and its outputs."""

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weights of the blobs that count in the loss."""

    def reshape(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Plan for other shapes of inputs."""

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """The mean seconds of each entry of the plan that every pass runs."""

    @property
    def plan(self) -> Plan: ...

    @property
    def walk(self) -> Any:
        """The net as one walks it layer by layer; needs ``retain="all"``."""

    def close(self) -> None:
        """End the reading ahead."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class Result(Protocol):
    """What some iterations came to."""

    @property
    def iteration(self) -> int: ...

    @property
    def loss(self) -> float: ...

    @property
    def seconds(self) -> float: ...

    @property
    def phases(self) -> Mapping[str, float]: ...


class Trainer(Protocol):
    """What ``runtime.trainer`` gives; ``with`` closes it."""

    solver: Solver
    precision: str
    dtype: str
    processes: Processes
    batch: int
    workers: int
    plan: Plan
    listeners: list[Callable[[Event], None]]
    loaded: dict[str, Any]

    @property
    def iteration(self) -> int:
        """How many iterations were done; it may be set."""

    @iteration.setter
    def iteration(self, iteration: int) -> None: ...

    @property
    def rate(self) -> float:
        """The learning rate of the next iteration."""

    @property
    def net(self) -> TrainedNet:
        """The net being trained."""

    @property
    def notes(self) -> list[str]:
        """How gradients are synchronised."""

    @property
    def stopped(self) -> bool:
        """Whether the last iteration ended with a wish to stop."""

    def step(self, iterations: int = 1) -> Result:
        """Train for some iterations."""

    def run(
        self,
        stop: Callable[[], bool] | None = None,
        save: Callable[[], bool] | None = None,
        until: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> Result:
        """Train to the solver's last iteration, with its tests and snapshots. ``stop`` is asked after
        each iteration and between the batches of a test, whose scores are then dropped: once it is true,
        a snapshot of what was trained is written and the run ends."""

    def test(self) -> dict[str, Any]:
        """The mean scores of the test nets, by blob name."""

    def snapshot(self, prefix: str | Path | None = None) -> Path:
        """Write weights and state; the path."""

    def check_snapshots(self) -> None:
        """Raise where the solver's snapshots could not be written."""

    def profile(self, iterations: int = 10) -> list[tuple[Entry, float]]:
        """The mean seconds of each entry of the first worker's plan; nothing is updated."""

    def arrays(self) -> Iterator[tuple[int, str, Any]]:
        """(worker, name, array) of all that has memory."""

    def close(self) -> None:
        """End workers and reading."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
