"""One thread at a time in a device's default stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from demitasse_gpu.driver import Address, Argument, Driver, Extent, Function, Handle


class InTurn:
    """A driver whose calls in one stream take turns: while a thread captures works into a graph, and has
    the ``turn`` until it is done, what others gave the stream would go into the graph, and not be done.
    Other calls are the driver's own. Who waits for the stream does not keep the turn meanwhile."""

    def __init__(self, driver: Driver, stream: Handle, turn: threading.RLock) -> None:
        self.driver, self._stream, self._turn = driver, stream, turn
        self._events = deque[Handle]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

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

    def copy(self, target: Address, source: Address, nbytes: int, kind: str, stream: Handle) -> None:
        self._do(stream, self.driver.copy, target, source, nbytes, kind, stream)

    def clear(self, target: Address, nbytes: int, stream: Handle) -> None:
        self._do(stream, self.driver.clear, target, nbytes, stream)

    def record(self, event: Handle, stream: Handle) -> None:
        self._do(stream, self.driver.record, event, stream)

    def wait_in_stream(self, stream: Handle, event: Handle) -> None:
        self._do(stream, self.driver.wait_in_stream, stream, event)

    def call(self, stream: Handle, work: Callable[[], None]) -> None:
        self._do(stream, self.driver.call, stream, work)

    def launch(
        self,
        function: Function,
        grid: Extent,
        block: Extent,
        arguments: Sequence[Argument],
        shared: int,
        stream: Handle,
    ) -> None:
        self._do(stream, self.driver.launch, function, grid, block, arguments, shared, stream)

    def launch_graph(self, graph: Handle, stream: Handle) -> None:
        self._do(stream, self.driver.launch_graph, graph, stream)

    def _do(self, stream: Handle, call: Callable[..., None], *arguments: Any) -> None:
        if stream != self._stream:
            call(*arguments)
            return
        with self._turn:
            call(*arguments)
