"""Striped sets, and readers without a framework: one preadv per batch, and LMDB."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench_io.made_up import BATCH, PHOTOS_BATCH, SETS, Task


def contiguous(folder: Path, name: str) -> Task:
    """Read each batch of consecutive samples with one preadv: the lower bound."""
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
    """Read samples at random through LMDB's Python binding, and copy them into the batch."""
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
    """Read a striped set in shuffled order, batch after batch, alternately into two buffers."""
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
            stream.read(buffers[0])  # what was prepared before the clock starts does not count
        start = time.perf_counter()
        batches = max(12, count // batch)
        for k in range(batches):
            if source.records.direct:
                stream.read(buffers[k % 2])
            else:
                stream.take()  # without a copy, as other loaders hand over their batches
        seconds = time.perf_counter() - start
        stream.cursor = stream.cursor  # ends the read-ahead, to free the cores for the next contender
        return batches * batch, seconds

    return work
