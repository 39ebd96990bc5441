"""Was this process started with others? Told from what launchers put into the environment, so that
neither MPI is imported nor a library loaded for a run that is alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from demitasse import Level, SyncSpec


@dataclass(frozen=True)
class Launch:
    """This process as its launcher numbered it: ``rank`` of ``size`` in all and one of ``local`` on this
    host, each None where the launcher does not tell; ``launcher`` names the variable's family."""

    launcher: str
    rank: int | None
    size: int | None
    local: int | None

    @property
    def alone(self) -> bool:
        """Whether the launcher started nobody else."""
        return self.size == 1


@dataclass(frozen=True)
class _Family:
    launcher: str
    rank: str
    size: tuple[str, ...]
    local: tuple[str, ...]


FAMILIES = (
    _Family(
        "Open MPI's mpiexec", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Family("a PMI launcher", "PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALNRANKS",)),
    _Family(
        "a PMIx launcher", "PMIX_RANK", ("SLURM_STEP_NUM_TASKS", "PRTE_NPROCS"), ("MPI_LOCALNRANKS",)
    ),
    _Family("srun", "SLURM_PROCID", ("SLURM_STEP_NUM_TASKS",), ()),
)  # fmt: skip
"""What each kind of launcher sets, the more exact first: Slurm's own variables are there too for
whoever is started by an mpiexec within a job. ``SLURM_STEP_NUM_TASKS`` is of srun alone: a batch
script, which is one process, has only ``SLURM_NTASKS``, the size of the allocation."""


def started(environment: Mapping[str, str] | None = None) -> Launch | None:
    """How mpiexec, mpirun or srun started this process; None if none of them did, or without MPI."""
    found = os.environ if environment is None else environment
    for family in FAMILIES:
        rank = _number(found, (family.rank,))
        size = _number(found, family.size)
        if rank is None or (family.launcher == "srun" and not _slurm_serves_mpi(found, size)):
            continue
        return Launch(family.launcher, rank, size, _number(found, family.local))
    return None


def _slurm_serves_mpi(found: Mapping[str, str], size: int | None) -> bool:
    """Whether this is a step of srun's that MPI can be part of (``--mpi=none`` says it cannot)."""
    return size is not None and found.get("SLURM_MPI_TYPE", "") != "none"


def _number(found: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = found.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None


def with_processes(levels: Iterable[Level]) -> tuple[Level, ...]:
    """A probed machine's levels in each of the processes that a launcher started together, whose
    gradients this plugin sums; as they are where it started one, or a level is of processes already.
    MPI is asked only where the launcher does not tell how many there are."""
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
