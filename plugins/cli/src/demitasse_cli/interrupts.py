"""Signals that ask a training to save and stop, or to save and continue, and other commands to end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType, MappingProxyType, TracebackType
from typing import Any

from demitasse import after_fork
from demitasse_cli import launch

NOTICE = b"\ndemitasse: saving a snapshot and stopping; interrupt again to stop at once\n"
SAVING = b"\ndemitasse: saving a snapshot and going on\n"
SHOW_CURSOR = b"\x1b[?25h"
_KNOWN = signal.Signals.__members__  # Windows has no SIGHUP and no SIGUSR2
ENDING = tuple(_KNOWN[name] for name in ("SIGTERM", "SIGHUP") if name in _KNOWN)
"""Signals, besides Ctrl-C's, that ask a process to end."""
STOPPING = (signal.SIGINT, *ENDING, *(_KNOWN[name] for name in ("SIGUSR2",) if name in _KNOWN))
"""Signals that end a training. Open MPI's mpiexec (5.0.11) reacts to SIGINT and SIGTERM by sending
SIGTERM to all processes, and SIGKILL a quarter of a second later, without an option to change that. It
passes SIGUSR2 on, and waits."""


class Ended(KeyboardInterrupt):
    """A signal other than Ctrl-C's that asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.status = 128 + number


def _forked() -> None:
    """Reset signals in a forked process, such as those in which users' layers read ahead: what these
    handlers do is up to the parent. A signal that asks for the end ends the fork, as
    ``Process.terminate`` expects. Ctrl-C, which a terminal sends to all, is ignored, so that the fork
    continues to serve a parent that saves a snapshot first."""
    for number in STOPPING:
        handler = signal.getsignal(number)
        if getattr(handler, "__module__", None) == __name__:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)


after_fork(_forked)


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise an exception, as SIGINT does, so that half-written files are
    removed. A second signal ends the process at once. Signals that are ignored or handled stay so."""
    numbers = [n for n in ENDING if signal.getsignal(n) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        numbers.clear()  # only the main thread can set handlers

    def end(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        raise Ended(number)

    try:
        for number in numbers:
            signal.signal(number, end)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class Interrupts:
    """Within ``with``, SIGINT, SIGTERM, SIGHUP and SIGUSR2 set ``received`` instead of ending the
    process. A second signal ends it at once, whatever it is doing. A signal that is ignored, as SIGHUP
    is under nohup, stays so. Leaving restores the handlers.

    ``effects`` gives a signal another effect than "stop": "snapshot" or "none".
    """

    def __init__(
        self, terminal: int | None = None, effects: Mapping[int, str] = MappingProxyType({})
    ) -> None:
        self.received: int | None = None
        self._terminal, self._effects = terminal, effects
        self._before: dict[int, Any] = {}
        self._wanted = False
        self._tells = not launch.rank()  # if a launcher signals all processes, only the first prints

    def __enter__(self) -> Interrupts:
        for number in STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                effect = self._effects.get(number, "stop")
                action: Any = {"none": signal.SIG_IGN, "snapshot": self._want}.get(effect, self._receive)
                self._before[number] = signal.signal(number, action)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        # The system's default action needs no Python, so it also ends a process that is stuck.
        for each in self._before:
            if self._effects.get(each, "stop") == "stop":
                signal.signal(each, signal.SIG_DFL)
        # Not print: the signal may have come during one, and buffers are not reentrant.
        # After a hangup there may be no reader.
        with suppress(OSError):
            if self._tells:
                os.write(2, NOTICE)
            if self._terminal is not None:
                os.write(self._terminal, SHOW_CURSOR)

    def _want(self, number: int, frame: FrameType | None) -> None:
        self._wanted = True
        with suppress(OSError):
            if self._tells:
                os.write(2, SAVING)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop(self) -> bool:
        """Whether a signal has asked for the end; a trainer polls this."""
        return self.received is not None

    def snapshot(self) -> bool:
        """Whether a signal has asked for a snapshot since the last call."""
        wanted, self._wanted = self._wanted, False
        return wanted

    @property
    def status(self) -> int:
        """The exit status that shells use for the signal: 129, 130, 140 or 143; 0 without a signal."""
        return 0 if self.received is None else 128 + self.received
