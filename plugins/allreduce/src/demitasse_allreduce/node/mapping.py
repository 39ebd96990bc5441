"""Unnamed segments of memory, made by one process and mapped by its siblings.

A segment is a memfd, which a sibling opens through ``/proc/PID/fd``. It has no entry in a file system,
so nothing is left behind however a process ends.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import LARGE_PAGE, WorkerError

_PROT_READ_WRITE, _MAP_SHARED, _MAP_FIXED = 3, 1, 16
_MAP_RESERVE = 0x4022  # private, anonymous, no memory set aside
_HUGE = getattr(mmap, "MADV_HUGEPAGE", 14)


class Mapping:
    """A segment in this process's address space, aligned to a large page if it is at least that long.
    Arrays over it keep it alive; it is unmapped when the last one is gone."""

    def __init__(self, descriptor: int, nbytes: int) -> None:
        self.nbytes = nbytes
        libc = _libc()
        align = LARGE_PAGE if nbytes >= LARGE_PAGE else mmap.PAGESIZE
        self._length = -(-nbytes // align) * align
        reserved = libc.mmap(None, self._length + align, 0, _MAP_RESERVE, -1, 0)
        if reserved in (None, ctypes.c_void_p(-1).value):
            raise MemoryError(f"{nbytes:,} bytes of addresses: {os.strerror(ctypes.get_errno())}")
        self._reserved = (reserved, self._length + align)
        self.address = -(-reserved // align) * align
        found = libc.mmap(
            self.address, self._length, _PROT_READ_WRITE, _MAP_SHARED | _MAP_FIXED, descriptor, 0
        )
        if found != self.address:
            reason = os.strerror(ctypes.get_errno())
            libc.munmap(*self._reserved)
            raise MemoryError(f"{nbytes:,} bytes of shared memory: {reason}")
        if align == LARGE_PAGE:
            # A system that refuses gives small pages, which work as well, with slower address
            # translation.
            libc.madvise(self.address, self._length, _HUGE)
        self._unmap = libc.munmap
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def view(self, offset: int, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, np.dtype[Any]]:
        """Return an array over a part; ``offset`` is in bytes. Raises ValueError if it is not inside."""
        size = prod(shape) * np.dtype(dtype).itemsize
        if offset < 0 or offset + size > self.nbytes:
            raise ValueError(f"{size} bytes at {offset} do not fit in a block of {self.nbytes}")
        array: np.ndarray[Any, np.dtype[Any]] = np.asarray(self)[offset : offset + size]
        made: np.ndarray[Any, np.dtype[Any]] = array.view(dtype).reshape(tuple(shape))
        return made

    def __del__(self) -> None:
        if hasattr(self, "_unmap"):
            self._unmap(*self._reserved)


class Segment:
    """A zeroed segment of this process, and the ``handle`` with which siblings map it."""

    def __init__(self, nbytes: int) -> None:
        length = -(-nbytes // LARGE_PAGE) * LARGE_PAGE if nbytes >= LARGE_PAGE else nbytes
        self.descriptor = os.memfd_create("demitasse", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, length)
            self.mapping = Mapping(self.descriptor, nbytes)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.handle = (os.getpid(), self.descriptor, os.fstat(self.descriptor).st_ino, nbytes)

    def close(self) -> None:
        """Close the descriptor. Call this once all siblings have mapped the segment."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def attach(handle: tuple[int, int, int, int]) -> Mapping:
    """Map a sibling's segment by its handle (process, descriptor, inode, bytes). Raises WorkerError if
    the system does not let this process open it, or if the descriptor is a different file."""
    pid, number, inode, nbytes = handle
    path = Path(f"/proc/{pid}/fd/{number}")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise WorkerError(f"the shared memory of process {pid} cannot be opened: {error}") from error
    try:
        if os.fstat(descriptor).st_ino != inode:
            raise WorkerError(
                f"{path} is not the shared memory of a sibling: another process namespace?"
            )
        return Mapping(descriptor, nbytes)
    finally:
        os.close(descriptor)


def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    size, address, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype = address
    libc.mmap.argtypes = [address, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [address, size]
    libc.madvise.argtypes = [address, size, number]
    return libc
