"""Making the parts of a trainer: a process's workers, what joins them, and the nets that they test."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from demitasse import PRECISIONS, DataSpec, ModelError, Processes, Runtime, Solver, Weights, arrange
from demitasse_training.accord import Accord
from demitasse_training.crew import Crew
from demitasse_training.lent import Lent
from demitasse_training.net import Net
from demitasse_training.samples import opener
from demitasse_training.scores import Scores
from demitasse_training.update import Update
from demitasse_training.worker import Worker

log = logging.getLogger("demitasse.training")

Data = Mapping[str, Mapping[str, Any] | DataSpec] | None
"""Samples, by phase, that a user provides in place of the net's own."""


def make_workers(
    crew: Crew,
    accord: Accord,
    processes: Processes,
    runtime: Runtime,
    solver: Solver,
    *,
    data: Data,
    saved: Weights | None,
    precision: str,
    weak: bool,
    seed: int,
    retain: str | None,
    statistics: str,
) -> None:
    """Plan the solver's net for each worker of this process, with the choices of kernels that were
    ``saved``, and join the workers. Workers made so far are in the ``crew`` even if a later one fails.
    Raises ModelError for samples that no layer would read."""
    open_source, dtype = opener(runtime, data, "train"), PRECISIONS[precision]
    if "test" in (data or {}) and not solver.tests:
        raise ModelError(
            f"{solver.train.location}: data is given for phase 'test', but there is no test net"
        )
    update = Update.named(solver.update, solver.update_attributes, runtime.vocabulary, solver.location)
    for place in arrange(runtime.machine, dtype, processes):
        if saved is not None and (tuner := runtime.kernels(place).tuner) is not None:
            tuner.prefer(saved.record.get("kernels", {}))
        crew.workers.append(
            Worker(
                runtime,
                place,
                solver,
                update,
                crew.workers,
                open_source=open_source,
                dtype=dtype,
                precision=precision,
                weak=weak,
                seed=seed,
                retain=retain,
                add=partial(accord.add, len(crew.workers)) if statistics == "global" else None,
            )
        )
    for number, worker in enumerate(crew.workers):
        for level in worker.watched:
            level.bind(worker.flat)
        if processes.size > 1 and not crew.asynchronous:
            worker.agree = partial(accord.arrive, number)
    if "train" in (data or {}) and not crew.workers[0].graph.feeds:
        raise ModelError(
            f"{solver.train.location}: data is given for phase 'train', but the net has no layer there "
            f"that reads samples"
        )
    first = crew.workers[0]
    if statistics == "global" and first.own and processes.rank == 0:
        log.warning(first.why_own)


def make_tests(
    tests: Scores, crew: Crew, runtime: Runtime, solver: Solver, *, data: Data, precision: str, seed: int
) -> None:
    """Plan the solver's test nets for each worker, in the worker's memory."""
    first = crew.workers[0]
    for definition in solver.tests:
        tests.nets.append([])
        for worker in crew.workers:
            tests.nets[-1].append(
                Net(
                    runtime,
                    definition,
                    phase="test",
                    precision=precision,
                    data=data,
                    seed=seed,
                    lent=Lent(
                        worker.place,
                        first.plan.slots,
                        (worker if worker.place.streams else first).flat.parameters,
                        arena=worker.memory["arena"],
                    ),
                )
            )
