"""Finding out which launcher started this process with others that MPI is to join, and the level that
these processes form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from demitasse import Launch, Level, SyncSpec, launched, launched_by_srun


def started(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Return how mpiexec, mpirun or srun started this process; None if none of them did, or if srun did
    so without MPI."""
    if (found := launched(environment)) is not None:
        return found
    step = launched_by_srun(environment)
    return step[0] if step is not None and step[1] else None


def with_processes(levels: Iterable[Level]) -> tuple[Level, ...]:
    """Return a probed machine's levels inside a new level for the processes that a launcher started
    together, whose gradients this plugin sums. The levels are returned unchanged if the launcher started
    one process, or if a level has processes already. MPI is asked only if the launcher does not tell how
    many processes there are."""
    found, given = started(), tuple(levels)
    if found is None or found.alone or any(level.workers == "mpi" for level in given):
        return given
    size = found.size
    if size is None:
        from demitasse_allreduce import library

        size = library.start().COMM_WORLD.size
    if size == 1:
        return given
    return (Level("process", size, workers="mpi", sync=SyncSpec("allreduce")), *given)
