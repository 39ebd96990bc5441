"""Measure how fast samples are delivered: striped sets, one preadv, LMDB, PyTorch's DataLoader and
WebDataset, in one run.

    python tools/bench_io FOLDER --peer-python PATH [--photos FOLDER] [--cold] [--json FILE]

FOLDER keeps the generated data, some 8 GB; the next run uses it again. PATH is a Python that has torch
and, for more peers, webdataset and pillow. The contenders take turns, all warmed up, and the medians
are shown. Worker processes are started before the clock and ended after it, so that nothing is prepared
for one contender while another is measured. Finished mini-batches count: contiguous arrays of pixels
with their labels.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

if not __package__:  # run as a folder: modules are then looked for in it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench_io.cold import cold
from bench_io.made_up import SETS, Task, prepare, prepare_photos
from bench_io.peers import Peers
from bench_io.readers import contiguous, random_lmdb, striped


def warm(folder: Path, name: str, label: str) -> None:
    """Read a contender's files into the page cache: some systems drop pages that were long unused."""
    patterns = {"striped": f"{name}.striped/stripe-*", "LMDB": f"{name}.lmdb/data.mdb"}
    patterns |= {"webdataset": f"{name}-*.tar"}
    pattern = patterns.get(label.split(",")[0], f"{name}.bin")
    buffer = bytearray(1 << 24)
    for path in folder.glob(pattern):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def take_turns(
    tasks: dict[str, Task], turns: int, before: Callable[[str], None] | None = None
) -> dict[str, float]:
    """Return the medians of samples per second."""
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(turns + 1):
        for name, work in tasks.items():
            if before is not None:
                before(name)
            samples, seconds = work()
            if turn:  # the first turn warms up
                rates[name].append(samples / seconds)
    return {name: median(found) for name, found in rates.items()}


def main() -> None:
    """Prepare samples, measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--cold", action="store_true", help="measure reads from the disk instead")
    parser.add_argument("--only", choices=[*SETS, "photos"], help="one of the parts")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--prepare", action="store_true", help="only make up what is read")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        if given.only in (None, name):
            prepare(given.folder, name)
    if given.photos:
        prepare_photos(given.folder, given.photos)
    if given.prepare:
        return
    if given.cold:
        rates = take_turns(cold(given.folder), given.turns)
        report("cold", rates, 196608, given.json)
        return
    peers = Peers(given.peer_python, given.folder) if given.peer_python else None
    for name in [*SETS, *(["photos"] if given.photos else [])]:
        if given.only not in (None, name):
            continue
        tasks: dict[str, Task | None] = {}
        if name == "photos":
            tasks["striped, OpenCV"] = striped(given.folder, "photos")
        else:
            tasks["one preadv, contiguous"] = contiguous(given.folder, name)
            tasks["striped, block order"] = striped(given.folder, name, order="block")
            tasks["striped, sample order"] = striped(given.folder, name, order="sample")
            tasks["striped, sample order, not kept in memory"] = striped(
                given.folder, name, order="sample", memory=1
            )
            tasks["LMDB, random"] = random_lmdb(given.folder, name)
        kinds = ("dataloader", "dataloader_opencv" if name == "photos" else "webdataset")
        for kind in kinds if peers else ():
            for workers in (0, 2) if kind == "webdataset" else (0, 1, 2, 3):
                batches = {"imagenet": 4, "cifar": 40, "photos": 12}[name]
                assert peers is not None
                tasks[f"{kind}, {workers} workers"] = peers.task(kind, name, workers, batches)
        able = {label: work for label, work in tasks.items() if work is not None}
        size = 0 if name == "photos" else int(np.prod(SETS[name][1]))
        rates = take_turns(able, given.turns, lambda label: warm(given.folder, name, label))  # noqa: B023
        report(name, rates, size, given.json)
    if peers is not None:
        peers.close()


def report(name: str, rates: dict[str, float], size: int, path: Path | None) -> None:
    """Print a table, and add an entry to a JSON file."""
    first = next(iter(rates.values()))
    load = os.getloadavg()[0]
    print(f"\n{name}: samples/s, GB/s, of the first (load {load:.1f}, our own included)")
    for label, rate in rates.items():
        gigabytes = f"{rate * size / 1e9:8.2f}" if size else " " * 8
        print(f"  {label:42} {rate:12,.0f} {gigabytes} {rate / first:8.1%}", flush=True)
    if path is not None:
        found = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**found, name: rates}, indent=1) + "\n")


if __name__ == "__main__":
    main()
