"""The helper thread: runs collectives in line while another thread computes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from demitasse import WorkerError


class Task(Protocol):
    """A collective that can be done bit by bit. Both ways raise when a peer has failed."""

    def run(self) -> None:
        """All of it."""

    def start(self) -> None:
        """Post what can be posted."""

    def progress(self) -> bool:
        """Go on without waiting; whether it is done."""


class Ticket:
    """A task in line, to be waited for."""

    def __init__(self, task: Task, name: str) -> None:
        self.task, self.name = task, name
        self.done = threading.Event()


POLLS, NAP, LONGEST = 2, 50e-6, 200e-6
"""Polls in vain before a nap, its seconds, and the longest. A nap frees the core, and the interpreter's
lock, for the threads that compute; it is short beside a message of a megabyte."""

PATIENCE = 0.1
"""Seconds of waiting after which somebody looks whether the peers still live."""


class Lane:
    """A thread that runs tasks in the order in which they are posted: one after the other, or those that
    are posted together at once. ``record(name, start, stop)`` is told when each began and ended, in
    seconds of ``time.perf_counter``; ``check`` raises when a peer has failed. What a task or a check
    raises is raised again by every ``wait``; nothing is run after it."""

    def __init__(
        self,
        name: str,
        check: Callable[[], None],
        record: Callable[[str, float, float], None],
    ) -> None:
        self._check, self._record = check, record
        self._line: deque[tuple[Ticket, ...]] = deque()
        self._posted, self._closed = threading.Condition(), False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, tasks: Iterable[tuple[Task, str]]) -> list[Ticket]:
        """Put tasks in line, to be started at once together when those before are done."""
        tickets = [Ticket(task, name) for task, name in tasks]
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
                while not self._line and not self._closed:
                    self._posted.wait()
                if self._closed:
                    self._release()
                    return
                tickets = self._line.popleft()
            try:
                self._do(tickets)
            except BaseException as error:  # noqa: BLE001  raised again by whoever waits
                self.error = error
                with self._posted:
                    self._closed = True
                    self._line.appendleft(tickets)
                    self._release()
                return

    def _release(self) -> None:
        """Let those who wait for tasks that will not be done see that."""
        if self._line and self.error is None:
            self.error = WorkerError("the synchronisation was closed while communication was under way")
        while self._line:
            for ticket in self._line.popleft():
                ticket.done.set()

    def _do(self, tickets: tuple[Ticket, ...]) -> None:
        began = time.perf_counter()
        for ticket in tickets:
            ticket.task.start()
        left, looked, idle, nap = list(tickets), began, 0, NAP
        while left:
            done = [ticket for ticket in left if ticket.task.progress()]
            if done:
                idle, nap = 0, NAP
                now = time.perf_counter()
                for ticket in done:
                    left.remove(ticket)
                    self._record(ticket.name, began, now)
                    ticket.done.set()
                continue
            idle += 1
            if idle > POLLS:
                time.sleep(nap)
                nap = min(2 * nap, LONGEST)
            if self._closed:
                raise WorkerError("the synchronisation was closed while communication was under way")
            if (now := time.perf_counter()) - looked > PATIENCE:
                looked = now
                self._check()
