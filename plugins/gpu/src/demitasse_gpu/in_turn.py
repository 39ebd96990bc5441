"""One thread at a time in a device's default stream."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from demitasse_gpu.driver import Driver, Handle

STREAM = dict.fromkeys(("copy", "clear", "record", "launch", "launch_graph"), -1)
STREAM |= dict.fromkeys(("wait_in_stream", "call"), 0)
"""Calls that give a stream something: which of their arguments it is. Captures have the turn already."""


class InTurn:
    """A driver whose calls in one stream take turns: while a thread captures works into a graph, and has
    the ``turn`` until it is done, what others gave the stream would go into the graph, and not be done.
    Other calls are the driver's own. Who waits for the stream does not keep the turn meanwhile."""

    def __init__(self, driver: Driver, stream: Handle, turn: threading.RLock) -> None:
        self.driver, self._stream, self._turn = driver, stream, turn
        self._events = deque[Handle]()

    def synchronise(self, stream: Handle) -> None:
        """Wait until all that is in the stream now is done."""
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
