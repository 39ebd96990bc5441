"""Stripes mapped into memory, and what happens if a stripe is truncated meanwhile.

Reading a mapped page that the file no longer has raises the signal SIGBUS, which ends a process. Checks
of the file's length come too early or too late, and a system call for each record takes longer than
copying it. Therefore the signal is handled. If the address is in one of our maps, empty pages replace
the map from there to its end, which the interrupted copy then reads, and the map is marked as lost.
After copying, the reader checks that mark, and reads again by system calls, which identify the sample. A
signal for any other address goes to the previous handler.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import signal
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from demitasse import load_numba, process_lock

numba = load_numba()

SLOTS = 4096
"""The most maps of a process at a time; a set with more stripes than are free is not mapped."""
CHECKED_EVERY = 0.1
"""Seconds between two checks of the files' lengths: what is truncated within a page reads as zeros,
without a signal."""

_SIGINFO, _ONSTACK = 4, 0x08000000
_PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE = 2, 0x10, 0x20, 0x4000
_slots = np.zeros((SLOTS, 3), np.int64)
"""A map's first address, the address after it, and whether it was lost. The array never moves."""
_losses = np.zeros(1, np.int64)
"""How many maps were lost."""
_lock = process_lock()


class _Action(ctypes.Structure):
    """struct sigaction of Linux's C libraries."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@intrinsic
def _load(context: Any, address: Any) -> Any:
    """Return the int64 at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return types.int64(types.intp), generate


@intrinsic
def _store(context: Any, address: Any, value: Any) -> Any:
    """Write an int64 to an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.intp, types.int64), generate


@functools.cache
def _installed() -> tuple[Any, ...]:
    """Install the handler of SIGBUS, once per process; return the objects that must stay alive for
    it."""
    before, own = _Action(), _Action()
    table, losses, earlier = _slots.ctypes.data, _losses.ctypes.data, ctypes.addressof(before)
    page, number = mmap.PAGESIZE, int(signal.SIGBUS)
    kind = _PRIVATE | _FIXED | _ANONYMOUS | _NO_RESERVE
    load: Any = _load
    store: Any = _store
    place: Any = types.ExternalFunction(
        "mmap", types.intp(types.intp, types.uintp, types.intc, types.intc, types.intc, types.int64)
    )
    act: Any = types.ExternalFunction("sigaction", types.intc(types.intc, types.intp, types.intp))

    def handle(found: int, about: Any, context: Any) -> None:
        # Only calls that are safe in a signal handler, and no Python: any thread may be here.
        address = about[2]
        for row in range(table, table + SLOTS * 24, 24):
            begin, end = load(row), load(row + 8)
            if begin <= address < end:
                first = address // page * page
                if place(first, (end - first + page - 1) // page * page, 1, kind, -1, 0) == first:
                    store(row + 16, 1)
                    store(losses, load(losses) + 1)
                    return
        act(number, earlier, 0)  # the instruction is repeated, and reaches the previous handler

    pointer: Any = types.CPointer
    made = numba.cfunc(types.void(types.intc, pointer(types.int64), types.voidptr))(handle)
    own.handler, own.flags = made.address, _SIGINFO | _ONSTACK
    library = ctypes.CDLL(None, use_errno=True)
    if library.sigaction(number, ctypes.byref(own), ctypes.byref(before)):
        raise OSError(ctypes.get_errno(), "sigaction")
    return made, before


class Mapped:
    """Files mapped into memory for reading; ``addresses`` (files,) int64, 0 for empty files."""

    def __init__(self, files: Sequence[int], lengths: Sequence[int]) -> None:
        """Raises OSError if they cannot be mapped: because one is shorter than its length, or the system
        does not handle signals as Linux does."""
        if not sys.platform.startswith("linux"):
            raise OSError("SIGBUS is only handled on Linux")
        self.addresses = np.zeros(len(files), np.int64)
        self._files = [(f, n) for f, n in zip(files, lengths, strict=True) if n]
        self._held: list[np.ndarray] = []
        self._looked, self._losses, self._lost = time.monotonic(), 0, False
        if not self._there():
            raise OSError("a file is missing or cut off")
        _installed()
        used = [i for i, length in enumerate(lengths) if length]
        with _lock:
            slots = np.flatnonzero(_slots[:, 1] == 0)[: len(used)]
            if len(slots) < len(used):
                raise OSError(f"{SLOTS} maps are in use")
            self._slots = slots
            self._freed = weakref.finalize(self, _free, slots)
            for slot, i in zip(slots, used, strict=True):
                data = np.frombuffer(mmap.mmap(files[i], lengths[i], prot=mmap.PROT_READ), np.uint8)
                self._held.append(data)
                self.addresses[i] = data.ctypes.data
                _slots[slot] = data.ctypes.data, data.ctypes.data + lengths[i], 0

    def whole(self) -> bool:
        """Whether everything that was copied from it so far existed."""
        if not self._lost:
            if self._losses != _losses[0]:
                self._losses = int(_losses[0])
                self._lost = bool(_slots[self._slots, 2].any())
            now = time.monotonic()
            if now - self._looked > CHECKED_EVERY:
                self._lost, self._looked = self._lost or not self._there(), now
        return not self._lost

    def _there(self) -> bool:
        return all(file >= 0 and os.fstat(file).st_size >= length for file, length in self._files)


def _free(slots: np.ndarray) -> None:
    _slots[slots] = 0
