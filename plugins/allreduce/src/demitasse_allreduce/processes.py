"""The processes of a run that MPI joins. They exchange plain data and a few numbers by polling, so that
no process waits forever for one that has failed."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgpack
import numpy as np

from demitasse import (
    DescriptionError,
    Machine,
    PluginError,
    Processes,
    Quantity,
    WorkerError,
    option_place,
    unknown,
)
from demitasse_allreduce import addresses, launch, library, meeting
from demitasse_allreduce.channel import Channel, neighbours
from demitasse_allreduce.star import Star
from demitasse_allreduce.watch import Person, Watch

OPTIONS = {"peer_timeout": 10.0, "stall_timeout": 300.0}
"""Options of the plugin and their defaults in seconds: after how long a process that is not heard from
counts as gone, and after how long a process that others wait for, and that makes no progress, counts as
stalled."""

SHORTEST = 0.5
"""The shortest timeout, in seconds: a shorter one would take a busy machine for a dead one."""

LINKING = 10.0
"""Seconds within which the connections between processes must be made."""

POLLS, CROWDED_POLLS = 2000, 20
"""How often a request is polled without a pause, at about 1 us each, before pauses begin: if each
process has a core of its own, and if the process that is waited for may need this one's core."""

PAUSES = 50e-6, 1e-3
"""Seconds of the first and of the longest pause."""

LARGEST = 2**40
"""Bytes that no process gathers: a larger number belongs to another exchange."""

MANY = 2**16
"""Numbers, of all processes together, up to which each process receives everybody's to add them."""

GRACE = 0.2
"""Seconds within which a request may still complete after a process has failed."""


ERROR = "error"
"""An internal option, not for users: the error message with which a program ends."""


def serve(machine: Machine, options: Mapping[str, Any]) -> MpiProcesses | None:
    """Return the processes of a machine's run: those that mpiexec or srun started, or those of the
    surrounding application if it has started MPI; None if this process is alone. Raises CompositionError
    if the launcher started several processes but MPI sees one, or if MPI cannot be used.

    A program that ends with an error passes it as the option ``error``, to find out whether all others
    end with the same error. Raises WorkerError if they do not."""
    found = launch.started()
    if not library.running() and (found is None or found.alone):
        return None
    MPI = library.start()
    size = MPI.COMM_WORLD.size
    if size == 1:
        if found is not None and found.size is not None and found.size > 1:
            raise library.AloneError(library.another(found, MPI, "sees one"))
        return None
    return MpiProcesses(options=options, where=machine.origin, error=options.get(ERROR))


def timeouts(options: Mapping[str, Any], where: str = "options") -> dict[str, float]:
    """Return the plugin's options in seconds, with defaults. Raises DescriptionError for an unknown
    option or an invalid value."""
    found = dict(OPTIONS)
    for name, value in options.items():
        if name == ERROR:
            continue
        place = option_place(options, "allreduce", name, where)
        if name not in OPTIONS:
            raise DescriptionError(unknown("option", name, OPTIONS, place))
        place = f"{place}: {name} = "
        if not isinstance(value, str):
            raise DescriptionError(f"{place}{value!r} (valid: a time with its unit, like '30 s')")
        found[name] = Quantity.parse(value, unit="s", where=place).value
        if found[name] < SHORTEST:
            raise DescriptionError(f"{place}{value!r} (valid: {SHORTEST} s and more)")
    return found


