"""The tuner tries candidates on scratch memory, keeps the fastest, and stays within its budget."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse import Candidate, CompositionError, PlanError, PluginError
from demitasse.operations import VOCABULARY
from demitasse_tuning import plugin
from demitasse_tuning.tuner import CandidateTuner


def test_a_plan_takes_the_fastest_kernel_and_says_why(bench, toy, monkeypatch):
    relu = VOCABULARY["relu"].name

    def kernels(request):
        if request.operation.name == relu:
            yield bench.kernel("slow", 4)
            yield bench.kernel("quick", 1.5)

    def tuner(allocator, versions, options):
        assert versions["two"] == demitasse.__version__
        made = plugin.tuner(allocator=allocator, versions=versions, options=options)
        made._clock, made._waits = bench.clock, bench.waits
        return made

    two = toy.plugin("two", kernels=kernels)
    ours = toy.plugin("timing", tuner=tuner)
    with demitasse.compose(toy.machine(), [two, ours, toy.toy(), "reference", "training"]) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()))
        (entry,) = (e for e in trainer.plan.entries if e.operation == relu)
    assert (entry.plugin, entry.kernel, entry.reason) == ("two", "quick", "tried: 1.5 ms, next 4")


@pytest.mark.parametrize(
    ("milliseconds", "calls"),
    [(1.5, 4), (30, 3), (80, 2)],
    ids=["short: the best of three", "longer: of two", "long: one"],
)
def test_equal_candidates_are_warmed_up_and_take_turns(bench, relu, milliseconds, calls):
    one, two = (bench.kernel(name, milliseconds) for name in ("one", "two"))
    assert bench.tuner().pick("fast", relu(), [one, two])[0] == 0
    assert bench.calls == ["one", "two"] * calls


def test_all_candidates_get_ready_together_before_the_first_is_timed(bench, relu):
    def compiles():
        assert list(bench.bound) == ["one", "other", "two"]
        bench.calls.append("prepared")
        bench.now += 1.0

    candidates = [
        bench.kernel("one", 1.5, prepare=compiles),
        bench.kernel("other", 2),
        bench.kernel("two", 1.4, prepare=compiles),
    ]
    assert bench.tuner().pick("fast", relu(), candidates) == (2, "tried: 1.4 ms, next 1.5")
    assert bench.calls[:4] == ["prepared", "one", "other", "two"]
    assert bench.calls.count("prepared") == 1


def test_parts_get_ready_with_all_others_before_the_first_is_timed(bench, relu):
    whole = bench.kernel("in parts", 1, prepare=lambda: bench.calls.append("prepared"))
    parts = replace(whole, parts=2, bind_part=lambda number, *given: whole.bind(*given))
    assert bench.tuner().pick("fast", relu(), [bench.kernel("one", 3), parts])[0] == 1
    assert bench.calls[:4] == ["prepared", "one", "in parts", "in parts"]
    assert bench.calls.count("prepared") == 1


def test_the_best_call_counts_and_the_first_does_not(bench, relu):
    one = bench.kernel("one", 2.0, 1.9, 1.4, 1.8)
    two = bench.kernel("two", 1.6, 1.7, 1.6, 1.5)
    position, reason = bench.tuner().pick("fast", relu(), [one, two])
    assert (position, reason) == (0, "tried: 1.4 ms, next 1.5")


def test_threads_take_turns_and_are_given_the_same_choice(bench, relu):
    """Trials share one memory and would time each other, and a service's threads plan at any time."""
    inside, met = [0], []

    def bind(inputs, outputs, workspace):
        def work():
            inside[0] += 1
            time.sleep(0.001)
            met.append(inside[0])
            inside[0] -= 1

        return work

    candidates = [Candidate(name, bind) for name in ("one", "two", "three")]
    tuner = CandidateTuner(bench.allocator, {}, {"cache": "off"})
    picked = []
    threads = [
        threading.Thread(target=lambda: picked.append(tuner.pick("fast", relu(), candidates)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(met) == {1}, "one trial at a time"
    assert len(picked) == len(threads)
    assert len({position for position, _ in picked}) == 1
    assert [reason[:10] for _, reason in picked].count("remembered") == 3


@pytest.mark.parametrize(("other", "chosen"), [(0.98, 0), (0.96, 1), (1.0, 0), (1.02, 0)])
def test_within_three_percent_the_preferred_one_wins(bench, relu, other, chosen):
    candidates = [bench.kernel("preferred", 10), bench.kernel("other", 10 * other)]
    assert bench.tuner().pick("fast", relu(), candidates)[0] == chosen


@pytest.mark.parametrize(
    ("more", "slower", "chosen"), [(40, 1.0, 1), (40, 1.02, 1), (2, 1.0, 0), (40, 1.05, 0)]
)
def test_of_equal_ones_that_wins_which_takes_less_memory(bench, relu, more, slower, chosen):
    candidates = [
        bench.kernel("preferred", 10, workspace=more * 2**20),
        bench.kernel("lean", 10 * slower, workspace=2**20),
    ]
    assert bench.tuner().pick("fast", relu(), candidates)[0] == chosen


def test_a_candidate_whose_first_call_takes_three_times_the_best_is_not_called_again(bench, relu):
    candidates = [bench.kernel("slow", 310), bench.kernel("quick", 100), bench.kernel("slower", 900)]
    assert bench.tuner().pick("fast", relu(), candidates) == (1, "tried: 100 ms, next 310")
    assert bench.calls == ["slow", "quick", "slower"]


def test_what_the_first_call_of_a_process_costs_ends_no_trial(bench, relu):
    tuner = bench.tuner()
    starts = [bench.kernel("threads start", 6, 0.2), bench.kernel("other", 0.3)]
    assert tuner.pick("fast", relu(), starts)[0] == 0
    bench.calls.clear()
    later = [bench.kernel("threads start", 6, 0.2), bench.kernel("other", 0.3)]
    assert tuner.pick("fast", relu(2), later) == (1, "tried: 0.3 ms, next 6")
    assert bench.calls == ["threads start", "other"]


def test_a_first_call_under_half_a_millisecond_ends_no_trial(bench, relu):
    tuner = bench.tuner()
    tuner.pick("fast", relu(2), [bench.kernel("a", 1), bench.kernel("b", 1)])
    candidates = [bench.kernel("a", 0.1), bench.kernel("b", 0.45, 0.05)]
    assert tuner.pick("fast", relu(), candidates)[0] == 1


def test_a_first_call_is_compared_with_what_others_take_when_they_are_warm(bench, relu):
    """The fast kernel's own first call allocated memory and read code, so it was not a measure."""
    candidates = [bench.kernel("slow", 0.8), bench.kernel("quick", 0.4, 0.2)]
    assert bench.tuner().pick("fast", relu(), candidates)[0] == 1
    assert sorted(bench.calls) == ["quick", "quick", "slow"]


def test_what_falls_behind_in_a_turn_has_no_further_one(bench, relu):
    candidates = [bench.kernel("behind", 2.1), bench.kernel("best", 1)]
    assert bench.tuner().pick("fast", relu(), candidates)[0] == 1
    assert sorted(bench.calls) == ["behind", "behind", "best", "best"]


@settings(
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.floats(0.001, 500), min_size=2, max_size=12))
def test_no_trial_takes_much_longer_than_its_budget(make_bench, relu, milliseconds):
    bench, request = make_bench(), relu()
    candidates = [bench.kernel(f"k{i}", taken) for i, taken in enumerate(milliseconds)]
    tuner = bench.tuner(cache="off")
    position, _ = tuner.pick("fast", request, candidates)
    # One call of each, one more of the two fastest, and of those that might have started threads.
    again = [taken for taken in milliseconds if taken < 50]
    least = sum(milliseconds) + sum(again) + sum(sorted(milliseconds)[:2])
    assert bench.now * 1e3 <= max(least, 12 * min(milliseconds)) * 1.0001
    assert milliseconds[position] <= 1.031 * min(milliseconds)
    assert tuner.seconds_spent == pytest.approx(bench.now)


def test_seconds_spent_count_binding_and_add_up(bench, relu):
    tuner = bench.tuner()
    for count in (64, 128):
        tuner.pick("fast", relu(count), [bench.kernel("a", 10, binding=5), bench.kernel("b", 100)])
    assert tuner.seconds_spent == pytest.approx(2 * 0.115)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cash": "off"}, "unknown option 'cash'; did you mean 'cache'"),
        ({"cache": 3}, "cache = 3 (valid: a folder, or 'off')"),
    ],
)
def test_options_are_checked(bench, options, words):
    with pytest.raises(CompositionError) as caught:
        bench.tuner(**options)
    assert words in str(caught.value)


