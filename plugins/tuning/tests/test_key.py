"""The key of a request says everything on which a trial depends; a label identifies a candidate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_tuning.key import labels, request_key

OPERATIONS = [VOCABULARY[name] for name in ("relu", "sum", "convolution")]
WORDS = st.sampled_from(["a", "b", "a b", "a, b", "a'", '"', "", "x=1", ";", "-", "f32"])
LAYOUTS = st.builds(
    Layout,
    st.just("any"),
    st.sampled_from([(), (0, 1), (1, 0)]),
    st.sampled_from([(), ((1, 8),), ((0, 1), (1, 8))]),
    st.sampled_from(["", "bfloat16", "float16"]),
)
SHAPES = st.lists(st.integers(0, 12), max_size=3).map(tuple)
SPECS = st.none() | st.builds(TensorSpec, SHAPES, st.sampled_from(["float32", "int32"]) | WORDS, LAYOUTS)
ROWS = st.lists(SPECS, max_size=3).map(tuple)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5, -0.0]) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(WORDS, inner, max_size=2)
    ),
    max_leaves=4,
)
REQUESTS = st.builds(
    Request,
    st.sampled_from(OPERATIONS),
    ROWS,
    ROWS,
    st.dictionaries(WORDS, VALUES, max_size=2),
    st.builds(Place, st.just("machine"), WORDS, st.integers(1, 3)),
    st.sampled_from(["f32", "bf16"]),
    st.booleans(),
)


def exact(value):
    """Return a value in which 1, 1.0, True, 0.0 and -0.0 differ, and mappings have no order."""
    if isinstance(value, dict):
        return "dict", frozenset((key, exact(item)) for key, item in value.items())
    if isinstance(value, tuple | list):
        return type(value).__name__, tuple(map(exact, value))
    return type(value).__name__, repr(value)


def meaning(plugin, request):
    operands = request.operation.name, request.inputs, request.outputs
    about = (*operands, request.precision, request.fixed)
    return plugin, about, request.place, exact(dict(request.attributes))


@given(WORDS, REQUESTS, WORDS, REQUESTS)
def test_requests_that_differ_never_share_a_key(plugin, request, other_plugin, other):
    same = meaning(plugin, request) == meaning(other_plugin, other)
    assert (request_key(plugin, request) == request_key(other_plugin, other)) is same


@given(REQUESTS, st.data())
def test_a_change_of_any_part_changes_the_key(request, data):
    part = data.draw(st.sampled_from(["inputs", "outputs", "attributes", "precision", "place", "fixed"]))
    other = replace(request, **{part: getattr(data.draw(REQUESTS), part)})
    same = meaning("p", request) == meaning("p", other)
    assert (request_key("p", request) == request_key("p", other)) is same


def test_a_key_reads_well():
    nhwc = Layout("NHWC", (0, 2, 3, 1), stored="bfloat16")
    x, w = TensorSpec((8, 3, 32, 32), "float32", nhwc), TensorSpec((16, 3, 3, 3), "float32")
    y = TensorSpec((8, 16, 32, 32), "float32", Layout("NCHW8c", blocks=((1, 8),)))
    attributes = {"stride": (1, 1), "kernel": (3, 3)}
    request = Request(
        VOCABULARY["convolution"], (x, w, None), (y,), attributes, Place("core", threads=2)
    )
    assert request_key("cpu", request) == (
        "cpu: convolution(8x3x32x32 float32 @0.2.3.1=bfloat16, 16x3x3x3 float32, -) -> "
        "(8x16x32x32 float32 /1:8) kernel=(3,3,) stride=(1,1,); threads 2, f32, host"
    )


def test_names_of_layouts_and_levels_and_the_order_of_attributes_do_not_count():
    def key(layout, level, **attributes):
        spec = TensorSpec((2, 2), "float32", layout)
        return request_key("p", Request(OPERATIONS[0], (spec,), (spec,), attributes, Place(level)))

    assert key(Layout("rows"), "core", a=1, b=2) == key(Layout("plain"), "machine", b=2, a=1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros((1, 4)), np.zeros((4, 1))),
        (np.zeros(2), [0.0, 0.0]),
        (np.float32(1), 1.0),
        (np.arange(3), np.arange(3)[::-1]),
        (complex(1, 2), "(1+2j)"),
    ],
)
def test_attributes_of_other_types_are_told_apart(one, other):
    spec = TensorSpec((2,), "float32")
    requests = [
        Request(OPERATIONS[0], (spec,), (spec,), {"value": v}, Place("machine")) for v in (one, other)
    ]
    assert request_key("p", requests[0]) != request_key("p", requests[1])
    assert request_key("p", requests[0]) == request_key("p", replace(requests[0]))


def test_candidates_are_labelled_by_kernel_and_where_these_agree_by_layouts():
    def offer(kernel, *layouts):
        return Candidate(kernel, lambda *arrays: None, layouts)

    nhwc = Layout("NHWC", (0, 2, 3, 1))
    assert labels([offer("direct", nhwc), offer("gemm")]) == ["direct", "gemm"]
    alike = [
        offer("direct", nhwc),
        offer("direct", Layout("plain")),
        offer("gemm"),
        offer("direct", nhwc),
    ]
    assert labels(alike) == ["direct [@0.2.3.1]", "direct [plain]", "gemm", "direct [@0.2.3.1] #2"]


@given(st.lists(st.tuples(st.sampled_from(["a", "a #2", "a []"]), st.booleans()), max_size=6))
def test_labels_never_repeat(offers):
    candidates = [
        Candidate(kernel, lambda *arrays: None, (Layout("plain"),) * plain) for kernel, plain in offers
    ]
    assert len(set(labels(candidates))) == len(candidates)
