"""A prepared call of a node's ranks, for one array and then for others like it."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from demitasse import PlanError, WorkerError

if TYPE_CHECKING:
    from demitasse_allreduce.node.engine import Block, Node

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Check: TypeAlias = Callable[[], object]

SMALL = 16 * 1024
"""Bytes up to which arrays are staged wherever they lie, and ranks that share processors each add
everything, which needs one wait; slices need two."""

WHOLE = 2 * 1024
"""Bytes up to which ranks that have a processor each also add everything. The limit is lower because
their waits are short (2 ranks, 16 KiB: 4.4 microseconds if both add everything, 2.4 in slices)."""

HEARSAY = 2.0
"""Seconds within which another process may still report why a rank ended."""

ADDED = ("f4", "f8", "i1", "i2", "i4", "i8")
"""Types in which elements are added. All are compiled together. When calls were compiled for each type
separately, the first sum of each type kept every rank busy for four seconds."""

_BLOCK_BITS = 44  # of a place in shared memory: the block's number above, the offset in bytes below


class NodeWork:
    """A call prepared for one array. ``run`` makes the whole call; ``start``, ``progress`` and ``wait``
    make it beside other work."""

    def __init__(
        self,
        node: Node,
        kind: int,
        array: Array,
        check: Check | None = None,
        owned: Sequence[tuple[int, int]] = (),
    ) -> None:
        from demitasse_allreduce.node import loops

        _checked(array)
        name = added_as(array.dtype)
        if name is None:
            raise PlanError(f"a node does not add {array.dtype}; it adds integers, float32 and float64")
        self.node, self.check = node, check
        self.array: Array | None = array
        self._advance, self._advance_on = loops.advance, loops.advance_on
        self._staged = array.nbytes <= SMALL
        found = node.find(array) if array.nbytes > SMALL or owned else None
        if owned and found is None:
            raise PlanError("a sum by owners needs arrays from the space shared:node")
        self._siblings = np.zeros(node.size, np.int64)
        self._owned = np.array(owned, np.int64).reshape(-1, 2) * array.itemsize
        self._scratch = np.zeros(2 * node.size, np.int64)
        self._record = np.zeros(loops.CALL_WORDS, np.int64)
        tables = {"siblings": self._siblings, "owned": self._owned, "scratch": self._scratch}
        address = {name: table.ctypes.data for name, table in tables.items()}
        slices = sum((i + 1) * int(edge) for i, edge in enumerate(self._owned.reshape(-1)))
        self._record[:] = 0
        for word, value in (
            (loops.STATE, node.state),
            (loops.KIND, kind),
            (loops.ADDRESS, array.ctypes.data),
            (loops.NBYTES, array.nbytes),
            (loops.ELEMENT, element_number(array.dtype) + (slices << 16)),
            (loops.NUMBER, ADDED.index(name)),
            (loops.ITEMSIZE, int(name[1:])),
            (loops.OWNED, address["owned"]),
            (loops.SIBLINGS, address["siblings"]),
            (loops.SCRATCH, address["scratch"]),
        ):
            self._record[word] = value
        self._address = self._record.ctypes.data
        self._places = loops.ADDRESS, loops.PLACE
        self._place(found)

    def forget(self) -> None:
        """Do not keep the array: ``take`` must provide one before each run."""
        self.array = None

    def take(self, array: Array) -> None:
        """Use this array in the next run. It is contiguous, and of the first array's size and type."""
        _checked(array)
        self._record[self._places[0]] = array.__array_interface__["data"][0]
        if self.node.blocks and array.nbytes > SMALL:
            found = self.node.find(array)
            self._place(found)

    def sum(self, array: Array, check: Check | None = None) -> None:
        """``take`` an array and ``run``, in fewer Python steps: these would take longer than a small
        sum."""
        self.check = check
        node = self.node
        if DATA < 0 or node._current is not None or (node.blocks and not self._staged):
            self.take(array)
            self.run()
            return
        node._current = self
        status = WAITING
        try:
            status = self._advance_on(self._address, id(array), DATA)
        except BaseException:
            node.abort()
            raise
        if status == DONE:
            node._current = None
        elif status == WAITING:
            node.watch(check)
            self._finish()
        else:
            self._end(status)

    def name(self, element: int, nbytes: int) -> None:
        """Post these instead of the array's element type and size."""
        from demitasse_allreduce.node import loops

        self._record[loops.ELEMENT], self._record[loops.NBYTES] = element, nbytes

    def _place(self, found: tuple[Block, int] | None) -> None:
        """Set the array's place in shared memory."""
        if found is None:
            self._record[self._places[1]] = -1
            return
        block, offset = found
        self._siblings[:] = [address + offset for address in block.addresses]
        self._record[self._places[1]] = block.number << _BLOCK_BITS | offset

    def run(self) -> None:
        """Make the call. Raises WorkerError if a rank asks for something else, has ended, or gave up,
        and what ``check`` raises. Except in the first case, the node cannot be used afterwards."""
        self._enter()
        self._finish()

    def start(self) -> None:
        """Begin the call: do what needs no other rank."""
        self._enter()
        self.progress()

    def progress(self) -> bool:
        """Continue without waiting; return whether the call is done."""
        if self.node._current is not self:
            return True
        try:
            status = self._advance(self._address, False)
            if status != WAITING:
                self._end(status)
        except BaseException:
            self.node.abort()
            raise
        return bool(status != WAITING)

    def wait(self) -> None:
        """Continue until the call is done. Raises as ``run`` does."""
        if self.node._current is self:
            self._finish()

    def _enter(self) -> None:
        if self.node._current is not None:
            raise PlanError("the node is in another call; a second thread needs a channel of its own")
        self.node._current = self

    def _finish(self) -> None:
        status = WAITING
        try:
            while (status := self._advance(self._address, True)) == WAITING:
                self.node.watch(self.check)
        except BaseException:
            self.node.abort()
            raise
        self._end(status)

    def _end(self, status: int) -> None:
        self.node._current = None
        if status == ABORTED:
            hear(self.check)
            raise WorkerError(f"rank {self.node.aborted_by()} of the node gave up in a sum of all ranks")
        if status == DIFFERENT:
            raise WorkerError(self._differences())

    def _differences(self) -> str:
        asked: dict[tuple[int, int, int, int], list[int]] = {}
        for rank, post in enumerate(self.node.posts()):
            asked.setdefault(post, []).append(rank)
        said = (
            f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))} {_said(*post)}"
            for post, ranks in asked.items()
        )
        return "the ranks ask for different sums: " + "; ".join(said)


