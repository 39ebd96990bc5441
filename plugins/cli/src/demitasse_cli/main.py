"""The entry point. It imports little, so that even an early interrupt is reported in one line."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Sequence

from demitasse_cli import garbage

NO_MEMORY = b"demitasse: not enough memory to go on; see ulimit -v, and free\n"
NO_ROOM = 2
"""The message and the exit status if there is too little memory to say more."""

INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit statuses by the shells' convention: 128 plus the number of SIGINT, or of SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0; 1 for a finding; 2 for a user's mistake; 130
    if interrupted. Our own bugs are raised, for the traceback; Python then exits with 1."""
    open_streams()
    if arguments is None:  # the process is our own
        garbage.pause()
        # Shows which line met an unreadable page of a mapped file, or a fault in native code.
        faulthandler.enable(sys.stderr)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        from demitasse_cli.command_line import run

        return run(given)
    except KeyboardInterrupt:
        print("demitasse: interrupted", file=sys.stderr)
        return INTERRUPTED
    except MemoryError:
        if "--debug" in given:
            raise
        os.write(2, NO_MEMORY)  # needs no memory
        return NO_ROOM


def open_streams() -> None:
    """Give a process that was started with closed standard streams some that lead nowhere. Otherwise a
    file opened later would get their number, and every print would write to it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, "w" if number else "r", encoding="utf-8")  # noqa: PTH123, SIM115
            setattr(sys, name, stream)
