"""Solvers as scripts see them: stepped by hand, with nets that can be inspected between steps."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from demitasse import Location, ModelError, Runtime
from demitasse_caffe.net import read_net
from demitasse_caffe.outline import Outline
from demitasse_caffe.paths import find_file
from demitasse_caffe.pycaffe.definition import has_loss, reaches_samples
from demitasse_caffe.pycaffe.nccl import NCCL
from demitasse_caffe.pycaffe.net import Net
from demitasse_caffe.pycaffe.runtime import current, say, solver_overrides, tell
from demitasse_caffe.pycaffe.turns import in_turn
from demitasse_caffe.schema import Schema, schema
from demitasse_caffe.solver import SolverFile
from demitasse_caffe.text import parse, read_text, which
from demitasse_caffe.training_log import TrainingLog
from demitasse_caffe.upgrade import upgrade_solver


class Solver:
    """Training as a solver file describes it. ``net`` is trained; ``test_nets`` share its parameters.
    Other threads that call the solver or run ``net`` during training get their turn between iterations.

    Raises ModelError with file, line and field if the file is not a valid solver.
    """

    type = ""
    """Caffe's name of the update rule; empty if the solver file decides."""

    def __init__(self, solver_file: str | Path) -> None:
        runtime, path = current(), Path(solver_file)
        messages = schema(runtime.layer_types)
        self.param, file = _read(runtime, path, messages)
        overrides: dict[str, Any] = {}
        if self.type and self.param.type != self.type:
            overrides["type"] = self.type
            self.param.type = self.type
        if not self.param.HasField("snapshot_format"):
            overrides["snapshot_format"] = "BINARYPROTO"  # scripts look for files in Caffe's own format
        if self.param.random_seed < 0:
            overrides |= solver_overrides()
        solver = file.solver(overrides)
        tell(solver.notes)
        forced = _forced(self.param, path, messages) or reaches_samples(solver.train)
        forced = forced or not has_loss(solver.train, runtime)  # the script gives gradients itself
        self._trainer = runtime.program(
            "interactive trainer", solver, backward="every blob" if forced else "objective"
        )
        self.net = Net._of(self._trainer.trained, runtime)
        self.test_nets = [Net._of(net, runtime) for net in self._trainer.test_nets]
        self._base_rate, self._rate = self.param.base_lr, self._trainer.solver.rate
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self._saved = -1
        self._log = TrainingLog(self.param.display, say)
        self._trainer.listeners.append(self._log.hear)

    @property
    def iter(self) -> int:
        """The number of completed iterations."""
        return int(self._trainer.iteration)

    @property
    def lr(self) -> float:
        """The learning rate of the current iteration."""
        self._follow_rate()
        return float(self._trainer.rate)

    def step(self, iterations: int) -> None:
        """Run some iterations, with tests and snapshots at the file's intervals. Losses and scores go to
        the log."""
        for _ in range(iterations):
            self._iterate()

    def solve(self, resume_file: str | Path | None = None) -> None:
        """Train to max_iter, optionally from a solver state."""
        self._log.begin(self._trainer.solver.train.name, self.iter)
        if resume_file:
            self.restore(resume_file)
        self.step(max(0, self.param.max_iter - self.iter))
        if self.param.snapshot_after_train and self._saved != self.iter:
            self.snapshot()
        if self.test_nets and self.param.test_interval and self.iter % self.param.test_interval == 0:
            self._test()
        self._log.end(early=False)

    @in_turn
    def restore(self, path: str | Path) -> None:
        """Continue from a solver state."""
        self._trainer.restore(path)

    @in_turn
    def snapshot(self) -> None:
        """Write the parameters and the solver's state as the file specifies."""
        self._trainer.snapshot()
        self._saved = self.iter

    @in_turn
    def apply_update(self) -> None:
        """Update the parameters with their current gradients at the current learning rate."""
        self._follow_rate()
        self._trainer.apply_update()

    def add_callback(
        self, on_start: Callable[[], None] | NCCL, on_gradient: Callable[[], None] | None = None
    ) -> None:
        """Register two functions: one is called at the start of each iteration, when the
        gradients are zero, the other when the gradients are complete, before they are used. An
        NCCL object provides both."""
        if isinstance(on_start, NCCL):
            nccl = on_start
            on_start, on_gradient = nccl.on_start, nccl.on_gradients_ready
        if on_gradient is None:
            raise TypeError("add_callback takes two functions, or an NCCL")
        self._before.append(on_start)
        self._after.append(on_gradient)

    def share_weights(self, net: Net) -> None:
        """Make another net share the parameters of the trained net."""
        net.share_with(self.net)

    @property
    def turn(self) -> threading.RLock:
        """The lock that a thread must hold to run the trained net."""
        return self.net.turn

    @in_turn
    def _iterate(self) -> None:
        param = self.param
        due = self.test_nets and param.test_interval and self.iter % param.test_interval == 0
        if due and (self.iter > 0 or param.test_initialization):
            self._test()
        number, rate = self.iter, self.lr
        net, calls = self.net, (self._before, self._after)
        loss = self._trainer.iterate(*calls, net.prepare, net.following, net.returning)
        if self._log.shows(number):
            outputs = {name: self.net.blobs[name].data for name in self.net.outputs}
            self._log.iteration(number, loss, rate, outputs, self.net.blob_loss_weights)
        if param.snapshot and self.iter % param.snapshot == 0:
            self.snapshot()

    def _follow_rate(self) -> None:
        """Apply a base_lr that the script has written to ``param``."""
        base, rate = self._base_rate, self._rate
        if self.param.base_lr != base and base == 0:
            raise ModelError(
                "base_lr is 0 in the solver's file, so the rate cannot be scaled to the script's "
                "base_lr; give one above 0 there"
            )
        factor = self.param.base_lr / base if base else 1.0
        made = rate if factor == 1 else lambda iteration: factor * rate(iteration)
        self._trainer.solver = replace(self._trainer.solver, rate=made)

    def _test(self) -> None:
        scores = {
            f"{number}.{name}" if number else name: score
            for number, net in enumerate(self.test_nets)
            for name, score in net._scores(self._trainer.solver.test_iterations[number]).items()
        }
        self._log.tests(self.iter, scores, [net.blob_loss_weights for net in self.test_nets])

    def __repr__(self) -> str:
        return f"<caffe.{type(self).__name__} of {self.net!r} at iteration {self.iter}>"


