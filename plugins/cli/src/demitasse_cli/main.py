"""The entry point. It is light, so that an interrupt while the rest is imported is told in a line."""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Sequence

from demitasse_cli import garbage

NO_MEMORY = b"demitasse: not enough memory to go on; see ulimit -v, and free\n"
NO_ROOM = 2
"""What is said, and the exit status, where there is too little memory to say more."""

INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit statuses as shells have them: 128 and the number of SIGINT, of SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for a finding or a fault of ours, 2 for
    a user's mistake, 130 when interrupted. A fault of ours is raised, for its traceback."""
    open_streams()
    if arguments is None:  # the process is ours
        garbage.pause()
        # Which line met a page of a mapped file that cannot be read, or a fault in native code.
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
        os.write(2, NO_MEMORY)  # which needs none
        return NO_ROOM


def open_streams() -> None:
    """Give a process that was started with closed standard streams some that lead nowhere; a file
    that is opened later would else take their numbers, and be written to by every print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, "w" if number else "r", encoding="utf-8")  # noqa: PTH123, SIM115
            setattr(sys, name, stream)
