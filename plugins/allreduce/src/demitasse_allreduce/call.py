"""The sum of a NumPy array over all ranks of a communicator, by one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from demitasse import DataError, Schedule, WorkerError
from demitasse_allreduce import library
from demitasse_allreduce.algorithms import installed, schedule
from demitasse_allreduce.executor import Collective
from demitasse_allreduce.hierarchy import Hierarchical, Levels, homes
from demitasse_allreduce.node.allocator import shared_array
from demitasse_allreduce.node.engine import Node
from demitasse_allreduce.node.work import NodeWork, added_as, element_number
from demitasse_allreduce.trials import measured, slowest

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Check: TypeAlias = Callable[[], object]
Sum: TypeAlias = Callable[[Array, "Check | None"], None]

TRIED = 2**20
"""Bytes up to which a node's shared memory and the library's own sum are tried before one is used;
above, the memory's traffic decides, and shared memory has the least."""

WRAPS = 2
"""Bytes of integers that the library's own sum is not chosen for: Open MPI's (5.0.11) then stop at the
largest number, where NumPy's and all others here wrap around."""

SOON, LATER = 200, 8
"""Calls of sizes of one power of two after which MPI's own sum is tried against a node's memory once
more, and by how much longer it is left alone after each time. Programs start when much else does: on a
busy machine it was taken for 4 KB, where it needs four times as long once it is quiet."""

WITHOUT = ("auto", "shared", "mpi", "nodes")
"""Ways that are no schedule's name."""

_ACROSS = ("mpi", "recursive-halving-doubling", "ring")  # tried where ranks are on several nodes
_GROUPED = ("nodes", "two-level", "chain-chain", "chain-binomial")  # and where some share one
_TRIALS = 7
_LONG = 2**16  # bytes from which nodes sum slices around a ring
_MOST = 2**26  # bytes that are tried at most
_KEPT = 64  # prepared sums that a communicator keeps


def allreduce(
    array: Array, comm: Any = None, algorithm: str = "auto", *, check: Check | None = None
) -> None:
    """Replace ``array`` on every rank by the sum of all ranks' arrays, the same bits on all.

    ``comm`` is an mpi4py communicator (default: COMM_WORLD). Any element type that NumPy adds, any
    shape and strides. ``algorithm``: a schedule's name, also one
    that another installed plugin gives, "shared" (the memory of a node), "mpi" (the
    library's own), "nodes" (the memory of each node, and messages between nodes) or "auto": what was
    quickest when that size was first asked for, in a node now and then tried anew. ``check`` is called
    now and then in a wait, and ends it by raising ("mpi" has no such wait).

    Collective: all ranks call with arrays of one size and type. Raises WorkerError on all ranks where
    they do not (with "mpi" and schedules only at a size's first call), and where a rank of the node has
    ended; DataError for an array that cannot be summed in place; CompositionError for an unknown
    algorithm.
    """
    # A sum of a few kilobytes takes a microsecond or two, and each look-up here a tenth.
    known, state = _latest
    if comm is not known or state is None:
        state = _state_of(comm)
    try:
        plan = state.plans.get((array.size, array.dtype, algorithm))
        plain = array.flags.carray
    except AttributeError:
        raise DataError(f"allreduce sums NumPy arrays in place, not {type(array).__name__}") from None
    if plan is None or not plain:
        _checked(array, algorithm)
        if not plain:
            flat = np.require(array, requirements=("C", "A"))
            allreduce(flat, comm, algorithm, check=check)
            array[...] = flat
            return
        plan = state.plan(array, algorithm, check)
    plan(array, check)


def shared_zeros(shape: int | Sequence[int], dtype: DTypeLike = np.float32, comm: Any = None) -> Array:
    """Zeros in memory that all ranks of ``comm`` (default: COMM_WORLD) map: ``allreduce`` sums such
    arrays of more than 16 KiB where they lie, 1.2 to 2.6 times as fast as others, and so it does
    slices that begin at the same place on all ranks. Where the ranks are on several nodes, or cannot
    share memory, an ordinary array.

    Collective: all ranks ask for one shape and type, or get a WorkerError that names them. The memory
    is given back with the last view of it. Raises DataError for a shape that no array has and for
    elements that are no numbers, and MemoryError on all ranks where one has no memory.
    """
    state, kind, sizes = _state_of(comm), np.dtype(dtype), np.atleast_1d(shape).tolist()
    if kind.hasobject or kind.names or kind.kind in "MSUV":
        raise DataError(f"shared memory holds numbers, not elements of type {kind}")
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise DataError(f"a shape must be whole numbers, 0 or more, not {shape}")
    state.agree(f"{'x'.join(map(str, sizes))} {kind}", "arrays")
    if state.node is None:
        return np.zeros(sizes, kind)
    return shared_array(state.node, sizes, kind)


