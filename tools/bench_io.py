"""Delivering samples: striped sets beside one preadv, LMDB, PyTorch's DataLoader and WebDataset in
one run.

    python tools/bench_io.py FOLDER --peer-python PATH [--photos FOLDER] [--cold] [--json FILE]

FOLDER keeps what is made up (some 8 GB; the next run finds it there). PATH is a Python that has torch,
and for more peers webdataset and pillow. All contenders take turns, the medians of which are shown; all
are warmed up; worker processes are started before the clock is, and ended after it, so that nothing is
prepared for one contender while another is measured. What counts is mini-batches that are ready:
contiguous arrays of pixels with their labels.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

BATCH, PHOTOS_BATCH = 256, 64
SETS = {"imagenet": (10_000, (3, 256, 256)), "cifar": (50_000, (3, 32, 32))}
BLOCKS = {"imagenet": 64 << 20, "cifar": 4 << 20}
PHOTO = (256, 256)
REPEATED = 4
Task = Callable[[], tuple[int, float]]
"""Delivers some samples: how many, and in which time."""


# --- what is read -------------------------------------------------------------------------------------


def prepare(folder: Path, name: str) -> None:
    """The same made-up samples as a flat file, an LMDB, tar shards and a striped set."""
    count, shape = SETS[name]
    size = int(np.prod(shape))
    flat, done = folder / f"{name}.bin", folder / f"{name}.done"
    if done.exists():
        return
    random = np.random.default_rng(0)
    with flat.open("wb") as file:
        for start in range(0, count, 1000):
            rows = min(1000, count - start)
            file.write(random.integers(0, 256, rows * size, np.uint8).tobytes())
    pixels = np.memmap(flat, np.uint8, "r", shape=(count, size))
    labels = (np.arange(count) % 1000).astype(np.int32)
    _write_lmdb(folder / f"{name}.lmdb", pixels, labels)
    for number in range(4):
        part = range(count * number // 4, count * (number + 1) // 4)
        with tarfile.open(folder / f"{name}-{number}.tar", "w") as archive:
            for i in part:
                for ending, data in (("bin", pixels[i].tobytes()), ("cls", str(labels[i]).encode())):
                    member = tarfile.TarInfo(f"{i:06d}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    _write_striped(folder / f"{name}.striped", pixels.reshape(count, *shape), labels, BLOCKS[name])
    done.write_text("")


def _write_lmdb(target: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    import lmdb

    with lmdb.open(str(target), map_size=8 << 30, sync=False) as database:
        for start in range(0, len(pixels), 1000):
            with database.begin(write=True) as transaction:
                for i in range(start, min(start + 1000, len(pixels))):
                    value = labels[i].tobytes() + pixels[i].tobytes()
                    transaction.put(f"{i:08d}".encode(), value, append=True)


class _Arrays:
    """Arrays as a source to write a set from."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray) -> None:
        from demitasse import Field

        self.columns = {"data": pixels, "label": labels}
        self.fields = {n: Field(a.shape[1:], a.dtype.name) for n, a in self.columns.items()}
        self.size = len(pixels)

    def stream(self, first: int, count: int, step: int) -> Any:
        columns = self.columns

        class Stream:
            cursor = first

            def read(self, out: dict[str, np.ndarray]) -> None:
                for name, array in out.items():
                    array[...] = columns[name][self.cursor : self.cursor + count]
                self.cursor += step

            def close(self) -> None:
                """Nothing is open."""

        return Stream()

    def close(self) -> None:
        """Nothing is open."""


def _write_striped(target: Path, pixels: np.ndarray, labels: np.ndarray, block: int) -> None:
    from demitasse_striped_io.inputs import SourceInput
    from demitasse_striped_io.writer import Making, Writer

    source = SourceInput(_Arrays(pixels, labels), "made up")
    Writer(target, source, Making(block=block, run=BATCH), True).write()


def prepare_photos(folder: Path, photos: Path) -> None:
    """Photos, several times over, as files in a folder and as a striped set that keeps them encoded."""
    import demitasse

    listed = folder / "photos.txt"
    if listed.exists():
        return
    files = sorted(photos.rglob("*.JPEG"))
    made = folder / "photos"
    made.mkdir(exist_ok=True)
    for turn in range(REPEATED):
        for number, file in enumerate(files):
            shutil.copy(file, made / f"{turn}{number:04d}.jpg")
    height, width = PHOTO
    with demitasse.compose(plugins=["striped_io", "datasets"]) as runtime:
        runtime.program(
            "convert_to_striped", made, folder / "photos.striped", height=height, width=width, force=True
        )
    listed.write_text("\n".join(str(p) for p in sorted(made.iterdir())))


# --- ours, and what is read without a framework --------------------------------------------------------


def contiguous(folder: Path, name: str) -> Task:
    """One preadv for each batch of consecutive samples: the floor."""
    count, shape = SETS[name]
    file = os.open(folder / f"{name}.bin", os.O_RDONLY)
    size = int(np.prod(shape))
    buffers = [np.zeros((BATCH, size), np.uint8) for _ in range(2)]

    def work() -> tuple[int, float]:
        start = time.perf_counter()
        batches = count // BATCH
        for k in range(batches):
            os.preadv(file, [buffers[k % 2]], k * BATCH * size)
        return batches * BATCH, time.perf_counter() - start

    return work


