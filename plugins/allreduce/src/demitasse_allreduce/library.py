"""The MPI library of this process. It is started for several threads, and ended only if all other
processes end as well, because MPI_Finalize waits forever for a process that has died."""

from __future__ import annotations

import atexit
import ctypes.util
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demitasse import CompositionError, Launch
from demitasse_allreduce import launch

log = logging.getLogger("demitasse.allreduce")

LEVELS = ("single", "funneled", "serialized", "multiple")
"""Thread levels, in MPI's order."""

PATIENCE = 10.0
"""Seconds after which a process that waits for others at its end logs a warning."""


class AloneError(CompositionError):
    """Processes that a launcher started together do not find each other through MPI. Each of them raises
    this error."""

    everywhere = True


class Ending:
    """Whether MPI was started here (``ours``), and whether it can be ended: ``unclean`` once a peer has
    failed, ``pending`` if MPI still has unfinished requests. ``limit`` is how many seconds to wait for
    the others at the end."""

    def __init__(self) -> None:
        self.ours = self.unclean = self.pending = False
        self.limit = 300.0

    def __call__(self) -> None:
        """End MPI together with the other processes, or not at all; called at the interpreter's exit."""
        MPI = imported()
        if MPI is None or not self.ours or self.unclean or MPI.Is_finalized():
            return
        request, start, told = MPI.COMM_WORLD.Ibarrier(), time.monotonic(), False
        while not request.Test():
            waited = time.monotonic() - start
            if waited > self.limit:
                log.warning("other processes have not ended after %.0f s; exiting without them", waited)
                return
            if waited > PATIENCE and not told:
                log.warning("rank %d waits for other processes to end", MPI.COMM_WORLD.rank)
                told = True
            time.sleep(min(0.01, waited / 10))
        MPI.Finalize()


ending = Ending()
"""A process has one MPI, so there is one of these."""


def imported() -> Any:
    """Return mpi4py's module MPI if it has been imported, else None."""
    return sys.modules.get("mpi4py.MPI")


def running() -> bool:
    """Return whether MPI is running in this process: started, and not ended yet."""
    MPI = imported()
    return MPI is not None and MPI.Is_initialized() and not MPI.Is_finalized()


def loaded() -> Any:
    """Return mpi4py's module MPI. If this call imports it, MPI is not started yet. Raises
    CompositionError if no MPI library is found."""
    if imported() is None:
        try:
            import mpi4py

            mpi4py.rc(initialize=False, finalize=False)
            import mpi4py.MPI
        except (ImportError, OSError, RuntimeError) as error:
            found = launch.started()
            asked = f"{found.launcher} started this process with others, but " if found else ""
            there = not isinstance(error, ModuleNotFoundError)
            raise CompositionError(
                f"{asked}mpi4py finds no MPI library: {error}; {to_be_found(there)}"
            ) from error
    return imported()


def to_be_found(there: bool) -> str:
    """Return advice on how mpi4py would find a library; ``there`` says whether mpi4py itself is
    installed."""
    if there and (named := ctypes.util.find_library("mpich")):
        return (
            f"MPICH's is {named} on this system: put a link libmpi.so.12 to it into a folder that "
            f"LD_LIBRARY_PATH names"
        )
    return "pip install mpi4py mpich, or load the module of the launcher's own MPI"


def start() -> Any:
    """Return mpi4py's module MPI, and start MPI for several threads if it is not running. Raises
    CompositionError if there is no MPI, or if it has been ended; AloneError if it is not the launcher's
    MPI, in which case starting it would end the process, or find no other process."""
    MPI = loaded()
    if MPI.Is_finalized():
        raise CompositionError(
            "MPI has been ended in this process, which MPI allows only once; compose before MPI_Finalize"
        )
    if not MPI.Is_initialized():
        if words := unheard(launch.started(), MPI):
            raise AloneError(words)
        if name := network(MPI):
            os.environ[NETWORK] = name
            log.info(
                "%s=%s: Slurm's PMI truncates the addresses of MPICH's other network", NETWORK, name
            )
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        ending.ours = True
        atexit.register(ending)
    return MPI


def check_threads(mpi: Any) -> None:
    """Raise CompositionError if MPI does not allow calls from several threads at once: threads that
    communicate while others compute would corrupt it."""
    level = mpi.Query_thread()
    if level < mpi.THREAD_MULTIPLE:
        given = dict(zip(thread_levels(mpi), LEVELS, strict=True)).get(level, str(level))
        remedy = "use an MPI library that was built with it"
        if not ending.ours:
            remedy = "let the application start MPI with MPI_THREAD_MULTIPLE, as mpi4py does by itself"
        raise CompositionError(
            f"MPI provides the thread level {given!r}, but 'multiple' is needed, as threads communicate "
            f"while others compute; {remedy} ({version(mpi)})"
        )


def thread_levels(mpi: Any) -> tuple[int, ...]:
    """Return MPI's constants for LEVELS."""
    return tuple(getattr(mpi, f"THREAD_{level.upper()}") for level in LEVELS)


def unheard(found: Launch | None, mpi: Any) -> str:
    """Return an error message if the launcher announces the other processes by a protocol that this MPI
    does not know; "" if it may know it. Open MPI from 5.0 on knows only PMIx. MPICH knows PMIx if it was
    linked with it, and others (Intel's) may load it."""
    vendor, number = mpi.get_vendor()
    if found is None or not found.protocol:
        return ""
    deaf = False
    if vendor == "Open MPI":
        deaf = found.protocol == "PMI" and number[0] >= 5 and not found.alone
    elif vendor == "MPICH" and found.protocol == "PMIx":
        handles = [_opened(name) for name in _mapped()]
        deaf = bool(handles) and not any(hasattr(handle, "PMIx_Init") for handle in handles)
    return another(found, mpi, f"does not know its protocol, {found.protocol}") if deaf else ""


