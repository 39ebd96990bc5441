"""The runtime that the facade's nets and solvers run on, and the state that is global in Caffe."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from typing import Any, ClassVar

import demitasse
from demitasse import CompositionError, Runtime, after_fork
from demitasse_caffe.training_log import glog

TRAIN, TEST = 0, 1
PHASES = {TRAIN: "train", TEST: "test"}
LOG = logging.getLogger("demitasse.pycaffe")


class _State:
    """The settings of a script. No runtime is composed before the first net."""

    runtime: Runtime | None = None
    own: Runtime | None = None
    python_layers = False
    seed: int | None = None
    phase: int | None = None
    told: ClassVar[set[str]] = set()


def _forked() -> None:
    """Make a forked process compose its own runtime: threads of its parent may be using the other."""
    _State.own = None


after_fork(_forked)


def use(runtime: Runtime | None) -> None:
    """Use ``runtime`` for nets and solvers made from now on. None restores the process's default, which
    is composed for this machine when the first net is made."""
    _State.runtime = runtime


def allow_python_layers(allow: bool = True) -> None:
    """Let nets have layers of type Python. The net's file names the module and the class of such a
    layer, and making the net runs them. Raise CompositionError if ``use`` set a runtime; compose that
    runtime with ``plugins="+python_layer"`` instead."""
    if _State.runtime is not None:
        raise CompositionError(
            "the runtime that use() was given decides about Python layers: compose it with "
            "plugins='+python_layer'"
        )
    if allow != _State.python_layers:
        _State.python_layers, _State.own = allow, None


def current() -> Runtime:
    """Return the runtime in use; compose the default one if necessary."""
    if _State.runtime is not None:
        return _State.runtime
    if _State.own is None:
        _State.own = demitasse.compose(plugins=["+python_layer"] if _State.python_layers else None)
    return _State.own


def seed() -> int:
    """Return the seed of fillers, dropout and shuffling for nets that have none of their own."""
    return _State.seed or 0


def set_random_seed(value: int) -> None:
    """Set the seed of nets and solvers made from now on; by default 0, not the time as in Caffe."""
    _State.seed = int(value)


def set_phase_test() -> None:
    """Make nets for TEST if they are not given a phase."""
    _State.phase = TEST


def set_phase_train() -> None:
    """Make nets for TRAIN if they are not given a phase."""
    _State.phase = TRAIN


def default_phase(trained: bool) -> int | None:
    """Return the phase of a net made without one, as in scripts of 2014. It is the phase that the script
    set, if any; otherwise TEST if the net is ``trained`` (made with weights), or None."""
    if _State.phase is None and trained:
        LOG.info("a net of trained weights is given no phase: it is made for caffe.TEST")
        return TEST
    return _State.phase


def solver_overrides() -> dict[str, Any]:
    """Return the solver parameters that the script's own settings override."""
    return {} if _State.seed is None else {"random_seed": _State.seed}


def set_mode_cpu() -> None:
    """Do nothing: the composition decides where nets run."""


def set_mode_gpu() -> None:
    """Log a line and do nothing else: the composition decides where nets run."""
    LOG.info("set_mode_gpu: the composition decides where nets run: %s", current().machine.name)


def set_device(device: int) -> None:
    """Log a line and do nothing else: the composition decides where nets run."""
    LOG.info("set_device(%s): the composition decides where nets run", device)


def layer_type_list() -> list[str]:
    """Return the names of the layer types that nets can use."""
    return sorted(current().layer_types)


def init_log(level: int = 0, stderr: bool = False) -> None:
    """Write log messages of a level (0 info, 1 warning, 2 error) and above to standard error, in glog's
    format, unless the environment's GLOG_minloglevel is higher. Without this call they go where the
    script's own ``logging`` configuration sends them."""
    LOG.setLevel(logging.INFO + 10 * int(level))
    if not any(isinstance(handler, _StandardError) for handler in LOG.handlers):
        LOG.addHandler(_StandardError())


def log(message: str) -> None:
    """Log a message."""
    LOG.info("%s", message)


def tell(notes: Iterable[str]) -> None:
    """Log, once each in a process, what a reader ignored in a file, as warnings."""
    for note in notes:
        if note not in _State.told:
            _State.told.add(note)
            LOG.warning("%s", note)


def say(place: str, text: str) -> None:
    """Write a line of a training log."""
    LOG.info("%s", text, extra={"place": place})


class _StandardError(logging.Handler):
    """A handler that writes to whatever standard error is at that moment, as glog does."""

    def emit(self, record: logging.LogRecord) -> None:
        # Scripts set it before they import caffe.
        least = os.environ.get("GLOG_minloglevel", "")  # noqa: SIM112
        if least.isdigit() and record.levelno < logging.INFO + 10 * int(least):
            return
        place = getattr(record, "place", f"{record.filename}:{record.lineno}")
        line = glog(place, record.getMessage(), record.levelname[0], record.created)
        print(line, file=sys.stderr, flush=True)


def solver_count() -> int:
    """Return how many solvers train one net together: 1."""
    return 1


def solver_rank() -> int:
    """Return the number of this process's solver: 0."""
    return 0


def set_solver_count(count: int) -> None:
    """Raise CompositionError unless ``count`` is 1: the hardware description sets the
    number of workers."""
    if count != 1:
        raise CompositionError("the hardware description (--hw) decides how many workers train")


def set_solver_rank(rank: int) -> None:
    """Do nothing: a process has only one solver."""


def set_multiprocess(value: bool) -> None:
    """Do nothing: a process trains with only one solver."""


def has_nccl() -> bool:
    """Return whether NCCL joins solvers of several processes: it does not."""
    return False
