"""Measure allreduce among the ranks of one node, with all contenders taking turns.

    python tools/bench_allreduce --openmpi PATH/bin/python --torch PATH/bin/python --ranks 2

All ranks of all contenders are started once and sleep until it is their turn. Rounds therefore
interleave, and whatever disturbs the machine affects all contenders. A time runs from the first rank's
begin to the slowest rank's end. The output has medians, and the best peer's median divided by ours.
``floor`` is the time to read and write every rank's array once, with as many threads as there are
processors, in the same rounds; next to it is how far apart the processors were.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np

sys.path += [str(Path(__file__).parents[1])]  # tools; this folder is on the path already
from contenders import Contender, contenders, this_python
from processor_distance import Distance, told

SIZES = "4K,16K,64K,256K,1M,16M,100M,240M"
_UNITS = {"K": 1024, "M": 10**6}


def sizes_of(text: str) -> dict[str, int]:
    """Parse sizes, by their names between commas: 256 is 256, 4K is 4,096, 1M is 2**20; from 16M on, M
    is 10**6, because gradients are counted that way."""
    return {size: bytes_of(size) for size in text.split(",")}


def bytes_of(text: str) -> int:
    """Return the bytes of one name."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS else (text, "")
    if not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: 256, 4K and 16M are")
    if (nbytes := 2**20 if text == "1M" else int(number) * _UNITS.get(unit, 1)) % 4:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of float32, of 4 bytes each")
    return nbytes


def batch_of(nbytes: int) -> int:
    """Return how many consecutive sums are timed together."""
    return 200 if nbytes <= 2**16 else 40 if nbytes <= 2**20 else 1


class Floor:
    """Threads that read and write as many bytes as a sum must, each array once. They start at a barrier,
    as contenders do, with the caches as the previous pass left them."""

    def __init__(self) -> None:
        import numba

        from demitasse_allreduce.node.words import call, call_seven, fetch_add, look

        @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
        def passes(a: Any, b: Any, times: Any, words: Any) -> None:
            """``words``: where threads count themselves, their number, clock_gettime, sched_yield.
            ``times``: where the clock before and after each pass is written, in seconds and
            nanoseconds."""
            arrivals, threads, clock, give_way = words
            for turn in range(times.shape[0]):
                fetch_add(arrivals, 0, 1)
                spins = 0
                while look(arrivals, 0) < threads * (turn + 1):
                    spins += 1
                    if spins > 10_000:
                        call(give_way)
                call_seven(clock, time.CLOCK_MONOTONIC, times[turn, 0].ctypes.data, 0, 0, 0, 0, 0)
                for i in range(a.size):
                    total = a[i] + b[i]
                    a[i] = total
                    b[i] = total
                call_seven(clock, time.CLOCK_MONOTONIC, times[turn, 1].ctypes.data, 0, 0, 0, 0, 0)

        libc = ctypes.CDLL(None)
        self._calls = [
            ctypes.cast(function, ctypes.c_void_p).value
            for function in (libc.clock_gettime, libc.sched_yield)
        ]
        self._passes, self._arrays = passes, dict[int, Any]()
        self.measure(8, 1, 1)

    def measure(self, nbytes: int, ranks: int, count: int) -> list[float]:
        """Return the seconds of ``count`` passes, after one that does not count."""
        threads = min(ranks, len(os.sched_getaffinity(0)))
        each = nbytes * ranks // threads // 8
        if each not in self._arrays:
            self._arrays.clear()
            self._arrays[each] = [[np.zeros(each, np.float32) for _ in "ab"] for _ in range(threads)]
        arrivals, times = np.zeros(1, np.int64), np.zeros((threads, count + 1, 2, 2), np.int64)
        words = (arrivals.ctypes.data, threads, *self._calls)
        team = [
            threading.Thread(target=self._passes, args=(*pair, its, words))
            for pair, its in zip(self._arrays[each], times, strict=True)
        ]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        seconds = times[:, 1:] @ np.array([1.0, 1e-9])
        found: list[float] = (seconds[:, :, 1].max(0) - seconds[:, :, 0].min(0)).tolist()
        return found


