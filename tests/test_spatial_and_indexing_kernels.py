"""Caffe's words for windows, parts and rows: their gradients are slopes, and the cpu plugin's kernels
give what the reference's give, in every layout and precision that they are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from agreement import hook
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import PLAIN, Candidate, DataError, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY, extend
from demitasse_caffe.operations import indexing, spatial
from demitasse_caffe.operations import regions as of_regions

OPERATIONS = (*indexing.OPERATIONS, *of_regions.OPERATIONS, *spatial.OPERATIONS)
WORDS = extend(VOCABULARY, OPERATIONS, "caffe")
NHWC = Layout("NHWC", (0, 2, 3, 1))
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
Case = tuple[list[Any], dict[str, Any]]


class Draw:
    """A case's numbers: sizes by hypothesis, contents from a seed that it chose."""

    def __init__(self, data: Any, dtype: str) -> None:
        self.data, self.dtype = data, dtype
        self.random = np.random.default_rng(self.number(0, 2**32))

    def number(self, low: int, high: int) -> int:
        return int(self.data.draw(st.integers(low, high)))

    def one_of(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def real(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape).astype(self.dtype)

    def positive(self, *shape: int) -> np.ndarray:
        return self.random.uniform(0.5, 2, shape).astype(self.dtype)

    def shape(self, least: int = 1) -> tuple[int, ...]:
        return tuple(self.number(1, 6) for _ in range(self.number(least, 5)))

    def index(self, rows: int, *shape: int) -> np.ndarray:
        return self.random.integers(0, rows, shape).astype(self.one_of(self.dtype, "int32"))


def crop(d: Draw) -> Case:
    x = d.real(*d.shape())
    extent = tuple(d.number(1, n) for n in x.shape)
    offset = tuple(d.number(0, n - e) for n, e in zip(x.shape, extent, strict=True))
    return [x], {"offset": offset, "extent": extent}


def cut(d: Draw) -> Case:
    shape = d.shape()
    axis = d.number(0, len(shape) - 1)
    pieces = tuple((*shape[:axis], d.number(1, 4), *shape[axis + 1 :]) for _ in range(d.number(1, 4)))
    x = d.real(*shape[:axis], sum(piece[axis] for piece in pieces), *shape[axis + 1 :])
    return [x], {"axis": axis, "shapes": pieces}


def tile(d: Draw) -> Case:
    x = d.real(*d.shape())
    return [x], {"axis": d.number(0, x.ndim - 1), "tiles": d.number(1, 5)}


def gather(d: Draw) -> Case:
    x = d.real(*d.shape())
    return [x, d.index(len(x), *d.one_of((7,), (2, 3), (4, 1, 2)))], {"source": "here"}


def compress(d: Draw) -> Case:
    x = d.real(*d.shape())
    shape = (len(x), *d.one_of((), (1,), (1, 1)))
    return [x, d.index(2, *shape) * d.one_of(0, 1, 3)], {}


def regions(d: Draw) -> Case:
    """Some reach beyond the planes, some have their corners in the wrong order. No two elements are so
    close that a small change of one would move a maximum."""
    shape = (d.number(1, 3), d.number(1, 3), d.number(1, 9), d.number(1, 9))
    places = d.random.permutation(math.prod(shape)).reshape(shape)
    x = (0.01 * (places - places.size / 2)).astype(d.dtype)
    count = d.number(1, 5)
    sample = d.random.integers(0, len(x), (count, 1))
    corners = d.random.uniform(-20, 60, (count, 4))
    rows = np.concatenate([sample, corners], 1).astype(d.dtype)
    size = (d.number(1, 4), d.number(1, 7))
    if d.one_of(True, False):
        rows = rows[:, :, None, None]
    return [x, rows], {"size": size, "scale": d.one_of(0.25, 1 / 16, 1.0), "source": "here"}


def unpooled(d: Draw) -> Case:
    """No two elements of a plane at one place: a gradient of the one that is overwritten would be 0."""
    x, size = d.real(d.number(1, 3), d.number(1, 4), d.number(1, 4), d.number(1, 4)), (d.number(4, 9), 4)
    places = [d.random.permutation(4 * size[0])[: x[0, 0].size] for _ in range(x.shape[0] * x.shape[1])]
    return [x, np.reshape(places, x.shape).astype(d.one_of(d.dtype, "int32"))], {"size": size}


def im2col(d: Draw) -> Case:
    rank = d.number(1, 3)
    numbers = {
        name: tuple(d.number(low, 3) for _ in range(rank))
        for name, low in (("kernel", 1), ("stride", 1), ("pad", 0), ("dilation", 1))
    }
    reaches = ((k - 1) * n + 1 for k, n in zip(numbers["kernel"], numbers["dilation"], strict=True))
    extents = [
        max(1, reach - 2 * p) + d.number(0, 5) for reach, p in zip(reaches, numbers["pad"], strict=True)
    ]
    return [d.real(d.number(1, 3), d.number(1, 3), *extents)], numbers


def pooled(d: Draw) -> Case:
    kernel = (d.number(1, 4), d.number(1, 4))
    extents = (k + d.number(0, 6) for k in kernel)
    x = d.positive(d.number(1, 3), d.number(1, 5), *extents)
    stride = (d.number(1, 4), d.number(1, 4))
    return [x], {"kernel": kernel, "stride": stride, "rounding": d.one_of("ceil", "floor")}


def pooled_by_chance(d: Draw) -> Case:
    (x,), attributes = pooled(d)
    x = x * d.random.integers(0, 2, x.shape).astype(d.dtype)  # as a ReLU leaves it
    counters = [np.array([d.number(0, 2**40)], np.uint64) for _ in range(2)]
    return [x, *counters], {**attributes, "seed": d.number(-(2**63), 2**63), "stream": d.number(0, 99)}


def convolution(d: Draw) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """In one to three dimensions; often with as many groups as channels."""
    rank, groups = d.one_of(1, 2, 2, 3), d.number(1, 20)
    inputs, outputs = d.one_of((groups, groups), (groups, 2 * groups), (3 * groups, 2 * groups))
    given: dict[str, Any] = {"groups": groups}
    for name, low in (("stride", 1), ("pad", 0), ("dilation", 1)):
        given[name] = tuple(d.number(low, 2) for _ in range(rank))
    kernel = [d.number(1, 5) for _ in range(rank)]
    pairs = zip(kernel, given["dilation"], strict=True)
    x = d.real(d.number(1, 3), inputs, *((k - 1) * n + 1 + d.number(0, 5) for k, n in pairs))
    return x, d.real(outputs, inputs // groups, *kernel), given


def _forward(d: Draw) -> Case:
    x, w, given = convolution(d)
    return [x, w, d.real(len(w))], given


def _backward_data(d: Draw) -> Case:
    x, w, given = convolution(d)
    (y,) = WORDS["convolution"].shapes({"x": x.shape, "w": w.shape, "b": None}, given)
    return [d.real(*y), w], {**given, "shape": x.shape}


def _backward_weights(d: Draw) -> Case:
    x, w, given = convolution(d)
    (y,) = WORDS["convolution"].shapes({"x": x.shape, "w": w.shape, "b": None}, given)
    return [d.real(*y), x], {**given, "shape": w.shape}


CONVOLUTIONS: dict[str, Callable[[Draw], Case]] = {
    "convolution": _forward,
    "convolution_backward_data": _backward_data,
    "convolution_backward_weights": _backward_weights,
}
FORWARD: dict[str, Callable[[Draw], Case]] = {
    "crop": crop,
    "slice": cut,
    "tile": tile,
    "gather": gather,
    "compress": compress,
    "im2col": im2col,
    "pooling_regions": regions,
    "pooling_stochastic": pooled_by_chance,
    "pooling_self_weighted": pooled,
    "unpooling": unpooled,
}


def request(
    name: str,
    inputs: list[Any],
    given: dict[str, Any],
    precision: str = "f32",
    by_channels: bool = False,
) -> Request:
    """What a plan would ask; images lie with their channels innermost where that is said."""
    word = WORDS[name]
    attributes = {**word.attributes, **{k: v for k, v in given.items() if k in word.attributes}}
    shapes = {o.name: x.shape for o, x in zip(word.inputs, inputs, strict=False)}
    if word.inputs[-1].variadic:
        shapes[word.inputs[-1].name] = [x.shape for x in inputs[len(word.inputs) - 1 :]]
    made = word.shapes(shapes, attributes)
    kinds = [operand.dtype or inputs[0].dtype.name for operand in word.outputs]
    kinds += kinds[-1:] * (len(made) - len(kinds))
    outputs = tuple(TensorSpec(tuple(s), kind) for s, kind in zip(made, kinds, strict=True))
    specs = tuple(
        TensorSpec(x.shape, x.dtype.name, NHWC if by_channels and x.ndim == 4 else PLAIN) for x in inputs
    )
    return Request(word, specs, outputs, attributes, Place("test", threads=2), precision)


def run(candidate: Candidate, asked: Request, inputs: list[Any]) -> list[np.ndarray]:
    """A candidate's outputs in logical order, of memory that nobody cleared."""
    taken = candidate.input_layouts or (PLAIN,) * len(inputs)
    given = candidate.output_layouts or (PLAIN,) * len(asked.outputs)
    packed = [layout.pack(x) for x, layout in zip(inputs, taken, strict=True)]
    specs = [replace(y, layout=layout) for y, layout in zip(asked.outputs, given, strict=True) if y]
    outputs = [np.full(spec.physical, 77, spec.array_type) for spec in specs]
    room = np.full(candidate.workspace, 255, np.uint8) if candidate.workspace else None
    candidate.bind(packed, outputs, room)()
    return [spec.layout.unpack(y, spec.shape) for spec, y in zip(specs, outputs, strict=True)]


def reference(name: str, inputs: list[Any], given: dict[str, Any]) -> list[np.ndarray]:
    asked = request(name, inputs, given)
    (candidate,) = hook("reference")(asked)
    return run(candidate, asked, inputs)


def rule(name: str, inputs: list[Any], given: dict[str, Any], random: Any) -> tuple[Any, ...]:
    """A word's gradient, as operation, operands and attributes, and what arrives at its outputs."""
    word = WORDS[name]
    outputs = reference(name, inputs, given)
    arriving = [random.standard_normal(y.shape).astype(inputs[0].dtype) for y in outputs]
    several = word.outputs[-1].variadic
    known: dict[str, list[np.ndarray]] = {o.name: [x] for o, x in zip(word.inputs, inputs, strict=True)}
    for i, operand in enumerate(word.outputs):
        known[operand.name] = outputs if several else [outputs[i]]
        known[f"d{operand.name}"] = arriving if several else [arriving[i]]
    (found,) = word.gradients
    operands = [array for operand in found.operands for array in known[operand]]
    return (
        found.operation,
        operands,
        {**given, "shape": inputs[0].shape},
        arriving if several else arriving[:1],
    )


def agree(name: str, inputs: list[Any], given: dict[str, Any], within: float) -> None:
    """In f32 or f64, however images lie; in bf16 the numbers given and made are rounded to it."""
    expected = reference(name, inputs, given)
    for by_channels in (False, True):
        asked = request(name, inputs, given, by_channels=by_channels)
        offered = list(hook("cpu")(asked))
        assert offered or left_to_the_reference(name, inputs, given)
        for candidate in offered:
            compare(run(candidate, asked, inputs), expected, within)
    if inputs[0].dtype == np.float32:
        rounded = Layout("bf16", stored="bfloat16")
        coarse = [rounded.unpack(rounded.pack(x), x.shape) if x.dtype.kind == "f" else x for x in inputs]
        expected = reference(name, coarse, given)
        for by_channels in (False, True):
            asked = request(name, coarse, given, "bf16", by_channels)
            for candidate in hook("cpu")(asked):
                compare(run(candidate, asked, coarse), expected, 1e-2)


def left_to_the_reference(name: str, inputs: list[Any], given: dict[str, Any]) -> bool:
    """Whether the reference's kernel is the only one: of float64 volumes, and of gradients of a volume's
    weights if along depth or height no window lies entirely within it, where oneDNN reads beyond it."""
    if inputs[0].ndim < 5:
        return False
    if name != "convolution_backward_weights":
        return bool(inputs[0].dtype == np.float64)
    places, extents, taps = inputs[0].shape[2:4], inputs[1].shape[2:4], given["shape"][2:4]
    axes = zip(places, extents, taps, given["stride"], given["pad"], given["dilation"], strict=False)
    inside = (
        any(0 <= n * stride - pad <= extent - (kernel - 1) * apart - 1 for n in range(place))
        for place, extent, kernel, stride, pad, apart in axes
    )
    return bool(inputs[0].dtype == np.float64) or not all(inside)


def compare(ours: list[np.ndarray], theirs: list[np.ndarray], within: float) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=within, atol=within * max(1.0, np.abs(b).max(initial=0)))


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("name", FORWARD)
@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cpu_agrees_with_reference(name: str, dtype: str, data: st.DataObject) -> None:
    draw = Draw(data, dtype)
    inputs, given = FORWARD[name](draw)
    agree(name, inputs, given, TOLERANCE[dtype])
    operation, operands, attributes, _ = rule(name, inputs, given, draw.random)
    agree(operation, operands, attributes, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", sorted(TOLERANCE))
@pytest.mark.parametrize("name", CONVOLUTIONS)
@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_convolutions_agree_in_any_number_of_dimensions(
    name: str, dtype: str, data: st.DataObject
) -> None:
    inputs, given = CONVOLUTIONS[name](Draw(data, dtype))
    agree(name, inputs, given, TOLERANCE[dtype])


@pytest.mark.parametrize("name", ["convolution_backward_data", "convolution_backward_weights"])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [((3, 3), (1, 1), (2, 2)), ((5, 4), (2, 1), (1, 1)), ((3, 3), (2, 2), (1, 2))],
)
def test_channels_by_themselves_have_loops_where_onednn_has_none(
    name: str, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> None:
    random = np.random.default_rng(2)
    given: dict[str, Any] = {"stride": stride, "pad": (1, 2), "dilation": dilation, "groups": 21}
    x, w = (random.standard_normal(s).astype(np.float32) for s in ((5, 21, 12, 11), (21, 1, *kernel)))
    (y,) = WORDS["convolution"].shapes({"x": x.shape, "w": w.shape, "b": None}, given)
    dy = random.standard_normal(y).astype(np.float32)
    operands, shape = ([dy, w], x.shape) if name.endswith("data") else ([dy, x], w.shape)
    agree(name, operands, {**given, "shape": shape}, 1e-5)
    offered = [c.kernel for c in hook("cpu")(request(name, operands, {**given, "shape": shape}, "bf16"))]
    assert all("dw" in kernel or "depthwise" in kernel for kernel in offered)


@pytest.mark.parametrize("name", [name for name in FORWARD if name != "pooling_stochastic"])
@settings(max_examples=examples(6), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_gradients_are_slopes(name: str, data: st.DataObject) -> None:
    draw = Draw(data, "float64")
    (x, *others), given = FORWARD[name](draw)
    operation, operands, attributes, arriving = rule(name, [x, *others], given, draw.random)
    (gradient,) = reference(operation, operands, attributes)
    for i in draw.random.permutation(x.size)[:8]:
        sides = []
        for change in (1e-5, -1e-5):
            moved = x.copy()
            moved.flat[i] += change
            made = reference(name, [moved, *others], given)
            sides.append(sum(float((dy * y).sum()) for dy, y in zip(arriving, made, strict=False)))
        slope = (sides[0] - sides[1]) / 2e-5
        assert gradient.flat[i] == pytest.approx(slope, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("wrong", [-1, 5, 2.5, math.nan, math.inf, -math.inf, 1e30])
def test_an_index_that_is_no_row_is_an_error(kernels: str, wrong: float) -> None:
    inputs = [np.ones((5, 2), np.float32), np.array([0, 4, wrong, 1], np.float32)]
    asked = request("gather", inputs, {"source": "net.prototxt:3: layer 'e' (Embed)"})
    (candidate,) = hook(kernels)(asked)
    message = rf"'e' \(Embed\): index {wrong:g} at place 2 is not a row .* from 0 to 4".replace(
        "+", r"\+"
    )
    with pytest.raises(DataError, match=message):
        run(candidate, asked, inputs)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize(("at", "wrong"), [(0, 2), (0, -1), (0, 0.5), (3, math.nan), (4, math.inf)])
def test_what_is_no_region_is_an_error(kernels: str, at: int, wrong: float) -> None:
    rows = np.float32([[0, 1, 1, 2, 2], [1, 0, 0, 3, 3]])
    rows[1, at] = wrong
    inputs = [np.ones((2, 3, 4, 4), np.float32), rows]
    asked = request("pooling_regions", inputs, {"size": (2, 2), "source": "net.prototxt:3: layer 'r'"})
    (candidate,) = hook(kernels)(asked)
    with pytest.raises(DataError, match=rf"layer 'r': region 1 is .*{wrong:g}.* a sample from 0 to 1"):
        run(candidate, asked, inputs)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("wrong", [-1, 12, 0.5, math.nan])
def test_what_is_no_place_is_an_error(kernels: str, wrong: float) -> None:
    places = np.float32([[[[0, 11], [wrong, 3]]]])
    inputs = [np.ones((1, 1, 2, 2), np.float32), places]
    asked = request("unpooling", inputs, {"size": (3, 4), "source": "net.prototxt:3: layer 'u'"})
    (candidate,) = hook(kernels)(asked)
    with pytest.raises(
        DataError, match=rf"layer 'u': {wrong:g} is not a place in 3 x 4 .* from 0 to 11"
    ):
        run(candidate, asked, inputs)


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_of_two_at_one_place_the_last_stays(kernels: str) -> None:
    inputs = [np.float32([[[[1, 2, 3]]]]), np.int32([[[[4, 0, 4]]]])]
    asked = request("unpooling", inputs, {"size": (2, 3)})
    (candidate,) = hook(kernels)(asked)
    assert run(candidate, asked, inputs)[0].ravel().tolist() == [2, 0, 0, 0, 3, 0]


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_stochastic_pooling_draws_in_proportion(kernels: str) -> None:
    """Of 40,000 windows of 1, 2, 3 and 0 a sixth, a third, a half and none; no sample like another,
    and the same again from the same numbers."""
    x = np.tile(np.array([[1, 2], [3, 0]], np.float32), (4, 2, 50, 100))
    counters = [np.array([9], np.uint64), np.array([2**31], np.uint64)]
    given = {"kernel": (2, 2), "stride": (2, 2), "seed": 5, "stream": 3}
    asked = request("pooling_stochastic", [x, *counters], given)
    (candidate,) = hook(kernels)(asked)
    y, choice = run(candidate, asked, [x, *counters])
    counts = [(y == value).mean() for value in (1, 2, 3, 0)]
    np.testing.assert_allclose(counts, [1 / 6, 1 / 3, 1 / 2, 0], atol=0.01)
    assert not np.array_equal(y[0], y[1])
    assert np.array_equal(
        np.take_along_axis(x.reshape(4, 2, -1), choice.reshape(4, 2, -1), 2).ravel(), y.ravel()
    )
    assert np.array_equal(run(candidate, asked, [x, *counters])[0], y)
    later = request("pooling_stochastic", [x, np.array([10], np.uint64), counters[1]], given)
    assert not np.array_equal(run(candidate, later, [x, np.array([10], np.uint64), counters[1]])[0], y)
    shifted = [x[:3], counters[0], np.array([2**31 + 1], np.uint64)]
    asked = request("pooling_stochastic", shifted, given)
    (candidate,) = hook(kernels)(asked)
    assert np.array_equal(run(candidate, asked, shifted)[0], y[1:])
