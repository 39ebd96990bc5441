"""The ranks of one node, and their calls, which add arrays in memory that all of them map."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse import KernelFiles, PlanError, WorkerError
from demitasse_allreduce.node.mapping import Mapping, Segment, attach
from demitasse_allreduce.node.work import SMALL, WHOLE, Array, Check, NodeWork, hear

CHUNKS, STAGED = (256 * 1024, 512 * 1024), 2 * 1024 * 1024
"""The least and the most bytes of an array that a rank stages at a time, and the most bytes that all
ranks together stage, unless the least per rank requires more: stages must stay in the last-level cache.
On two cores with 1 MiB of L2 and 32 MiB of L3, 2 ranks took as long for 16 MB with chunks of 1 MiB, and
3% longer with 256 KiB. 4 ranks took 9% longer with 256 KiB, and 35% longer with 128 KiB, where what a
rank reads is still in another's L2."""

LINE = 64
"""Bytes of a cache line."""

PIECE = 256 * 1024
"""Bytes of a piece: of arrays in shared memory, a rank adds one piece before it takes the next."""

PATIENCE = 0.02
"""Seconds of waiting after which a caller checks whether the others are still there."""

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
_CONTROL_BYTES = 4096
_DOMAINS = "sys/devices/system/node"


class Block:
    """Memory that all ranks allocated together: its number, its size per rank, and the address of each
    rank's part."""

    def __init__(self, number: int, nbytes: int, mappings: Sequence[Mapping], rank: int) -> None:
        self.number, self.nbytes, self.mappings = number, nbytes, mappings
        self.addresses = [mapping.address for mapping in mappings]
        self.start = self.addresses[rank]


