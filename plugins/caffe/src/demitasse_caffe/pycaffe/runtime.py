"""The runtime that the facade's nets and solvers run on, and what Caffe keeps as global state."""

from __future__ import annotations

import logging
import sys
from typing import Any

import demitasse
from demitasse import CompositionError, Runtime, after_fork
from demitasse_caffe.training_log import glog

TRAIN, TEST = 0, 1
PHASES = {TRAIN: "train", TEST: "test"}
LOG = logging.getLogger("demitasse.pycaffe")


class _State:
    """What a script has set; nothing is composed before the first net."""

    runtime: Runtime | None = None
    own: Runtime | None = None
    python_layers = False
    seed: int | None = None
    phase: int | None = None


def _forked() -> None:
    """A process that was forked composes its own: its parent's threads may work with the other."""
    _State.own = None


after_fork(_forked)


def use(runtime: Runtime | None) -> None:
    """Run the nets and solvers that are made from now on on ``runtime``; None goes back to the
    process's default, which is composed for this machine at the first net."""
    _State.runtime = runtime


def allow_python_layers(allow: bool = True) -> None:
    """Let nets have layers of type Python: a net's file names the module and class of such a layer, and
    whoever makes the net runs them. Raises CompositionError where ``use`` gave a runtime: compose that
    with ``plugins="+python_layer"`` instead."""
    if _State.runtime is not None:
        raise CompositionError(
            "the runtime that use() was given decides about Python layers: compose it with "
            "plugins='+python_layer'"
        )
    if allow != _State.python_layers:
        _State.python_layers, _State.own = allow, None


def current() -> Runtime:
    """The runtime in use."""
    if _State.runtime is not None:
        return _State.runtime
    if _State.own is None:
        _State.own = demitasse.compose(plugins=["+python_layer"] if _State.python_layers else None)
    return _State.own


def seed() -> int:
    """The seed of fillers, dropout and shuffling of nets without one of their own."""
    return _State.seed or 0


def set_random_seed(value: int) -> None:
    """The seed of the nets and solvers that are made from now on. Without it they have seed 0, not, as
    in Caffe, one from the clock."""
    _State.seed = int(value)


def set_phase_test() -> None:
    """Make nets that are given no phase for TEST."""
    _State.phase = TEST


def set_phase_train() -> None:
    """Make nets that are given no phase for TRAIN."""
    _State.phase = TRAIN


def default_phase(trained: bool) -> int | None:
    """The phase of a net that is given none, as nets of 2014 were: TEST for one of ``trained`` weights,
    unless the script has set another; None where nothing says it."""
    if _State.phase is None and trained:
        LOG.info("a net of trained weights is given no phase: it is made for caffe.TEST")
        return TEST
    return _State.phase


def solver_overrides() -> dict[str, Any]:
    """What a script's own settings change in a solver."""
    return {} if _State.seed is None else {"random_seed": _State.seed}


def set_mode_cpu() -> None:
    """Nothing: the composition decides where nets run."""


def set_mode_gpu() -> None:
    """Nothing but a line in the log: the composition decides where nets run."""
    LOG.info("set_mode_gpu: the composition decides where nets run: %s", current().machine.name)


def set_device(device: int) -> None:
    """Nothing but a line in the log: the composition decides where nets run."""
    LOG.info("set_device(%s): the composition decides where nets run", device)


def layer_type_list() -> list[str]:
    """The layer types that nets may have."""
    return sorted(current().layer_types)


def init_log(level: int = 0, stderr: bool = False) -> None:
    """Write the logger's messages of a level (0 is info, 1 warning, 2 error) and above to standard
    error, as glog writes them. Without it they go where the script's own ``logging`` leads."""
    LOG.setLevel(logging.INFO + 10 * int(level))
    if not any(isinstance(handler, _StandardError) for handler in LOG.handlers):
        LOG.addHandler(_StandardError())


def log(message: str) -> None:
    """A line for the log."""
    LOG.info("%s", message)


def say(place: str, text: str) -> None:
    """A line of a training's log."""
    LOG.info("%s", text, extra={"place": place})


class _StandardError(logging.Handler):
    """Writes a message to what is standard error then, as glog does."""

    def emit(self, record: logging.LogRecord) -> None:
        place = getattr(record, "place", f"{record.filename}:{record.lineno}")
        line = glog(place, record.getMessage(), record.levelname[0], record.created)
        print(line, file=sys.stderr, flush=True)


def solver_count() -> int:
    """How many solvers train one net together: 1."""
    return 1


def solver_rank() -> int:
    """The number of this process's solver: 0."""
    return 0


def set_solver_count(count: int) -> None:
    """Raises CompositionError unless it is 1: workers are the hardware description's."""
    if count != 1:
        raise CompositionError("the hardware description (--hw) decides how many workers train")


def set_solver_rank(rank: int) -> None:
    """Nothing: there is one solver in a process."""


def set_multiprocess(value: bool) -> None:
    """Nothing: one solver trains in a process."""


def has_nccl() -> bool:
    """Whether solvers of several processes are joined by NCCL: no."""
    return False
