"""What each rank of ``test_processes`` runs: some rounds with the others, in one of which a victim
fails. Its result is written to a file of its own, since launchers mix what ranks print."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from demitasse import WorkerError
from demitasse_allreduce import addresses, library
from demitasse_allreduce.processes import MpiProcesses

ROUND = 17
TIMEOUTS = {"peer_timeout": "3 s", "stall_timeout": "3 s"}


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def leaves() -> None:
    os._exit(0)


def raises() -> None:
    raise ValueError("the loss is\n a fish")


def hangs() -> None:
    while True:
        signal.pause()


def exits() -> None:
    sys.exit("enough")


FAILURES: dict[str, Callable[[], None]] = {
    each.__name__: each for each in (dies, stops, leaves, raises, hangs, exits)
}


def rounds(processes: MpiProcesses, how: str, victim: int) -> list[float]:
    """Sum over all ranks repeatedly, until the victim fails."""
    sums = []
    for number in range(ROUND + 2):
        processes.report(number, "conv3")
        if number == ROUND and processes.rank == victim:
            if how == "ends":
                break
            FAILURES[how]()
        sums.append(float(processes.total([1.0])[0]))
    return sums


def connections() -> int:
    """Return the TCP sockets of this process."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            inodes.add(f"socket:[{line.split()[9]}]")
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(entry.readlink()) in inodes
    return found


def deaf(everywhere: bool) -> None:
    raise OSError("sockets are not allowed")


def main(folder: Path, how: str, victim: int, *more: str) -> int:
    """Return the exit status: 2 if another rank has failed, as the command line does."""
    notes: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    library.log.addHandler(handler)
    if "deaf" in more:
        addresses.listen = deaf  # type: ignore[assignment]
    rank = library.start().COMM_WORLD.rank
    before = connections()
    host = "ab"[rank % 2] if "hosts" in more else None
    processes = MpiProcesses(options=TIMEOUTS, host=host)
    people = processes.gather(os.getpid())
    met = {"hosts": processes.hosts, "process": os.getpid(), "notes": notes, "error": ""}
    try:
        if "tolerated" in more:
            processes.tolerate([0, 1, 2])
        met["sums"] = rounds(processes, how, victim)
        if "tolerated" in more:
            met["gathered"] = processes.gather({"rank": rank})
        met["lost"] = dict(processes.lost)
        for other in processes.lost if how == "stops" else ():
            os.kill(people[other], signal.SIGCONT)
        processes.close()
    except (WorkerError, ValueError) as error:
        met["error"] = str(error)
        processes.fail(error)
        processes.close()
    met["threads"] = [thread.name for thread in threading.enumerate()]
    met["connections"] = connections() - before
    (folder / f"{rank}.json").write_text(json.dumps(met))
    if how in ("stops", "hangs") and rank != victim and "tolerated" not in more:
        with contextlib.suppress(ProcessLookupError):  # the other survivor has
            os.kill(people[victim], signal.SIGKILL)
    return 2 if met["error"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
