"""Ranks leave a processor that too many of them are on."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from demitasse import KernelFiles
from demitasse_allreduce.node import loops
from demitasse_allreduce.node.engine import LINE, processor_row

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two processors and Linux",
)


@pytest.fixture
def two() -> Iterator[tuple[int, int]]:
    """Two processors, to which this thread is bound."""
    before = os.sched_getaffinity(0)
    a, b = sorted(before)[:2]
    os.sched_setaffinity(0, {a, b})
    yield a, b
    os.sched_setaffinity(0, before)


def after(
    rank: int,
    cpus: Sequence[int],
    may: set[int],
    listed: Sequence[int],
    files: KernelFiles | None = None,
) -> int:
    """Return the processor of a rank after ``spread``, for ranks on ``cpus``, if it ``may`` run on
    those."""
    row = processor_row(listed, files or KernelFiles(Path("/nowhere")))
    assert row is not None
    size = len(cpus)
    control = np.zeros(8 * loops.POSTS + 4 * LINE * size // 8, np.int64)
    lines = control[loops.POSTS + 3 * LINE * size // 8 :][: LINE * size // 8].reshape(size, -1)
    lines[:, 0] = np.array(cpus) + 1
    lines[rank, 0] = 0
    state = np.zeros(loops.STATE_WORDS, np.int64)
    state[loops.RANK], state[loops.SIZE] = rank, size
    state[loops.CONTROL], state[loops.PROCESSORS] = control.ctypes.data, row.ctypes.data
    os.sched_setaffinity(0, {cpus[rank]})
    os.sched_setaffinity(0, may)
    loops.spread(state.ctypes.data)
    assert os.sched_getaffinity(0) == may
    others = [number for other, number in enumerate(lines[:, 0].tolist()) if other != rank]
    assert others == [cpu + 1 for other, cpu in enumerate(cpus) if other != rank]
    return int(lines[rank, 0]) - 1


def test_the_last_of_three_goes_to_where_one_is_alone(two: tuple[int, int]) -> None:
    a, b = two
    assert after(3, [a, a, b, a], {a, b}, two) == b
    assert after(0, [b, a, a, a], {a, b}, two) == b, "on its own it stays"
    assert after(1, [b, a, a, a], {a, b}, two) == a, "another one goes"
    assert after(1, [a, a], {a, b}, two) == b


def test_a_rank_stays_where_no_processor_has_two_less(two: tuple[int, int]) -> None:
    a, b = two
    assert after(3, [b, a, b, a], {a, b}, two) == a
    assert after(2, [b, a, a], {a, b}, two) == a


def test_a_rank_that_is_bound_stays(two: tuple[int, int]) -> None:
    a, b = two
    assert after(3, [a, a, b, a], {a}, two) == a


def test_a_rank_stays_in_its_memory_domain(two: tuple[int, int], tmp_path: Path) -> None:
    a, b = two
    for number, cpu in enumerate(two):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpu}\n")
    assert after(3, [a, a, b, a], {a, b}, two, KernelFiles(tmp_path)) == a
