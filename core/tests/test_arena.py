"""Buffers that are never alive at the same time share one arena."""

from __future__ import annotations

from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse.arena import place_lifetimes

Lives = list[tuple[int, int, int]]


@st.composite
def lifetimes(draw: st.DrawFn) -> Lives:
    """Draw up to thirty buffers in twenty moments; some have size 0."""
    lives = []
    for _ in range(draw(st.integers(0, 30))):
        first = draw(st.integers(0, 20))
        lives.append((first, draw(st.integers(first, 20)), draw(st.integers(0, 12)) * 64))
    return lives


def most_alive(lives: Lives) -> int:
    """Return the bytes alive in the fullest moment, a lower bound for the arena."""
    moments = {first for first, _, _ in lives}
    return max((sum(s for a, b, s in lives if a <= t <= b) for t in moments), default=0)


@given(lifetimes())
@settings(max_examples=examples(120))
def test_no_two_buffers_overlap_while_both_live(lives: Lives) -> None:
    offsets, size = place_lifetimes(lives)
    assert len(offsets) == len(lives)
    for i, (first, last, nbytes) in enumerate(lives):
        assert offsets[i] >= 0
        assert nbytes == 0 or offsets[i] + nbytes <= size
        for j in range(i):
            both = first <= lives[j][1] and lives[j][0] <= last
            apart = offsets[i] + nbytes <= offsets[j] or offsets[j] + lives[j][2] <= offsets[i]
            assert not both or apart or not nbytes or not lives[j][2]


@given(lifetimes())
@settings(max_examples=examples(120))
def test_the_arena_holds_the_fullest_moment_and_at_most_everything(lives: Lives) -> None:
    _, size = place_lifetimes(lives)
    assert most_alive(lives) <= size <= sum(nbytes for _, _, nbytes in lives)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
@settings(max_examples=examples(120))
def test_a_chain_takes_at_most_half_more_than_its_fullest_moment(sizes: list[int]) -> None:
    """Each buffer is read only by the next operation, as in a net without branches. A buffer lies above
    at most two larger ones, its neighbour and the neighbour's neighbour, which are alive together."""
    lives = [(i, i + 1, nbytes * 64) for i, nbytes in enumerate(sizes)]
    _, size = place_lifetimes(lives)
    assert size <= 1.5 * most_alive(lives)


def test_two_buffers_are_enough_for_a_chain_of_equal_ones() -> None:
    lives = [(i, i + 1, 4096) for i in range(100)]
    assert place_lifetimes(lives)[1] == 2 * 4096


def test_buffers_that_are_alive_together_stand_side_by_side() -> None:
    offsets, size = place_lifetimes([(0, 5, 64), (1, 2, 128), (3, 4, 128)])
    assert (offsets, size) == ([128, 0, 0], 192)


def test_nothing_takes_nothing() -> None:
    assert place_lifetimes([]) == ([], 0)
    assert place_lifetimes([(0, 1, 0)]) == ([0], 0)
