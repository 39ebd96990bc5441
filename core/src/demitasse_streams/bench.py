"""Tools for the checks of an engine: gates that hold work up, and time limits for what must happen."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from demitasse_streams import EngineEvent, EngineStream, StreamEngine


class Bench:
    """Tools for a check: an engine of the caller's, arrays in its memory, and a time limit in seconds
    for everything that must happen."""

    def __init__(self, engine: StreamEngine, array: Callable[[np.ndarray], Any], bound: float) -> None:
        self.engine, self.bound = engine, bound
        self._array, self._kept = array, list[Any]()

    def array(self, values: np.ndarray) -> Any:
        """Return an array in the engine's memory with these values. It lives as long as the bench, so
        that it outlives copies that are enqueued."""
        self._kept.append(self._array(values))
        return self._kept[-1]

    def pinned(self, values: Any) -> np.ndarray:
        """Return the engine's pinned host memory with these values, which lives as long as the bench."""
        values = np.asarray(values)
        made = self.engine.pinned(values.shape, values.dtype.name)
        made[...] = values
        self._kept.append(made)
        return made

    @contextmanager
    def held(self, stream: EngineStream) -> Iterator[threading.Event]:
        """Hold up everything that is enqueued in a stream from now on, until the block ends or the event
        that it yields is set. Allocate memory before the block, as an allocation may wait for everything
        that an accelerator does. Raises AssertionError if the stream reached the gate and waited for the
        whole time limit, because then something waited for the held work."""
        opened, late = threading.Event(), list[bool]()

        def gate() -> None:
            late.append(not opened.wait(self.bound))

        stream.call(gate)
        try:
            yield opened
        finally:
            opened.set()
        expect(
            not any(late),
            "the caller, or another stream, was held up by work that it did not have to wait for",
        )

    def soon(self, event: EngineEvent, what: str) -> None:
        """Wait for an event without its ``wait``. Raises AssertionError after the time limit."""
        until, pause = time.perf_counter() + self.bound, threading.Event()
        while not event.done:
            expect(time.perf_counter() < until, f"{what} was not done within {self.bound:g} s")
            pause.wait(1e-4)


def expect(holds: bool, otherwise: str) -> None:
    """Raise AssertionError with the message ``otherwise`` unless ``holds``. This is not an ``assert``
    because those can be switched off."""
    if not holds:
        raise AssertionError(otherwise)


def on_bench(
    make: Callable[[], StreamEngine],
    array: Callable[[np.ndarray], Any],
    bound: float,
    check: Callable[[Bench], None],
) -> None:
    """Run a check on an engine of its own, and close the engine."""
    engine = make()
    try:
        check(Bench(engine, array, bound))
    finally:
        engine.close()


def _places(others: Collection[int | None]) -> list[str]:
    """Return where each thread is, except ``others``: its innermost line that is not in Python's own
    library, and that line's caller."""
    library, found = sysconfig.get_path("stdlib"), list[str]()
    for ident, top in sys._current_frames().items():
        lines = [
            f"{Path(frame.f_code.co_filename).name}:{line} ({frame.f_code.co_name})"
            for frame, line in traceback.walk_stack(top)
            if not frame.f_code.co_filename.startswith(library)
            or "site-packages" in frame.f_code.co_filename
        ]
        if ident not in others and lines:
            found.append(" of ".join(lines[:2]))
    return found


def within(bound: float, check: Callable[..., None], run: Callable[[], None]) -> None:
    """Call ``run`` in a thread of its own. If it raises or does not end, raise AssertionError with
    ``check``'s docstring."""
    sentence = " ".join((check.__doc__ or check.__name__).split())
    raised: list[BaseException] = []

    def call() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001  it is raised below, with the sentence
            raised.append(error)

    before = {thread.ident for thread in threading.enumerate()}
    thread = threading.Thread(target=call, name=f"check_engine {check.__name__}", daemon=True)
    thread.start()
    thread.join(bound)
    if thread.is_alive():
        told = f"But the check did not end within {bound:g} s; its threads are in"
        raise AssertionError(f"{sentence} {told} {'; '.join(_places(before))}.")
    if raised:
        error = raised[0]
        what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        raise AssertionError(f"{sentence} But {what}.") from error
