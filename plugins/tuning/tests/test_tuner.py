"""The tuner tries candidates on scratch memory, keeps the fastest, and stays within its budget."""

from __future__ import annotations

import gc
import importlib.metadata
import threading
import time
import tomllib
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse import (
    Candidate,
    CompositionError,
    Layout,
    Place,
    PlanError,
    PluginError,
    Request,
    TensorSpec,
    hookimpl,
)
from demitasse.operations import VOCABULARY
from demitasse_tuning import plugin
from demitasse_tuning import tuner as tuner_module
from demitasse_tuning.scratch import KEPT
from demitasse_tuning.trial import COPY, reorder_seconds
from demitasse_tuning.tuner import CandidateTuner

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = Layout("NHWC bf16", (0, 2, 3, 1), stored="bfloat16")
PLAIN_BF16 = Layout("bf16", stored="bfloat16")


def convolution(direction="", inputs=(), outputs=(), threads=1, precision="f32"):
    """A request for a 3x3 convolution of 8 images of 16 x 32 x 32 to 32 channels."""
    shapes = {"x": (8, 16, 32, 32), "w": (32, 16, 3, 3), "b": (32,), "y": (8, 32, 32, 32)}
    operation = VOCABULARY[f"convolution{direction}"]
    specs = [
        tuple(
            TensorSpec(shapes[operand.name.removeprefix("d")], "float32", *layout)
            for operand, layout in zip(
                operands, (*((item,) for item in given), (), (), ()), strict=False
            )
        )
        for operands, given in ((operation.inputs, inputs), (operation.outputs, outputs))
    ]
    attributes = {"kernel": (3, 3), "stride": (1, 1), "pad": (1, 1)}
    return Request(operation, *specs, attributes, Place("machine", threads=threads), precision)


def test_the_entry_point_loads_the_plugin():
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="tuning")
    assert point.load() is plugin


def test_the_manifest_declares_the_hooks_and_is_automatic():
    manifest = tomllib.loads((Path(plugin.__file__).parent / "plugin.toml").read_text())
    hooks = {
        name for name, value in vars(plugin).items() if hasattr(value, f"{hookimpl.project_name}_impl")
    }
    assert set(manifest["roles"]) == hooks == {"tuner", "diagnose"}
    assert manifest["automatic"] is True
    assert manifest["roles"]["tuner"]["spaces"] == ["host"]


def test_a_plan_takes_the_fastest_kernel_and_says_why(bench, toy, monkeypatch):
    relu = VOCABULARY["relu"].name

    def kernels(request):
        if request.operation.name == relu:
            yield bench.kernel("slow", 4)
            yield bench.kernel("quick", 1.5)

    def tuner(allocator, versions, options):
        assert versions["two"] == demitasse.__version__
        made = plugin.tuner(allocator=allocator, versions=versions, options=options)
        made._clock = bench.clock
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
    """Trials have one memory and would time each other: a service's threads plan as requests come."""
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
    """The quick one's own first call found memory and read code, so it was no measure."""
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
    # A call of each, one more of the two quickest, and of those that might have started something.
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


# What candidates are given.


def test_operands_have_the_layouts_that_are_wanted_and_valid_values(bench):
    layouts = (NHWC_BF16, PLAIN_BF16, Layout("plain"))
    blocked = Layout("NCHW8c", blocks=((1, 8),))
    half = bench.kernel("half", 1, layouts=layouts, outputs=(NHWC_BF16,), workspace=100)
    whole = bench.kernel(
        "whole", 1, layouts=(blocked, Layout("plain"), Layout("plain")), outputs=(NHWC,)
    )
    bench.tuner().pick("fast", convolution(precision="bf16"), [half, whole])
    (x, w, b), (y,), workspace = bench.bound["half"]
    assert (x.shape, x.dtype, w.dtype) == ((8, 32, 32, 16), np.uint16, np.uint16)
    assert (y.shape, y.dtype) == ((8, 32, 32, 32), np.uint16)
    assert (workspace.shape, workspace.dtype) == ((100,), np.uint8)
    (x2, w2, b2), (y2,), none = bench.bound["whole"]
    assert (x2.shape, x2.dtype, none) == ((8, 2, 32, 32, 8), np.float32, None)
    values = [NHWC_BF16.unpack(x, (8, 16, 32, 32)), PLAIN_BF16.unpack(w, (32, 16, 3, 3)), b, x2, w2, b2]
    assert all(0.005 < value.min() < value.max() < 0.02 for value in values)
    assert not y.any() and not y2.any()
    arrays = [x, w, b, y, workspace]
    for i, one in enumerate(arrays):
        assert one.ctypes.data % 16 == bench.bound["half"][0][0].ctypes.data % 16
        assert not any(np.shares_memory(one, other) for other in arrays[i + 1 :])