class Driver:
    """Communicates with the ranks of all contenders."""

    def __init__(self, ranks: int, found: list[Contender], limit: float) -> None:
        self.lines: dict[str, list[TextIO]] = {each.name: [] for each in found}
        self.processes: set[int] = set()
        self.stack, self.logs = ExitStack(), dict[str, BinaryIO]()
        for each in found:
            self.logs[each.name] = self.stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
        with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
            server.settimeout(1.0)
            until = time.monotonic() + limit
            port = server.getsockname()[1]
            self.launched = []
            for each in found:
                self.launched += each.launch(ranks, port, self.logs[each.name])
            while sum(map(len, self.lines.values())) < ranks * len(found) and time.monotonic() < until:
                try:
                    lines = server.accept()[0].makefile("rw")
                except TimeoutError:
                    if any(each.poll() for each in self.launched):
                        break
                    continue
                hello = json.loads(lines.readline())
                self.processes.add(hello["process"])
                self.lines[hello["name"]].append(lines)
        for name in [name for name, links in self.lines.items() if len(links) < ranks]:
            print(f"{name} did not start: {self.last_words(name)}")
            del self.lines[name]

    def last_words(self, name: str) -> str:
        """Return the last line that a contender or its launcher printed."""
        self.logs[name].seek(0)
        said = self.logs[name].read().decode(errors="replace").strip().splitlines()
        return said[-1] if said else "it said nothing"

    def measure(self, name: str, nbytes: int, batch: int, count: int) -> list[float]:
        """Return the seconds of a sum, measured ``count`` times."""
        for lines in self.lines[name]:
            print(nbytes, batch, count, file=lines, flush=True)
        said = [lines.readline() for lines in self.lines[name]]
        if not all(said):
            raise SystemExit(f"{name} ended in a sum of {nbytes:,} bytes: {self.last_words(name)}")
        answers = [json.loads(line) for line in said]
        if "--verbose" in sys.argv:
            print(f"{time.monotonic():.2f}", name, nbytes, file=sys.stderr)
        return [
            (max(end for _, end in turn) - min(begin for begin, _ in turn)) / batch
            for turn in zip(*answers, strict=True)
        ]

    def close(self) -> None:
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        for launched in self.launched:
            launched.wait(10)
        self.stack.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", type=Path, default=this_python(), help="has ours and mpich")
    parser.add_argument("--openmpi", type=Path, help="an interpreter with mpi4py over Open MPI 5")
    parser.add_argument("--torch", type=Path, help="an interpreter with torch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", type=sizes_of, default=SIZES, help=f"by commas ({SIZES})")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", default="all", help="all, or names of peers' settings, by commas")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found, absent = contenders(options.python, options.openmpi, options.torch, options.settings)
    for name in absent:
        print(f"{name} is absent: no interpreter was given, or it is not there")
    driver, floor, distance = Driver(options.ranks, found, 60.0), Floor(), Distance()
    trips: dict[str, list[float]] = {}
    times: dict[str, dict[str, list[float]]] = {}
    try:
        for size, nbytes in options.sizes.items():
            repeats = max(1, min(5, 200_000_000 // nbytes))
            row = times.setdefault(size, {})
            for number in range(options.rounds + 1):
                if number and (trip := distance.round_trip()) is not None:
                    trips.setdefault(size, []).append(trip)
                for name in driver.lines:
                    seconds = driver.measure(name, nbytes, batch_of(nbytes), repeats)
                    if number:  # the first round warms up
                        row.setdefault(name, []).extend(seconds)
                if nbytes > 2**20:
                    row.setdefault("floor", []).extend(floor.measure(nbytes, options.ranks, repeats))
    finally:
        driver.close()
    report(options.ranks, found, times, trips)
    if options.json:
        result = {"ranks": options.ranks, "seconds": times, "processor_round_trips_ns": trips}
        options.json.write_text(json.dumps(result, indent=1))


def report(
    ranks: int,
    found: list[Contender],
    times: dict[str, dict[str, list[float]]],
    trips: dict[str, list[float]],
) -> None:
    """Print a line per size: median milliseconds, the best peer's ratio to ours, and the difference in
    us."""
    peers = {each.name for each in found if each.peer}
    for size, row in times.items():
        medians = {name: 1e3 * statistics.median(seconds) for name, seconds in row.items()}
        print(
            f"{ranks} ranks, {size}, {told(trips.get(size, []))}: "
            + ", ".join(f"{n} {m:.4g} ms" for n, m in medians.items())
        )
        best = min((name for name in medians if name in peers), key=medians.__getitem__, default=None)
        for ours in ("shared", "ordinary"):
            if best is not None and ours in medians:
                gap = 1e3 * (medians[ours] - medians[best])
                ratio = medians[best] / medians[ours]
                print(f"    {ours}: {ratio:.2f} times as fast as {best} ({gap:+.1f} us)")


if __name__ == "__main__":
    main()