def _checked(array: Array) -> None:
    if not array.flags.c_contiguous or not array.flags.aligned:
        raise PlanError("a node adds contiguous arrays whose elements are aligned")


DONE, WAITING, ABORTED, DIFFERENT = range(4)
_KINDS = ("allreduce", "reduce_scatter", "allgather", "barrier")


def _word_of_data() -> int:
    """Return which word of an array object is the address of its elements: the first word after the
    object header (NumPy's PyArrayObject). Asking NumPy for it takes longer than adding 4 KB. Returns -1
    if the address is not there."""
    if sys.implementation.name != "cpython":
        return -1
    probe, word = np.empty(1), object.__basicsize__ // 8
    found = ctypes.c_int64.from_address(id(probe) + 8 * word).value
    return word if found == probe.ctypes.data else -1


DATA = _word_of_data()


def added_as(dtype: np.dtype[Any]) -> str | None:
    """Return the type of ``ADDED`` as which loops add such elements, or None if they cannot. Complex
    numbers are added as pairs, and unsigned integers as signed ones, which gives the same bits."""
    if not dtype.isnative:
        return None
    name = {"f": f"f{dtype.itemsize}", "c": f"f{dtype.itemsize // 2}"}.get(dtype.kind)
    if dtype.kind in "iu":
        name = f"i{dtype.itemsize}"
    return name if name in ADDED else None


def element_number(dtype: np.dtype[Any]) -> int:
    """Return a number for an element type that is the same in every process."""
    return ord(dtype.kind) << 8 | dtype.itemsize


def hear(check: Check | None) -> None:
    """Give ``check`` the time (HEARSAY) to raise the cause: a rank that has ended did so for a reason
    that other processes may report."""
    until = time.monotonic() + HEARSAY
    while check is not None and time.monotonic() < until:
        check()
        time.sleep(0.02)


def _said(kind: int, nbytes: int, element: int, place: int) -> str:
    dtype = np.dtype(f"{chr(element >> 8 & 255)}{element & 255}")
    slices = "" if kind in (0, 3) else f" (slices {element >> 16:#x}, place {place:#x})"
    name = "allreduce" if kind == _KINDS.index("barrier") else _KINDS[kind]
    return f"{name} of {nbytes // dtype.itemsize:,} {dtype}{slices}"