def random_lmdb(folder: Path, name: str) -> Task:
    """Samples at random by LMDB's Python binding, copied into the batch."""
    import lmdb

    count, shape = SETS[name]
    database = lmdb.open(str(folder / f"{name}.lmdb"), readonly=True, lock=False)
    buffers = [np.zeros((BATCH, int(np.prod(shape))), np.uint8) for _ in range(2)]
    labels = np.zeros(BATCH, np.int32)
    random = np.random.default_rng(1)

    def work() -> tuple[int, float]:
        order = random.permutation(count)
        start = time.perf_counter()
        batches = count // BATCH
        with database.begin(buffers=True) as transaction:
            for k in range(batches):
                out = buffers[k % 2]
                for i, number in enumerate(order[k * BATCH : (k + 1) * BATCH].tolist()):
                    value = transaction.get(b"%08d" % number)
                    out[i] = np.frombuffer(value, np.uint8, offset=4)
                    labels[i] = np.frombuffer(value, np.int32, 1)[0]
        return batches * BATCH, time.perf_counter() - start

    return work


def striped(folder: Path, name: str, **options: Any) -> Task:
    """A striped set in a shuffled order, batch after batch into two buffers that take turns."""
    from demitasse import DataSpec
    from demitasse_striped_io.source import Source

    source = Source(folder / f"{name}.striped", DataSpec("", None, True, 1, options), {})
    count = source.size
    batch = PHOTOS_BATCH if name == "photos" else BATCH
    buffers = [
        {key: np.zeros((batch, *f.shape), f.dtype) for key, f in source.fields.items()} for _ in range(2)
    ]
    stream = source.stream(0, batch, batch)

    def work() -> tuple[int, float]:
        for _ in range(0 if source.records.direct else source.options.ahead + 1):
            stream.read(buffers[0])  # what was prepared before the clock runs does not count
        start = time.perf_counter()
        batches = max(12, count // batch)
        for k in range(batches):
            if source.records.direct:
                stream.read(buffers[k % 2])
            else:
                stream.take()  # where it was prepared, as the loaders of others give theirs
        seconds = time.perf_counter() - start
        stream.cursor = stream.cursor  # ends what is read ahead: the cores are the next contender's
        return batches * batch, seconds

    return work


# --- peers, in a Python of their own -------------------------------------------------------------------


def loader(folder: Path, name: str, workers: int) -> Generator[Any]:
    """PyTorch's DataLoader over a memory-mapped array, or over photos through Pillow."""
    import torch

    data: Any
    if name == "photos":
        from PIL import Image

        def decoded(file: str) -> np.ndarray:
            image = Image.open(file).convert("RGB")
            return np.asarray(image.resize(PHOTO[::-1], Image.Resampling.BILINEAR)).copy()

        data = _photos(folder, decoded)
    else:
        count, shape = SETS[name]
        pixels = np.memmap(folder / f"{name}.bin", np.uint8, "r", shape=(count, *shape))

        class Pixels(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return count

            def __getitem__(self, i: int) -> Any:
                return torch.from_numpy(np.array(pixels[i])), i % 1000

        data = Pixels()
    yield from _loaded(data, PHOTOS_BATCH if name == "photos" else BATCH, workers)


def opencv_loader(folder: Path, name: str, workers: int) -> Generator[Any]:
    """The same over photos, with the decoder and the resizing of the striped set's."""
    import cv2

    cv2.setNumThreads(1)

    def decoded(file: str) -> np.ndarray:
        pixels: np.ndarray = cv2.resize(cv2.imread(file), PHOTO[::-1], interpolation=cv2.INTER_LINEAR)
        return pixels

    yield from _loaded(_photos(folder, decoded), PHOTOS_BATCH, workers)


def _photos(folder: Path, decoded: Callable[[str], np.ndarray]) -> Any:
    import torch

    files = (folder / "photos.txt").read_text().split("\n")

    class Photos(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, i: int) -> Any:
            return torch.from_numpy(decoded(files[i])), 0

    return Photos()


def _loaded(data: Any, batch: int, workers: int) -> Generator[Any]:
    import torch

    made = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=workers, drop_last=True)
    while True:
        yield from made


def shards(folder: Path, name: str, workers: int) -> Generator[Any]:
    """WebDataset over tar shards, shuffled as its documentation does."""
    import torch
    import webdataset

    _, shape = SETS[name]

    def pixels(sample: dict[str, bytes]) -> Any:
        image = np.frombuffer(sample["bin"], np.uint8).reshape(shape)
        return torch.from_numpy(image.copy()), int(sample["cls"])

    urls = str(folder / f"{name}-{{0..3}}.tar")
    data = webdataset.WebDataset(urls, shardshuffle=4).shuffle(1000).map(pixels).batched(BATCH)
    made = webdataset.WebLoader(data, batch_size=None, num_workers=workers)
    while True:
        yield from made


def serve(folder: Path) -> None:
    """Answer on standard output how long a peer's batches take: lines ``KIND NAME WORKERS BATCHES``."""
    kinds = {"dataloader": loader, "dataloader_opencv": opencv_loader, "webdataset": shards}
    for line in sys.stdin:
        kind, name, workers, batches = line.split()
        running = kinds[kind](folder, name, int(workers))
        try:
            # What workers had ready before the clock runs does not count.
            for _ in range(2 * int(workers) + 1):
                batch = next(running)
            start = time.perf_counter()
            for _ in range(int(batches)):
                batch = next(running)
            answer = {"samples": int(batches) * len(batch[0]), "seconds": time.perf_counter() - start}
        except ImportError as error:
            answer = {"missing": str(error)}
        # Workers go on preparing batches that nobody takes, on the cores of the next contender.
        running.close()
        print(json.dumps(answer), flush=True)


class Peers:
    """The other Python, with a contender for each kind and number of workers."""

    def __init__(self, python: str, folder: Path) -> None:
        # Three workers on two cores are more than it recommends, and measured all the same.
        command = [python, "-W", "ignore::UserWarning", __file__, str(folder), "--serve"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def task(self, kind: str, name: str, workers: int, batches: int) -> Task | None:
        """Run it once, to see whether it can; None when a package is missing."""

        def work() -> tuple[int, float]:
            answer = self._ask(f"{kind} {name} {workers} {batches}")
            return answer["samples"], answer["seconds"]

        answer = self._ask(f"{kind} {name} {workers} 1")
        if "missing" in answer:
            print(f"left out: {kind}: {answer['missing']}", file=sys.stderr)
            return None
        return work

    def _ask(self, line: str) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()


# --- cold reads ----------------------------------------------------------------------------------------


def forget(paths: list[Path]) -> None:
    """Have the system drop files from its page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold(folder: Path) -> dict[str, Task]:
    """Reading from the disk: fio with several settings, and a striped set past and through the cache."""
    stripes = sorted(folder.glob("imagenet.striped/stripe-*"))
    stripes = [path for path in stripes if path.stat().st_size]
    size = SETS["imagenet"][0] * int(np.prod(SETS["imagenet"][1]))
    tasks: dict[str, Task] = {}

    def fio(way: str, engine: str, jobs: int, depth: int, block: str) -> Task:
        command = ["fio", f"--rw={way}", "--direct=1", "--readonly", "--output-format=json"]
        command += [f"--ioengine={engine}", f"--bs={block}", f"--iodepth={depth}", "--group_reporting"]
        for job in range(jobs):
            part = ":".join(map(str, stripes[job::jobs]))
            command += [f"--name=read{job}", f"--filename={part}", "--file_service_type=sequential"]

        def work() -> tuple[int, float]:
            forget(stripes)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(command)}: {done.stderr}")
            read = json.loads(done.stdout)["jobs"][0]["read"]
            return int(read["io_bytes"] / size * SETS["imagenet"][0]), read["runtime"] / 1000

        return work

    if shutil.which("fio"):
        for setting in (
            *(
                ("read", "psync", 1, 1, "4m"),
                ("read", "psync", 8, 1, "1m"),
                ("read", "libaio", 1, 16, "1m"),
            ),
            *(("read", "io_uring", 1, 16, "1m"), ("read", "io_uring", 2, 8, "4m")),
            # One record at a time, as in order "sample": threads, and the same number in a ring.
            *(("randread", "psync", 8, 1, "192k"), ("randread", "io_uring", 1, 8, "192k")),
            ("randread", "io_uring", 1, 16, "192k"),
        ):
            way, engine, jobs, depth, block = setting
            tasks[f"fio {way} {engine} {jobs} x {depth} x {block}"] = fio(*setting)
    for label, options in (
        ("striped, direct, block order", {"order": "block", "io": "direct"}),
        ("striped, direct, sample order", {"order": "sample", "io": "direct"}),
        ("striped, page cache, block order", {"order": "block"}),
        ("striped, page cache, sample order", {"order": "sample"}),
    ):
        work = striped(folder, "imagenet", memory=0, verify="never", **options)

        def from_disk(work: Task = work) -> tuple[int, float]:
            forget(stripes)
            return work()

        tasks[label] = from_disk
    return tasks


# --- running ------------------------------------------------------------------------------------------


def warm(folder: Path, name: str, label: str) -> None:
    """Have what a contender reads in the page cache: some systems drop what was not touched for long."""
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
    """The medians of samples a second."""
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(turns + 1):
        for name, work in tasks.items():
            if before is not None:
                before(name)
            samples, seconds = work()
            if turn:  # the first warms up
                rates[name].append(samples / seconds)
    return {name: median(found) for name, found in rates.items()}


def main() -> None:
    """Make up, measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peer-python")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--cold", action="store_true", help="measure reads from the disk instead")
    parser.add_argument("--only", choices=[*SETS, "photos"], help="one of the parts")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--prepare", action="store_true", help="only make up what is read")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.folder)
        return
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
    """A table, and one more entry of a JSON file."""
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