class MpiProcesses(Processes):
    """All processes of ``communicator`` (default: MPI_COMM_WORLD). Each of them must create this
    object, at the same time. ``options`` are the plugin's options; rank 0's hold for all. ``where``
    they were given appears in errors, and ``host`` is a name for this host. The attribute
    ``communicator`` is a duplicate, for further exchanges by others; ``hosts`` has the host of each
    rank. Raises WorkerError if not all processes arrive in time.

    A process that ends too soon ends the run, unless ``tolerate`` allows it. The process is then in
    ``lost``, and ``gather`` and ``total`` continue without its part.

    A process that comes only to report an ``error`` does not watch others, and can only meet processes
    that report the same error. Raises WorkerError if some have another error, or none."""

    def __init__(
        self,
        communicator: Any = None,
        options: Mapping[str, Any] | None = None,
        where: str = "options",
        host: str | None = None,
        error: str | None = None,
    ) -> None:
        given = timeouts(options or {}, where)
        self._MPI = library.start()
        library.check_threads(self._MPI)
        base = communicator if communicator is not None else self._MPI.COMM_WORLD
        self.rank, self.size, self.sharing = base.rank, base.size, 1
        self._watch: Watch | None = None
        self._star: Star | None = None
        self._failed = self._closed = self._crowded = False
        self._stall = given["stall_timeout"]
        self._handled = sys.exception()
        self._totals: dict[int, tuple[Any, Any, Any]] = {}
        self._kept: list[Any] = []  # requests whose buffers MPI may still write to
        _open.add(self)
        atexit.unregister(end_open)  # it must run before MPI ends: the latest function is called first
        atexit.register(end_open)
        pending = library.ending.pending
        try:
            self._own, self.communicator = self._duplicate(base), self._duplicate(base)
            self._meet({**meeting.introduction(given, host), "error": error, "pending": pending})
        except BaseException as failure:
            self.fail(failure)
            self.close()
            raise

    # For callers.

    def gather(self, value: Any) -> list[Any]:
        """Return each process's value, by rank, and None for a lost process. Values are numbers, text,
        bytes, lists and mappings of these (tuples arrive as lists). Raises PluginError for anything else
        and if other processes are at another exchange, WorkerError if a process has failed."""
        if self._star is not None:
            parts = self._star.gather(b"g", _packed(value))
            return [part and msgpack.unpackb(part, strict_map_key=False) for part in parts]
        body = np.frombuffer(_packed(value), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self.wait(self._own.Iallgather(np.array([body.size], np.int64), sizes))
        for rank in np.flatnonzero((sizes < 0) | (sizes > LARGEST)):  # numbers of another exchange
            raise PluginError(
                f"processes are at different exchanges: rank {self.rank} gathers what each has, rank "
                f"{rank} does not; a plugin calls gather or total in some of the processes only"
            )
        starts = np.concatenate([[0], np.cumsum(sizes)])
        bodies = np.empty(int(starts[-1]), np.uint8)
        places = [bodies, sizes.tolist(), starts[:-1].tolist(), self._MPI.BYTE]
        self.wait(self._own.Iallgatherv([body, self._MPI.BYTE], places))
        each = (bodies[a:b].tobytes() for a, b in itertools.pairwise(starts))
        return [msgpack.unpackb(part, strict_map_key=False) for part in each]

    def total(self, values: Any) -> Any:
        """Return the sum of a few float64 numbers over all processes that are not lost. It is added in
        the order of ranks or, if there are many in all, by MPI for process 0, so all processes get the
        same bits. Raises WorkerError if a process has failed."""
        mine = np.asarray(values, np.float64)
        if self._star is not None:
            rows = [np.frombuffer(part) for part in self._star.gather(b"t", mine.tobytes()) if part]
            return np.add.accumulate(rows, axis=0)[-1].reshape(mine.shape) if mine.size else mine
        if mine.size * self.size > MANY:
            return self._total_of_many(mine)
        if mine.size not in self._totals:
            self._totals[mine.size] = self._exchange(mine.size)
        sent, received, planned = self._totals[mine.size]
        sent[:] = mine.ravel()
        if planned is not None:
            planned.Start()
        self.wait(planned if planned is not None else self._own.Iallgather(sent, received))
        # Not numpy's sum, whose order depends on the shape and on this processor's vectors.
        total = received[0].copy()
        for row in received[1:]:
            total += row
        return total.reshape(mine.shape)

    def _total_of_many(self, mine: Any) -> Any:
        """Return the sum from process 0, without every process's numbers in each. (MPI does not promise
        that all get the same bits of a sum that it gives to all.)"""
        mine, total = np.ascontiguousarray(mine), np.empty_like(mine)
        self.wait(self._own.Ireduce(mine, total, self._MPI.SUM, 0))
        self.wait(self._own.Ibcast(total, 0))
        return total

    def meet(self) -> None:
        """Wait until all processes have come here. Needed before collective calls of which MPI has no
        form that can be polled. Raises WorkerError if a process has failed."""
        if self._star is not None:
            self._star.gather(b"m", b"")
        else:
            self.wait(self._own.Ibarrier())

    def tolerate(self, ranks: Iterable[int]) -> None:
        """From now on, continue the run without those of ``ranks`` (except process 0) that die, fall
        silent, stall or fail. Exchanges then go by way of process 0. Called by all processes."""
        comm = self._duplicate(self._own)
        self._star = Star(comm, self.wait, self.lost)
        if self._watch is not None:
            self._watch.expendable = frozenset(ranks) - {0}

    @property
    def lost(self) -> Mapping[int, str]:
        """The ranks that the run continues without, and what happened to each. It changes over time."""
        return self._watch.lost if self._watch is not None else {}

    def wait(self, request: Any, peer: int | None = None) -> bool:
        """Wait for an mpi4py request. Returns False if it concerned a ``peer`` that is lost, else True.
        Raises WorkerError if a process has failed."""
        polls, (pause, longest), start = 0, PAUSES, time.monotonic()
        patience = CROWDED_POLLS if self._crowded else POLLS
        failed = False

        def done() -> bool:
            nonlocal failed
            if failed and not request:  # it was for the dead process, and has become a null request
                return False
            try:
                return bool(request.Test())
            except self._MPI.Exception:  # the end of any process may show up in any call
                if not self._dropped():
                    raise
                failed = True
                return False

        try:
            while not done():
                polls += 1
                self.check()
                if peer in self.lost:
                    self._kept.append(request)
                    return False
                if polls < patience:
                    continue
                time.sleep(pause)
                pause = min(longest, pause * 1.2)
                if self._watch is None and time.monotonic() - start > self._stall:
                    raise WorkerError(
                        f"rank {self.rank} of {self.size} has waited for {self._stall:.3g} s for the "
                        f"others to arrive; not all have started, or one has ended"
                    )
        except self._MPI.Exception as error:
            self._kept.append(request)
            library.ending.pending = True
            self._failed_in_mpi(error)
        except WorkerError:
            if self._still_comes(request):
                return True
            self._kept.append(request)
            library.ending.pending = True
            raise
        return True

    def _still_comes(self, request: Any) -> bool:
        """Return whether a request completes after all although a process has failed: the failed
        process may have done its part before. The others then continue until they need it again, or
        meet the same error."""
        until = time.monotonic() + GRACE
        with contextlib.suppress(self._MPI.Exception):
            while not (done := request.Test()) and time.monotonic() < until:
                time.sleep(PAUSES[1])
            return bool(done)
        return False

    def report(self, iteration: int, layer: str = "") -> None:
        """Report what this process is doing, for the error messages of processes that wait for it."""
        if self._watch is not None:
            self._watch.report(iteration, layer)

    def reach(self, layer: str) -> None:
        """Report the layer that this process is at, in the iteration that was reported last."""
        if self._watch is not None:
            self._watch.report(self._watch.iteration, layer)

    def check(self) -> None:
        """Raise WorkerError with the rank, host, layer and last iteration of a process that failed,
        died, stalled or left. It must be called repeatedly by threads that wait, and by nobody else."""
        if self._watch is not None:
            self._watch.check()

    def fail(self, error: BaseException) -> None:
        """Tell the others why this process ends, unless another process failed first: they know of
        that."""
        self._failed = library.ending.unclean = True
        if self._watch is not None:
            words = " ".join(str(error).split())
            name = "" if isinstance(error, WorkerError) else f"{type(error).__name__}: "
            told = f"{name}{words}"[:4000] if words else type(error).__name__
            self._watch.tell(told, consequence=self._of_mpi(error))

    def _of_mpi(self, error: BaseException | None) -> bool:
        """Return whether an error is MPI's or was raised from one. Such an error mostly follows from the
        failure of another process."""
        while error is not None and not isinstance(error, self._MPI.Exception):
            error = error.__cause__
        return error is not None

    def close(self) -> None:
        """Leave the others: together if all is well, at once if a process has failed. Raises WorkerError
        if one fails while this process waits for it."""
        if self._closed:
            return
        self._closed = True
        _open.discard(self)
        error = sys.exception()
        leaving = isinstance(error, SystemExit) and not error.code
        if error is not None and error is not self._handled and not leaving:
            self.fail(error)
        try:
            if self._watch is not None and not self._failed and self._watch.broken is None:
                self._watch.part()
                self.meet()
                if self.lost:  # MPI would wait for them
                    library.ending.unclean = True
                    return
                for _, _, planned in self._totals.values():
                    if planned is not None:
                        planned.Free()
                self.communicator.Free()
                self._own.Free()
        except WorkerError as failure:
            self.fail(failure)
            raise
        finally:
            self._totals = {}
            if self._watch is not None:
                if self._watch.broken is not None:
                    library.ending.unclean = True
                self._watch.stop()

    # How they come together.

    def _meet(self, mine: dict[str, Any]) -> None:
        """Exchange facts with the others, check that they agree, and begin to watch each other."""
        facts = self.gather(mine)
        meeting.check_errors(facts)
        meeting.check_versions(facts)
        self.hosts = meeting.host_names(facts)
        near = [fact for fact in facts if fact["machine"] == mine["machine"]]
        self.sharing = sum(bool({*fact["cores"]} & {*mine["cores"]}) for fact in near)
        self._crowded = self.sharing > len(mine["cores"])
        self._stall = library.ending.limit = facts[0]["timeouts"]["stall_timeout"]
        if mine["error"] is None:
            self._link(facts)
        else:  # all processes are here, and end together
            library.ending.unclean = any(fact["pending"] for fact in facts)

    def _duplicate(self, base: Any) -> Any:
        made, request = base.Idup()
        self.wait(request)
        made.Set_errhandler(self._MPI.ERRORS_RETURN)
        return made

    def _exchange(self, count: int) -> tuple[Any, Any, Any]:
        """Return send and receive buffers for ``count`` numbers and a persistent request, which MPI
        plans once: 2.3 us per call for two processes on one host. The request is None if the library's
        persistent collectives are not known to be correct."""
        sent, received = np.zeros(count), np.zeros((self.size, count))
        right = library.plans_exchanges(self._MPI)
        return sent, received, self._own.Allgather_init(sent, received) if right else None

    def _link(self, facts: list[dict[str, Any]]) -> None:
        """Open the connections over which the processes watch each other, as far as the network
        allows."""
        everywhere = len({fact["network"] for fact in facts}) > 1
        try:
            listener = addresses.listen(everywhere)
        except OSError:
            listener = None
        ports = self.gather(listener.getsockname()[1] if listener is not None else 0)
        mine = facts[self.rank]["network"]
        partners = neighbours(self.rank, self.size)
        contacts = {}
        for other in partners:
            if other > self.rank and ports[other]:
                near = [addresses.LOOPBACK] if facts[other]["network"] == mine else []
                places = [*near, *(facts[other]["addresses"] if everywhere else ())]
                contacts[other] = [(place, ports[other]) for place in places]
        people = [Person(h, fact["process"]) for h, fact in zip(self.hosts, facts, strict=True)]
        callers = [other for other in partners if other < self.rank]
        channel = Channel(self.rank, facts[0]["token"], listener, contacts, callers)
        limits = facts[0]["timeouts"]
        self._watch = Watch(self.rank, people, channel, limits["peer_timeout"], limits["stall_timeout"])
        possible = sum(ports[max(other, self.rank)] > 0 for other in partners)
        linked = self._watch.linked(possible, LINKING)
        missing = self.gather(sorted({*partners} - linked))
        self._watch.complete = True
        if self.rank == 0 and any(missing):
            library.log.warning("%s", meeting.unlinked(missing, self.hosts))

    def _dropped(self) -> bool:
        """Return whether an MPI error comes from a process that the run continues without. Waits for the
        watch to learn of it."""
        watch = self._watch
        return watch is not None and bool(watch.expendable) and watch.dropped(watch.peer_timeout + 1.0)

    def _failed_in_mpi(self, error: BaseException) -> None:
        """Raise the cause of an MPI error, mostly the end of another process. Waits for the watch to
        learn of it; without a cause, raises a WorkerError with MPI's message."""
        limit = self._watch.peer_timeout if self._watch is not None else 0.0
        if self._watch is not None and self._watch.settled(limit + 1.0):
            self._watch.check()
        raise WorkerError(f"rank {self.rank} of {self.size}: MPI failed: {error}") from error


_open: set[MpiProcesses] = set()


def end_open() -> None:
    """At the interpreter's exit: tell the others that this process ends without having been closed."""
    for processes in list(_open):
        error = getattr(sys, "last_value", None)
        processes.fail(error or WorkerError("the program has ended without closing its runtime"))
        processes.close()


def _packed(value: Any) -> bytes:
    def refuse(item: Any) -> Any:
        raise PluginError(
            f"gather: {type(item).__name__} {str(item)[:60]!r} is not plain data (valid: numbers, text, "
            f"bytes, lists and mappings of them; an array's .tolist() or .tobytes())"
        )

    try:
        packed: bytes = msgpack.packb(value, default=refuse)
    except (OverflowError, ValueError) as error:
        raise PluginError(f"gather: {str(value)[:60]!r} cannot be packed: {error}") from error
    return packed
