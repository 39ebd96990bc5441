"""The ranks of one node: calls that add arrays in memory that all of them map."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from demitasse import PlanError, WorkerError
from demitasse_allreduce.node.mapping import Mapping, Segment, attach

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Check: TypeAlias = Callable[[], object]

CHUNK = 1024 * 1024
"""Bytes of an array that a rank stages at a time: of 128 KiB to 2 MiB the quickest, measured for arrays
of 16 and 100 MB by 2 ranks on two cores with 1 MiB of L2 each and 32 MiB of L3."""

LINE = 64
"""Bytes of a cache line."""

SMALL = 16 * 1024
"""Up to here every rank adds everything: one wait, where slices need two."""

PIECE = 256 * 1024
"""Bytes of arrays in shared memory that a rank adds before it takes the next piece."""

PATIENCE = 0.02
"""Seconds of a wait after which a caller looks whether the others are still there."""

HEARSAY = 2.0
"""Seconds in which the cause of a rank's end may still be told by somebody else."""

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
_CONTROL_BYTES = 4096
_BLOCK_BITS = 44  # of a place in shared memory: the block's number above, the offset in bytes below


class Block:
    """Memory of all ranks that was allocated together: its number, size, and where each rank's lies."""

    def __init__(self, number: int, nbytes: int, mappings: Sequence[Mapping], rank: int) -> None:
        self.number, self.nbytes, self.mappings = number, nbytes, mappings
        self.addresses = [mapping.address for mapping in mappings]
        self.start = self.addresses[rank]


