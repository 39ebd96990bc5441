"""Chunks are those of section 4.2, and the search is Algorithm 1, line by line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse_cgdp.chunks import ChunkSearch, chunks, sizes_tried

Seconds = Callable[[int], float]


@given(st.integers(0, 400), st.integers(1, 450))
def test_chunks_are_those_of_section_4_2(count: int, k: int) -> None:
    """Layers count - 1 to 0, in the order in which backward finishes them."""
    found = chunks(range(count, 0, -1), k)
    assert [layer for chunk in found for layer in chunk] == [*range(count, 0, -1)]
    if count and count % k == 0:
        whole, single = count // k - 1, k
        assert all(min(chunk) > k for chunk in found[:whole]), "layers l to k + 1"
    else:
        whole, single = count // k, count - k * (count // k)
        assert all(min(chunk) > count - k * whole for chunk in found[:whole])
    assert [len(chunk) for chunk in found] == [k] * whole + [1] * single


def test_chunks_of_no_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="chunks of 0 layers"):
        chunks([1, 2], 0)


def algorithm_1(n: int, step: int, reach: int, interval: int, train: Seconds) -> Iterator[int]:
    """The printed lines, with a clock that advances while it trains."""
    clock = 0.0
    chunk, best_chunk, lapse_min = 1, 1, math.inf  # line 2
    iteration, done = 1, False  # 3
    start_time = clock  # 4
    while iteration <= n:  # 5
        yield chunk
        clock += train(chunk)  # 6
        if iteration % interval == 0 and not done:  # 7
            if chunk >= best_chunk + step * reach:  # 8
                chunk = best_chunk  # 9
                done = True  # 10
            else:
                end_time = clock  # 12
                lapse = end_time - start_time  # 13
                if lapse < lapse_min:  # 14
                    lapse_min = lapse  # 15
                    best_chunk = chunk  # 16
                chunk = chunk + 1 if chunk < step else chunk + step  # 18 to 22
                start_time = clock  # 23
        iteration = iteration + 1  # 26


@given(
    st.integers(1, 15),
    st.integers(1, 8),
    st.integers(1, 4),
    st.lists(st.integers(1, 1000), min_size=1, max_size=200),
)
def test_the_search_is_algorithm_1(step: int, reach: int, interval: int, table: list[int]) -> None:
    """Whole milliseconds by chunk size, so that sums are exact."""

    def train(chunk: int) -> float:
        return float(table[(chunk - 1) % len(table)])

    search, found = ChunkSearch(step, reach, interval), list[int]()
    for _ in range(800):
        found.append(search.chunk)
        search.iterated(train(search.chunk))
    assert found == [*algorithm_1(800, step, reach, interval, train)]


@given(st.integers(1, 15), st.integers(1, 8), st.integers(1, 5))
def test_if_no_size_is_better_than_1_the_search_ends_as_soon_as_it_says(
    step: int, reach: int, interval: int
) -> None:
    """Section 4.2: the search ends step - best_chunk + range sizes after the best."""
    search = ChunkSearch(step, reach, interval)
    while not search.done:
        search.iterated(float(search.chunk))
    assert (search.chunk, search.iterations) == (1, search.longest)
    assert len(search.lapses) == search.longest // interval - 1, "the last size is not measured any more"


def test_sizes_grow_by_one_and_then_by_the_step() -> None:
    """The paper's step 10 and range 5; the best is 9, as in its Fig. 5a."""
    seconds = [4.0 - 0.01 * size if size <= 9 else 3.95 for size in (*range(1, 11), *range(20, 101, 10))]
    tried = [*sizes_tried(seconds, 10, 5)]
    assert tried == [*range(1, 11), 20, 30, 40, 50, 60, 9]


@pytest.mark.parametrize("name", ["step", "range", "interval"])
def test_a_search_by_nothing_is_refused(name: str) -> None:
    given = {"step": 1, "range": 1, "interval": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} = 0"):
        ChunkSearch(given["step"], given["range"], given["interval"])
