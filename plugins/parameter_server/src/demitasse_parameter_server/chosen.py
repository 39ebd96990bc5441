"""The program ``trainer`` for a runtime whose options state the number of workers, or that it is to be
found by trials."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from demitasse import (
    CompositionError,
    DescriptionError,
    Machine,
    Runtime,
    Solver,
    option_place,
    uninstalled,
    unknown,
)
from demitasse_parameter_server import trials

log = logging.getLogger("demitasse.parameter_server")

PLUGIN, AUTO = "parameter_server", "auto"

SECONDS = 0.5
"""How many seconds each number of workers is measured if a run finds it by trials."""

TRIED_WITH = ("overrides", "data", "scaling", "statistics", "precision")
"""Options of a trainer that the time of its iterations depends on."""

_machines: WeakKeyDictionary[Runtime, Machine] = WeakKeyDictionary()
"""The machine of each runtime before its workers were chosen; for a second trainer, others may be
chosen."""


def trainers(runtime: Runtime) -> trials.Make:
    """Return the program ``trainer`` of another plugin. Raises CompositionError if there is none."""
    for name, hook in runtime.composition.serving("programs"):
        if name != PLUGIN and "trainer" in (offered := hook()):
            return offered["trainer"]  # type: ignore[no-any-return]
    lacking = uninstalled("programs", "trainer") or "; compose the plugin 'training'"
    raise CompositionError(f"no composed plugin has a program 'trainer'{lacking}")


def trainer(runtime: Runtime, solver: str | Path | Solver, **options: Any) -> Any:
    """Return another plugin's trainer, with as many workers as the option ``workers`` says. With
    ``"auto"``, every number that divides the machine's cores is tried in the net's first iterations, by
    trainers that are then closed, and the fastest is taken. The result is remembered for the machine
    and the net.

    Raises DescriptionError for another value, CompositionError if the machine's description already says
    who its workers are.
    """
    make, machine = trainers(runtime), _machines.setdefault(runtime, runtime.machine)
    given = runtime.options[PLUGIN]
    where = option_place(given, PLUGIN, "workers", machine.origin)
    for name in given:
        if name != "workers":
            raise DescriptionError(
                unknown("option", name, ["workers"], option_place(given, PLUGIN, name))
            )
    if "workers" not in given:
        return make(runtime, solver, **options)
    trials.check_free(machine, where)
    record = (
        solver if isinstance(solver, Solver) else runtime.read(solver).solver(options.get("overrides"))
    )
    workers = _workers(given["workers"], machine, where)
    if workers is None:
        workers = _quickest(runtime, machine, make, record, options)
    runtime.machine = trials.arranged(machine, workers, trials.cores_of(machine) // workers)
    return make(runtime, solver, **options)


def _quickest(
    runtime: Runtime, machine: Machine, make: trials.Make, solver: Solver, options: dict[str, Any]
) -> int:
    name = trials.name_of(solver, machine, options.get("precision"))
    memory = trials.memory()
    found = trials.remembered(memory, name)
    told = "remembered" if found else "tried now"
    if not found:
        runtime.machine = machine
        about = {key: value for key, value in options.items() if key in TRIED_WITH}
        found = trials.tried(runtime, make, solver, SECONDS, **about)
        trials.remember(memory, name, found)
    best = min(found, key=lambda trial: trial.seconds)
    each = ", ".join(f"{t.workers} x {t.threads} {t.seconds * 1e3:.3g} ms" for t in found)
    log.info("%d workers of %d threads: the quickest of %s (%s)", best.workers, best.threads, each, told)
    return best.workers


def _workers(value: Any, machine: Machine, where: str) -> int | None:
    """Return the requested number of workers; None if it is to be found by trials."""
    if value == AUTO:
        return None
    counts = [workers for workers, _ in trials.shapes(trials.cores_of(machine))]
    if type(value) is not int or value not in counts:
        valid = ", ".join(map(str, counts))
        raise DescriptionError(f'{where}: workers = {value!r} (valid: "auto", or one of {valid})')
    return value
