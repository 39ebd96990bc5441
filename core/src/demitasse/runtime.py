"""The runtime: a machine composed with plugins, and what it can be asked to do."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, Unpack

import demitasse
from demitasse import errors
from demitasse.arena import Allocator
from demitasse.composition import Composition, compose_plugins
from demitasse.machine import Level, Machine
from demitasse.operations import Operation
from demitasse.operations.selection import Kernels, Tuner
from demitasse.synchronisation import ALONE, Processes
from demitasse.workers import WorkerPlace


class Runtime(errors.Rooted):
    """Plugins composed for one machine, independent of any other runtime. Use ``with`` to close it."""

    elsewhere = "compose another there: its machine can be sent"

    def __init__(
        self, machine: Machine, composition: Composition, options: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.machine, self.composition = machine, composition
        self.options: Mapping[str, Mapping[str, Any]] = {each.name: {} for each in composition.plugins}
        if machine.options or options:
            self.options = demitasse.gathered_options(machine, composition, options)
        self.vocabulary: Mapping[str, Operation] = demitasse.gathered_words(composition)
        self.layer_types: dict[str, demitasse.LayerType] = demitasse.gathered_layer_types(composition)
        self._programs = composition.offered("programs")
        self.closed = False
        self._open: list[Any] = []
        self._making = threading.RLock()  # one of each, whichever thread asks first
        self._processes: Processes | None = None
        self._tuners: dict[str, Tuner] = {}
        self._engines: dict[str, demitasse.StreamEngine] = {}

    def __repr__(self) -> str:
        return f"<Runtime on {self.machine.name!r} of {', '.join(self.composition.versions)}>"

    def explain(self) -> Composition:
        """Return the composition: each role, which plugin serves it and why. It prints as a table."""
        return self.composition

    def serving(self, role: str, **facts: str) -> Iterator[tuple[str, Callable[..., Any]]]:
        """Yield (plugin, hook) for a role, preferred first; each hook is bound to its options."""
        for name, hook in self.composition.serving(role, **facts):
            yield name, partial(hook, options=self.options[name])

    def trainer(
        self, solver: demitasse.SolverFile, **options: Unpack[demitasse.TrainerOptions]
    ) -> demitasse.Trainer:
        """Return a solver's trainer; ``TrainerOptions`` are weights, resume, overrides, data, ..."""
        return self.program("trainer", solver, **options)  # type: ignore[no-any-return]

    def net(self, path: demitasse.NetFile, **options: Unpack[demitasse.NetOptions]) -> demitasse.Net:
        """Return a net to run forward; ``NetOptions`` are weights, phase, precision, retain, ..."""
        return self.program("net", path, **options)  # type: ignore[no-any-return]

    def simulate(self, solver: demitasse.SolverFile, **options: Any) -> Any:
        """Predict the time and memory of a step; the options (``samples``, ...) are the plugin's."""
        return self.program("simulate", solver, **options)

    def program(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call the program of this name and return its result. Raises CompositionError if no plugin
        offers it, and WorkerError once the runtime is closed."""
        if self.closed:
            raise errors.WorkerError("this runtime is closed; compose another")
        if name not in self._programs:
            raise errors.CompositionError(demitasse.unoffered(name, self._programs))
        made = self._programs[name](self, *arguments, **options)
        demitasse.check_program(name, self._programs[name], made)
        if hasattr(made, "close"):
            self._open.append(weakref.ref(made, self._open.remove))  # a net that is dropped is freed
            if self.closed:  # by another thread, meanwhile
                made.close()  # type: ignore[unreachable]
        return made

    def read(self, path: str | Path) -> demitasse.ModelReader:
        """Open a model file with the plugin that reads its format. Raises ModelError if none does."""
        path = Path(path)
        demitasse.check_file(path)
        for hook in demitasse.readers_of(self.composition, path):
            if (reader := hook(path=path, layer_types=self.layer_types)) is not None:
                return reader  # type: ignore[no-any-return]
        raise errors.ModelError(demitasse.unread_model(self.composition, path))

    def write(self, path: str | Path, weights: demitasse.Weights) -> Path:
        """Write weights and state, completely or not at all, in the format of the path's suffix."""
        path = Path(path)
        demitasse.writer_of(self.composition, path)(path=path, weights=weights)
        return path

    def open_source(self, spec: demitasse.DataSpec) -> demitasse.DataSource:
        """Open the samples of a specification with the first plugin that knows their format."""
        hooks = [hook for _, hook in self.serving("data_source")]
        source = demitasse.opened_source(self.composition, spec, hooks)
        weak = hasattr(source, "__weakref__")  # slots may leave no room for one
        self._open.append(weakref.ref(source, self._open.remove) if weak else source)
        return source

    def kernels(self, worker: WorkerPlace) -> Kernels:
        """Return the plugins that compute for a worker, its level's choice first, and the tuner."""
        serving = self.serving("kernels", space=worker.place.space)
        first = sorted(serving, key=lambda item: item[0] != worker.kernels)
        others = demitasse.kernels_elsewhere(self.composition, self.serving, worker.place.space)
        with self._making:
            return Kernels([*first, *others], self._tuner(worker), demitasse.check_candidate)

    def _tuner(self, worker: WorkerPlace) -> Tuner | None:
        space = worker.place.space
        for _, hook in self.serving("tuner", space=space):
            if self._tuners.get(space) is None:
                allocator = self.allocator(worker.space if worker.streams else space)
                self._tuners[space] = hook(allocator=allocator, versions=self.composition.versions)
                self._open.append(self._tuners[space])
        return self._tuners.get(space)

    @property
    def processes(self) -> Processes:
        """The processes of this run, found at first use; ``ALONE`` if there is only one."""
        with self._making:
            if self._processes is None:
                some = not self.machine.simulated and any(
                    x.workers == "mpi" for x in self.machine.levels
                )
                asked = (hook(machine=self.machine) for _, hook in self.serving("processes") if some)
                self._processes = next(filter(None, asked), ALONE)
                self._open.insert(0, self._processes)  # left when everything else is closed
            return self._processes

    def allocator(self, space: str) -> Allocator:
        """Return the allocator of a memory space. Raises PlanError if no plugin serves it."""
        for _, hook in self.serving("allocator", space=space):
            if (allocator := hook(space=space)) is not None:
                return allocator  # type: ignore[no-any-return]
        raise errors.PlanError(demitasse.unallocated(self.machine, self.composition, space))

    def engine(self, worker: WorkerPlace) -> demitasse.StreamEngine | None:
        """Return a worker's streams, made at first use, or None. Raises CompositionError."""
        with self._making:
            if not worker.streams or worker.space in self._engines:
                return self._engines.get(worker.space)
            for _, hook in self.serving("stream_engine", space=worker.place.space):
                if (engine := hook(space=worker.space, machine=self.machine)) is not None:
                    self._open.append(engine)
                    return self._engines.setdefault(worker.space, engine)
            raise errors.CompositionError(demitasse.unstreamed(self.machine, self.composition, worker))

    def close(self) -> None:
        """Close everything that was made, the latest first, even if closing one of them raises."""
        self.closed = True
        with contextlib.ExitStack() as stack:
            for made in list(self._open):
                made = made() if isinstance(made, weakref.ref) else made
                stack.callback(demitasse.closed, made)
            self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and self._processes is not None:
            self._processes.fail(error)
        try:
            self.close()
        except Exception as another:
            if error is None:
                raise
            error.add_note(f"closing it then raised {type(another).__name__}: {another}")


def compose(
    hw: str | Path | Machine = "auto",
    plugins: Sequence[Any] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Runtime:
    """Compose a runtime for a machine. ``hw`` is ``auto`` (probe this one), a description's path or a
    Machine. ``plugins`` lists names, preferred first, or changes the default (``+name``, ``-name``).
    ``options`` has each plugin's, by name. Raises DescriptionError, PluginError or CompositionError."""
    if not isinstance(hw, Machine) and str(hw) == "auto":
        machine = Machine(name="auto", levels=(), fingerprint=demitasse.fingerprint())
    else:
        machine = hw if isinstance(hw, Machine) else demitasse.load_machine(hw)
    composition = compose_plugins(machine, plugins)
    if not machine.levels:
        for _, probe in reversed([*composition.serving("probe")]):  # the preferred has the last word
            machine = replace(machine, levels=tuple(probe(levels=machine.levels)) or machine.levels)
        machine = replace(machine, levels=machine.levels or (Level("machine"),))
    return Runtime(machine, composition, options or {})
