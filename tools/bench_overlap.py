"""Measure how much communication a helper thread hides behind backward, and what S-Caffe's stages gain,
on ranks that a shaped link connects:

    python tools/bench_overlap.py
    python tools/bench_overlap.py --ranks 4 --bandwidth 1Gbit --stages buckets,overlap

This needs root, for the network lab. Every stage trains the same net in the same job, in memory of its
own. The stages take turns, so that all meet the same disturbances, and the medians of the rounds count.

The hidden time is that of an iteration that sums each bucket once it is final (stage "buckets"), less
that of an iteration in which the helper thread does so (stage "overlap"). What could be hidden is the
smaller of two times of the former: the communication, and the rest of backward after the first bucket
is final.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
STAGES = ("buckets", "overlap", "packed", "SC-B", "naive", "SC-OB", "SC-OBR")
WINDOW = 1024 * 1024
"""Bytes of a TCP window; Linux by default allows 4 MiB and more. A link lives on it while a helper
thread waits for one of this machine's few processors. With the lab's 256 KiB (2 ms of 1 Gbit/s), sums
concurrent with computing took 9 to 96% longer than the link requires; with 1 MiB, 4 to 6%."""

PLUGINS = ["cpu", "reference", "training", "caffe", "datasets", "snapshots", "allreduce"]


def main() -> None:
    """Build the lab, run the ranks in it, and print their output."""
    options = arguments()
    if options.rank:
        measure(options)
        return
    from netlab import Netlab, missing

    if (reason := missing()) is not None:
        sys.exit(reason)
    with Netlab(options.ranks, 1, options.bandwidth, 1, WINDOW) as lab:
        words = ["python", str(HERE), "--rank", *sys.argv[1:]]
        done = lab.run(words, env={"PYTHONPATH": str(HERE.parent)}, timeout=options.timeout)
    sys.stdout.write(done.stdout)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--bandwidth", default="400 Mbit/s", help="of each host's link")
    parser.add_argument("--net", default="alexnet")
    parser.add_argument("--batch", type=int, default=256, help="of all ranks together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--stages",
        default="buckets,overlap,SC-B,SC-OBR",
        help=f"of {', '.join(STAGES)}, each in memory of its own (%(default)s)",
    )
    parser.add_argument("--sync", default="{}", help="more options of sync, as JSON")
    parser.add_argument("--timeline", type=Path, help="write the last iteration of stage overlap there")
    parser.add_argument("--timeout", type=float, default=900)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(options: argparse.Namespace) -> None:
    """Do the work of one rank; the first one prints."""
    from bench import nets, prototxt, values

    from demitasse import Level, Machine, MemorySpace, SyncSpec, compose

    net = getattr(nets, options.net)()
    samples = values.samples(net, options.batch)
    net.batch = options.batch
    names = options.stages.split(",")
    trainers, runtimes = {}, []
    with tempfile.TemporaryDirectory() as folder:
        solver = prototxt.write(net, Path(folder))
        for name in names:
            sync = {"stage": name, "shared": False, **json.loads(options.sync)}
            levels = (
                Level("host", options.ranks, workers="mpi", sync=SyncSpec("allreduce", sync)),
                Level("node", memory=(MemorySpace("host"),), cores=max(1, cores())),
            )
            machine = Machine("lab", levels, fingerprint="any")
            runtimes.append(compose(machine, plugins=PLUGINS))
            trainers[name] = runtimes[-1].trainer(solver, data={"train": samples})
    processes = runtimes[0].processes
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(options.rounds + 1):  # the first turn warms up
        for name in names:
            processes.gather(0)
            start, used = time.perf_counter(), helper_seconds(trainers[name])
            trainers[name].step()
            seconds = time.perf_counter() - start
            slowest = max(processes.gather(seconds))
            if turn:
                helper = helper_seconds(trainers[name]) - used
                taken[name].append({"seconds": slowest, "helper": helper, **parts(trainers[name])})
    if processes.rank == 0:
        report(options, taken, trainers)
    for trainer in trainers.values():
        trainer.close()
    for runtime in reversed(runtimes):
        runtime.close()


def cores() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def sync_of(trainer: Any) -> Any:
    """Return the synchronisation of a trainer's first worker."""
    return trainer._crew.workers[0].levels[0]


def helper_seconds(trainer: Any) -> float:
    """Seconds for which the helper thread had a processor; if ranks have no core to spare, backward had
    that much less. 0 if there is no helper thread."""
    lane = sync_of(trainer)._lane
    if lane is None:
        return 0.0
    file = Path(f"/proc/self/task/{lane._thread.native_id}/schedstat")
    return int(file.read_text().split()[0]) * 1e-9


def parts(trainer: Any) -> dict[str, float]:
    """For the last iteration, return the seconds of communication, of waiting, and of backward after the
    first bucket was final."""
    record = sync_of(trainer).record()
    waits = [each for each in record if each.lane == "waiting"]
    helper = [each for each in record if each.lane == "communication"]
    chains = [each for each in record if each.lane == "chains"]
    found = {
        "communication": covered([(each.start, each.stop) for each in helper or waits]),
        "waited": sum(each.stop - each.start for each in waits),
    }
    if chains:
        between = chains[-1].start - chains[0].start
        found["remaining"] = between - sum(each.stop - each.start for each in chains[:-1])
    return found


def covered(stretches: list[tuple[float, float]]) -> float:
    """Return the seconds covered by any of the stretches, which overlap if several buckets are under
    way."""
    seconds, until = 0.0, 0.0
    for start, stop in sorted(stretches):
        seconds += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return seconds


def report(
    options: argparse.Namespace, taken: dict[str, list[dict[str, float]]], trainers: dict[str, Any]
) -> None:
    """Print the table and its conclusions."""
    middle = {
        name: {key: median(each[key] for each in rounds) for key in rounds[0]}
        for name, rounds in taken.items()
    }
    print(
        f"{options.net}, {options.ranks} ranks at {options.bandwidth}, batch {options.batch} in all, "
        f"medians of {options.rounds}"
    )
    for name, found in middle.items():
        cells = (f"{key} {found[key]:.3f} s" for key in ("seconds", "communication", "waited", "helper"))
        print(f"  {name:8} {', '.join(cells)}")
    if {"buckets", "overlap"} <= middle.keys():
        plain = middle["buckets"]
        could = min(plain["communication"], plain["remaining"])
        hidden = plain["seconds"] - middle["overlap"]["seconds"]
        share = hidden / could if could else 0.0
        print(
            f"hidden {hidden:.3f} s of {could:.3f} s that could be ({share:.1%}): communication "
            f"{plain['communication']:.3f} s, backward after the first bucket {plain['remaining']:.3f} s"
        )
    if {"SC-B", "SC-OBR"} <= middle.keys():
        gain = middle["SC-B"]["seconds"] / middle["SC-OBR"]["seconds"] - 1
        print(f"SC-OBR is {gain:.1%} faster than SC-B")
    for name, trainer in trainers.items():
        for line in sync_of(trainer).notes[:8]:
            print(f"  {name:8} {line}")
    if options.timeline is not None and "overlap" in trainers:
        record = sync_of(trainers["overlap"]).record()
        options.timeline.write_text(json.dumps([each._asdict() for each in record], indent=1) + "\n")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