def node_of(comm: Any) -> Node | None:
    """The node that a communicator's sums use, or None where its ranks are on several. Collective when
    the communicator is seen first."""
    state: _State | None = comm.Get_attr(_KEY[0]) if _KEY else None
    return (state or _attach(comm)).node


def _state_of(comm: Any) -> _State:
    """What a communicator keeps (None: COMM_WORLD), remembered until another one is asked for."""
    asked = library.start().COMM_WORLD if comm is None else comm
    state: _State | None = asked.Get_attr(_KEY[0]) if _KEY else None
    if state is None:
        state = _attach(asked)
    _latest[:] = comm, state
    return state


def _checked(array: Array, algorithm: str) -> None:
    if array.dtype.hasobject or array.dtype.names or array.dtype.kind in "MSUV":
        raise DataError(f"allreduce cannot add elements of type {array.dtype}")
    if not array.flags.writeable:
        raise DataError("allreduce sums in place, but the array is read-only")
    if algorithm not in WITHOUT:
        installed(algorithm, "allreduce", WITHOUT)


class _State:
    """What a communicator keeps: its node, a communicator for messages, choices, prepared sums."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm.Dup()
        self.plans: dict[Any, Sum] = {}
        self._chosen: dict[int, str] = {}
        self._patience: dict[int, tuple[int, int]] = {}
        self._blocks: list[Any] = []
        self._levels: Levels | None = None
        self.node: Node | None = None
        self.reason = "its ranks are on several machines"
        self.homes = homes(self.comm)
        if len({*self.homes}) == 1:
            try:
                self.node = Node(self.comm)
            except WorkerError as error:  # on all ranks alike
                self.reason = str(error)

    def plan(self, array: Array, algorithm: str, check: Check | None) -> Sum:
        """A prepared sum for arrays such as this one."""
        name = self._choose(array, check) if algorithm == "auto" else algorithm
        if algorithm != "auto" and name != "shared":
            self.agree(f"{array.size:,} {array.dtype} by {algorithm}")
        made = self._make(name, array)
        if algorithm == "auto" and name == "mpi" and self.node is not None:
            made = self._for_now(made, array.nbytes.bit_length())
        if len(self.plans) >= _KEPT:
            self.plans.clear()
            self._release()
        self.plans[array.size, array.dtype, algorithm] = made
        return made

    def _make(self, name: str, array: Array) -> Sum:
        if name == "shared":
            if self.node is None:
                raise WorkerError(f"no shared memory for this communicator: {self.reason}")
            return _shared(self.node, array)
        if name == "mpi":
            return _library(self.comm, array)
        if name == "nodes":
            return self._by_nodes(array)
        buffer = np.empty(array.size, array.dtype)
        made = installed(name)
        groups = self._groups if "groups" in made.options else None
        plan = made.schedule(self.comm.Get_size(), array.size, groups=groups)
        collective = Collective(plan, self.comm, buffer)

        def run(array: Array, check: Check | None) -> None:
            collective.check = check
            flat = array.reshape(-1)
            buffer[:] = flat
            collective.run()
            flat[:] = buffer

        return run

    @property
    def _groups(self) -> list[list[int]] | None:
        """The ranks of each node; None where they would be one group, or each one of its own."""
        nodes: dict[int, list[int]] = {}
        for rank, home in enumerate(self.homes):
            nodes.setdefault(home, []).append(rank)
        return [*nodes.values()] if 1 < len(nodes) < len(self.homes) else None

    def _by_nodes(self, array: Array) -> Sum:
        """A sum in each node's memory, and across nodes by messages."""
        _check_shared(array)
        if self._levels is None:
            self._levels = Levels(self.comm, homes=self.homes)
        node = self._levels.node
        block = node.allocate(max(array.nbytes, 1))
        self._blocks.append(block)
        buffer = block.mappings[node.rank].view(0, (array.size,), array.dtype)

        def across(ranks: int, size: int) -> Schedule:
            long = size * array.itemsize > _LONG
            return schedule("ring" if long else "recursive-halving-doubling", ranks, size)

        hierarchical = Hierarchical(self._levels, buffer, across)

        def run(array: Array, check: Check | None) -> None:
            hierarchical.check(check)
            flat = array.reshape(-1)
            buffer[:] = flat
            hierarchical.run()
            flat[:] = buffer

        return run

    def _release(self) -> None:
        """Give back the memory of sums that are no longer kept."""
        for block in self._blocks:
            assert self._levels is not None
            self._levels.node.release(block)
        self._blocks.clear()

    def _choose(self, array: Array, check: Check | None) -> str:
        """The quickest for this size and type; agreed on by all ranks, remembered by powers of two."""
        if self.comm.Get_size() == 1:
            return "shared" if self.node and added_as(array.dtype) is not None else "ring"
        known = added_as(array.dtype) is not None
        if self.node is not None and known and array.nbytes > TRIED:
            return "shared"
        if self.node is not None and known:
            # In the node's memory: a rank that needs no trial is met there, and told apart.
            self.node.agree(element_number(array.dtype), array.nbytes, check)
        else:
            self.agree(f"{array.size:,} {array.dtype} by auto")
        if not known:
            return "recursive-halving-doubling"
        bucket = array.nbytes.bit_length()
        if bucket not in self._chosen:
            several = _ACROSS + (_GROUPED if self._groups is not None else ())
            names = ("shared", "mpi") if self.node is not None else several
            elements = max(1, min(array.nbytes, _MOST) // 4)
            self._chosen[bucket] = self._quickest(names, np.zeros(elements, np.float32), check)
        chosen = self._chosen[bucket]
        if chosen == "mpi" and array.dtype.kind in "iu" and array.dtype.itemsize <= WRAPS:
            return "shared" if self.node is not None else "recursive-halving-doubling"
        return chosen

    def _for_now(self, run: Sum, bucket: int) -> Sum:
        """A sum that is chosen anew after so many calls of its power of two, the same on all ranks."""
        self._patience.setdefault(bucket, (SOON, SOON))

        def counted(array: Array, check: Check | None) -> None:
            left, patience = self._patience[bucket]
            self._patience[bucket] = left - 1, patience
            if left > 0 or not self._is_idle(check):
                run(array, check)
                return
            self._patience[bucket] = patience * LATER, patience * LATER
            del self._chosen[bucket]
            for key in [key for key in self.plans if key[2] == "auto" and _bucket_of(key) == bucket]:
                del self.plans[key]
            self.plan(array, "auto", check)(array, check)

        return counted

    def _is_idle(self, check: Check | None) -> bool:
        """Whether the node is in no call on any rank: one may be under way beside sums of MPI's."""
        assert self.node is not None
        mine = np.array([float(self.node._current is not None)])
        return bool(slowest(self.comm, mine, check)[0] == 0)

    def _quickest(self, names: tuple[str, ...], trial: Array, check: Check | None) -> str:
        made = [partial(self._make(name, trial), trial, check) for name in names]
        repeats = 64 if trial.nbytes <= 2**16 else 4
        times = measured(self.comm, made, _TRIALS, repeats, check)
        return names[int(np.argmin(times))]

    def agree(self, request: str, what: str = "sums") -> None:
        """Raises WorkerError on all ranks unless they ask for the same."""
        mine = np.frombuffer(request.encode().ljust(96)[:96], np.uint8).copy()
        everyone = np.empty((self.comm.Get_size(), 96), np.uint8)
        self.comm.Allgather(mine, everyone)
        asked: dict[str, list[int]] = {}
        for rank, row in enumerate(everyone):
            asked.setdefault(row.tobytes().decode().strip(), []).append(rank)
        if len(asked) > 1:
            parts = (
                f"rank{'s'[: len(ranks) > 1]} {', '.join(map(str, ranks))} {said}"
                for said, ranks in asked.items()
            )
            raise WorkerError(f"the ranks ask for different {what}: " + "; ".join(parts))

    def close(self) -> None:
        if self._levels is not None:
            self._levels.close()
        if self.node is not None:
            self.node.close()
        self.comm.Free()


def _bucket_of(key: tuple[int, np.dtype[Any], str]) -> int:
    """The power of two of the bytes of a prepared sum's arrays."""
    size, dtype, _ = key
    return (size * dtype.itemsize).bit_length()


def _shared(node: Node, array: Array) -> Sum:
    """A sum in the node's memory, of arrays in it or not."""
    _check_shared(array)
    work = NodeWork(node, 0, np.empty(array.size, array.dtype))
    work.forget()
    return work.sum


def _check_shared(array: Array) -> None:
    """Raise DataError for elements that no loop of the node's adds."""
    if added_as(array.dtype) is None:
        raise DataError(
            f"shared memory adds integers, float32, float64 and their complex, not {array.dtype}"
        )


def _library(comm: Any, array: Array) -> Sum:
    from mpi4py import MPI
    from mpi4py.util.dtlib import from_numpy_dtype

    try:
        from_numpy_dtype(array.dtype)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"MPI has no type for elements of {array.dtype}") from error

    def run(array: Array, check: Check | None) -> None:
        comm.Allreduce(MPI.IN_PLACE, array)

    return run


_KEY: list[int] = []
"""The attribute under which a communicator keeps its state, once the first has one."""

_latest: list[Any] = [None, None]
"""The communicator that was asked for last, and its state."""


def _attach(comm: Any) -> _State:
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise DataError(f"allreduce needs an mpi4py communicator, not {comm!r}")
    if not _KEY:
        _KEY.append(MPI.Comm.Create_keyval(delete_fn=_detach))
    state = _State(comm)
    comm.Set_attr(_KEY[0], state)
    return state


def _detach(comm: Any, key: int, state: _State) -> None:
    if _latest[1] is state:
        _latest[:] = None, None
    state.close()
