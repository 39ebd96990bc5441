"""Parallel file systems: placing our stripes on Lustre, and reading and creating files through MPI-IO.

By default, Lustre puts a file on one storage target, as TaihuLight's file system does ("single-split",
swCaffe V.B); one stripe file per target makes up for this. If the file system itself stripes files, the
MPI-IO hints ``striping_factor`` (the number of targets) and ``striping_unit`` (bytes of a block) say
how; they take effect when a file is created (MPI 4.1, 14.2.8).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError
from demitasse_striped_io import loops
from demitasse_striped_io.options import Options

LUSTRE = 0x0BD00BD0
"""Lustre's magic number in statfs."""
_OTHERS = {
    0xEF53: "ext2/3/4",
    0x58465342: "XFS",
    0x9123683E: "Btrfs",
    0x2FC12FC1: "ZFS",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
    0x65735546: "FUSE",
    0x6969: "NFS",
    0xFF534D42: "SMB",
    0x00C36400: "Ceph",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
}
"""The file systems that messages name instead of giving their magic number."""


@dataclass(frozen=True)
class Striping:
    """How the file system should lay out each stripe's file: over ``factor`` targets, in blocks of
    ``unit`` bytes; 0 leaves the choice to the file system. ``mpi`` creates files through MPI-IO."""

    factor: int = 0
    unit: int = 0
    mpi: bool = False


def file_system(path: Path) -> int | None:
    """Return Linux's magic number of a path's file system; None on other systems, or if there is no
    path."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    # f_type is the first word of struct statfs, which has at most 120 bytes on known systems.
    about = (ctypes.c_long * 64)()
    if library.statfs(os.fsencode(path), ctypes.byref(about)) != 0:
        return None
    return int(about[0]) & 0xFFFFFFFF


def is_lustre(path: Path) -> bool:
    """Whether a folder is on Lustre."""
    return file_system(path) == LUSTRE


def why_no_lustre(path: Path) -> str | None:
    """Say why ``lfs`` cannot lay out files in a folder; None if it can."""
    if not is_lustre(path):
        magic = file_system(path)
        named = "unknown" if magic is None else _OTHERS.get(magic, f"{magic:#x}")
        return f"{path} is not on Lustre (its file system is {named})"
    if shutil.which("lfs") is None:
        return "the command lfs was not found: install Lustre's client tools"
    return None


def started_mpi() -> Any:
    """Return mpi4py's module MPI, initialised: other code may have imported it without doing so."""
    from mpi4py import MPI

    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        atexit.register(_end, MPI)
    return MPI


def _end(mpi: Any) -> None:
    if not mpi.Is_finalized():
        mpi.Finalize()


def why_no_mpi() -> str | None:
    """Say why MPI-IO cannot be used; None if it can. Does not initialise MPI: if it is not the
    launcher's MPI, that would end the process, even one that only asks."""
    try:
        import mpi4py

        if "mpi4py.MPI" not in sys.modules:
            mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI
    except Exception as error:  # noqa: BLE001  a wheel without its library raises RuntimeError
        return (
            f"mpi4py cannot be imported ({type(error).__name__}: {error}); pip install mpi4py and an MPI"
        )
    return None if hasattr(MPI, "File") else "this MPI has no MPI-IO"


def lfs_command(path: Path, stripe: int, targets: int, striping: Striping) -> list[str]:
    """Return the command that lays out a stripe's file on Lustre before it is written: on one target, a
    different one for each stripe, unless a factor is given."""
    command = ["lfs", "setstripe", "-c", str(striping.factor or 1)]
    if striping.unit:
        command += ["-S", str(striping.unit)]
    if not striping.factor and targets:
        command += ["-i", str(stripe % targets)]
    return [*command, str(path)]


def lustre_targets(folder: Path) -> int:
    """Return the number of storage targets of a Lustre file system; 0 if unknown."""
    done = subprocess.run(["lfs", "df", str(folder)], capture_output=True, text=True, check=False)
    return sum("[OST:" in line for line in done.stdout.splitlines())


