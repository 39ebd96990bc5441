"""State of the workers' synchronisation, such as gradients that it has not sent yet: gathering it for a
snapshot, and restoring it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from demitasse import Processes, SnapshotError, Weights
from demitasse_training.collecting import collected
from demitasse_training.worker import Worker

if TYPE_CHECKING:
    from demitasse_training.watched import Watched

log = logging.getLogger("demitasse.training")

KEY = "synchronisation"
"""The key in a snapshot's record: for each process, worker and level, [plugin, the level's state]."""


def gathered_levels(workers: Sequence[Worker], processes: Processes) -> list[Any] | None:
    """Return the value of ``KEY`` in a snapshot's record; None if no level keeps any state, and in all
    processes but the first. All must call this, with no synchronisation under way."""
    if not _keepers(workers):
        return None
    mine = [[[level.plugin, level.saved()] for level in worker.watched] for worker in workers]
    found = collected(mine, processes)
    return found and [each or [] for each in found]  # a lost process has left nothing


def restore_levels(
    workers: Sequence[Worker], processes: Processes, saved: Weights, path: object
) -> None:
    """Restore the state of each level from the file ``path``. A level that keeps state but has none
    there starts afresh, with a warning. Raises SnapshotError if no run can have written the file's
    value."""
    kept = saved.record.get(KEY)
    if kept is not None and not _is_table(kept):
        raise SnapshotError(f"{path}: its record has no table of processes and workers under {KEY!r}")
    here = [len(workers)] * processes.size
    there = [len(each) for each in kept or ()]
    anew = list[str]()
    for number, worker in enumerate(workers):
        theirs = kept[processes.rank][number] if kept and here == there else []
        plugins = [plugin for plugin, _ in theirs]
        if plugins == [level.plugin for level in worker.watched]:
            for level, (_, state) in zip(worker.watched, theirs, strict=True):
                if state is not None:
                    level.restore(deepcopy(state))  # other levels may be given it, too
        else:
            anew += [level.plugin for level in _keepers([worker])]
    if not anew or processes.rank > 0:
        return
    had = f"{sum(there)} workers' in {len(there)} processes" if kept else "none"
    log.warning(
        "%s: the state that synchronisation by %s keeps starts afresh: this run has %s workers in %s "
        "processes, the file has %s",
        *(path, ", ".join(dict.fromkeys(anew)), sum(here), len(here), had),
    )


def _keepers(workers: Sequence[Worker]) -> list[Watched]:
    return [level for worker in workers for level in worker.watched if level.keeps]


def _is_table(value: Any) -> bool:
    """Whether it is a list (processes) of lists (workers) of lists (levels) of a name and a value."""
    if type(value) is not list or not all(type(process) is list for process in value):
        return False
    workers = [worker for process in value for worker in process]
    if not all(type(worker) is list for worker in workers):
        return False
    levels = [level for worker in workers for level in worker]
    return all(type(e) is list and len(e) == 2 and type(e[0]) is str for e in levels)
