"""Nothing is tried for simulated machines, with tuning off, and for kernels that take microseconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demitasse import Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_tuning import tuner as tuner_module

PLAIN_BF16 = Layout("bf16", stored="bfloat16")


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


def test_what_takes_microseconds_is_not_tried(bench, relu, nothing_is_tiny, monkeypatch):
    monkeypatch.setattr(tuner_module, "TINY", nothing_is_tiny)
    candidates = [bench.kernel("preferred", 20), bench.kernel("quick", 10)]
    largest = nothing_is_tiny // 4 // 2 - 1
    tuner = bench.tuner()
    assert tuner.pick("fast", relu(largest), candidates) == (0, "not tried: tiny")
    assert bench.allocator.allocations == 0
    assert tuner.pick("fast", relu(largest + 1), candidates)[0] == 1


@pytest.mark.parametrize(("outputs", "is_tried"), [(4, False), (32, True)])
def test_nor_is_little_arithmetic_on_little_memory(bench, convolution, monkeypatch, outputs, is_tried):
    """0.3 million operations count as few, 2.4 million do not."""
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
    """The choice is then the first of those that have the least to reorder."""
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
