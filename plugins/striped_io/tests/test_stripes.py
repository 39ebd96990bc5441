"""Several processes over several stripes: reads are counted, rates are limited, and add up."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse_striped_io.measuring import deliver
from demitasse_striped_io.source import Source


@pytest.mark.parametrize("processes", [8, 16, 40])
def test_counted_reads_on_each_stripe_are_within_the_papers_bound(
    tmp_path: Path, columns: Any, write: Any, processes: int
) -> None:
    """Each process reads its part of a common mini-batch, as if from its own storage. The requests to
    its stripes are counted (swCaffe, V.B: at most N / S x 2 processes on each)."""
    stripes, run = 8, 4
    write(
        tmp_path / "set", columns(stripes * 3 * 12, (1, 8, 8)), stripes=stripes, block=12 * 64, run=run
    )
    options = {"order": "block", "memory": 0}
    from demitasse import DataSpec

    sources = [
        Source(tmp_path / "set", DataSpec("", None, True, 3, options), {}) for _ in range(processes)
    ]
    try:
        streams = [s.stream(p * run, run, processes * run) for p, s in enumerate(sources)]
        out = {"data": np.zeros((run, 1, 8, 8), np.uint8)}
        before = np.zeros((processes, stripes), np.int64)
        for _ in range(5):
            for stream in streams:
                stream.read(out)
            counted = np.array([s.store.tally[:, 0] for s in sources])
            now, before = counted - before, counted
            assert ((now > 0).sum(axis=1) <= 2).all()
            assert (now > 0).sum(axis=0).max() <= math.ceil(processes / stripes) * 2
    finally:
        for source in sources:
            source.close()


@pytest.mark.slow
def test_32_stripes_of_a_limited_rate_deliver_32_times_what_one_does(
    tmp_path: Path, columns: Any, write: Any, opened: Callable[..., Source]
) -> None:
    """The mini-batch of each of 32 workers is one run, from one block."""
    rate, run = 100_000.0, 8
    given = columns(32 * 4 * run, (1, 40, 50))
    for stripes, least, most in ((32, 0.9 * 32, 32.3), (1, 0.0, 1.01)):
        write(tmp_path / f"{stripes}", given, stripes=stripes, block=run * 2000, run=run)
        source = opened(
            tmp_path / f"{stripes}", order="block", shuffle=True, rate=rate, memory=0, verify="never"
        )
        workers = 32 if stripes == 32 else 4
        found = deliver(source, workers * run, workers, 6.0)
        factor = found.samples * 2000 / found.seconds / rate
        # What was read ahead before the clock started is also delivered.
        before = source.options.ahead * workers * run * 2000 / rate / found.seconds
        assert least <= factor <= most + before
