"""The helper thread, which runs collectives in order while another thread computes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from demitasse import WorkerError


class Task(Protocol):
    """A collective that can be made as a whole, by ``run``, or bit by bit, by ``start`` and
    ``progress``. Both raise if a peer has failed."""

    def run(self) -> None:
        """Make the whole collective."""

    def start(self) -> None:
        """Begin: post the messages that can be posted."""

    def progress(self) -> bool:
        """Continue without waiting; return whether it is done."""


def mark(task: Task) -> None:
    """Tell a task on a device's memory that all work that it depends on has been enqueued. Called in the
    thread that enqueues the device's work. Other tasks ignore it."""
    told = getattr(task, "mark", None)
    if told is not None:
        told()


class Ticket:
    """A posted task that can be waited for."""

    def __init__(self, task: Task, name: str) -> None:
        self.task, self.name = task, name
        self.done = threading.Event()


POLLS, NAP = 2, 50e-6
"""How often to poll in vain before a nap, and the seconds of the first nap; each further nap is twice as
long. A nap frees the core, and the interpreter's lock, for the threads that compute."""

LONG, LONGEST, PART = 200e-6, 1e-3, 64
"""The longest nap is the last duration of the task divided by PART, so that naps delay it little
however many rounds it has, but at least LONG and at most LONGEST seconds. A poll takes about 40 us of a
core from the computing threads. Measured for 128 MB between two hosts: with naps of up to 0.2 ms this
thread takes 0.28 s of a core at 400 Mbit/s and 0.16 s at 1 Gbit/s; with naps of up to 1 ms, 0.15 and
0.10 s, in the same total time; with 2 ms a link idles."""

PATIENCE = 0.1
"""Seconds of waiting after which a thread checks whether the peers are still alive."""


class Lane:
    """A thread that runs tasks in the order in which they are posted. Tasks that are posted together
    run at the same time. Up to ``depth`` postings are under way at a time; the next one begins when the
    oldest is done. ``record(name, start, stop)`` is called when a task has ended, with seconds of
    ``time.perf_counter``. ``check`` raises if a peer has failed. If a task or a check raises, every
    ``wait`` raises the same error, and no further task runs."""

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
        """Post tasks, which start together when it is their turn. Returns a ticket for each."""
        tickets = [Ticket(task, name) for task, name in tasks]
        for ticket in tickets:
            mark(ticket.task)
        with self._posted:
            self._line.append(tuple(tickets))
            self._posted.notify()
        return tickets

    def wait(self, ticket: Ticket) -> None:
        """Wait until a task is done. Raises the error that ended the thread, if any."""
        while not ticket.done.wait(PATIENCE):
            if not self._thread.is_alive():
                raise self.error or WorkerError(f"the helper thread has ended before {ticket.name}")
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the thread; tasks that have not run are given up."""
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
        """Wake those who wait for tasks that will never be done."""
        if self._line and self.error is None:
            self.error = WorkerError("the synchronisation was closed while communication was under way")
        while self._line:
            for ticket in self._line.popleft():
                ticket.done.set()

    def _begin(self) -> None:
        """Start the next postings, as far as ``depth`` allows."""
        while len(self._under_way) < self._depth:
            with self._posted:
                if not self._line:
                    return
                begun = [Begun(ticket, time.perf_counter()) for ticket in self._line.popleft()]
            self._under_way.append(begun)
            for each in begun:
                each.ticket.task.start()

    def _progress(self) -> bool:
        """Continue the tasks that are under way; return whether any has ended."""
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
        """Return the most seconds of a nap, by the shortest task under way."""
        names = [each.ticket.name for line in self._under_way for each in line]
        took = min((self._took.get(name, 0.0) for name in names), default=0.0)
        return min(LONGEST, max(LONG, took / PART))

    def _do(self) -> None:
        """Run all posted tasks."""
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
    """A ticket whose task is under way, and the time at which it began."""

    ticket: Ticket
    time: float