@pytest.mark.parametrize("label", ["int64", "float32"])
def test_labels_are_of_the_first_class_and_absent_operands_are_none(bench, label):
    specs = (TensorSpec((4, 10), "float32"), TensorSpec((4,), label))
    loss = TensorSpec((), "float32"), None
    request = Request(VOCABULARY["softmax_loss"], specs, loss, {}, Place("machine"))
    bench.tuner().pick("fast", request, [bench.kernel("a", 1), bench.kernel("b", 1)])
    (x, labels), (value, probability), workspace = bench.bound["a"]
    assert x.all() and not labels.any()
    assert (value.shape, probability, workspace) == ((), None, None)


@pytest.mark.parametrize(
    ("word", "shape"), [("gather", (7,)), ("pooling_regions", (4, 5)), ("unpooling", (2, 3, 8, 8))]
)
def test_numbers_of_rows_and_of_regions_are_valid_ones(bench, word, shape):
    with demitasse.compose(plugins=["caffe", "reference"]) as runtime:
        operation = runtime.vocabulary[word]
    specs = TensorSpec((2, 3, 8, 8), "float32"), TensorSpec(shape, "float32")
    request = Request(operation, specs, (), {}, Place("machine"))
    bench.tuner().pick("fast", request, [bench.kernel("a", 1), bench.kernel("b", 1)])
    (x, numbers), _, _ = bench.bound["a"]
    assert x.all()
    assert not numbers.any()


def test_positions_and_masks_are_zeros_and_double_precision_is_double(bench):
    specs = (TensorSpec((4, 4), "float64"), TensorSpec((4, 4), "uint8"))
    request = Request(VOCABULARY["dropout_backward"], specs, specs[:1], {"ratio": 0.5}, Place("machine"))
    bench.tuner().pick("fast", request, [bench.kernel("a", 1), bench.kernel("b", 1)])
    (x, mask), _, _ = bench.bound["a"]
    assert (x.dtype, mask.dtype) == (np.float64, np.uint8)
    assert 0.005 < x.min() < x.max() < 0.02
    assert not mask.any()


# What a choice costs others.


def seconds(request, layouts=(), outputs=()):
    return reorder_seconds(request, demitasse.Candidate("any", lambda *a: None, layouts, outputs))


IMAGES = 8 * 16 * 32 * 32 * 4
RESULTS = 2 * IMAGES


def test_an_input_that_lies_otherwise_costs_its_bytes_twice():
    plain = Layout("plain")
    wants = (NHWC, plain, plain)
    assert seconds(convolution(), wants) == pytest.approx(2 * IMAGES / COPY)
    assert seconds(convolution(threads=2), wants) == pytest.approx(IMAGES / COPY)
    assert seconds(convolution(inputs=(NHWC,)), wants) == 0
    half = (NHWC_BF16, plain, plain)
    assert seconds(convolution(inputs=(NHWC,)), half) == pytest.approx(1.5 * IMAGES / COPY)


def test_layouts_that_lie_alike_cost_nothing():
    gray, coloured = (TensorSpec((64, channels, 128, 128), "float32") for channels in (1, 3))
    relus = [
        Request(VOCABULARY["relu"], (spec,), (spec,), {}, Place("machine")) for spec in (gray, coloured)
    ]
    assert seconds(relus[0], (NHWC,)) == 0 < seconds(relus[1], (NHWC,))


def test_a_reorder_decides_between_kernels(bench):
    plain = Layout("plain")
    own = bench.kernel("own", 1, layouts=(NHWC, plain, plain))
    as_is = bench.kernel("as is", 1.03)
    assert bench.tuner(cache="off").pick("fast", convolution(), [own, as_is])[0] == 1
    assert bench.tuner(cache="off").pick("fast", convolution(inputs=(NHWC,)), [own, as_is])[0] == 0


def test_parameters_take_the_layout_of_their_first_reader_for_nothing():
    big = TensorSpec((512, 512, 3, 3), "float32")
    x = TensorSpec((1, 512, 8, 8), "float32")
    forward, backward = VOCABULARY["convolution"], VOCABULARY["convolution_backward_data"]
    plain, place = Layout("plain"), Place("machine")
    first = Request(forward, (x, big, None), (x,), {}, place)
    later = Request(backward, (x, big), (x,), {}, place)
    assert seconds(first, (plain, NHWC, plain)) == 0
    assert seconds(first, (plain, PLAIN_BF16, plain)) == pytest.approx(1.5 * big.nbytes / COPY)
    assert seconds(later, (plain, NHWC)) == pytest.approx(2 * big.nbytes / COPY)


