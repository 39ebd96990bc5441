"""What a choice costs others: the time for reordering operands for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import demitasse
from demitasse import Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_tuning.trial import COPY, reorder_seconds

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = Layout("NHWC bf16", (0, 2, 3, 1), stored="bfloat16")
PLAIN_BF16 = Layout("bf16", stored="bfloat16")
IMAGES = 8 * 16 * 32 * 32 * 4


def seconds(request, layouts=(), outputs=()):
    return reorder_seconds(request, demitasse.Candidate("any", lambda *a: None, layouts, outputs))


def test_an_input_that_lies_otherwise_costs_its_bytes_twice(convolution):
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


def test_a_reorder_decides_between_kernels(bench, convolution):
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


def test_small_operands_and_results_cost_nothing_but_gradients_of_parameters_do(convolution):
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
