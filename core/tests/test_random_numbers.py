"""Random numbers: published answers, and the same draw however the work is divided."""

import math
import os
import threading
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse_random import (
    RandomStream,
    crop_and_mirror,
    keep_mask,
    permutation,
    philox4x32,
    random_key,
)


def philox_by_definition(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Philox4x32-10 from section 3.3 of Salmon et al. on Python's integers."""

    def product(a: int, b: int) -> tuple[int, int]:
        return divmod(a * b, 2**32)

    left0, right0, left1, right1 = counter[0], counter[1], counter[2], counter[3]
    for step in range(10):
        key0 = (key[0] + step * 0x9E3779B9) % 2**32
        key1 = (key[1] + step * 0xBB67AE85) % 2**32
        high0, low0 = product(0xD2511F53, left0)
        high1, low1 = product(0xCD9E8D57, left1)
        left0, right0 = high1 ^ right0 ^ key0, low1
        left1, right1 = high0 ^ right1 ^ key1, low0
    return left0, right0, left1, right1


def key_by_definition(seed: int, stream: int) -> tuple[int, int]:
    return seed % 2**32, (seed // 2**32 + stream * 0x9E3779B9) % 2**32


def words(domain: int, seed: int, stream: int, number: int, i: int, j: int) -> tuple[int, ...]:
    """The documented key and counter, as a compiled kernel would form them."""
    seed %= 2**64
    key = key_by_definition(seed, stream)
    counter = (i % 2**32, j % 2**32, number % 2**32, number // 2**32 + domain * 2**28)
    return philox_by_definition(counter, key)


WORD = st.integers(0, 2**32 - 1)
SEED = st.integers(-(2**63), 2**64 - 1)
STREAM = st.integers(0, 1000)
NUMBER = st.one_of(st.integers(0, 1000), st.integers(0, 2**60 - 1))


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        (4 * " 00000000", 2 * " 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (4 * " ffffffff", 2 * " ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_answers(counter: str, key: str, answer: str) -> None:
    def parse(text: str) -> Any:
        return np.array([int(word, 16) for word in text.split()], np.uint32)

    result = philox4x32(parse(counter)[None], parse(key))
    assert result.dtype == np.uint32
    np.testing.assert_array_equal(result, parse(answer)[None])


@given(st.lists(st.tuples(WORD, WORD, WORD, WORD), max_size=5), st.tuples(WORD, WORD))
def test_philox_is_that_of_the_paper(counters: list[tuple[int, ...]], key: tuple[int, int]) -> None:
    result = philox4x32(np.array(counters, np.uint32).reshape(-1, 4), np.array(key, np.uint32))
    assert [tuple(row) for row in result.tolist()] == [philox_by_definition(c, key) for c in counters]


@given(SEED, STREAM)
def test_a_key_is_that_of_its_documented_formula(seed: int, stream: int) -> None:
    assert random_key(seed, stream) == key_by_definition(seed, stream)
    assert random_key(np.uint64(seed % 2**64), np.int32(stream)) == random_key(seed % 2**64, stream)


@given(SEED, STREAM, NUMBER, st.integers(0, 2**33), st.floats(0, 1))
@settings(max_examples=examples(50))
def test_a_mask_is_that_of_its_documented_formula(
    seed: int, stream: int, iteration: int, first: int, ratio: float
) -> None:
    mask = keep_mask(seed, stream, iteration, first, (3, 2, 5), ratio)
    assert mask.dtype == np.uint8
    expected = [
        [
            int(words(0, seed, stream, iteration, e // 4, first + n)[e % 4] >= ratio * 2**32)
            for e in range(10)
        ]
        for n in range(3)
    ]
    np.testing.assert_array_equal(mask.reshape(3, 10), expected)


@given(SEED, st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(0, 9))
@settings(max_examples=examples(50))
def test_any_division_of_a_batch_draws_the_same_masks_and_crops(
    seed: int, shares: list[int], iteration: int
) -> None:
    batch = sum(shares)
    masks, crops, first = [], [], 100
    for share in shares:
        masks.append(keep_mask(seed, 3, iteration, first, (share, 7), 0.5))
        crops.append(crop_and_mirror(seed, 3, iteration, first, share, 28, 30))
        first += share
    np.testing.assert_array_equal(
        np.concatenate(masks), keep_mask(seed, 3, iteration, 100, (batch, 7), 0.5)
    )
    np.testing.assert_array_equal(
        np.concatenate(crops), crop_and_mirror(seed, 3, iteration, 100, batch, 28, 30)
    )


def test_a_mask_drops_its_ratio_and_all_or_nothing_at_the_ends() -> None:
    mask = keep_mask(1, 2, 3, 0, (100, 1000), 0.3)
    assert abs(mask.mean() - 0.7) < 4 * math.sqrt(0.21 / mask.size)
    assert keep_mask(1, 2, 3, 0, (4, 1000), 0.0).all()
    assert not keep_mask(1, 2, 3, 0, (4, 1000), 1.0).any()


def test_a_mask_takes_the_scalars_that_a_plan_holds() -> None:
    plain = keep_mask(5, 2, 3, 4, (3, 5), 0.5)
    scalars: tuple[Any, Any, Any, Any] = (np.int64(5), np.int32(2), np.uint64(3), np.uint64(4))
    np.testing.assert_array_equal(keep_mask(*scalars, (3, 5), 0.5), plain)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3,), (2, 1, 1, 1)])
def test_a_mask_may_have_any_shape(shape: tuple[int, ...]) -> None:
    assert keep_mask(1, 2, 3, 4, shape, 0.5).shape == shape


def test_neighbouring_elements_samples_iterations_streams_and_seeds_are_independent() -> None:
    def mask(seed: int = 1, stream: int = 1, iteration: int = 1, first: int = 1) -> Any:
        return keep_mask(seed, stream, iteration, first, (1, 40_000), 0.5).astype(np.float64)[0]

    base = mask()
    others = [mask(seed=2), mask(stream=2), mask(iteration=2), mask(first=2), mask(seed=1 + 2**32)]
    others += [mask(iteration=1 + 2**32), np.roll(base, 1), np.roll(base, 4)]
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / math.sqrt(base.size)


@given(SEED, STREAM, NUMBER, st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=examples(50))
def test_crops_lie_within_bounds_and_follow_their_documented_formula(
    seed: int, stream: int, iteration: int, rows: int, columns: int
) -> None:
    drawn = crop_and_mirror(seed, stream, iteration, 7, 20, rows, columns)
    assert (drawn.shape, drawn.dtype) == ((20, 3), np.int64)
    for n, (row, column, mirror) in enumerate(drawn.tolist()):
        assert 0 <= row <= rows and 0 <= column <= columns and mirror in (0, 1)
        first, second, third, _ = words(1, seed, stream, iteration, 0, 7 + n)
        assert row == first * (rows + 1) // 2**32
        assert column == second * (columns + 1) // 2**32
        assert mirror == third // 2**31


def test_crops_reach_every_offset_about_as_often() -> None:
    drawn = crop_and_mirror(1, 0, 0, 0, 9000, 2, 4)
    for column, choices in enumerate((3, 5, 2)):
        counts = np.bincount(drawn[:, column], minlength=choices)
        deviation = 4 * math.sqrt(9000 / choices)
        assert len(counts) == choices and (abs(counts - 9000 / choices) < deviation).all()


@given(SEED, NUMBER, st.integers(0, 300))
@settings(max_examples=examples(50))
def test_an_order_has_every_sample_once_and_follows_its_documented_formula(
    seed: int, epoch: int, size: int
) -> None:
    order = permutation(seed, epoch, size)
    assert order.dtype == np.int64

    def place(sample: int) -> int:
        drawn = words(2, seed, 0, epoch, sample, 0)
        return drawn[0] + drawn[1] * 2**32

    assert order.tolist() == sorted(range(size), key=place)


def test_the_order_of_an_epoch_is_the_same_on_every_platform() -> None:
    assert permutation(1, 0, 10).tolist() == [8, 3, 1, 5, 7, 0, 2, 4, 9, 6]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [permutation(seed, epoch, 50).tolist() for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@given(SEED, STREAM, st.integers(0, 9))
@settings(max_examples=examples(50))
def test_a_stream_follows_its_documented_formula(seed: int, stream: int, count: int) -> None:
    numbers = RandomStream(seed, stream)
    for call in range(3):
        fractions = []
        for e in range(count):
            drawn = words(3, seed, stream, call, e // 2, 0)[2 * (e % 2) :]
            fractions.append(((drawn[0] >> 5) * 2**26 + (drawn[1] >> 6)) / 2**53)
        assert numbers.uniform((count,)).tolist() == fractions


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_large_array_has_the_numbers_that_one_thread_draws(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2**19 + 3
    threads = set[int]()
    part = RandomStream._part

    def seen(self: RandomStream, begin: int, end: int) -> Any:
        threads.add(threading.get_ident())
        return part(self, begin, end)

    monkeypatch.setattr(RandomStream, "_part", seen)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4), raising=False)
    several = getattr(RandomStream(5, 2, "float32"), kind)((count,))
    assert threading.get_ident() not in threads
    threads.clear()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1), raising=False)
    alone = getattr(RandomStream(5, 2, "float32"), kind)((count,))
    assert threads == {threading.get_ident()}
    assert np.array_equal(several, alone)


def test_a_stream_has_the_moments_that_it_is_asked_for() -> None:
    numbers, n = RandomStream(42, 1), 200_000
    uniform = numbers.uniform((n // 10, 10), -1.0, 3.0)
    assert uniform.shape == (n // 10, 10) and uniform.dtype == np.float64
    assert uniform.min() >= -1 and uniform.max() < 3
    assert abs(uniform.mean() - 1) < 4 * math.sqrt(16 / 12 / n)
    assert uniform.var() == pytest.approx(16 / 12, rel=0.02)
    normal = numbers.normal((n,), 5.0, 0.1)
    assert abs(normal.mean() - 5) < 4 * 0.1 / math.sqrt(n)
    assert normal.std() == pytest.approx(0.1, rel=0.01)
    standard = (normal - 5) / 0.1
    assert abs((standard**3).mean()) < 0.05 and abs((standard**4).mean() - 3) < 0.1
    within = np.mean(abs(standard) < 1)
    assert within == pytest.approx(math.erf(1 / math.sqrt(2)), abs=0.005)
    whole = numbers.integers((n,), 7)
    assert whole.dtype == np.int64
    assert abs(np.bincount(whole, minlength=7) - n / 7).max() < 4 * math.sqrt(n / 7)


def test_successive_calls_and_other_streams_draw_other_numbers() -> None:
    first, second = RandomStream(1, 1), RandomStream(1, 2)
    draws = [first.uniform((4,)), first.uniform((4,)), second.uniform((4,))]
    assert len({tuple(draw) for draw in draws}) == 3
    np.testing.assert_array_equal(RandomStream(1, 1).uniform((4,)), draws[0])


@pytest.mark.parametrize("shape", [(), 3, (0,), (3, 0), (3, 1, 5)])
def test_a_stream_draws_any_shape(shape: Any) -> None:
    numbers = RandomStream(0)
    wanted = np.empty(shape).shape
    assert numbers.uniform(shape).shape == wanted
    assert numbers.normal(shape).shape == wanted
    assert numbers.integers(shape, 5).shape == wanted