class Node:
    """The ranks of ``comm``, which must share a machine. Making a Node is collective, and so is every
    call on it, in the same order on all ranks. Only one call can be under way at a time (``channel``
    returns another Node for a second thread).

    Each element is summed once, in the order of ranks and in the element's own type. All ranks therefore
    get the same bits.
    """

    def __init__(self, comm: Any, siblings: Node | None = None) -> None:
        """``siblings``: a Node of the same ranks, whose memory is known to this one too. Raises
        WorkerError on all ranks if one of them cannot map another's memory."""
        from demitasse_allreduce.node import loops

        self.comm, self.rank, self.size = comm, comm.Get_rank(), comm.Get_size()
        self.blocks: list[Block] = siblings.blocks if siblings else []
        self._count: list[int] = siblings._count if siblings else [0]
        self._current: NodeWork | None = None
        offset = -(-(_CONTROL_BYTES + 4 * LINE * self.size) // 4096) * 4096
        self._chunk = max(CHUNKS[0], min(CHUNKS[1], STAGED // self.size // 4096 * 4096))
        self._segments = self._map(offset + loops.PARTS * (self._chunk + LINE))
        self._stages = np.array([each.address + offset for each in self._segments], np.int64)
        self._state = self._new_state()
        self.state = self._state.ctypes.data
        self._watched = [_watch(int(pid)) for pid in self._pids]

    def _map(self, nbytes: int) -> list[Mapping]:
        """Allocate a segment on every rank, and return the mappings of all of them in the order of
        ranks."""
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
                f"no futex is known for {os.uname().machine} (supported: {', '.join(_SYS_FUTEX)})"
            )
        mine = np.zeros(64 * loops.MASK_WORDS, np.uint8)
        mine[[cpu for cpu in os.sched_getaffinity(0) if cpu < mine.size]] = 1
        everyone = np.empty((self.size, mine.size), np.uint8)
        self.comm.Allgather(mine, everyone)
        cpus = np.flatnonzero(everyone.any(0)).tolist()
        crowded = self.size > len(cpus)
        state = np.zeros(loops.STATE_WORDS, np.int64)
        state[loops.RANK], state[loops.SIZE] = self.rank, self.size
        state[loops.CONTROL] = self._segments[0].address
        # If ranks are more than processors, a rank may wait for one that needs its processor, so it
        # spins briefly and then yields. Otherwise ranks sleep in the end: two that the system put on
        # one processor would yield it to each other and stay there for milliseconds, while a sleeping
        # rank is woken on a free processor.
        state[loops.SPINS], state[loops.YIELDS] = (20, 20) if crowded else (4000, 0)
        state[loops.SYSCALL] = _address(libc.syscall)
        state[loops.FUTEX] = number
        state[loops.YIELD] = _address(libc.sched_yield)
        state[loops.NANOSECONDS] = int(PATIENCE * 1e9)
        state[loops.ADD] = loops.add.address
        state[loops.STAGES] = self._stages.ctypes.data
        state[loops.CHUNK], state[loops.PIECE] = self._chunk, PIECE
        state[loops.SMALL] = SMALL if crowded else WHOLE
        self._processors = processor_row(cpus, KernelFiles()) if 1 < len(cpus) <= self.size else None
        if self._processors is not None:
            state[loops.PROCESSORS] = self._processors.ctypes.data
        return state

    def channel(self) -> Node:
        """Return another Node of the same ranks and memory, for calls from a second thread.
        Collective."""
        return Node(self.comm, self)

    def allocate(self, nbytes: int) -> Block:
        """Allocate ``nbytes`` of zeroed memory on every rank, and map all of it in this process.
        Collective: all ranks ask for the same number of bytes. Raises WorkerError on all ranks if one
        of them cannot."""
        mappings = self._map(nbytes)
        block = Block(self._count[0], nbytes, mappings, self.rank)
        self._count[0] += 1
        self.blocks.append(block)
        return block

    def release(self, block: Block) -> None:
        """Forget a block. Its memory is freed with the last array in it."""
        if block in self.blocks:
            self.blocks.remove(block)

    def find(self, array: Array) -> tuple[Block, int] | None:
        """Return the block in which an array lies and its offset in bytes; None if it is in no block."""
        address = array.__array_interface__["data"][0]
        for block in tuple(self.blocks):  # a block may be freed meanwhile, with the last view of it
            if block.start <= address < block.start + block.nbytes:
                return block, address - block.start
        return None

    def siblings(self, array: Array) -> list[Array]:
        """Return the arrays of all ranks at the same place as ``array``. Raises PlanError if it is not
        in shared memory."""
        found = self.find(array)
        if found is None:
            raise PlanError("the array is not in memory of the space shared:node")
        block, offset = found
        return [each.view(offset, array.shape, array.dtype) for each in block.mappings]

    def allreduce(self, array: Array, check: Check | None = None) -> NodeWork:
        """Prepare the sum of all ranks' arrays, in place on all ranks. The arrays are contiguous, and
        of a type for which ``added_as`` is not None. If they lie at the same place in shared memory
        they are added there, otherwise through stages."""
        from demitasse_allreduce.node import loops

        return NodeWork(self, loops.ALLREDUCE, array, check)

    def reduce_scatter(
        self, array: Array, owned: Sequence[tuple[int, int]], check: Check | None = None
    ) -> NodeWork:
        """Prepare the sum of all ranks' arrays in which only the owner of elements start up to stop gets
        their sum, in place. ``owned`` has each rank's (start, stop). The arrays are in shared memory."""
        from demitasse_allreduce.node import loops

        return NodeWork(self, loops.REDUCE_SCATTER, array, check, owned)

    def allgather(
        self, array: Array, owned: Sequence[tuple[int, int]], check: Check | None = None
    ) -> NodeWork:
        """Prepare copying each owner's elements to all ranks' arrays, which are in shared memory."""
        from demitasse_allreduce.node import loops

        return NodeWork(self, loops.ALLGATHER, array, check, owned)

    def barrier(self, check: Check | None = None) -> NodeWork:
        """Prepare a wait until all ranks are here."""
        from demitasse_allreduce.node import loops

        return NodeWork(self, loops.BARRIER, np.empty(0, np.float32), check)

    def agree(self, element: int, nbytes: int, check: Check | None = None) -> None:
        """Wait for all ranks. Raises WorkerError on all of them if they pass different numbers, or if
        some make another call."""
        from demitasse_allreduce.node import loops

        work = NodeWork(self, loops.BARRIER, np.empty(0, np.float32), check)
        work.name(element, nbytes)
        work.run()

    def watch(self, check: Check | None) -> None:
        """Raise WorkerError if a rank's process has ended, or what ``check`` raises."""
        if check is not None:
            check()
        for rank, descriptor in enumerate(self._watched):
            if descriptor is not None and select.select([descriptor], [], [], 0)[0]:
                hear(check)
                raise WorkerError(f"rank {rank} of the node (process {self._pids[rank]}) has ended")

    def abort(self) -> None:
        """End all ranks' waits with an error because this rank cannot continue. No call works any
        more."""
        from demitasse_allreduce.node import loops

        loops.abort(self.state, self.rank + 1)

    def aborted_by(self) -> int:
        """Return the rank that called ``abort``, or -1."""
        from demitasse_allreduce.node import loops

        words = self._segments[0].view(0, (_CONTROL_BYTES // 8,), np.int64)
        return int(words[loops.ABORT]) - 1

    def posts(self) -> list[tuple[int, int, int, int]]:
        """Return what each rank asked for in the last call: kind, bytes, element type, place."""
        from demitasse_allreduce.node import loops

        parity = (int(self._state[loops.CALLS]) - 1) % 2
        lines = self._segments[0].view(8 * loops.POSTS, (self.size, 2, 8), np.int64)
        return [tuple(row[:4].tolist()) for row in lines[:, parity]]

    def close(self) -> None:
        """Close file descriptors. Memory is freed with the last array in it."""
        for each in self._watched:
            if each is not None:
                os.close(each)
        self._watched, self._segments = [], []


def processor_row(cpus: Sequence[int], files: KernelFiles) -> Array | None:
    """Return the row PROCESSORS (of ``loops``) for these processors; None if the C library cannot tell
    which processor a thread runs on."""
    from demitasse_allreduce.node import loops

    libc = ctypes.CDLL(None)
    if not hasattr(libc, "getcpu"):
        return None
    row = np.zeros(loops.LISTED + len(cpus), np.int64)
    row[loops.GETCPU], row[loops.COUNT] = _address(libc.getcpu), len(cpus)
    row[loops.GET_AFFINITY] = _address(libc.sched_getaffinity)
    row[loops.SET_AFFINITY] = _address(libc.sched_setaffinity)
    row[loops.LISTED :] = cpus
    for number, folder in enumerate(files.names(_DOMAINS, "node[0-9]*")):
        for cpu in files.numbers(f"{folder}/cpulist"):
            if cpu < loops.LISTED - loops.DOMAINS:
                row[loops.DOMAINS + cpu] = number
    return row


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends; None if the system has none."""
    if pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # the failure watch remains