class SGDSolver(Solver):
    """Gradient descent with momentum."""

    type = "SGD"


class NesterovSolver(Solver):
    """Nesterov's accelerated gradient."""

    type = "Nesterov"


class AdaGradSolver(Solver):
    """AdaGrad."""

    type = "AdaGrad"


class RMSPropSolver(Solver):
    """RMSProp."""

    type = "RMSProp"


class AdaDeltaSolver(Solver):
    """AdaDelta."""

    type = "AdaDelta"


class AdamSolver(Solver):
    """Adam."""

    type = "Adam"


def get_solver(solver_file: str | Path) -> Solver:
    """Return a solver of the type that the file names."""
    path = Path(solver_file)
    runtime = current()
    kind = _read(runtime, path, schema(runtime.layer_types))[0].type
    return next((made for made in Solver.__subclasses__() if made.type == kind), Solver)(path)


def _read(runtime: Runtime, path: Path, messages: Schema) -> tuple[Any, SolverFile]:
    """Return a solver's message in the current format, and the file as it is. The content decides how it
    is read, not the suffix."""
    if not path.is_file():
        runtime.read(path)  # raises with the nearest name
    text = read_text(path)
    outline = Outline(text)
    if (kind := which(outline, messages)) != "SolverParameter":
        raise ModelError(f"{path}: is {'a net' if kind else 'not a solver'}; a solver is needed here")
    message = parse(path, text, outline, kind, messages)
    file = SolverFile(path, message, outline, messages)
    present = type(message)()
    present.CopyFrom(message)
    upgrade_solver(present, Location(str(path)))
    return present, file


def _forced(solver: Any, path: Path, messages: Schema) -> bool:
    """Return whether the trained net asks for the gradients of all blobs (force_backward)."""
    for field in ("train_net", "net"):
        if solver.HasField(f"{field}_param"):
            return bool(getattr(solver, f"{field}_param").force_backward)
        if solver.HasField(field):
            net = find_file(getattr(solver, field), path, f"{path}: {field}: file")
            return bool(read_net(net, messages).message.force_backward)
    return False
