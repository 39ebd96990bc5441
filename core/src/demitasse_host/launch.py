"""Whether this process was started together with others. This is read from variables that launchers set,
so that a single process neither imports MPI nor loads its library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """This process as its launcher numbered it: ``rank`` of ``size`` in total, and one of ``local`` on
    this host; each is None if the launcher does not say. ``launcher`` is the launcher's name,
    ``protocol`` the protocol by which the MPI library finds the other processes: "PMI", "PMIx", or "" if
    unknown."""

    launcher: str
    rank: int | None
    size: int | None
    local: int | None = None
    protocol: str = ""

    @property
    def alone(self) -> bool:
        """Whether the launcher started only this process."""
        return self.size == 1


@dataclass(frozen=True)
class _Family:
    """The variables of one kind of launcher. Either ``rank`` or one of ``sizes`` is set. If no ``sizes``
    is, ``shared`` variables, which other launchers also set, say how many processes there are."""

    launcher: str
    protocol: str
    rank: str
    sizes: tuple[str, ...]
    local: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


STEP = "SLURM_STEP_NUM_TASKS"
"""The number of processes that srun started. Only srun sets it: a batch script, which is one process,
has only ``SLURM_NTASKS``, the size of the allocation."""

FAMILIES = (
    _Family(
        "Open MPI's mpiexec", "PMIx", "OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    _Family("a PMI launcher", "PMI", "PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALNRANKS",)),
    _Family(
        "a PMIx launcher", "PMIx", "PMIX_RANK", ("PMIX_SIZE",), ("MPI_LOCALNRANKS",),
        (STEP, "PRTE_NPROCS"),
    ),
    _Family("an MPI launcher", "", "MPI_WORLD_RANK", ("MPI_WORLD_SIZE",)),
)  # fmt: skip
"""What each kind of launcher sets, the most specific first."""

LOCAL_RANKS = (
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
)
"""Variables in which launchers store the number of a process on its host."""


def launched(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Return how an MPI launcher started this process: mpiexec, mpirun, or an srun that speaks PMI or
    PMIx. None if no launcher did. For processes of any other srun, which may be meant to run alone, see
    ``launched_by_srun``."""
    found = os.environ if environment is None else environment
    for family in FAMILIES:
        rank, size = _number(found, (family.rank,)), _number(found, family.sizes)
        if rank is None and size is None:
            continue
        size = _number(found, family.shared) if size is None else size
        return Launch(family.launcher, rank, size, _number(found, family.local), family.protocol)
    return None


def launched_by_srun(environment: Mapping[str, str] | None = None) -> tuple[Launch, bool] | None:
    """Return the srun step of this process if its variables do not mention MPI, and whether MPI may be
    in use all the same, as with a library that is linked to Slurm's own PMI. ``SLURM_MPI_TYPE=none``
    says that each process is meant to be alone; srun itself never sets that, even for ``--mpi=none``.
    Return None if there is no step, or if ``launched`` knows more: Slurm's own variables are also set in
    processes that an mpiexec has started."""
    found = os.environ if environment is None else environment
    rank, size = _number(found, ("SLURM_PROCID",)), _number(found, (STEP,))
    if rank is None or size is None or launched(found) is not None:
        return None
    return Launch("srun", rank, size), found.get("SLURM_MPI_TYPE", "") != "none"


def local_rank(environment: Mapping[str, str] | None = None) -> int | None:
    """Return the number of this process on its host, from 0; None if no launcher says."""
    return _number(os.environ if environment is None else environment, LOCAL_RANKS)


def _number(found: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = found.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return None
