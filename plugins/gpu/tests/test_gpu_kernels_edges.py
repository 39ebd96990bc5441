"""Our CUDA kernels with large shapes, absent outputs, shared memory, and values that are not finite; and
changes of layout."""

from __future__ import annotations

import itertools
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from agreement import WORDS, Values, make_request
from cuda_on_cpu import NO_COMPILER, EmulatedDriver, compiler
from fused_words import FUSED, composed, shapes, word
from hypothesis import example, given
from hypothesis import strategies as st
from kernels_on_cpu import (
    GPU,
    ORDERS,
    TOLERANCE,
    Guarded,
    bound,
    check,
    request_of,
    rounded,
    run,
)
from served_cases import SERVED
from word_cases import CASES

from demitasse import PLAIN, DataError, Layout, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_caffe.operations import OPERATIONS as CAFFE_WORDS
from demitasse_gpu.array import empty
from demitasse_gpu.device import Device
from demitasse_gpu.kernels import FACTORIES, candidates
from demitasse_gpu.kernels.launches import divisor
from demitasse_gpu.kernels.layouts import NHWC, NHWC_BF16, PLAIN_BF16
from demitasse_onnx.operations import OPERATIONS as ONNX_WORDS
from demitasse_training.across_workers import OPERATIONS as WHOLE_BATCH
from demitasse_training.folding import FOLD

pytestmark = pytest.mark.skipif(compiler() is None, reason=NO_COMPILER)

random = np.random.default_rng(3)


def real(*shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def device() -> Device:
    return Device(EmulatedDriver())


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**31 - 1))
@example(1, 2**31 - 1)
@example(2**31 - 1, 2**31 - 1)
@example(2**31 - 1, 2**31 - 2)
@example(3, 2**31 - 1)
def test_divisors_divide(by: int, n: int) -> None:
    told, multiplier, shift = divisor(by)
    assert (told, multiplier < 2**32) == (by, True)
    high = n * multiplier >> 32
    assert n + high < 2**32, "the sum is of 32 bits"
    assert (n + high) >> shift == n // by


SUMS = [name for name in FUSED if "norm" in name] + ["sum_relu_backward"]


def test_every_word_of_the_core_is_served_and_the_fused_ones() -> None:
    """The fused ones are a word with a ReLU behind it, sums behind normalisations, and a ReLU's gradient
    behind sums. A plan gets sums behind convolutions as separate operations."""
    words = {word.name for word in VOCABULARY.values() if not word.view}
    rectified = {name for name, parts in FUSED.items() if parts[1:] == ("relu",)}
    assert rectified == {"convolution_relu", "inner_product_relu", "scale_relu", "sum_relu"}
    assert words | rectified | {*SUMS} <= set(FACTORIES)
    others = (*CAFFE_WORDS, *ONNX_WORDS, *WHOLE_BATCH, FOLD)
    assert set(FACTORIES) <= words | {*FUSED} | {word.name for word in others}


def test_nothing_is_offered_for_another_place() -> None:
    request = make_request("relu", [real(2, 3)], {}, "float32")
    assert not list(candidates(request))


LARGE: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "batch_norm": (
        [
            real(9, 72, 12, 11) * 3 + 100,
            np.zeros(72, "f4"),
            np.ones(72, "f4"),
            np.ones(1, "f4"),
            None,
            None,
        ],
        {"keep": 0.5, "epsilon": 0.01},
    ),
    "batch_norm_backward": (
        [real(9, 72, 12, 11), real(9, 72, 12, 11), None, None, real(72) * 0.1, np.ones(72, "f4")],
        {},
    ),
    "scale_backward": ([real(5, 40, 30, 21), real(5, 40, 30, 21), real(40)], {"axis": 1}),
    "convolution": ([real(3, 12, 17, 19), real(70, 12, 3, 3), real(70)], {"pad": (1, 1)}),
    "convolution_backward_data": (
        [real(3, 70, 17, 19), real(70, 12, 3, 3)],
        {"pad": (1, 1), "shape": (3, 12, 17, 19)},
    ),
    "convolution_backward_weights": (
        [real(5, 70, 17, 19), real(5, 12, 17, 19)],
        {"pad": (1, 1), "shape": (70, 12, 3, 3)},
    ),
    "inner_product": ([real(70, 130), real(150, 130), real(150)], {}),
    "inner_product_backward_weights": ([real(130, 70), real(130, 150)], {"shape": (70, 150)}),
    "softmax": ([real(3, 1500)], {"axis": 1}),
    "softmax_loss": ([real(300, 200), random.integers(0, 200, 300)], {"axis": 1}),
    "pooling_max": ([real(2, 16, 40, 37)], {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 0)}),
    "pooling_average": ([real(2, 16, 40, 37)], {"kernel": (3, 3), "stride": (2, 2)}),
    "lrn_across_channels": ([real(2, 32, 9, 9)], {"size": 5}),
    "lrn_across_channels_backward": (
        [real(2, 32, 9, 9), real(2, 32, 9, 9), real(2, 32, 9, 9), real(2, 32, 9, 9) ** 2 + 0.5],
        {"size": 5, "alpha": 0.5},
    ),
    "relu": ([real(3, 50_001)], {}),
    "sum": ([real(3, 40, 41) for _ in range(6)], {"coefficients": ()}),
    "concat": ([real(2, 8, 30, 31), real(2, 16, 30, 31)], {"axis": 1}),
    "dropout": (
        [real(3, 24, 20, 20), *(np.array([n], np.uint64) for n in (2**33 + 5, 7))],
        {"ratio": 0.4, "seed": 5, "stream": 2},
    ),
}


