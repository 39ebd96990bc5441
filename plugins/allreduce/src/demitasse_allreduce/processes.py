"""The processes of a run that MPI joins: plain data and a few numbers exchanged by polling, so that
nobody waits for ever for one that has failed."""

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
"""Options of the plugin and their defaults, seconds: after how long a process that is not heard counts
as gone, and one that is waited for and does not get on as stalled."""

SHORTEST = 0.5
"""Seconds below which a timeout would take a busy machine for a dead one."""

LINKING = 10.0
"""Seconds in which connections between processes must come about."""

POLLS, CROWDED_POLLS = 2000, 20
"""Times that a request is asked for without a pause, some 1 us each, before pauses begin: where each
process has a core, and where the one that is waited for may be waiting for this one's."""

PAUSES = 50e-6, 1e-3
"""Seconds of the first pause and the longest."""

LARGEST = 2**40
"""Bytes that no process gathers: what tells of more is a number of another exchange."""

GRACE = 0.2
"""Seconds in which a request may still be done when somebody has failed."""


ERROR = "error"
"""An option that is no user's: the words with which a program ends."""


def serve(machine: Machine, options: Mapping[str, Any]) -> MpiProcesses | None:
    """The processes that a machine's run has: those of mpiexec or srun, or those of the application
    around that has started MPI; None when this one is alone. Raises CompositionError where the launcher
    started several and MPI sees one, or MPI cannot be used.

    A program that ends with an error asks by the option ``error`` whether all others end with the same.
    Raises WorkerError if they do not."""
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
    """The plugin's options in seconds, with defaults. Raises DescriptionError."""
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
    """All processes of ``communicator`` (default: MPI_COMM_WORLD), of which each must make one, at the
    same time. ``options`` are the plugin's, rank 0's for all; ``where`` they stand is for errors,
    ``host`` what this host is called. ``communicator`` becomes a duplicate, for whoever exchanges more;
    ``hosts`` has the host of each rank. Raises WorkerError when not all come in time.

    One that ends too soon ends the run, unless ``tolerate`` has been told that it may: ``lost`` then has
    it, and ``gather`` and ``total`` go on without its part.

    One that comes only to tell of an ``error`` watches nobody, and comes together with those alone that
    tell of the same. Raises WorkerError where some have another one, or none."""

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
        self._kept: list[Any] = []  # of what MPI may still write to
        _open.add(self)
        atexit.unregister(end_open)  # it comes before the end of MPI: the latest is called first
        atexit.register(end_open)
        pending = library.ending.pending
        try:
            self._own, self.communicator = self._duplicate(base), self._duplicate(base)
            self._meet({**meeting.introduction(given, host), "error": error, "pending": pending})
        except BaseException as failure:
            self.fail(failure)
            self.close()
            raise

    # What others call.

    def gather(self, value: Any) -> list[Any]:
        """What each process gives, by rank, None of one that is lost: numbers, text, bytes, lists and
        mappings (tuples come as lists). Raises PluginError for anything else and where others are at
        another exchange, WorkerError when a process has failed."""
        if self._star is not None:
            parts = self._star.gather(b"g", _packed(value))
            return [part and msgpack.unpackb(part, strict_map_key=False) for part in parts]
        body = np.frombuffer(_packed(value), np.uint8)
        sizes = np.empty(self.size, np.int64)
        self.wait(self._own.Iallgather(np.array([body.size], np.int64), sizes))
        for rank in np.flatnonzero((sizes < 0) | (sizes > LARGEST)):  # another exchange's numbers
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
        """The sum of a few float64 numbers over all processes that are not lost, added in the order of
        ranks: the same bits in each. Raises WorkerError when a process has failed."""
        mine = np.asarray(values, np.float64)
        if self._star is not None:
            rows = [np.frombuffer(part) for part in self._star.gather(b"t", mine.tobytes()) if part]
            return np.add.accumulate(rows, axis=0)[-1].reshape(mine.shape) if mine.size else mine
        if mine.size not in self._totals:
            self._totals[mine.size] = self._exchange(mine.size)
        sent, received, planned = self._totals[mine.size]
        sent[:] = mine.ravel()
        if planned is not None:
            planned.Start()
        self.wait(planned if planned is not None else self._own.Iallgather(sent, received))
        # Not numpy's sum, whose order depends on the shape and on this processor's vectors.
        return np.add.accumulate(received, axis=0)[-1].reshape(mine.shape)

    def meet(self) -> None:
        """Wait until all processes have come here: before collective calls that MPI has no form of that
        could be polled. Raises WorkerError when a process has failed."""
        if self._star is not None:
            self._star.gather(b"m", b"")
        else:
            self.wait(self._own.Ibarrier())

    def tolerate(self, ranks: Iterable[int]) -> None:
        """From now on the run goes on without those of ``ranks``, process 0 not among them, that die,
        fall silent, stall or fail; what all exchange goes by way of process 0. Called by all."""
        comm = self._duplicate(self._own)
        self._star = Star(comm, self.wait, self.lost)
        if self._watch is not None:
            self._watch.expendable = frozenset(ranks) - {0}

    @property
    def lost(self) -> Mapping[int, str]:
        """The ranks that the run goes on without, and what became of each; it changes as time goes
        by."""
        return self._watch.lost if self._watch is not None else {}

    def wait(self, request: Any, peer: int | None = None) -> bool:
        """Wait for a request of mpi4py's: False where it was for a ``peer`` that is lost. Raises
        WorkerError when a process has failed."""
        polls, (pause, longest), start = 0, PAUSES, time.monotonic()
        patience = CROWDED_POLLS if self._crowded else POLLS
        failed = False

        def done() -> bool:
            nonlocal failed
            if failed and not request:  # it was the dead process's, and is none any more
                return False
            try:
                return bool(request.Test())
            except self._MPI.Exception:  # of whichever process has ended: any call may meet it
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
        """Whether a request is done after all, where somebody has failed: those at the same point may
        have what they need, as the one that failed has done its part before. They then go on, to where
        they need it again, or meet the same mistake."""
        until = time.monotonic() + GRACE
        with contextlib.suppress(self._MPI.Exception):
            while not (done := request.Test()) and time.monotonic() < until:
                time.sleep(PAUSES[1])
            return bool(done)
        return False

    def report(self, iteration: int, layer: str = "") -> None:
        """What this process is at, for the errors of those who wait for it."""
        if self._watch is not None:
            self._watch.report(iteration, layer)

    def reach(self, layer: str) -> None:
        """The layer that this process is at, in the iteration reported last."""
        if self._watch is not None:
            self._watch.report(self._watch.iteration, layer)

    def check(self) -> None:
        """Raise WorkerError with rank, host, layer and last iteration of one that failed, died, stalled,
        or left; to be called again and again by who waits, and by nobody else."""
        if self._watch is not None:
            self._watch.check()

    def fail(self, error: BaseException) -> None:
        """Tell the others why this process ends; what one of them did first they know already."""
        self._failed = library.ending.unclean = True
        if self._watch is not None:
            words = " ".join(str(error).split())
            name = "" if isinstance(error, WorkerError) else f"{type(error).__name__}: "
            told = f"{name}{words}"[:4000] if words else type(error).__name__
            self._watch.tell(told, consequence=self._of_mpi(error))

    def _of_mpi(self, error: BaseException | None) -> bool:
        """Whether an error is MPI's, or was raised from one, a plugin's: it mostly follows another's."""
        while error is not None and not isinstance(error, self._MPI.Exception):
            error = error.__cause__
        return error is not None

    def close(self) -> None:
        """Part from the others: together where all is well, at once where one has failed. Raises
        WorkerError when one fails while this one waits for it to come."""
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
                if self.lost:  # they would be waited for by MPI
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
        """Get to know the others, and begin to watch each other."""
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
        else:  # all are here, and end together
            library.ending.unclean = any(fact["pending"] for fact in facts)

    def _duplicate(self, base: Any) -> Any:
        made, request = base.Idup()
        self.wait(request)
        made.Set_errhandler(self._MPI.ERRORS_RETURN)
        return made

    def _exchange(self, count: int) -> tuple[Any, Any, Any]:
        """Buffers and a persistent request for so many numbers, which MPI plans once: 2.3 us a call for
        two processes on one host. None instead of it where the library's are not known to be right."""
        sent, received = np.zeros(count), np.zeros((self.size, count))
        right = library.plans_exchanges(self._MPI)
        return sent, received, self._own.Allgather_init(sent, received) if right else None

    def _link(self, facts: list[dict[str, Any]]) -> None:
        """Open the connections over which the processes watch each other, where the network allows."""
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
        """Whether an error of MPI's is of a process that the run goes on without, known in a moment."""
        watch = self._watch
        return watch is not None and bool(watch.expendable) and watch.dropped(watch.peer_timeout + 1.0)

    def _failed_in_mpi(self, error: BaseException) -> None:
        """Raise what is behind an error of MPI's: mostly another process's end, known in a moment."""
        limit = self._watch.peer_timeout if self._watch is not None else 0.0
        if self._watch is not None and self._watch.settled(limit + 1.0):
            self._watch.check()
        raise WorkerError(f"rank {self.rank} of {self.size}: MPI failed: {error}") from error


_open: set[MpiProcesses] = set()


def end_open() -> None:
    """At the interpreter's exit: tell others of this process's end that nobody closed."""
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
