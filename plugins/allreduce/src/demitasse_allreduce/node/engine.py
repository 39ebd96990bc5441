"""The ranks of one node: calls that add arrays in memory that all of them map."""

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
"""Least and most bytes of an array that a rank stages at a time, and most that all ranks do, where that
is not below the least: stages stay in the last cache. On two cores with 1 MiB of L2 and 32 MiB of L3,
16 MB by 2 ranks took as long by 1 MiB and 3% longer by 256 KiB; by 4 ranks 9% longer by 256 KiB and 35%
by 128 KiB, where what is read is still in the other's L2."""

LINE = 64
"""Bytes of a cache line."""

PIECE = 256 * 1024
"""Bytes of arrays in shared memory that a rank adds before it takes the next piece."""

PATIENCE = 0.02
"""Seconds of a wait after which a caller looks whether the others are still there."""

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221}
_CONTROL_BYTES = 4096
_DOMAINS = "sys/devices/system/node"


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
        # Crowded ranks wait for one that needs the processor on which they wait. Others sleep at last:
        # two that the system put on one processor would yield it to each other and stay there for
        # milliseconds, while one that sleeps is woken on a free processor.
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
        for block in tuple(self.blocks):  # one may go meanwhile, with the last view of it
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
                hear(check)
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


def processor_row(cpus: Sequence[int], files: KernelFiles) -> Array | None:
    """The row PROCESSORS of the loops for these processors; None where the C library does not tell on
    which one a thread is."""
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
    """A descriptor that tells when a process ends, where the system has them."""
    if pid == os.getpid() or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None  # the failure watch remains
