"""Reading from disk: fio with several settings, and striped sets bypassing and using the page cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np

from bench_io.made_up import SETS, Task
from bench_io.readers import striped


def forget(paths: list[Path]) -> None:
    """Ask the system to drop files from its page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cold(folder: Path) -> dict[str, Task]:
    """Return the contenders: fio with several settings, and a striped set bypassing and using the
    cache."""
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
            # One record at a time, as in order "sample": by 8 threads, and as 8 requests in a ring.
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
