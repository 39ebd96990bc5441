"""Checks of the arguments that users give a net or a trainer, before anything is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import (
    PRECISIONS,
    CompositionError,
    DataSpec,
    ModelError,
    Runtime,
    Solver,
    Weights,
    WeightsFiles,
    blamed,
    unknown,
)

PHASES = ("train", "test")
BACKWARD = (None, "objective", "every blob")
SCALINGS = ("strong", "weak")
STATISTICS = ("global", "local")
IN_MEMORY = "the weights given"
"""The name, in errors, of weights that are not in a file."""


def chosen_precision(runtime: Runtime, asked: str | None) -> str:
    """Return the precision that a run asks for or, by default, that of the machine's description. Raises
    CompositionError with the valid ones."""
    precision = runtime.machine.precision if asked is None else asked
    if not isinstance(precision, str) or precision not in PRECISIONS:
        where = runtime.machine.origin if asked is None else None
        raise CompositionError(unknown("precision", str(precision), PRECISIONS, where))
    return precision


def check_scaling(scaling: str) -> None:
    """Raise CompositionError for an invalid ``scaling``."""
    if not isinstance(scaling, str) or scaling not in SCALINGS:
        raise CompositionError(unknown("scaling", str(scaling), SCALINGS))


def check_statistics(statistics: str) -> None:
    """Raise CompositionError for invalid ``statistics``."""
    if not isinstance(statistics, str) or statistics not in STATISTICS:
        raise CompositionError(unknown("statistics", str(statistics), STATISTICS))


def check_overrides(overrides: Any) -> None:
    """Raise ModelError unless ``overrides`` is a mapping of settings to values."""
    if overrides is None or (
        isinstance(overrides, Mapping) and all(isinstance(k, str) for k in overrides)
    ):
        return
    form = "overrides must map keys to values, {'base_lr': 0.1, 'layer.data.data_param.batch_size': 64}"
    raise ModelError(f"{form}; given {overrides!r:.99}")


def check_asks(**asks: Any) -> None:
    """Raise ModelError for callbacks that cannot be called: now, not at their first call after hours."""
    for name, ask in asks.items():
        if ask is not None and not callable(ask):
            raise ModelError(f"{name} must be a function that says whether to; given {ask!r:.99}")


def check_retain(retain: str | None) -> None:
    """Raise CompositionError for an invalid ``retain``."""
    if retain is not None and retain != "all":
        raise CompositionError(f"unknown retain {retain!r} (valid: None, 'all')")


def check_backward(backward: str | None, retain: str | None) -> None:
    """Raise CompositionError for an invalid ``backward``."""
    if backward not in BACKWARD:
        raise CompositionError(
            f"unknown backward {backward!r} (valid: {', '.join(map(repr, BACKWARD))})"
        )
    if backward and retain != "all":
        raise CompositionError(f"backward={backward!r} needs retain='all'")


def at_least_one(iterations: Any) -> None:
    """Raise ModelError unless ``iterations`` is a whole number of at least one."""
    if not isinstance(iterations, Integral) or iterations < 1:
        raise ModelError(f"iterations must be a whole number, at least 1; given {iterations!r}")


def whole_seed(seed: Any) -> int:
    """Return a random seed as an int. Raises ModelError unless it is a whole number of 64 bits: random
    numbers depend on no more than these."""
    if not isinstance(seed, Integral) or not -(2**63) <= int(seed) < 2**64:
        raise ModelError(f"seed must be a whole number from -2**63 to 2**64 - 1; given {seed!r}")
    return int(seed)


def rate_of(solver: Solver, iteration: int) -> float:
    """Return a solver's learning rate for an iteration. Raises ModelError if it is not a number, and
    PluginError for an exception of the function that returns it."""
    made = solver.rate if callable(solver.rate) else f"the solver's rate {solver.rate!r}"
    with blamed(made, f"at iteration {iteration}", solver.location):
        rate: Any = solver.rate(iteration)
    try:
        if not isinstance(rate, str):
            return float(rate)
    except (TypeError, ValueError):
        pass
    told = f"the solver's learning rate at iteration {iteration} is {rate!r}, which is not a number"
    raise ModelError(f"{solver.location}: {told}" if solver.location else told)


def check_data(data: Mapping[str, Mapping[str, Any] | DataSpec] | None) -> None:
    """Raise ModelError unless ``data`` maps phases to arrays by name, or a DataSpec."""
    form = (
        "data must map a phase to arrays by the names of the samples' fields, {'train': {'data': ...}}, "
        "or to a DataSpec"
    )
    if data is not None and not isinstance(data, Mapping):
        raise ModelError(f"{form}; given {type(data).__name__}")
    for phase, arrays in (data or {}).items():
        if phase not in PHASES:
            raise ModelError(f"{unknown('phase of data', str(phase), PHASES)}; {form}")
        if not isinstance(arrays, Mapping | DataSpec):
            raise ModelError(f"{form}; given {type(arrays).__name__} for {phase!r}")


def read_weights(runtime: Runtime, weights: WeightsFiles | None) -> list[tuple[str, Weights]]:
    """Read weights given as a path, a comma-separated list of paths, Weights, or several of these.
    Returns the name and the arrays of each. Raises ModelError for anything else."""
    if weights is None:
        return []
    several: Any = weights.split(",") if isinstance(weights, str) else weights
    alone = isinstance(several, Path | Weights | Mapping | bytes) or not isinstance(several, Iterable)
    given, found = [several] if alone else list(several), list[tuple[str, Weights]]()
    for number, each in enumerate(given, 1):
        if isinstance(each, Weights):
            which = f" ({number})" if len(given) > 1 else ""
            found.append((f"{IN_MEMORY}{which}", _in_arrays(each)))
        elif isinstance(each, str | Path):
            found.append((str(each), runtime.read(each).weights()))
        else:
            told = "weights must be a file's path, demitasse.Weights, or a list of these"
            raise ModelError(f"{told}; given {type(each).__name__}")
    return found


def _in_arrays(weights: Weights) -> Weights:
    arrays = {layer: [np.asarray(a) for a in each] for layer, each in weights.parameters.items()}
    return replace(weights, parameters=arrays)