def create_stripe(path: Path, stripe: int, striping: Striping) -> None:
    """Create a stripe's empty file with its layout. If the file system is not Lustre, and MPI-IO is not
    requested, the layout is left to the system. Raises DataError or OSError."""
    if striping.mpi:
        _create_by_mpi(path, striping)
    elif why_no_lustre(path.parent) is None:
        command = lfs_command(path, stripe, lustre_targets(path.parent), striping)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DataError(f"{path}: {' '.join(command)} failed: {done.stderr.strip()}")


def hints(factor: int, unit: int) -> dict[str, str]:
    """Return the MPI-IO hints for a layout."""
    given = {"striping_factor": factor, "striping_unit": unit}
    return {name: str(value) for name, value in given.items() if value}


def _create_by_mpi(path: Path, striping: Striping) -> None:
    if (reason := why_no_mpi()) is not None:
        raise DataError(f"{path}: cannot be created by MPI-IO: {reason}")
    MPI = started_mpi()
    info: Any = MPI.Info.Create(hints(striping.factor, striping.unit))
    try:
        MPI.File.Open(MPI.COMM_SELF, str(path), MPI.MODE_CREATE | MPI.MODE_WRONLY, info).Close()
    except MPI.Exception as error:
        raise DataError(f"{path}: MPI-IO cannot create it: {error}") from error
    finally:
        info.Free()


class MpiFiles:
    """Stripes opened through MPI-IO, separately by each process. A process needs blocks in random order,
    so there is no file view that processes could share, and each read is independent."""

    def __init__(self, paths: Sequence[Path], files: np.ndarray, options: Options) -> None:
        """Raises DataError if there is no MPI-IO or a file cannot be opened."""
        if (reason := why_no_mpi()) is not None:
            raise DataError(f"io=mpi: {reason}")
        MPI = started_mpi()
        self._exception = MPI.Exception
        self._status = MPI.Status
        self._byte = MPI.BYTE
        info: Any = MPI.Info.Create(hints(options.striping_factor, options.striping_unit))
        self._files: list[Any] = []
        for path, file in zip(paths, files, strict=True):
            if file < 0:  # missing or empty
                self._files.append(None)
                continue
            try:
                opened = MPI.File.Open(MPI.COMM_SELF, str(path), MPI.MODE_RDONLY, info)
            except MPI.Exception as error:
                raise DataError(f"{path}: MPI-IO cannot open it: {error}") from error
            self._files.append(opened)
        info.Free()

    def fetch(
        self,
        pieces: np.ndarray,
        out: np.ndarray,
        checks: np.ndarray,
        verify: np.ndarray,
        status: np.ndarray,
        tally: np.ndarray,
    ) -> None:
        """Read as ``loops.fetch`` does; MPI releases the interpreter's lock while it reads."""
        breaks = (
            (pieces[1:, 0] != pieces[:-1, 0])
            | (pieces[1:, 1] != pieces[:-1, 1] + pieces[:-1, 2])
            | (pieces[1:, 3] != pieces[:-1, 3] + pieces[:-1, 2])
        )
        firsts = np.concatenate([[0], np.flatnonzero(breaks) + 1])
        lasts = np.concatenate([firsts[1:], [len(pieces)]])
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            stripe, offset, _, place = pieces[first].tolist()
            length = int(pieces[first:last, 2].sum())
            status[first:last] = self._read(stripe, offset, out[place : place + length])
            if status[first] != loops.READ and last - first > 1:  # find out which of them it was
                for piece in range(first, last):
                    _, start, size, at = pieces[piece].tolist()
                    status[piece] = self._read(stripe, start, out[at : at + size])
            tally[stripe, 0] += 1
            tally[stripe, 1] += length
            tally[stripe, 3] += last - first
        for i in np.flatnonzero((verify != 0) & (status == loops.READ)):
            at = pieces[i, 3]
            if loops.xxh64(out[at : at + pieces[i, 2]]) != checks[i]:
                status[i] = loops.DAMAGED

    def _read(self, stripe: int, offset: int, out: np.ndarray) -> int:
        file = self._files[stripe]
        if file is None:
            return loops.FAILED
        got = self._status()
        try:
            file.Read_at(offset, [out, len(out), self._byte], got)
        except self._exception:
            return loops.FAILED
        return loops.READ if got.Get_count(self._byte) == len(out) else loops.CUT_OFF

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            if file is not None:
                file.Close()
        self._files = []