def test_a_kernel_that_fails_is_left_out_with_one_line(bench, relu, caplog):
    broken = bench.kernel("broken", error=PlanError("no such primitive"))
    tuner = bench.tuner()
    candidates = [broken, bench.kernel("a", 5), bench.kernel("b", 4)]
    assert tuner.pick("fast", relu(), candidates) == (2, "tried: 4 ms, next 5")
    assert caplog.messages == ["kernel 'broken' failed when it was tried: no such primitive"]
    assert tuner.pick("fast", relu(7), [broken, bench.kernel("a", 5)]) == (
        1,
        "tried: 5 ms, the others failed",
    )
    reason = "not tried: none ran on made-up values"
    assert tuner.pick("fast", relu(9), [broken, broken]) == (0, reason)


def test_a_fault_in_a_kernel_is_not_hidden(bench, relu):
    faulty = bench.kernel("faulty", error=ZeroDivisionError("division by zero"))
    words = r"plugin 'fast', kernel 'faulty' of relu of .* raised ZeroDivisionError when it was tried"
    with pytest.raises(PluginError, match=words):
        bench.tuner().pick("fast", relu(), [bench.kernel("a", 5), faulty])


@pytest.mark.parametrize(
    ("milliseconds", "calls"),
    [([1.2], 4), ([2.0, 1.5], 3), ([1.5], 2), ([2.0, 1.3, 1.2], 4)],
    ids=["close", "behind, and its calls differ", "behind, twice alike", "nearer in the second turn"],
)
def test_what_is_behind_has_fewer_turns_the_surer_that_is(bench, relu, milliseconds, calls):
    bench.tuner().pick("fast", relu(), [bench.kernel("best", 1), bench.kernel("other", *milliseconds)])
    assert sorted(bench.calls) == ["best"] * calls + ["other"] * calls
