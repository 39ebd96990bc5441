"""The work of each rank in a comparison: timed allreduces, by turns. Run by ``netlab.compare``."""

from __future__ import annotations

import ctypes
import json
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

VARIABLE = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
CHUNK = "MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE"
TRIALS = 3
"""How many runs of each candidate ``auto`` tries: the default of a training."""


class ControlVariable:
    """An integer or enumerated control variable of MPICH, read and written through MPI's tools
    interface, so that one job can try every algorithm in turn. Raises LookupError if MPI has none of
    that name."""

    def __init__(self, name: str) -> None:
        maps = Path("/proc/self/maps").read_text().split()
        self.mpi = ctypes.CDLL(next(word for word in maps if "libmpi.so" in word))
        self.call("MPI_T_init_thread", MPI.THREAD_SINGLE, ctypes.byref(ctypes.c_int()))
        index, count, number = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if self.mpi.MPI_T_cvar_get_index(name.encode(), ctypes.byref(index)):
            raise LookupError(f"this MPI has no control variable {name}")
        text, length = ctypes.create_string_buffer(8192), ctypes.byref(ctypes.c_int(8192))
        kind, datatype, out = ctypes.c_void_p(), ctypes.c_int64(), ctypes.byref(number)
        to_datatype, to_kind = ctypes.byref(datatype), ctypes.byref(kind)
        short = ctypes.byref(ctypes.c_int(0))
        described = out, to_datatype, to_kind, text, length, out, out
        self.call("MPI_T_cvar_get_info", index, None, short, *described)
        self.description = text.value.decode()
        self.handle = ctypes.c_void_p()
        handle = ctypes.byref(self.handle)
        self.call("MPI_T_cvar_handle_alloc", index, None, handle, ctypes.byref(count))

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the tools interface. Raises LookupError with its error code."""
        if code := getattr(self.mpi, name)(*arguments):
            raise LookupError(f"{name}: error {code}")

    def values(self) -> dict[str, int]:
        """Return the names of an enumerated variable's values, with their numbers. MPICH provides no
        enumeration for its variables, but describes their values line by line, in order."""
        names = re.findall(r"^(\w+) +- ", self.description, re.MULTILINE)
        return {name: number for number, name in enumerate(names)}

    def read(self) -> int:
        """Return its current number."""
        value = ctypes.c_int()
        self.call("MPI_T_cvar_read", self.handle, ctypes.byref(value))
        return value.value

    def write(self, value: int) -> None:
        """Set its number, which takes effect at the next call of MPI."""
        self.call("MPI_T_cvar_write", self.handle, ctypes.byref(ctypes.c_int(value)))


def mpich(comm: MPI.Intracomm, array: Any, algorithm: str, chunk: int = 0) -> Callable[[], Any]:
    """Return MPICH's in-place allreduce by one of its algorithms; ``auto`` is its default."""
    variable, piece = ControlVariable(VARIABLE), ControlVariable(CHUNK)
    number = variable.values()
    if algorithm not in number:
        raise LookupError(f"{VARIABLE} has no {algorithm!r} (valid: {', '.join(number)})")

    def run() -> None:
        variable.write(number[algorithm])
        piece.write(chunk)
        comm.Allreduce(MPI.IN_PLACE, array)

    return run


def ours(comm: MPI.Intracomm, array: Any, algorithm: str, **words: Any) -> Callable[[], Any]:
    """Return Demitasse's allreduce, by the executor of its schedule."""
    from demitasse_allreduce.algorithms import schedule
    from demitasse_allreduce.executor import Collective

    return Collective(schedule(algorithm, comm.size, array.size, **words), comm, array).run


def floor(comm: MPI.Intracomm, array: Any) -> Callable[[], Any]:
    """Return the communication that no allreduce can avoid, without the sum. For an array of n bytes,
    each of p ranks sends at least 2 (p-1)/p n (each part is received p-1 times while it is summed, and
    p-1 times when it is complete). Here the bytes go to the next rank, and no rank waits for another."""
    parts = np.array_split(np.empty(array.size, array.dtype), comm.size)[1:] * 2
    places = [np.empty_like(part) for part in parts]
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def run() -> None:
        received = [comm.Irecv(place, source) for place in places]
        MPI.Request.Waitall(received + [comm.Isend(part, to) for part in parts])

    return run


def automatic(comm: MPI.Intracomm, array: Any, machine: str, gamma: float) -> Callable[[], Any]:
    """Return Demitasse's choice as in a training: by that file's hardware description, and by trials of
    what costs least. All ranks make the same choice, which is the ``way`` of the result."""
    from demitasse import load_machine
    from demitasse_allreduce.choice import Chooser, network_of
    from demitasse_allreduce.executor import Collective
    from demitasse_allreduce.stages.candidates import candidates, steady
    from demitasse_allreduce.trials import measured

    network = network_of(load_machine(machine))
    chooser = Chooser(network, comm.size, gamma=gamma)
    ways = [offer.way for offer in candidates(chooser.offers(array.nbytes))]
    runs = [Collective(way.schedule(array.size, network, comm.size), comm, array).run for way in ways]
    array[:] = 0
    for way, seconds in zip(ways, measured(comm, runs, TRIALS), strict=True):
        chooser.measured.record(way, array.nbytes, comm.size, seconds)
    chosen = steady(chooser.offers(array.nbytes))[0].way
    run = runs[ways.index(chosen)]

    def work() -> None:
        run()

    vars(work)["way"] = asdict(chosen)
    return work


KINDS: dict[str, Callable[..., Callable[[], Any]]] = {
    "mpich": mpich,
    "ours": ours,
    "auto": automatic,
    "floor": floor,
}


def timed(comm: MPI.Intracomm, run: Callable[[], Any], array: Any, sums: bool = True) -> float:
    """Return seconds until the slowest rank is done. Raises ArithmeticError if ``sums``, and the sum is
    wrong."""
    array[:] = comm.rank + 1
    comm.Barrier()
    begin = comm.bcast(time.monotonic() + 0.005, root=0)
    while time.monotonic() < begin:
        time.sleep(0)
    run()
    seconds: float = comm.allreduce(time.monotonic() - begin, MPI.MAX)
    total = comm.size * (comm.size + 1) // 2
    if sums and not np.all(array == total):
        raise ArithmeticError(f"rank {comm.rank}: not every element is {total}, the sum")
    return seconds


def main() -> None:
    """Run the contest; rank 0 prints a line of JSON with each contender's seconds after each size."""
    comm, order = MPI.COMM_WORLD, json.loads(sys.argv[1])
    orders = random.Random(comm.bcast(time.time_ns(), root=0))
    for size in order["sizes"]:
        array = np.empty(size // 4, np.float32)
        runs = {}
        for name, (kind, words) in order["contenders"].items():
            runs[name] = KINDS[kind](comm, array, **words)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(order["rounds"] + 1):
            # In a random order, the same on all ranks: no contender should always follow the same other
            # one, because what a sum leaves in the links' buffers and TCP's windows affects the next by
            # 1 to 2%.
            for name in orders.sample([*runs], len(runs)):
                took = timed(comm, runs[name], array, order["contenders"][name][0] != "floor")
                if turn:  # the first turn warms up
                    seconds[name].append(took)
            if comm.rank == 0:
                print(f"{size >> 20} MB, round {turn}", file=sys.stderr, flush=True)
        if comm.rank == 0:
            ways = [run.way for run in runs.values() if hasattr(run, "way")]
            print(json.dumps({"seconds": seconds, "ways": ways}), flush=True)


if __name__ == "__main__":
    main()
