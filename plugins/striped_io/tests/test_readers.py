"""S-Caffe's readers: one that distributes gives every worker what its own reader would."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import DataError, DataSpec
from demitasse_striped_io.measuring import deliver
from demitasse_striped_io.readers import OneReader, with_readers
from demitasse_striped_io.source import Source


class Counting:
    """A source that counts the streams that are opened."""

    def __init__(self, source: Any) -> None:
        self.source, self.streams = source, list[tuple[int, int, int]]()
        self.fields, self.size, self.name = source.fields, source.size, source.name

    def stream(self, *about: int) -> Any:
        self.streams.append(about)  # type: ignore[arg-type]
        return self.source.stream(*about)

    def close(self) -> None:
        self.source.close()


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_one_reader_feeds_all_workers_what_their_own_would(
    made: Any, opened: Callable[..., Source], workers: int
) -> None:
    batch = 20
    inner = Counting(opened(made.path, shuffle=True))
    one = OneReader(inner)  # type: ignore[arg-type]
    cuts = [batch * w // workers for w in range(workers + 1)]
    streams = [one.stream(3 * batch + a, b - a, batch) for a, b in pairwise(cuts)]
    got: list[list[int]] = [[] for _ in streams]

    def work(worker: int) -> None:
        out = {"label": np.zeros(cuts[worker + 1] - cuts[worker], np.int32)}
        for _ in range(9):
            streams[worker].read(out)
            got[worker].append(out["label"].tolist())

    threads = [threading.Thread(target=work, args=(w,)) for w in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for iteration in range(9):
        numbers = inner.source.order.numbers((3 + iteration) * batch, batch)
        assert [n for part in got for n in part[iteration]] == numbers.tolist()
    assert inner.streams == [(3 * batch, batch, batch)]
    assert [s.cursor for s in streams] == [12 * batch + a for a in cuts[:-1]]
    for stream in streams:
        stream.close()
    one.close()


@pytest.mark.parametrize("turn", range(20))  # the reader continues while a share joins it
def test_a_share_can_be_set_back_and_one_that_joins_late_has_a_reader_of_its_own(
    made: Any, opened: Callable[..., Source], turn: int
) -> None:
    inner = Counting(opened(made.path))
    one = OneReader(inner)  # type: ignore[arg-type]
    first = one.stream(0, 5, 10)
    out = {"label": np.zeros(5, np.int32)}
    for _ in range(6):
        first.read(out)
    late = one.stream(5, 5, 10)
    late.read(out)
    assert out["label"].tolist() == [5, 6, 7, 8, 9]
    first.cursor = 20
    first.read(out)
    assert out["label"].tolist() == [20, 21, 22, 23, 24]
    with pytest.raises(ValueError, match="is not the first of this worker's share"):
        first.cursor = 7
    late.close()
    first.close()
    one.close()


def test_what_the_one_reader_meets_is_raised_by_all(made: Any, opened: Callable[..., Source]) -> None:
    with made.stripe(0).open("r+b") as file:
        file.write(b"\0\0\0\0")
    one = OneReader(opened(made.path, memory=0))
    streams = [one.stream(0, 5, 10), one.stream(5, 5, 10)]
    for stream in streams:
        with pytest.raises(DataError, match="stripe 0, block 0, sample 0"):
            stream.read({"data": np.zeros((5, 3, 16, 16), np.uint8)})
        stream.close()
    one.close()


def test_any_source_of_another_plugin_can_be_read_by_one_reader(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).integers(0, 10, (50, 3073), np.uint8)
    (tmp_path / "data_batch_1.bin").write_bytes(rows.tobytes())
    path = str(tmp_path / "data_batch_1.bin")
    with demitasse.compose(plugins=["striped_io", "datasets"]) as runtime:
        runtime.program("convert_samples", path, tmp_path / "db")
        sources = [
            runtime.open_source(DataSpec(f"{tmp_path / 'db'}?reader=one")),
            runtime.open_source(DataSpec(f"{path}?reader=own")),
            runtime.program("readers", path, reader="one"),
        ]
        for source in sources:
            out = {"data": np.zeros((4, 3, 32, 32), np.uint8), "label": np.zeros(4, np.float32)}
            stream = source.stream(6, 4, 10)
            stream.read(out)
            stream.close()
            assert (out["data"].reshape(4, -1) == rows[6:10, 1:]).all()
            assert (out["label"] == rows[6:10, 0]).all()
        with pytest.raises(DataError, match="unknown reader 'two'"):
            runtime.program("readers", path, reader="two")


@pytest.mark.parametrize("reader", ["own", "one"])
def test_what_is_delivered_is_counted(made: Any, opened: Callable[..., Source], reader: str) -> None:
    found = deliver(with_readers(opened(made.path), reader), 30, 3, 0.0, least=5)
    assert found.samples == 150 and found.bytes == 150 * (768 + 4)
    assert 0 <= found.waited <= 1 and found.rate > 0


def test_a_stream_that_cannot_be_opened_is_an_error_of_all(made: Any, opened: Any) -> None:
    """Otherwise the other workers would wait for it forever."""

    class Failing:
        fields = opened(made.path).fields

        def stream(self, first: int, count: int, step: int) -> Any:
            if first:
                raise DataError("no memory")
            return opened(made.path).stream(first, count, step)

    with pytest.raises(DataError, match="no memory"):
        deliver(Failing(), 30, 3, 0.0)  # type: ignore[arg-type]
