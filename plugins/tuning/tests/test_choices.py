"""Choices follow other workers and earlier runs, if their kernels still exist."""

from __future__ import annotations


def test_a_second_worker_is_given_the_first_ones_choice(bench, relu):
    tuner = bench.tuner(cache="off")
    candidates = [bench.kernel("a", 9), bench.kernel("b", 8)]
    assert tuner.pick("fast", relu(), candidates) == (1, "tried: 8 ms, next 9")
    calls = list(bench.calls)
    again = [bench.kernel("a", 1), bench.kernel("b", 8)]
    assert tuner.pick("fast", relu(), again) == (1, "remembered: 8 ms, next 9")
    assert bench.calls == calls


def test_choices_of_one_run_are_followed_by_another(bench, relu):
    first, second = bench.tuner(cache="off"), bench.tuner(cache="off")
    first.pick("fast", relu(), [bench.kernel("a", 9), bench.kernel("b", 8)])
    first.pick("fast", relu(2), [bench.kernel("a", 8), bench.kernel("b", 9)])
    assert sorted(first.choices().values()) == ["a", "b"]
    second.prefer(first.choices())
    now = [bench.kernel("b", 9), bench.kernel("a", 1)]
    assert second.pick("fast", relu(), now) == (0, "preferred: as before")
    assert second.pick("fast", relu(2), now) == (1, "preferred: as before")
    assert second.choices() == first.choices()
    assert second.pick("fast", relu(3), now)[1].startswith("tried")


def test_a_choice_that_was_made_is_followed_even_without_tuning(bench, relu):
    tuner, other = bench.tuner(tune="off"), bench.tuner()
    other.pick("fast", relu(), [bench.kernel("a", 9), bench.kernel("b", 8)])
    tuner.prefer(other.choices())
    assert tuner.pick("fast", relu(), [bench.kernel("a", 9), bench.kernel("b", 8)])[0] == 1


def test_a_preferred_kernel_that_is_gone_is_said_once_and_tuned_anew(bench, relu, caplog):
    tuner = bench.tuner()
    bench.tuner().pick("fast", relu(2), [bench.kernel("a", 9), bench.kernel("b", 8)])
    first = bench.tuner()
    first.pick("fast", relu(), [bench.kernel("gone", 1), bench.kernel("b", 8)])
    tuner.prefer(first.choices())
    now = [bench.kernel("a", 9), bench.kernel("b", 8)]
    assert tuner.pick("other", relu(), now)[1] == "tried: 8 ms, next 9"
    caplog.clear()
    tuner.pick("fast", relu(), now)
    tuner.pick("fast", relu(), now)
    assert [m for m in caplog.messages if "no longer offered" in m] == [
        "kernel 'gone' is no longer offered for fast: relu(64 float32) -> (64 float32); "
        "threads 1, f32, host (offered: a, b)"
    ]
    assert set(tuner.choices().values()) == {"b"}