def test_what_is_made_once_of_fixed_parameters_costs_nothing():
    big, x = TensorSpec((512, 512, 3, 3), "float32"), TensorSpec((8, 512, 8, 8), "float32")
    plain = Layout("plain")
    request = Request(VOCABULARY["convolution"], (x, big, None), (x,), {}, Place("machine"))
    wants = (NHWC, PLAIN_BF16, plain)
    assert seconds(request, wants) == pytest.approx((2 * x.nbytes + 1.5 * big.nbytes) / COPY)
    assert seconds(replace(request, fixed=True), wants) == pytest.approx(2 * x.nbytes / COPY)


def test_small_operands_and_results_cost_nothing_but_gradients_of_parameters_do():
    plain = Layout("plain")
    dy, x = TensorSpec((1, 512, 8, 8), "float32"), TensorSpec((1, 512, 8, 8), "float32")
    dw = TensorSpec((512, 512, 3, 3), "float32", NHWC)
    weights = VOCABULARY["convolution_backward_weights"]
    request = Request(weights, (dy, x), (dw, None), {}, Place("machine"))
    assert seconds(request, (plain, plain), (NHWC, plain)) == 0
    assert seconds(request, (plain, plain), (plain, plain)) == pytest.approx(2 * dw.nbytes / COPY)
    assert seconds(convolution(inputs=(plain, NHWC)), (plain, plain, plain)) == 0
    assert seconds(convolution(), (plain, plain, plain), (NHWC,)) == 0
    tiny = TensorSpec((2, 4, 8, 8), "float32")
    pooling = Request(VOCABULARY["pooling_max"], (tiny,), (tiny, None), {}, Place("machine"))
    assert seconds(pooling, (NHWC,), (NHWC, plain)) == 0


# Memory.


