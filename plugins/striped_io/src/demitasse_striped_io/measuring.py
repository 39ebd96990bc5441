"""How fast samples are delivered: from a set, by stripe; and from any source, by one reader or
several."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from demitasse import DataSource

SLOW = 4.0
"""A stripe is slow if it delivers less than the others' median divided by this."""
JUDGED = 1 << 22
"""So many bytes must have been read from a stripe before its rate is meaningful."""
LOST = 50_000_000
"""A slow stripe must have cost so many nanoseconds: a small set is read within milliseconds, in which
one time slice given to another process looks like a slow disk."""


@dataclass(frozen=True)
class Measured:
    """What ``workers`` received: samples, bytes, seconds, and the fraction of the time for which the
    workers waited."""

    workers: int
    samples: int
    bytes: int
    seconds: float
    waited: float

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bytes / self.seconds


def deliver(source: DataSource, batch: int, workers: int, seconds: float, least: int = 4) -> Measured:
    """Let workers, each a thread, read their shares of batches of ``batch`` samples, for ``seconds`` and
    at least ``least`` batches, after one to warm up. Raises whatever reading raises."""
    shares = [batch * (i + 1) // workers - batch * i // workers for i in range(workers)]
    offsets = [batch * i // workers for i in range(workers)]
    begin = threading.Barrier(workers)
    stopping = threading.Event()
    together = threading.Barrier(workers)
    counts, waits, errors = [0] * workers, [0.0] * workers, list[BaseException]()
    spans = [0.0] * workers

    def work(worker: int) -> None:
        stream: Any = None
        try:
            stream = source.stream(offsets[worker], shares[worker], batch)
            out = {
                name: np.zeros((shares[worker], *field.shape), field.dtype)
                for name, field in source.fields.items()
            }
            stream.read(out)
            begin.wait()
            start, before = time.perf_counter(), float(getattr(stream, "waited", 0.0))
            while True:
                stream.read(out)
                counts[worker] += 1
                # All stop after the same batch, as training workers do.
                enough = time.perf_counter() - start >= seconds and counts[worker] >= least
                if worker == 0 and enough:
                    stopping.set()
                together.wait()
                if stopping.is_set():
                    break
                together.wait()
            spans[worker] = time.perf_counter() - start
            waits[worker] = float(getattr(stream, "waited", 0.0)) - before
        except BaseException as error:  # noqa: BLE001  raised below, in the thread that waits for all
            errors.append(error)
            begin.abort()
            together.abort()
        finally:
            if stream is not None:
                stream.close()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    size = sum(
        np.dtype(f.dtype).itemsize * int(np.prod(f.shape, dtype=np.int64))
        for f in source.fields.values()
    )
    samples = sum(count * share for count, share in zip(counts, shares, strict=True))
    longest = max(spans)
    return Measured(workers, samples, samples * size, longest, sum(waits) / (workers * longest))


def slow_stripes(tally: np.ndarray) -> dict[int, tuple[float, float]]:
    """Return stripes that deliver much less than the others, by number: the stripe's bytes per second,
    and the median of the others'. ``tally`` is a Store's."""
    judged = [i for i in range(len(tally)) if tally[i, 1] >= JUDGED and tally[i, 2] > 0]
    rates = {i: tally[i, 1] / tally[i, 2] * 1e9 for i in judged}
    found = {}
    for stripe, rate in rates.items():
        others = [other for i, other in rates.items() if i != stripe]
        if not others:
            continue
        usual = median(others)
        lost = tally[stripe, 2] - tally[stripe, 1] / usual * 1e9
        if rate * SLOW < usual and lost > LOST:
            found[stripe] = (float(rate), float(usual))
    return found