@pytest.mark.parametrize("order", ORDERS, ids=["planes", "innermost"])
@pytest.mark.parametrize("name", sorted(LARGE))
def test_large_ones_agree_with_reference(device: Device, name: str, order: tuple[int, ...]) -> None:
    """More than a block, a tile or a slab takes, and channels in packs."""
    inputs, attributes = LARGE[name]
    check(device, name, inputs, attributes, "float32", order, within=1e-4)


@pytest.mark.parametrize("name", [each for each in sorted(LARGE) if "product" in each or "conv" in each])
def test_products_of_more_columns_than_a_grid_has_blocks_for_agree_too(
    device: Device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In reality four million, as for an inner product over a whole photograph; here 64."""
    monkeypatch.setattr("demitasse_gpu.kernels.products._MOST_BLOCKS", 1)
    inputs, attributes = LARGE[name]
    check(device, name, inputs, attributes, "float32", within=1e-4)


def test_sums_are_the_same_bits_on_devices_of_any_size() -> None:
    """The order of additions depends on the shapes, not on the number of multiprocessors."""
    devices = [Device(EmulatedDriver(multiprocessors=count)) for count in (1, 132)]
    for name, order in itertools.product(sorted(LARGE), ORDERS):
        inputs, attributes = LARGE[name]
        request = request_of(name, inputs, attributes, "float32", order)
        (candidate,) = candidates(request)
        one, other = (run(device, candidate, request, inputs) for device in devices)
        for ours, theirs in zip(one, other, strict=True):
            assert (ours is None and theirs is None) or np.array_equal(ours, theirs), name


ABSENT = [
    ("batch_norm", (1, 2)),
    ("batch_norm_backward", (1, 2)),
    ("batch_norm_inference_backward", (0,)),
    ("batch_norm_inference_backward", (1, 2)),
    ("convolution_backward_weights", (1,)),
    ("dropout", (1,)),
    ("inner_product_backward_weights", (1,)),
    ("lrn_across_channels", (1,)),
    ("lrn_within_channel", (1,)),
    ("accuracy", (1,)),
    ("maximum", (1,)),
    ("parametric_relu_backward", (0,)),
    ("parametric_relu_backward", (1,)),
    ("pooling_max", (1,)),
    ("product_backward", (0,)),
    ("scale_backward", (1,)),
    ("scale_backward", (0,)),
    ("softmax_loss", (1,)),
    ("standardize", (1,)),
    ("sum_backward", (0,)),
    ("concat_backward", (0,)),
]


class Fixed(Values):
    """Extents and moderate numbers without hypothesis."""

    def __init__(self) -> None:
        self.dtype, self.random = "float32", np.random.default_rng(4)
        self._sizes = Random(4)

    def number(self, low: int, high: int) -> int:
        return self._sizes.randint(low, high)

    def one_of(self, *choices: Any) -> Any:
        return self._sizes.choice(choices)


@pytest.mark.parametrize(("name", "without"), ABSENT)
def test_outputs_that_nobody_wants_are_left_out(
    device: Device, name: str, without: tuple[int, ...]
) -> None:
    inputs, attributes = {**SERVED, **CASES}[name](Fixed())
    check(device, name, inputs, attributes, "float32", NHWC.order, without=without)


def test_results_may_take_the_memory_of_what_they_are_made_of(device: Device) -> None:
    """Wherever an operation allows it and the kernel does not exclude it."""
    tried = 0
    for name, case in {**SERVED, **CASES}.items():
        operation = WORDS[name]
        for output, source in operation.aliases:
            inputs, attributes = case(Fixed())
            request = request_of(name, inputs, attributes, "float32")
            (candidate,) = candidates(request)
            at = [o.name for o in operation.inputs].index(source)
            to = [o.name for o in operation.outputs].index(output)
            layouts = (
                (candidate.input_layouts or (PLAIN,) * len(inputs))[at],
                (candidate.output_layouts or (PLAIN,) * len(request.outputs))[to],
            )
            if not candidate.in_place or layouts[0] != layouts[1]:
                continue
            apart = run(device, candidate, request, inputs)[len(inputs) + to]
            together = in_place(device, candidate, request, inputs, at, to)
            assert np.array_equal(apart, together), (name, output, source)
            tried += 1
    assert tried > 30


def in_place(
    device: Device, candidate: Any, request: Request, inputs: list[Any], at: int, to: int
) -> Any:
    """Return an output in the memory of input number ``at``."""

    def bind(given: Any, made: Any, workspace: Any) -> Any:
        return candidate.bind(
            given, [given[at] if i == to else a for i, a in enumerate(made)], workspace
        )

    return run(device, replace(candidate, bind=bind), request, inputs)[at]


ROW = np.array([[1.0, np.nan, -1.0, np.inf, -np.inf, 0.0]], np.float32)


def test_what_is_not_a_number_stays_so(device: Device) -> None:
    for name, attributes in (
        ("relu", {"negative_slope": 0.1}),
        ("leaky_relu", {"negative_slope": 0.1}),
        ("sum", {"coefficients": ()}),
        ("absolute", {}),
        ("clip", {"least": -0.5, "most": 0.5}),
    ):
        check(device, name, [ROW], attributes, "float32")
    image = ROW.reshape(1, 1, 2, 3).copy()
    windows = {"kernel": (1, 2), "stride": (1, 1)}
    for order in ORDERS:
        check(device, "pooling_max", [image], windows, "float32", order)


def test_a_label_that_is_no_class_makes_the_loss_no_number_and_is_named(device: Device) -> None:
    """A step does not check labels; the search for the error calls the work alone."""
    for name, wrong in itertools.product(("softmax_loss", "hinge_loss"), (7, -1, 0.5, np.nan)):
        attributes = {"ignore_label": None} if name == "softmax_loss" else {"norm": "L1"}
        inputs = [real(3, 5), np.array([1, wrong, 2], np.float32)]
        request = request_of(name, inputs, attributes, "float32")
        (candidate,) = candidates(request)
        with pytest.raises(DataError, match=rf"label {wrong:g} of sample 1 of the batch is not a class"):
            run(device, candidate, request, inputs)
        given, room = bound(device, candidate, inputs)
        loss = empty(device, (), "float32")
        work: Any = candidate.bind(given, [loss, None][: len(request.outputs)], room)
        work.join([work])()
        assert np.isnan(np.asarray(loss))


def test_a_label_that_is_ignored_is_none_that_is_wrong(device: Device) -> None:
    inputs = [real(3, 5), np.array([1, 255, 9], np.float32)]
    request = request_of("softmax_loss", inputs, {"ignore_label": 255}, "float32")
    (candidate,) = candidates(request)
    with pytest.raises(DataError, match=r"label 9 of sample 2 .* from 0 to 4, or 255, which is ignored"):
        run(device, candidate, request, inputs)


ORDERED = [
    PLAIN,
    NHWC,
    PLAIN_BF16,
    NHWC_BF16,
    Layout("CHWN", (1, 2, 3, 0)),
    Layout("NHCW", (0, 2, 1, 3)),
]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 40, 1, 37), (1, 70, 33, 2)])
def test_values_are_moved_between_any_two_layouts(device: Device, shape: tuple[int, ...]) -> None:
    x = real(*shape)
    for source, target in itertools.product(ORDERED, ORDERED):
        check_reorder(device, x, source, target)


def test_whole_numbers_are_moved_too(device: Device) -> None:
    places = random.integers(0, 2**16, (2, 3, 4, 5)).astype(np.int32)
    short, short_nhwc = (
        Layout("uint16", stored="uint16"),
        Layout("NHWC uint16", (0, 2, 3, 1), stored="uint16"),
    )
    for source, target in itertools.product((PLAIN, NHWC, short, short_nhwc), repeat=2):
        check_reorder(device, places, source, target)
    for kind in ("uint8", "int64", "float64"):
        check_reorder(device, places.astype(kind), PLAIN, NHWC)


@pytest.mark.parametrize("order", ORDERS, ids=["planes", "innermost"])
@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_pieces_are_joined_and_cut_eight_to_a_launch(dtype: str, order: tuple[int, ...]) -> None:
    pieces = [random.normal(size=(2, 3 * n % 16 + 1, 5, 6)).astype("f4") for n in range(10)]
    whole, shapes = np.concatenate(pieces, 1), tuple(piece.shape for piece in pieces)
    driver: Any = EmulatedDriver()
    check(Device(driver), "concat", pieces, {"axis": 1}, dtype, order)
    assert driver.launches == {"copy_pieces": 2}
    given = {"axis": 1, "shapes": shapes}
    check(Device(driver), "concat_backward", [whole], given, dtype, order, without=(3, 4))
    assert driver.launches == {"copy_pieces": 3}


def test_pieces_without_elements_take_no_launch() -> None:
    driver: Any = EmulatedDriver()
    for rows in ((0, 0), (2, 0, 3)):
        pieces = [real(n, 3, 4, 5) for n in rows]
        check(Device(driver), "concat", pieces, {"axis": 0}, "float32", ())
        given = {"axis": 0, "shapes": tuple(piece.shape for piece in pieces)}
        check(Device(driver), "concat_backward", [np.concatenate(pieces)], given, "float32", ())
    assert driver.launches == {"copy_pieces": 2}


def check_reorder(device: Device, x: Any, source: Layout, target: Layout) -> None:
    spec = TensorSpec(x.shape, x.dtype.name)
    ends = (replace(spec, layout=source),), (replace(spec, layout=target),)
    request = Request(WORDS["reorder"], *ends, {}, GPU)
    (candidate,) = candidates(request)
    given = Guarded(device, ends[0][0], source.pack(x))
    made = Guarded(device, ends[1][0])
    candidate.bind([given.array], [made.array], None)()
    assert made.intact
    lying = target.pack(np.ascontiguousarray(source.unpack(source.pack(x), x.shape)))
    assert np.array_equal(np.asarray(made.array), lying), (source, target)


def test_memory_that_is_not_aligned_is_read_element_by_element(device: Device) -> None:
    """A slice of flat memory may begin anywhere."""
    flat = Guarded(device, TensorSpec((203,), "float32"), values := real(203))
    out = Guarded(device, TensorSpec((203,), "float32"), real(203))
    request = request_of("relu", [values[1:202]], {"negative_slope": 0.0}, "float32")
    (candidate,) = candidates(request)
    candidate.bind([flat.array[1:202]], [out.array[2:203]], None)()
    assert np.array_equal(np.asarray(out.array)[2:203], np.maximum(values[1:202], 0))


def fused_case(name: str, terms: int, learned: bool, shape: tuple[int, ...]) -> list[Any]:
    channels = shape[1]
    if name == "sum_relu_backward":
        return [real(*shape) for _ in range(terms + 1)]
    kept = [real(channels), np.abs(real(channels)) + 0.5, np.full(1, 1.5, "f4")]
    w_b = [real(channels), real(channels)] if learned else [None, None]
    return [real(*shape), *kept, *w_b, real(*shape)]


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("order", ORDERS, ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("shape", [(3, 8, 5, 4), (2, 7, 3, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("name", SUMS)
def test_sums_behind_normalisations_and_gradients_behind_sums(
    device: Device, name: str, shape: tuple[int, ...], order: tuple[int, ...], dtype: str
) -> None:
    """As the reference computes them one after the other, in float64."""
    operation = word(name)
    attributes = dict(operation.attributes)
    for terms, learned in ((1, False), (2, True), (5, True)):
        inputs = fused_case(name, terms, learned, shape)
        layout = Layout("NHWC", order) if order else PLAIN
        specs = tuple(
            None if x is None else TensorSpec(x.shape, "float32", layout if x.ndim == 4 else PLAIN)
            for x in inputs
        )
        outputs = [
            TensorSpec(s, "float32") for s in operation.shapes(shapes(operation, inputs), attributes)
        ]
        about = attributes, GPU, "bf16" if dtype == "bf16" else "f32"
        request = Request(operation, specs, tuple(outputs), *about)
        (candidate,) = candidates(request)
        given = rounded(candidate, inputs)
        found = run(device, candidate, request, given)
        updated = [i for i, operand in enumerate(operation.inputs) if operand.updated]
        ours = [found[i] for i in updated] + found[len(inputs) :]
        for one, other in zip(ours, composed(name, given, attributes), strict=True):
            scale = max(1.0, float(np.abs(other).max()))
            within = TOLERANCE[dtype]
            np.testing.assert_allclose(one, other, rtol=within, atol=2 * within * scale)