NETWORK = "MPIR_CVAR_CH4_NETMOD"
"""The environment variable that selects one of the networks that MPICH was built with."""


def network(mpi: Any, environment: Mapping[str, str] | None = None) -> str:
    """Return the network that MPICH must use under Slurm's own PMI; "" if its first one works. Slurm
    (22.05) reads lines of at most 1,024 characters there. MPICH (5.0.2) writes 4,096 bytes for a UCX
    address, including whatever memory follows the address, so lines may be longer; then the processes do
    not start, in one of three runs. Libfabric addresses are short."""
    found = os.environ if environment is None else environment
    if found.get("SLURM_MPI_TYPE") != "pmi2" or "PMI_JOBID" not in found or NETWORK in found:
        return ""
    device = re.search(r"^MPICH Device:\s*ch4:(.*)", mpi.Get_library_version(), re.MULTILINE)
    networks = device[1].split() if device else []
    return "ofi" if networks[:1] == ["ucx"] and "ofi" in networks else ""


def another(found: Launch, mpi: Any, what: str) -> str:
    """Return an error message: the launcher belongs to another MPI, as ``what`` the library does shows;
    and what to start the processes with instead."""
    processes = f"{found.size} process{'es' * (found.size != 1)}" if found.size else "this process"
    wheel = Path(sys.executable).with_name("mpiexec")
    here = f", {wheel}" if wheel.exists() and maker(wheel) == family(mpi) else ""
    start = f"start with the mpiexec of this library{here}, or with srun --mpi={spoken(mpi)}"
    told = f"{found.launcher} started {processes}, but MPI ({version(mpi)}) {what}"
    if mute(found):
        return (
            f"{told}: srun told MPI nothing (--mpi=none, the default at many sites); {start}; to let "
            f"each process train alone, put env SLURM_MPI_TYPE=none before the program (docs/cluster.md)"
        )
    return (
        f"{told}: the launcher belongs to another MPI; {start}, or have mpi4py load the launcher's "
        f"library (docs/cluster.md)"
    )


def mute(found: Launch) -> bool:
    """Return whether the processes were started by an srun that told MPI nothing."""
    return found.launcher == "srun" and "SLURM_MPI_TYPE" not in os.environ


def spoken(mpi: Any) -> str:
    """Return the protocol (srun's --mpi) by which a library learns of srun's processes."""
    return "pmix" if family(mpi) == "Open MPI" else "pmi2"


def family(mpi: Any) -> str:
    """Return whose launcher starts a library: "Open MPI", or "MPICH" for MPICH and its descendants."""
    vendor, _ = mpi.get_vendor()
    return "Open MPI" if vendor == "Open MPI" else "MPICH"


def maker(mpiexec: Path | str) -> str:
    """Return the family of a launcher, or "" if it does not identify itself."""
    try:
        asked = subprocess.run(
            [str(mpiexec), "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    marks = {"Open MPI": "Open MPI", "OpenRTE": "Open MPI", "HYDRA": "MPICH", "Intel(R) MPI": "MPICH"}
    return next((name for mark, name in marks.items() if mark in asked.stdout), "")


PLANNED = {"MPICH": (4, 2), "Open MPI": (5, 0)}
"""The first version of each library whose persistent collectives were found to be correct. In those of
MPICH 4.0.2 and Intel MPI 2021.18 a process receives its own part of the previous call, and Intel's, in
place, end processes. Open MPI 4 has none."""


def plans_exchanges(mpi: Any) -> bool:
    """Return whether a library's persistent collectives (planned once, called repeatedly) may be
    used."""
    vendor, number = mpi.get_vendor()
    return vendor in PLANNED and number[:2] >= PLANNED[vendor]


def version(mpi: Any) -> str:
    """Return the library's name and version in one line."""
    name, number = mpi.get_vendor()
    return f"{name} {'.'.join(map(str, number))}"


def device_aware(mpi: Any) -> bool:
    """Return whether the MPI library can send from and receive into the memory of CUDA devices, as far
    as this can be known. Open MPI and MPICH report it when asked; for Cray MPICH and MVAPICH the
    environment variables that enable it are read."""
    vendor, _ = mpi.get_vendor()
    for name, value in SWITCHES.get(vendor, {}).items():
        if os.environ.get(name, "") == value:
            return True
    libraries = [handle for handle in map(_opened, _mapped()) if handle is not None]
    return any(_says(handle, vendor) for handle in libraries)


SWITCHES = {
    "MPICH": {"MPICH_GPU_SUPPORT_ENABLED": "1"},
    "MVAPICH": {"MV2_USE_CUDA": "1", "MVP_USE_CUDA": "1"},
    "MVAPICH2": {"MV2_USE_CUDA": "1"},
}
"""Environment variables that enable messages from device memory, by vendor as mpi4py names it."""

_CUDA = 0
"""MPICH's constant for CUDA (MPIX_GPU_SUPPORT_CUDA)."""


def _says(handle: Any, vendor: str) -> bool:
    """Return what a library reports about CUDA support; False if it has no such query."""
    if vendor == "Open MPI":
        asked = getattr(handle, "MPIX_Query_cuda_support", None)
        return asked is not None and asked() == 1
    asked = getattr(handle, "MPIX_GPU_query_support", None)
    if asked is None:
        return False
    answer = ctypes.c_int(0)
    return asked(_CUDA, ctypes.byref(answer)) == 0 and answer.value == 1


def _mapped() -> list[str]:
    """Return the files of MPI libraries that are loaded in this process."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    names = {line.split(maxsplit=5)[-1] for line in lines if "/" in line}
    return sorted(name for name in names if Path(name).name.startswith("libmpi"))


def _opened(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None