def test_one_block_serves_all_trials(bench, relu):
    tuner = bench.tuner()
    for count in (1000, 500, KEPT // 8, 2000):
        tuner.pick("fast", relu(count), [bench.kernel("a", 1), bench.kernel("b", 1)])
    assert (bench.allocator.allocations, bench.allocator.held) == (1, KEPT)


def test_with_little_room_the_block_grows_and_it_goes_with_the_tuner(bench, relu):
    bench.allocator.room = KEPT - 1
    tuner = bench.tuner()
    for count in (1000, 500, 4000, 2000):
        tuner.pick("fast", relu(count), [bench.kernel("a", 1), bench.kernel("b", 1, workspace=256)])
    assert bench.allocator.allocations == 2
    assert bench.allocator.held == bench.allocator.peak == 2 * 4000 * 4 + 256
    tuner.close()
    assert bench.allocator.held == 0
    assert tuner.pick("fast", relu(10), [bench.kernel("a", 1), bench.kernel("b", 1)])[0] == 0


def test_who_writes_memory_first_is_called_again(bench, relu):
    """A kernel that was called in this process, whose workspace is larger than any before."""
    tuner = bench.tuner()
    tuner.pick("fast", relu(1000), [bench.kernel("a", 1), bench.kernel("b", 2)])
    slow, quick = bench.kernel("a", 3), bench.kernel("b", 40, 1, workspace=4096)
    assert tuner.pick("fast", relu(1100), [slow, quick])[0] == 1
    slow, quick = bench.kernel("a", 3), bench.kernel("b", 40, 1, workspace=1024)
    assert tuner.pick("fast", relu(1001), [slow, quick])[0] == 0


def test_a_large_block_goes_back_after_the_trial(bench, relu):
    tuner = bench.tuner()
    tuner.pick("fast", relu(KEPT // 4), [bench.kernel("a", 1), bench.kernel("b", 1)])
    assert bench.allocator.peak == 2 * KEPT
    assert bench.allocator.held == 0


def test_the_memory_goes_when_the_tuner_is_forgotten(relu, bench):
    candidates = [bench.kernel("a", 1), bench.kernel("b", 1)]
    tuner = bench.tuner()
    tuner.pick("fast", relu(), candidates)
    block = weakref.ref(tuner._scratch._block)
    assert block() is not None
    del tuner
    gc.collect()
    assert block() is None


def test_without_room_for_a_trial_the_first_candidate_is_taken(bench, relu):
    bench.allocator.room = 1000
    candidates = [bench.kernel("a", 9), bench.kernel("b", 1)]
    tuner = bench.tuner()
    assert tuner.pick("fast", relu(1000), candidates) == (0, "not tried: too little memory")
    bench.allocator.room = 10000
    assert tuner.pick("fast", relu(1000), candidates)[0] == 1


# Where nothing is tried.


def test_a_described_machine_runs_nothing(bench, relu):
    candidates = [bench.kernel("a", 9), bench.kernel("b", 1)]
    tuner = bench.tuner()
    assert tuner.pick("fast", relu(simulated=True), candidates) == (0, "not tried: simulated")
    assert (bench.calls, bench.bound, bench.allocator.allocations) == ([], {}, 0)


@pytest.mark.parametrize("tune", ["off", "first"])
def test_without_tuning_the_first_candidate_is_taken(bench, relu, tune, cache_home):
    candidates = [bench.kernel("a", 9), bench.kernel("b", 1)]
    tuner = bench.tuner(tune=tune)
    assert tuner.pick("fast", relu(), candidates) == (0, "preferred: tuning off")
    assert (bench.calls, tuner.seconds_spent, cache_home.exists()) == ([], 0, False)


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


# Agreement between runs.


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
    assert [m for m in caplog.messages if "not offered any more" in m] == [
        "kernel 'gone' is not offered any more for fast: relu(64 float32) -> (64 float32); "
        "threads 1, f32, host (are: a, b)"
    ]
    assert set(tuner.choices().values()) == {"b"}


@pytest.mark.parametrize(
    ("milliseconds", "calls"),
    [([1.2], 4), ([2.0, 1.5], 3), ([1.5], 2), ([2.0, 1.3, 1.2], 4)],
    ids=["close", "behind, and its calls differ", "behind, twice alike", "nearer in the second turn"],
)
def test_what_is_behind_has_fewer_turns_the_surer_that_is(bench, relu, milliseconds, calls):
    bench.tuner().pick("fast", relu(), [bench.kernel("best", 1), bench.kernel("other", *milliseconds)])
    assert sorted(bench.calls) == ["best"] * calls + ["other"] * calls


def test_what_takes_microseconds_is_not_tried(bench, relu, nothing_is_tiny, monkeypatch):
    monkeypatch.setattr(tuner_module, "TINY", nothing_is_tiny)
    candidates = [bench.kernel("preferred", 20), bench.kernel("quick", 10)]
    largest = nothing_is_tiny // 4 // 2 - 1
    tuner = bench.tuner()
    assert tuner.pick("fast", relu(largest), candidates) == (0, "not tried: tiny")
    assert bench.allocator.allocations == 0
    assert tuner.pick("fast", relu(largest + 1), candidates)[0] == 1


@pytest.mark.parametrize(("outputs", "is_tried"), [(4, False), (32, True)])
def test_nor_is_little_arithmetic_on_little_memory(bench, monkeypatch, outputs, is_tried):
    """0.3 million operations are little, 2.4 million are not."""
    monkeypatch.setattr(tuner_module, "SMALL", 256 * 2**10)
    shapes = (1, 16, 16, 16), (outputs, 16, 3, 3), (1, outputs, 16, 16)
    x, w, y = (TensorSpec(shape, "float32") for shape in shapes)
    attributes = dict(convolution().attributes) | {"groups": 1}
    request = Request(VOCABULARY["convolution"], (x, w, None), (y,), attributes, Place("machine"))
    kernels = [bench.kernel("usual", 20), bench.kernel("quick", 10)]
    assert bench.tuner(cache="off").pick("fast", request, kernels)[0] == is_tried


@pytest.mark.parametrize(
    ("samples", "inputs", "outputs", "is_tried"),
    [(64, 800, 500, False), (256, 800, 500, True), (1, 1024, 1024, True)],
    ids=["LeNet's", "of more samples", "beyond the caches"],
)
def test_nor_is_a_short_product_in_the_caches(bench, samples, inputs, outputs, is_tried):
    """The first of those counts then that have the least to reorder."""
    shapes = (samples, inputs), (outputs, inputs), (samples, outputs)
    x, w, y = (TensorSpec(shape, "float32") for shape in shapes)
    product, plain = VOCABULARY["inner_product"], Layout("plain")
    request = Request(product, (x, w, None), (y,), dict(product.attributes), Place("machine"))
    kernels = [
        bench.kernel("copies weights", 15, layouts=(plain, PLAIN_BF16, plain)),
        bench.kernel("usual", 20),
        bench.kernel("quick", 10),
    ]
    for operands in ((x, w, None), (x, w)):
        tuner = bench.tuner(cache="off")
        position, reason = tuner.pick("fast", replace(request, inputs=operands), kernels)
        assert position == (2 if is_tried else 1)
        assert reason.startswith("tried: 10 ms") if is_tried else reason == "not tried: tiny"
