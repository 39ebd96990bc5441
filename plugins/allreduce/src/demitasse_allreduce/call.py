"""Summing a NumPy array over all ranks of a communicator in one call."""

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
"""Bytes up to which a node's shared memory and the library's own sum are both tried before one is
chosen. Above this size memory traffic decides, and shared memory needs the least."""

WRAPS = 2
"""Bytes of the largest integers for which the library's own sum is never chosen: Open MPI (5.0.11)
saturates them, while NumPy and all other sums here wrap around."""

SOON, LATER = 200, 8
"""If MPI's own sum was chosen for a size, it is tried against the node's memory again after SOON calls
of that size (by powers of two); each later wait is LATER times as long. Programs often start while the
machine is busy: MPI's sum was once chosen for 4 KB, where it takes four times as long on a quiet
machine."""

WITHOUT = ("auto", "shared", "mpi", "nodes")
"""Names of algorithms that are not schedules."""

_ACROSS = ("mpi", "recursive-halving-doubling", "ring")  # tried if the ranks are on several nodes
_GROUPED = ("nodes", "two-level", "chain-chain", "chain-binomial")  # and if some ranks share a node
_TRIALS = 7
_LONG = 2**16  # bytes above which nodes sum slices around a ring
_MOST = 2**26  # the most bytes of a trial
_KEPT = 64  # prepared sums that a communicator keeps


def allreduce(
    array: Array, comm: Any = None, algorithm: str = "auto", *, check: Check | None = None
) -> None:
    """Replace ``array`` on every rank by the sum of all ranks' arrays, with the same bits on all ranks.

    ``array`` may have any shape and strides, and any element type that NumPy can add. ``comm`` is an
    mpi4py communicator (default: COMM_WORLD). ``algorithm`` is one of:

    - the name of a schedule, of this or of another installed plugin
    - "shared": sum in the memory of one node
    - "mpi": the MPI library's own allreduce
    - "nodes": sum in the memory of each node, with messages between nodes
    - "auto": the one that was fastest when that size was first requested; if all ranks share a node and
      this was "mpi", it is tried again from time to time

    ``check`` is called from time to time during a wait and ends it by raising ("mpi" has no such wait).

    Collective: all ranks call it with arrays of the same size and type. If they do not, it raises
    WorkerError on all ranks (with "mpi" and schedules, only at the first call for a size), as it does if
    a rank of the node has ended. It raises DataError for an array that cannot be summed in place,
    and CompositionError for an unknown algorithm.
    """
    # A sum of a few kilobytes takes one or two microseconds; each look-up here takes a tenth of one.
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
    """Return an array of zeros in memory that all ranks of ``comm`` (default: COMM_WORLD) map.
    ``allreduce`` sums such arrays in place, without copies, if they have more than 16 KiB: 1.2 to 2.6
    times as fast as others. The same holds for slices that begin at the same place on all ranks. If the
    ranks are on several nodes, or cannot share memory, this returns an ordinary array.

    Collective: if ranks request different shapes or types, all get a WorkerError that names them. The
    memory is freed with the last view of it. Raises DataError for an invalid shape or for elements that
    are not numbers, and MemoryError on all ranks if one of them has no memory.
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
    """Return the node that a communicator's sums use, or None if its ranks are on several nodes or
    cannot share memory. The first call for a communicator is collective."""
    state: _State | None = comm.Get_attr(_KEY[0]) if _KEY else None
    return (state or _attach(comm)).node


def _state_of(comm: Any) -> _State:
    """Return the state that a communicator keeps (None: COMM_WORLD). The latest one is remembered until
    another communicator is asked for."""
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
    """The state of a communicator: its node, a communicator for messages, choices and prepared sums."""

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
        """Prepare and keep a sum for arrays of this size and type."""
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
        """The ranks of each node; None if all ranks are on one node, or each on a node of its own."""
        nodes: dict[int, list[int]] = {}
        for rank, home in enumerate(self.homes):
            nodes.setdefault(home, []).append(rank)
        return [*nodes.values()] if 1 < len(nodes) < len(self.homes) else None

    def _by_nodes(self, array: Array) -> Sum:
        """Prepare a sum in each node's memory, with messages between nodes."""
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
        """Free the memory of sums that are no longer kept."""
        for block in self._blocks:
            assert self._levels is not None
            self._levels.node.release(block)
        self._blocks.clear()

    def _choose(self, array: Array, check: Check | None) -> str:
        """Return the fastest algorithm for this size and type. All ranks agree on it; it is remembered
        by powers of two of the size."""
        if self.comm.Get_size() == 1:
            return "shared" if self.node and added_as(array.dtype) is not None else "ring"
        known = added_as(array.dtype) is not None
        if self.node is not None and known and array.nbytes > TRIED:
            return "shared"
        if self.node is not None and known:
            # Agree in the node's memory: ranks that need no trial are there already, and a difference
            # between what ranks ask for is found.
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
        """Wrap a sum so that the choice is made again after a number of calls of its power of two. The
        number is the same on all ranks."""
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
        """Return whether no rank is in a call of the node: one may be under way beside MPI's sums."""
        assert self.node is not None
        mine = np.array([float(self.node._current is not None)])
        return bool(slowest(self.comm, mine, check)[0] == 0)

    def _quickest(self, names: tuple[str, ...], trial: Array, check: Check | None) -> str:
        made = [partial(self._make(name, trial), trial, check) for name in names]
        repeats = 64 if trial.nbytes <= 2**16 else 4
        times = measured(self.comm, made, _TRIALS, repeats, check)
        return names[int(np.argmin(times))]

    def agree(self, request: str, what: str = "sums") -> None:
        """Raise WorkerError on all ranks unless all of them make the same request."""
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
    """Return the power of two that the arrays of a prepared sum belong to, by their bytes."""
    size, dtype, _ = key
    return (size * dtype.itemsize).bit_length()


def _shared(node: Node, array: Array) -> Sum:
    """Prepare a sum in the node's memory, for arrays inside or outside that memory."""
    _check_shared(array)
    work = NodeWork(node, 0, np.empty(array.size, array.dtype))
    work.forget()
    return work.sum


def _check_shared(array: Array) -> None:
    """Raise DataError for elements that none of the node's loops can add."""
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
"""The key of the attribute under which communicators keep their state, once the first one has it."""

_latest: list[Any] = [None, None]
"""The communicator that was used last, as the caller gave it, and its state."""


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
