"""Threads take turns at a device's default stream."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from demitasse_gpu.driver import Driver, Handle

STREAM = dict.fromkeys(("copy", "clear", "record", "launch", "launch_graph"), -1)
STREAM |= dict.fromkeys(("wait_in_stream", "call"), 0)
"""Calls that enqueue in a stream, with that argument's position. Captures already hold the turn."""


class InTurn:
    """A driver whose calls in one stream take turns. A thread that captures works into a graph holds
    ``turn`` until it is done: otherwise what other threads enqueue meanwhile would go into the graph,
    and not be executed. Other calls are passed on to the driver. A thread that waits for the stream does
    not hold the turn."""

    def __init__(self, driver: Driver, stream: Handle, turn: threading.RLock) -> None:
        self.driver, self._stream, self._turn = driver, stream, turn
        self._events = deque[Handle]()

    def synchronise(self, stream: Handle) -> None:
        """Wait until everything that is in the stream now is done."""
        if stream != self._stream:
            self.driver.synchronise(stream)
            return
        with self._turn:
            event = self._events.pop() if self._events else self.driver.event()
            self.driver.record(event, stream)
        try:
            self.driver.wait(event)
        finally:
            self._events.append(event)

    def __getattr__(self, name: str) -> Any:
        method, place = getattr(self.driver, name), STREAM.get(name)
        if place is None:
            return method

        def call(*arguments: Any) -> Any:
            if arguments[place] != self._stream:
                return method(*arguments)
            with self._turn:
                return method(*arguments)

        return call