class Node:
    """The ranks of ``comm``, which must share a machine. Making one is collective, and so is every call,
    in the same order on all ranks; one call at a time (``channel`` gives a second line).

    Sums are taken in the order of ranks, element by element in the element's own type, each once:
    all ranks have the same bits.
    """

    def __init__(self, comm: Any, siblings: Node | None = None) -> None:
        """``siblings``: a Node of the same ranks whose memory is known here too. Raises WorkerError on
        all ranks where one cannot map another's memory."""
        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.blocks: list[Block] = siblings.blocks if siblings else []
        self._count: list[int] = siblings._count if siblings else [0]
        self._current: NodeWork | None = None
        offset = -(-(_CONTROL_BYTES + 128 * self.size) // 4096) * 4096
        self._segments = self._map(offset + 4 * (CHUNK + LINE))
        self._stages = np.array([each.address + offset for each in self._segments], np.int64)
        self._state = self._new_state()
        self.state = self._state.ctypes.data
        self._watched = [_watch(int(pid)) for pid in self._pids]

    def _map(self, nbytes: int) -> list[Mapping]:
        """A segment of every rank, in the order of ranks."""
        problem, segment, handle = "", None, np.full(4, -1, np.int64)
        try:
            segment = Segment(max(1, nbytes))
            handle[:] = segment.handle
        except (OSError, MemoryError, AttributeError) as error:
            problem = f"rank {self.rank} can make no shared memory: {error}"
        handles = np.empty((self.size, 4), np.int64)
        self.comm.Allgather(handle, handles)
        self._pids = handles[:, 0]
        mappings: list[Mapping] = []
        if segment and (handles[:, 0] >= 0).all():
            try:
                for rank, each in enumerate(handles.tolist()):
                    mappings.append(segment.mapping if rank == self.rank else attach(tuple(each)))
            except (WorkerError, MemoryError) as error:
                problem = f"rank {self.rank}: {error}"
        good = np.array([len(mappings) == self.size], np.int64)
        everyone = np.empty(self.size, np.int64)
        self.comm.Allgather(good, everyone)
        if segment:
            segment.close()
        if not everyone.all():
            failed = ", ".join(map(str, np.flatnonzero(everyone == 0)))
            raise WorkerError(
                problem or f"ranks {failed} cannot map the memory of all ranks of the node"
            )
        return mappings

    def _new_state(self) -> Array:
        from demitasse_allreduce.node import loops

        libc = ctypes.CDLL(None)
        number = _SYS_FUTEX.get(os.uname().machine)
        if number is None:
            raise WorkerError(
                f"no futex is known for {os.uname().machine}; {', '.join(_SYS_FUTEX)} have one"
            )
        mine = np.zeros(1024, np.uint8)
        mine[[cpu for cpu in os.sched_getaffinity(0) if cpu < mine.size]] = 1
        processors = np.empty((self.size, mine.size), np.uint8)
        self.comm.Allgather(mine, processors)
        crowded = self.size > processors.any(0).sum()
        state = np.zeros(loops.STATE_WORDS, np.int64)
        state[loops.RANK], state[loops.SIZE] = self.rank, self.size
        state[loops.CONTROL] = self._segments[0].address
        # Crowded ranks wait for one that needs the processor on which they wait.
        state[loops.SPINS], state[loops.YIELDS] = (20, 20) if crowded else (4000, 20)
        state[loops.SYSCALL] = _address(libc.syscall)
        state[loops.FUTEX] = number
        state[loops.YIELD] = _address(libc.sched_yield)
        state[loops.NANOSECONDS] = int(PATIENCE * 1e9)
        state[loops.STAGES] = self._stages.ctypes.data
        state[loops.CHUNK], state[loops.SMALL], state[loops.PIECE] = CHUNK, SMALL, PIECE
        return state

    def channel(self) -> Node:
        """Another Node of these ranks and memory, for calls from a second thread. Collective."""
        return Node(self.comm, self)

    def allocate(self, nbytes: int) -> Block:
        """Memory of every rank, zeroed, in this and the siblings' addresses. Collective: all ranks ask
        for the same number of bytes. Raises WorkerError on all where one cannot."""
        mappings = self._map(nbytes)
        block = Block(self._count[0], nbytes, mappings, self.rank)
        self._count[0] += 1
        self.blocks.append(block)
        return block

    def release(self, block: Block) -> None:
        """Forget a block; its memory goes when the last array in it does."""
        if block in self.blocks:
            self.blocks.remove(block)

    def find(self, array: Array) -> tuple[Block, int] | None:
        """The block in which an array lies and its offset in bytes, or None where it is in no block."""
        address = array.__array_interface__["data"][0]
        for block in self.blocks:
            if block.start <= address < block.start + block.nbytes:
                return block, address - block.start
        return None

    def siblings(self, array: Array) -> list[Array]:
        """The arrays of all ranks at the place of one in shared memory; PlanError if it is not there."""
        found = self.find(array)
        if found is None:
            raise PlanError("the array is not in memory of the space shared:node")
        block, offset = found
        return [each.view(offset, array.shape, array.dtype) for each in block.mappings]

    def allreduce(self, array: Array, check: Check | None = None) -> NodeWork:
        """The sum of all ranks' arrays, to all, in place. Contiguous; ``adds`` says which types.
        Arrays that lie at one place in shared memory are added there, others through a stage."""
        from demitasse_allreduce.node import loops

        return NodeWork(self, loops.ALLREDUCE, array, check)

    def reduce_scatter(
        self, array: Array, owned: Sequence[tuple[int, int]], check: Check | None = None
    ) -> NodeWork:
        """The sum of elements start up to stop of all ranks' arrays, into the array of their owner
        only: ``owned`` has each rank's (start, stop). The arrays are in shared memory."""
        from demitasse_allreduce.node import loops

        return NodeWork(self, loops.REDUCE_SCATTER, array, check, owned)

    def allgather(
        self, array: Array, owned: Sequence[tuple[int, int]], check: Check | None = None
    ) -> NodeWork:
        """Each owner's elements, copied to all ranks' arrays, which are in shared memory."""
        from demitasse_allreduce.node import loops

        return NodeWork(self, loops.ALLGATHER, array, check, owned)

    def barrier(self, check: Check | None = None) -> NodeWork:
        """A wait until all ranks are here."""
        from demitasse_allreduce.node import loops

        return NodeWork(self, loops.BARRIER, np.empty(0, np.float32), check)

    def agree(self, element: int, nbytes: int, check: Check | None = None) -> None:
        """A wait for all ranks. Raises WorkerError on all where they name different numbers, or do
        something else."""
        from demitasse_allreduce.node import loops

        work = NodeWork(self, loops.BARRIER, np.empty(0, np.float32), check)
        work.name(element, nbytes)
        work.run()

    def watch(self, check: Check | None) -> None:
        """Raise WorkerError when a rank's process has ended, and what ``check`` raises."""
        if check is not None:
            check()
        for rank, descriptor in enumerate(self._watched):
            if descriptor is not None and select.select([descriptor], [], [], 0)[0]:
                _hear(check)
                raise WorkerError(f"rank {rank} of the node (process {self._pids[rank]}) has ended")

    def abort(self) -> None:
        """Have all ranks' waits end with an error: this rank cannot go on. No call works any more."""
        from demitasse_allreduce.node import loops

        loops.abort(self.state, self.rank + 1)

    def aborted_by(self) -> int:
        """The rank that called ``abort``, or -1."""
        from demitasse_allreduce.node import loops

        words = self._segments[0].view(0, (_CONTROL_BYTES // 8,), np.int64)
        return int(words[loops.ABORT]) - 1

    def posts(self) -> list[tuple[int, int, int, int]]:
        """What each rank asked for in the last call: kind, bytes, element type, place."""
        from demitasse_allreduce.node import loops

        parity = (int(self._state[loops.CALLS]) - 1) % 2
        lines = self._segments[0].view(8 * loops.POSTS, (self.size, 2, 8), np.int64)
        return [tuple(row[:4].tolist()) for row in lines[:, parity]]

    def close(self) -> None:
        """Give back descriptors; memory goes with the last array in it."""
        for each in self._watched:
            if each is not None:
                os.close(each)
        self._watched, self._segments = [], []


class NodeWork:
    """A call prepared for one array: ``run`` it whole, or ``start`` it, ``progress`` and ``wait``."""

    def __init__(
        self,
        node: Node,
        kind: int,
        array: Array,
        check: Check | None = None,
        owned: Sequence[tuple[int, int]] = (),
    ) -> None:
        from demitasse_allreduce.node import loops

        if not array.flags.c_contiguous:
            raise PlanError("a node adds contiguous arrays")
        zero = zero_of(array.dtype)
        if zero is None:
            raise PlanError(f"a node does not add {array.dtype}; it adds integers, float32 and float64")
        self.node, self.check, self._zero = node, check, zero
        self.array: Array | None = array
        self._advance = loops.advance
        found = node.find(array) if array.nbytes > SMALL or owned else None
        if owned and found is None:
            raise PlanError("a sum by owners needs arrays from the space shared:node")
        self._siblings = np.zeros(node.size, np.int64)
        self._owned = np.array(owned, np.int64).reshape(-1, 2) * array.itemsize
        self._scratch = np.zeros(2 * node.size + 2, np.int64)
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
            (loops.ITEMSIZE, zero.itemsize),
            (loops.OWNED, address["owned"]),
            (loops.SIBLINGS, address["siblings"]),
            (loops.SCRATCH, address["scratch"]),
        ):
            self._record[word] = value
        self._address = self._record.ctypes.data
        self._places = loops.ADDRESS, loops.PLACE
        self._place(found)

    def forget(self) -> None:
        """Keep no array: ``take`` gives one before each run."""
        self.array = None

    def take(self, array: Array) -> None:
        """Sum this array in the next run, contiguous and of the same size and type as the first one."""
        address = array.__array_interface__["data"][0]
        self._record[self._places[0]] = address
        if self.node.blocks and array.nbytes > SMALL:
            found = self.node.find(array)
            self._place(found)

    def name(self, element: int, nbytes: int) -> None:
        """Post these instead of the array's element type and size."""
        from demitasse_allreduce.node import loops

        self._record[loops.ELEMENT], self._record[loops.NBYTES] = element, nbytes

    def _place(self, found: tuple[Block, int] | None) -> None:
        """Say where in shared memory the array is."""
        if found is None:
            self._record[self._places[1]] = -1
            return
        block, offset = found
        self._siblings[:] = [address + offset for address in block.addresses]
        self._record[self._places[1]] = block.number << _BLOCK_BITS | offset

    def run(self) -> None:
        """Do the call. Raises WorkerError where a rank asks for something else, has ended or gave up,
        and what the check raises; then, but for the first, the node can be used no more."""
        self._enter()
        self._finish()

    def start(self) -> None:
        """Begin: do what needs no other rank."""
        self._enter()
        self.progress()

    def progress(self) -> bool:
        """Go on without waiting; whether the call is done."""
        if self.node._current is not self:
            return True
        try:
            status = self._advance(self._address, self._zero, False)
            if status != WAITING:
                self._end(status)
        except BaseException:
            self.node.abort()
            raise
        return bool(status != WAITING)

    def wait(self) -> None:
        """Go on until the call is done."""
        if self.node._current is self:
            self._finish()

    def _enter(self) -> None:
        if self.node._current is not None:
            raise PlanError("the node is in another call; a second thread needs a channel of its own")
        self.node._current = self

    def _finish(self) -> None:
        status = WAITING
        try:
            while (status := self._advance(self._address, self._zero, True)) == WAITING:
                self.node.watch(self.check)
        except BaseException:
            self.node.abort()
            raise
        self._end(status)

    def _end(self, status: int) -> None:
        self.node._current = None
        if status == ABORTED:
            _hear(self.check)
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


WAITING, ABORTED, DIFFERENT = 1, 2, 3
_KINDS = ("allreduce", "reduce_scatter", "allgather", "barrier")


def zero_of(dtype: np.dtype[Any]) -> Any:
    """A zero of the type in which a loop adds elements, or None where loops do not add them: complex
    numbers as pairs, unsigned integers as signed ones, which have the same bits."""
    if not dtype.isnative:
        return None
    name = {"f": f"f{dtype.itemsize}", "c": f"f{dtype.itemsize // 2}"}.get(dtype.kind)
    if dtype.kind in "iu":
        name = f"i{dtype.itemsize}"
    return np.dtype(name).type(0) if name in ("f4", "f8", "i1", "i2", "i4", "i8") else None


def element_number(dtype: np.dtype[Any]) -> int:
    """A number for an element type, the same in every process."""
    return ord(dtype.kind) << 8 | dtype.itemsize


def _hear(check: Check | None) -> None:
    """Give who watches processes the time to raise what it knows of a cause: a rank that has ended did
    so for a reason that others may have heard."""
    until = time.monotonic() + HEARSAY
    while check is not None and time.monotonic() < until:
        check()
        time.sleep(0.02)


def _said(kind: int, nbytes: int, element: int, place: int) -> str:
    dtype = np.dtype(f"{chr(element >> 8 & 255)}{element & 255}")
    slices = "" if kind in (0, 3) else f" (slices {element >> 16:#x}, place {place:#x})"
    name = "allreduce" if kind == _KINDS.index("barrier") else _KINDS[kind]
    return f"{name} of {nbytes // dtype.itemsize:,} {dtype}{slices}"


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _watch(pid: int) -> int | None:
    """A descriptor that tells when a process ends, where the system has them."""
    if pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # the failure watch remains
