"""Signals that ask a training run to save and stop."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

NOTICE = b"\ndemitasse: saving a snapshot and stopping; interrupt again to stop at once\n"
SHOW_CURSOR = b"\x1b[?25h"


class Interrupts:
    """Between ``with`` and its end, SIGINT, SIGTERM and SIGHUP set ``received`` instead of stopping; a
    second one stops the process at once, whatever it is doing. One that is ignored, as nohup has it
    for SIGHUP, stays so. Handlers are put back after."""

    def __init__(self, terminal: int | None = None) -> None:
        self.received: int | None = None
        self._terminal = terminal
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        # The system's own action needs no Python, so it also ends a process that is stuck.
        for each in self._before:
            signal.signal(each, signal.SIG_DFL)
        # Not print: this may have come in the middle of one, and buffers do not bear that.
        # After a hangup there may be nobody to read it.
        with suppress(OSError):
            os.write(2, NOTICE)
            if self._terminal is not None:
                os.write(self._terminal, SHOW_CURSOR)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop(self) -> bool:
        """Whether a signal asked for the end; what a trainer polls."""
        return self.received is not None

    @property
    def status(self) -> int:
        """The exit status by which shells know the signal: 129, 130 or 143."""
        return 0 if self.received is None else 128 + self.received
