"""Every way of reading a set gives the same samples; random draws for a sample do not depend on the
workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import crop_and_mirror
from demitasse_striped_io.parallel_fs import why_no_mpi
from demitasse_striped_io.source import Source

Opened = Callable[..., Source]
WAYS: list[dict[str, Any]] = [
    {},
    {"memory": 0},
    {"memory": 1},
    {"memory": 0, "io": "direct"},
    {"memory": 0, "rate": 1e9},
    {"memory": 0, "threads": 3, "verify": "always"},
    {"memory": 0, "verify": "never"},
    {"io": "mpi", "memory": 0},
]


@pytest.mark.parametrize("order", ["file", "sample", "block"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_all_ways_read_the_same(made: Any, opened: Opened, way: dict[str, Any], order: str) -> None:
    if way.get("io") == "mpi" and (reason := why_no_mpi()) is not None:
        pytest.skip(reason)
    source = opened(made.path, order=order, **way)
    stream = source.stream(20, 37, 50)
    for turn in range(6):
        numbers = source.order.numbers(20 + 50 * turn, 37)
        if turn % 2:
            out = stream.take()
        else:
            out = {"data": np.zeros((37, 3, 16, 16), np.uint8), "label": np.zeros(37, np.float32)}
            stream.read(out)
        assert (out["data"] == made.columns["data"][numbers]).all()
        assert (out["label"] == numbers).all()
    assert stream.cursor == 320
    stream.close()


@pytest.mark.parametrize("way", [{}, {"memory": 0}, {"memory": 0, "io": "direct"}], ids=str)
def test_values_are_cast_to_the_batchs_type(made: Any, opened: Opened, way: dict[str, Any]) -> None:
    stream = opened(made.path, **way).stream(0, 90, 90)
    out = {"data": np.zeros((90, 3, 16, 16), np.float32)}
    stream.read(out)
    assert (out["data"] == made.columns["data"][:90]).all()
    stream.close()


def test_records_of_several_fields_and_types(
    tmp_path: Path, write: Callable[..., Any], opened: Opened, read: Callable[..., Any]
) -> None:
    random = np.random.default_rng(0)
    columns = {
        "image": random.integers(0, 256, (40, 5, 70), np.uint8),
        "depth": random.random((40, 9, 20)).astype(np.float32),
        "label": random.integers(0, 9, 40),
        "pose": random.random((40, 4)),
    }
    index = write(tmp_path / "set", columns, stripes=3, block=5000)
    assert list(index.main) == ["image", "depth"] and list(index.small) == ["label", "pose"]
    for memory in (-1, 0):
        got = read(opened(tmp_path / "set", memory=memory), 0, 40)
        for name, column in columns.items():
            assert got[name].dtype == column.dtype and (got[name] == column).all()


TRANSFORM = {"crop": 12, "random": True, "mirror": True, "scale": 0.5, "mean": [10.0, 20.0, 30.0]}


@pytest.mark.parametrize("memory", [-1, 0])
def test_a_transform_is_drawn_by_the_number_in_the_order(
    made: Any, opened: Opened, read: Callable[..., Any], memory: int
) -> None:
    source = opened(made.path, shuffle=True, transform=TRANSFORM, memory=memory)
    assert source.fields["data"].shape == (3, 12, 12) and source.fields["data"].dtype == "float32"
    got = read(source, 90, 40)
    top = (1 << 30) - 1
    drawn = crop_and_mirror(5, 0, 0, 90, 40, top, top)
    for i, number in enumerate(source.order.numbers(90, 40)):
        row, column = (int(d) * 5 >> 30 for d in drawn[i, :2])
        image = made.columns["data"][number, :, row : row + 12, column : column + 12].astype(float)
        expected = (image - np.array([10, 20, 30]).reshape(3, 1, 1)) * 0.5
        expected = expected[:, :, ::-1] if drawn[i, 2] else expected
        np.testing.assert_allclose(got["data"][i], expected, rtol=1e-6)


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_a_transform_is_the_same_for_any_workers(
    made: Any, opened: Opened, read: Callable[..., Any], workers: int
) -> None:
    whole = read(opened(made.path, shuffle=True, transform=TRANSFORM), 0, 42)
    source = opened(made.path, shuffle=True, transform=TRANSFORM, memory=0, threads=3)
    for w in range(workers):
        part = slice(42 * w // workers, 42 * (w + 1) // workers)
        got = read(source, part.start, part.stop - part.start)
        assert (got["data"] == whole["data"][part]).all()


def test_buffers_can_be_taken_from_a_workers_allocator(made: Any, opened: Opened) -> None:
    taken: list[int] = []

    class Memory:
        def __init__(self, nbytes: int) -> None:
            self.data = np.zeros(nbytes, np.uint8)

        def view(self, offset: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
            return self.data[offset:].view(dtype).reshape(shape)

    class Lender:
        def allocate(self, nbytes: int) -> Memory:
            taken.append(nbytes)
            return Memory(nbytes)

    stream = opened(made.path, io="direct", memory=0, ahead=2).stream(0, 8, 8)
    stream.lend(Lender())  # type: ignore[arg-type]
    assert (stream.take()["label"] == np.arange(8)).all()
    assert taken == [8 * 768, 8 * 4] * 3
    stream.close()


def test_the_last_batches_are_still_good_while_the_next_is_prepared(made: Any, opened: Opened) -> None:
    for way in ({}, {"io": "direct", "memory": 0}):
        stream = opened(made.path, **way).stream(0, 5, 5)
        for turn in range(40):
            out = stream.take()
            assert (out["label"] == np.arange(turn * 5, turn * 5 + 5) % 101).all()
            assert (out["data"] == made.columns["data"][out["label"]]).all()
        stream.close()
