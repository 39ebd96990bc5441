"""Candidates are tried on operands in the layouts that they request, with valid values."""

from __future__ import annotations

import numpy as np
import pytest

import demitasse
from demitasse import Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY

NHWC = Layout("NHWC", (0, 2, 3, 1))
NHWC_BF16 = Layout("NHWC bf16", (0, 2, 3, 1), stored="bfloat16")
PLAIN_BF16 = Layout("bf16", stored="bfloat16")


def test_operands_have_the_layouts_that_are_wanted_and_valid_values(bench, convolution):
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
