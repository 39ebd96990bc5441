"""The helper thread: runs collectives in line while another thread computes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from demitasse import WorkerError


class Task(Protocol):
    """A collective that can be done bit by bit. Both ways raise when a peer has failed."""

    def run(self) -> None:
        """All of it."""

    def start(self) -> None:
        """Post what can be posted."""

    def progress(self) -> bool:
        """Go on without waiting; whether it is done."""


def mark(task: Task) -> None:
    """Tell a task of a device's memory, in the thread that enqueues the device's work, that what it is
    to work on was enqueued before."""
    told = getattr(task, "mark", None)
    if told is not None:
        told()


class Ticket:
    """A task in line, to be waited for."""

    def __init__(self, task: Task, name: str) -> None:
        self.task, self.name = task, name
        self.done = threading.Event()


POLLS, NAP = 2, 50e-6
"""Polls in vain before a nap, and its seconds, which double from nap to nap. A nap frees the core, and
the interpreter's lock, for the threads that compute."""

LONG, LONGEST, PART = 200e-6, 1e-3, 64
"""To how many seconds naps grow: a task's last time divided by ``PART``, so that naps cost little of it
whatever its rounds, but at least and at most so many. A poll costs who computes some 40 us of a core.
Measured for 128 MB between two hosts: with naps of up to 0.2 ms this thread takes 0.28 s of a core at
400 Mbit/s and 0.16 s at 1 Gbit/s, with 1 ms 0.15 and 0.10 s in the same time; with 2 ms a link idles."""

PATIENCE = 0.1
"""Seconds of waiting after which somebody looks whether the peers still live."""


class Lane:
    """A thread that runs tasks in the order in which they are posted: those that are posted together at
    once, and of those that are not ``depth`` postings at a time, the last of which begins when the one
    so many before it is done. ``record(name, start, stop)`` is told when each began and ended, in
    seconds of ``time.perf_counter``; ``check`` raises when a peer has failed. What a task or a check
    raises is raised again by every ``wait``; nothing is run after it."""

    def __init__(
        self,
        name: str,
        check: Callable[[], None],
        record: Callable[[str, float, float], None],
        depth: int = 1,
    ) -> None:
        self._check, self._record, self._depth = check, record, depth
        self._under_way: deque[list[Begun]] = deque()
        self._line: deque[tuple[Ticket, ...]] = deque()
        self._posted, self._closed = threading.Condition(), False
        self._took: dict[str, float] = {}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, tasks: Iterable[tuple[Task, str]]) -> list[Ticket]:
        """Put tasks in line, to be started at once together when those before are done."""
        tickets = [Ticket(task, name) for task, name in tasks]
        for ticket in tickets:
            mark(ticket.task)
        with self._posted:
            self._line.append(tuple(tickets))
            self._posted.notify()
        return tickets

    def wait(self, ticket: Ticket) -> None:
        """Until the task is done. Raises what the thread has met."""
        while not ticket.done.wait(PATIENCE):
            if not self._thread.is_alive():
                raise self.error or WorkerError(f"the helper thread has ended before {ticket.name}")
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the thread, with whatever it still has in line."""
        with self._posted:
            self._closed = True
            self._posted.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=10 * PATIENCE)

    def _run(self) -> None:
        while True:
            with self._posted:
                while not (self._line or self._under_way or self._closed):
                    self._posted.wait()
                if self._closed and not self._under_way:
                    self._release()
                    return
            try:
                self._do()
            except BaseException as error:  # noqa: BLE001  raised again by whoever waits
                self.error = error
                with self._posted:
                    self._closed = True
                    self._line.appendleft(
                        tuple(each.ticket for line in self._under_way for each in line)
                    )
                    self._release()
                return

    def _release(self) -> None:
        """Let those who wait for tasks that will not be done see that."""
        if self._line and self.error is None:
            self.error = WorkerError("the synchronisation was closed while communication was under way")
        while self._line:
            for ticket in self._line.popleft():
                ticket.done.set()

    def _begin(self) -> None:
        """Start what may be under way."""
        while len(self._under_way) < self._depth:
            with self._posted:
                if not self._line:
                    return
                begun = [Begun(ticket, time.perf_counter()) for ticket in self._line.popleft()]
            self._under_way.append(begun)
            for each in begun:
                each.ticket.task.start()

    def _progress(self) -> bool:
        """Go on with what is under way; whether anything was done."""
        some = False
        for begun in self._under_way:
            for each in [each for each in begun if each.ticket.task.progress()]:
                begun.remove(each)
                now = time.perf_counter()
                self._took[each.ticket.name] = now - each.time
                self._record(each.ticket.name, each.time, now)
                each.ticket.done.set()
                some = True
        while self._under_way and not self._under_way[0]:
            self._under_way.popleft()
        return some

    def longest(self) -> float:
        """Seconds of a nap at most, for the shortest of what is under way."""
        names = [each.ticket.name for line in self._under_way for each in line]
        took = min((self._took.get(name, 0.0) for name in names), default=0.0)
        return min(LONGEST, max(LONG, took / PART))

    def _do(self) -> None:
        """All that is in line."""
        looked, idle, nap = time.perf_counter(), 0, NAP
        self._begin()
        while self._under_way:
            if self._progress():
                idle, nap = 0, NAP
                self._begin()
                continue
            idle += 1
            if idle > POLLS:
                time.sleep(nap)
                nap = min(2 * nap, self.longest())
                self._begin()
            if self._closed:
                raise WorkerError("the synchronisation was closed while communication was under way")
            if (now := time.perf_counter()) - looked > PATIENCE:
                looked = now
                self._check()


class Begun(NamedTuple):
    """A ticket whose task is under way, and since when."""

    ticket: Ticket
    time: float
