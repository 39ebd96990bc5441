"""Findings for ``demitasse doctor`` about what several processes need on this machine: an MPI library
that threads can use, a launcher, memory that processes can share, and addresses at which they can reach
each other."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

from demitasse import CompositionError, Finding
from demitasse_allreduce import addresses, launch, library

SHARED = Path("/dev/shm")
GIB = 2**30

ASK_LEVEL = """
import mpi4py
from mpi4py import MPI
print(MPI.Query_thread() >= MPI.THREAD_MULTIPLE)
"""
"""Run in a process of its own: MPI reports its thread level only once started, and can be started only
once."""


def findings() -> Iterator[Finding]:
    """Yield findings about MPI, its launcher, shared memory and addresses."""
    kin = yield from _mpi()
    yield from _launcher(kin)
    yield from _shared_memory()
    yield from _addresses()


def _mpi() -> Generator[Finding, None, str]:
    """Yield findings about MPI. Returns the library's family, "" if there is no library."""
    try:
        mpi = library.loaded()
    except CompositionError as error:
        message, _, remedy = str(error).partition("; ")
        yield Finding("note", "MPI", message, f"for runs of several processes: {remedy}")
        return ""
    kin = library.family(mpi)
    yield Finding("ok", "MPI", f"{library.version(mpi)}, by mpi4py")
    found = launch.started()
    if found is not None:
        size = "an unknown number" if found.size is None else str(found.size)
        if words := library.unheard(found, mpi):
            yield Finding("problem", "MPI launch", *words.split("; ", 1))
        elif library.mute(found) and not found.alone:
            message = f"srun started {size} processes and told MPI nothing (--mpi=none)"
            remedy = f"for one run of all of them: srun --mpi={library.spoken(mpi)}, or mpiexec"
            yield Finding("note", "MPI launch", message, remedy)
        else:
            yield Finding("ok", "MPI launch", f"started by {found.launcher}, one of {size}")
            if name := library.network(mpi):
                message = (
                    f"{name} between hosts: Slurm's PMI truncates the addresses of MPICH's first network"
                )
                remedy = "on InfiniBand start with mpiexec, which uses the first one"
                yield Finding("note", "MPI network", message, remedy)
        return kin  # a process started here to ask would not be one of those that the launcher started
    asked = subprocess.run(
        [sys.executable, "-c", ASK_LEVEL], capture_output=True, text=True, timeout=60, check=False
    )
    answer = asked.stdout.strip()
    if answer == "True":
        yield Finding("ok", "MPI threads", "threads may communicate while others compute")
    elif answer == "False":
        message = (
            "MPI allows calls from one thread only: runs of several processes need MPI_THREAD_MULTIPLE"
        )
        yield Finding("problem", "MPI threads", message, "install an MPI built with it: mpich's wheel")
    else:
        why = (asked.stderr.strip().splitlines() or [f"status {asked.returncode}"])[-1]
        yield Finding(
            "problem", "MPI threads", f"MPI does not start: {why}", "reinstall the MPI library"
        )
    return kin


def _launcher(kin: str) -> Iterator[Finding]:
    """Yield a finding about the launcher that a shell finds: whether it belongs to the library's family
    ``kin``."""
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = shutil.which("mpiexec") or (str(beside) if beside.exists() else None)
    found = mpiexec or shutil.which("srun")
    if mpiexec and kin and (made := library.maker(mpiexec)) not in ("", kin):
        message = (
            f"{mpiexec} belongs to {made}, but mpi4py's library to {kin}: its processes do not meet"
        )
        remedy = (
            f"start with an mpiexec of {kin}, or have mpi4py load {made}'s library (docs/cluster.md)"
        )
        yield Finding("problem", "MPI launcher", message, remedy)
    elif found:
        yield Finding("ok", "MPI launcher", found)
    else:
        remedy = "pip install mpich brings an mpiexec; clusters have one of their own"
        yield Finding("note", "MPI launcher", "neither mpiexec nor srun was found", remedy)


def _shared_memory() -> Iterator[Finding]:
    if not SHARED.is_dir():
        message = f"{SHARED} does not exist: processes of a host cannot share memory"
        yield Finding("note", "shared memory", message, "mount a tmpfs there")
        return
    facts = os.statvfs(SHARED)
    free = facts.f_bavail * facts.f_frsize
    text = f"{free / GIB:.3g} GiB free in {SHARED}"
    if free < GIB:
        remedy = "raise its size (docker: --shm-size; else: mount -o remount,size=...)"
        yield Finding("note", "shared memory", f"{text}: large nets need more", remedy)
    else:
        yield Finding("ok", "shared memory", text)


def _addresses() -> Iterator[Finding]:
    name, mine = socket.gethostname(), addresses.addresses()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        message = f"this host's name {name!r} does not resolve ({error}); launchers may need it"
        yield Finding("note", "host name", message, f"add {name} to /etc/hosts, or to DNS")
    if mine:
        yield Finding("ok", "addresses", f"others reach this host at {', '.join(mine)}")
    else:
        message = "no address but loopback's: only processes of this host can work together"
        yield Finding("note", "addresses", message)
