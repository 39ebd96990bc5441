"""Compare several workers of one process with one: speed, synchronisation, the GIL, memory.

    python tools/bench_workers.py speed lenet cifar10_quick     k workers of n / k threads each
    python tools/bench_workers.py crowd lenet --workers 2 24    samples a second, so many per worker
    python tools/bench_workers.py gil lenet --workers 2         how much of the time the GIL is held
    python tools/bench_workers.py memory alexnet --workers 1 2 3

The contenders take turns in one process, some steps in each round, and the medians of the rounds count.
Synchronisation, the time from the last gradient to the next iteration, is reported in three parts:
waiting for the slower worker; the worker's own update, measured separately, as the time of the updates
of all slices at once and nothing else; and the rest, which is the cost of synchronising: summing,
leaving gates once the last worker has arrived, Python. ``--sync`` names another plugin that
synchronises; ``--model`` is the parameter server's.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numba
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bench import prototxt
from bench.layers import Net
from bench.nets import NETS

from demitasse import Level, Machine, SyncSpec, compose

PLUGINS = ("caffe", "training", "datasets", "cpu", "reference", "system")
SAMPLES = 512
WARM = 5
PARTS = "waiting", "leaving", "summing"


def machine(workers: int, threads: int, sync: SyncSpec) -> Machine:
    """Return a machine with so many workers of so many threads each."""
    outer = Level("node", 1, cores=workers * threads)
    inner = Level("worker", workers, workers="threads", cores=threads, sync=sync)
    plugins = dict.fromkeys((*PLUGINS, sync.plugin))
    return Machine("bench", (outer, inner), tuple(plugins), fingerprint="any")


class Contender:
    """A net's trainer on some workers. ``batch`` is that of all workers together or, under weak scaling,
    of each."""

    def __init__(
        self, net: Net, workers: int, threads: int, sync: SyncSpec, scaling: str = "strong"
    ) -> None:
        self.workers, self.threads, self.batch = workers, threads, net.batch
        self.samples = net.batch * (workers if scaling == "weak" else 1)
        random = np.random.default_rng(1)
        count = max(SAMPLES, self.samples) if np.prod(net.image) < 10_000 else self.samples
        arrays = {
            "data": random.random((count, *net.image), np.float32),
            "label": random.integers(0, 10, count).astype(np.float32),
        }
        self.runtime = compose(machine(workers, threads, sync))
        with tempfile.TemporaryDirectory() as folder:
            solver = prototxt.write(net, Path(folder))
            self.trainer = self.runtime.trainer(solver, data={"train": arrays}, scaling=scaling)
        self.seconds = list[float]()
        self.synchronising = list[dict[str, float]]()
        self.name = f"{workers} x {threads}"

    def round(self, steps: int) -> None:
        before = self._times()
        result = self.trainer.step(steps)
        self.seconds.append(result.seconds / steps)
        taken = {name: (value - before[name]) / steps for name, value in self._times().items()}
        self.synchronising.append(taken)

    def _times(self) -> dict[str, float]:
        """Return seconds so far, averaged over workers: ``all`` between gradients and new parameters
        and, if the synchronisation counts them, its parts (``ThreadServer.times``) and the ``update``,
        which is the rest."""
        found: dict[str, float] = {}
        for worker in self.trainer._workers:
            bound = worker.step.phases.synchronise if worker.step is not None else 0.0
            told = [level.times() for level in worker.levels if hasattr(level, "times")]
            each = told[0] if told else {}
            spent = sum(each.get(name, 0.0) for name in PARTS)
            ending = each.get("ending", 0.0)
            parts = {"all": bound + ending, **{name: each.get(name, 0.0) for name in PARTS}}
            parts["update"] = bound + ending - spent if told else 0.0
            for name, value in parts.items():
                found[name] = found.get(name, 0.0) + value / self.workers
        return found

    def part(self, name: str) -> float:
        """Return a part of synchronising as a fraction of the step."""
        return median(each[name] for each in self.synchronising) / self.step

    def own_update(self, times: int = 9) -> float:
        """Return the seconds, averaged over workers, in which workers update what each owns, all at
        once, without sums or gates."""

        def works(worker: Any) -> list[Any]:
            (level,) = worker.levels
            flat, about = (
                level.update_memory(worker.flat),
                (worker.plan, worker.kernels, worker.allocator),
            )
            spans = [span for bucket in worker.plan.buckets if (span := level.owned(bucket.span))]
            return [
                worker.update.bind(
                    s, flat, flat.gradients[s.start : s.stop], worker.flat.numbers, *about
                )
                for s in spans
            ]

        mine = [works(worker) for worker in self.trainer._workers]
        together = threading.Barrier(self.workers)

        def timed(worker: int) -> float:
            together.wait()
            start = time.perf_counter()
            for work in mine[worker]:
                work()
            return time.perf_counter() - start

        taken = [sum(self.trainer._crew.run(timed)) / self.workers for _ in range(times)]
        return median(taken)

    @property
    def step(self) -> float:
        return median(self.seconds)

    def close(self) -> None:
        self.trainer.close()
        self.runtime.close()


def take_turns(contenders: Sequence[Contender], rounds: int, seconds: float) -> None:
    """Run rounds of about so many seconds each, after some steps that are not counted."""
    counts = []
    for contender in contenders:
        contender.trainer.step(WARM)
        start = time.perf_counter()
        contender.trainer.step(WARM)
        counts.append(max(1, round(seconds * WARM / (time.perf_counter() - start))))
    for _ in range(rounds):
        for contender, count in zip(contenders, counts, strict=True):
            contender.round(count)


def speed(args: argparse.Namespace) -> None:
    """Compare k workers of n / k threads, for each k that divides n, and one worker with a single
    thread."""
    for name in args.nets:
        shapes = [(1, 1), *((k, args.cores // k) for k in args.workers if args.cores % k == 0)]
        made = [Contender(NETS[name](), k, threads, args.sync) for k, threads in dict.fromkeys(shapes)]
        take_turns(made, args.rounds, args.seconds)
        single = made[0].step
        for each in made:
            print(
                f"{name:<14} {each.name:>6}  {each.step * 1e3:9.3f} ms  "
                f"{each.samples / each.step:9.0f} samples/s  {single / each.step:5.2f} times  "
                f"synchronising {each.part('all'):6.2%}"
            )
            if each.workers > 1 and each.part("update"):
                own, waiting = each.own_update() / each.step, each.part("waiting")
                print(
                    f"{'':<14} {'':>6}  its own update {own:.2%}, beyond it "
                    f"{each.part('all') - waiting - own:.2%} (leaving gates "
                    f"{each.part('leaving'):.2%}); waiting for the slower {waiting:.2%}"
                )
            each.close()


def crowd(args: argparse.Namespace) -> None:
    """Measure samples per second of more workers than processors, with the same number of samples
    each."""
    for name in args.nets:
        net = NETS[name]()
        net.batch = args.batch
        made = [Contender(net, k, 1, args.sync, "weak") for k in args.workers]
        take_turns(made, args.rounds, args.seconds)
        first = made[0].samples / made[0].step
        for each in made:
            rate = each.samples / each.step
            print(f"{name:<14} {each.name:>6}  {rate:9.0f} samples/s  {rate / first:6.3f} of the first")
            each.close()


def memory(args: argparse.Namespace) -> None:
    """Measure the resident bytes of a whole process, one run after another, in child processes."""
    for name in args.nets:
        before = 0.0
        for k in args.workers:
            read, write = os.pipe()
            child = os.fork()
            if child == 0:
                net = NETS[name]()
                net.batch = max(args.batch, k)
                contender = Contender(net, k, 1, args.sync)
                contender.trainer.step(2)
                os.write(write, str(_resident()).encode())
                os._exit(0)
            os.waitpid(child, 0)
            found = float(os.read(read, 100))
            weights = "" if not before else f"  {(found - before) / 2**20:+9.1f} MiB"
            print(f"{name:<14} {k} workers  {found / 2**20:9.1f} MiB{weights}")
            before = found


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# The GIL is a word somewhere in the interpreter's state, 1 while a thread holds it. To find it, look for
# words that are 1 in a copy made with the GIL and 0 in one made without, repeatedly.


@numba.njit(nogil=True)
def _sample(memory: Any, word: int, stop: Any, counts: Any, pause: int) -> None:
    state = np.uint64(88172645463325252)
    while stop[0] == 0:
        counts[0] += 1
        counts[1] += memory[word] != 0
        for _ in range(pause + int(state % np.uint64(pause))):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)


def _lock_word() -> tuple[Any, int]:
    """Return the interpreter's state as 32-bit words, and which of them says whether the GIL is held."""
    held, free = ctypes.PyDLL(None), ctypes.CDLL(None)
    size = 1 << 17
    address = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    places = [address]
    words = np.empty(size // 4, np.int32)
    candidates: Any = None
    for with_gil in (True, False) * 20:
        move = (held if with_gil else free).memcpy
        move.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        move(words.ctypes.data, places[0], size)
        right = words == int(with_gil)
        candidates = right if candidates is None else candidates & right
    (found,) = np.flatnonzero(candidates)[:1]
    state: Any = (ctypes.c_int32 * (size // 4)).from_address(address)
    return np.frombuffer(state, np.int32), int(found)


def gil(args: argparse.Namespace) -> None:
    """Sample the GIL at random times from a thread that does not take it, while workers train."""
    state, word = _lock_word()
    for name in args.nets:
        for k in args.workers:
            contender = Contender(NETS[name](), k, 1, args.sync)
            take_turns([contender], 1, args.seconds)
            stop, counts = np.zeros(1, np.int64), np.zeros(2, np.int64)
            looker = threading.Thread(target=_sample, args=(state, word, stop, counts, 20_000))
            _sample(state, word, np.ones(1, np.int64), counts, 1)
            looker.start()
            contender.round(max(1, int(args.seconds * args.rounds / contender.step)))
            stop[0] = 1
            looker.join()
            print(
                f"{name:<14} {contender.name:>6}  held in {counts[1]} of {counts[0]} looks: "
                f"{counts[1] / counts[0]:.2%}"
            )
            contender.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("speed", "crowd", "gil", "memory"))
    parser.add_argument("nets", nargs="+", choices=sorted(NETS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=16, help="samples of each worker in a crowd")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round")
    parser.add_argument("--sync", default="parameter_server")
    parser.add_argument("--model", default="bsp")
    args = parser.parse_args()
    options = {"model": args.model} if args.sync == "parameter_server" else {}
    args.sync = SyncSpec(args.sync, options)
    {"speed": speed, "crowd": crowd, "gil": gil, "memory": memory}[args.what](args)


if __name__ == "__main__":
    main()
