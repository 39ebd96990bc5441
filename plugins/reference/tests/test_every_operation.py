"""What holds for every operation of the vocabulary: it has a kernel, and its gradient is right."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from demitasse import PLAIN, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY, Operation
from demitasse_reference import plugin
from demitasse_reference.kernels import KERNELS

Apply = Callable[..., Any]
Case = tuple[list[Any], dict[str, Any]]

DIFFERENTIABLE = [name for name, operation in VOCABULARY.items() if operation.gradients]
COUNTERS = [np.array([3], np.uint64), np.array([40], np.uint64)]
RNG = np.random.default_rng(20)


def real(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def positive(*shape: int) -> np.ndarray:
    return RNG.uniform(0.5, 2, shape)


def apart(*shape: int) -> np.ndarray:
    """Return values a tenth apart from each other and from 0, so that no kink is near."""
    values = np.arange(1, np.prod(shape) + 1) / 10
    signed = RNG.permutation(values) * RNG.choice([-1.0, 1.0], len(values))
    return np.reshape(signed, shape)


def labels(*shape: int, classes: int) -> np.ndarray:
    return RNG.integers(0, classes, shape).astype(np.float64)


CASES: dict[str, list[Case]] = {
    "relu": [([apart(2, 3, 4)], {}), ([apart(5)], {"negative_slope": 0.1})],
    "dropout": [([real(4, 6), *COUNTERS], {"ratio": 0.3, "seed": 5, "stream": 2})],
    "softmax": [([real(3, 4)], {}), ([real(2, 3, 2)], {"axis": 2}), ([real(2, 3, 2, 2)], {})],
    "convolution": [
        ([real(2, 3, 5, 4), real(2, 3, 3, 2), real(2)], {}),
        (
            [real(2, 4, 6, 5), real(4, 2, 2, 3), real(4)],
            {"stride": (2, 1), "pad": (1, 2), "dilation": (2, 1), "groups": 2},
        ),
        ([real(1, 2, 6), real(3, 2, 3), None], {"stride": (2,), "pad": (1,), "dilation": (1,)}),
        (
            [real(1, 2, 3, 3, 3), real(2, 1, 2, 2, 2), real(2)],
            {"stride": (1, 2, 1), "pad": (0, 1, 1), "dilation": (1, 1, 2), "groups": 2},
        ),
    ],
    "convolution_backward_data": [
        (
            [real(2, 4, 3, 7), real(4, 2, 2, 3)],
            {
                "stride": (2, 1),
                "pad": (1, 2),
                "dilation": (2, 1),
                "groups": 2,
                "shape": (2, 4, 6, 5),
            },
        ),
    ],
    "batch_norm": [
        (
            [real(3, 2, 2, 2), real(2), positive(2), positive(1), None, None],
            {"keep": 0.9, "epsilon": 0.1},
        ),
        ([real(5, 3), real(3), positive(3), np.ones(1), None, None], {"averaged": True}),
        ([real(5, 3), real(3), positive(3), np.zeros(1), real(3), real(3)], {}),
        ([real(3, 2, 2, 2), real(2), positive(2), positive(1), real(2), real(2)], {"relu": True}),
        ([real(5, 3), real(3), positive(3), np.zeros(1), real(3), None], {"relu": True}),
    ],
    "batch_norm_inference": [
        ([real(2, 3, 2, 2), real(3), positive(3), positive(1), None, None], {"epsilon": 0.1}),
        ([real(4, 2), np.zeros(2), np.zeros(2), np.zeros(1), real(2), None], {"epsilon": 0.5}),
        ([real(2, 3, 2, 2), real(3), positive(3), positive(1), real(3), real(3)], {"relu": True}),
    ],
    "scale": [
        ([real(2, 3, 2, 2), real(3), real(3)], {}),
        ([real(2, 3, 2, 2), real(3, 2), None], {"axis": 1}),
        ([real(2, 3), real(2, 3), real(2, 3)], {"axis": 0}),
        ([real(2, 3), np.array(1.5), np.array(-0.5)], {}),
    ],
    "sum": [([real(2, 3), real(2, 3)], {}), ([real(4)] * 3, {"coefficients": (0.5, -2.0, 3.0)})],
    "concat": [([real(2, 3, 2), real(2, 1, 2)], {}), ([real(2, 3), real(4, 3)], {"axis": 0})],
    "inner_product": [
        ([real(3, 2, 2), real(5, 4), real(5)], {}),
        ([real(3, 4), real(4, 5), None], {"transpose": True}),
        ([real(2, 3, 4), real(5, 4), real(5)], {"axis": 2}),
    ],
    "softmax_loss": [
        ([real(4, 5), labels(4, classes=5)], {}),
        ([real(3, 5, 2), labels(3, 2, classes=5)], {"ignore_label": 1}),
        ([real(3, 5, 2), labels(3, 2, classes=5)], {"normalization": "batch_size"}),
        ([real(2, 3, 4), labels(2, 3, classes=4)], {"axis": 2, "normalization": "none"}),
        ([real(4, 3), labels(4, classes=3)], {"ignore_label": 0, "normalization": "full"}),
    ],
    "reshape": [([real(2, 6)], {"shape": (3, 4)})],
    "lrn_across_channels": [
        ([real(2, 7, 2, 2)], {"size": 5, "alpha": 0.7, "beta": 0.75, "k": 1.0}),
        ([real(1, 2, 3)], {"size": 3, "alpha": 0.3, "beta": 1.5, "k": 2.0}),
    ],
    "lrn_within_channel": [
        ([real(2, 2, 5, 4)], {"size": 3, "alpha": 0.7, "beta": 0.75, "k": 1.0}),
        ([real(1, 1, 3, 3)], {"size": 5, "alpha": 0.3, "beta": 1.5, "k": 2.0}),
    ],
    "pooling_max": [
        ([apart(2, 2, 5, 4)], {"kernel": (3, 2), "stride": (2, 1)}),
        ([apart(1, 2, 6, 5)], {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 2)}),
        ([apart(1, 2, 7)], {"kernel": (3,), "stride": (2,), "pad": (0,), "rounding": "floor"}),
    ],
    "pooling_average": [
        ([real(2, 2, 5, 4)], {"kernel": (3, 2), "stride": (2, 1)}),
        ([real(1, 2, 6, 5)], {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 2)}),
        ([real(1, 2, 7)], {"kernel": (3,), "stride": (2,), "pad": (1,), "rounding": "floor"}),
    ],
}


EVERY_CASE = [
    pytest.param(name, inputs, attributes, id=f"{name}-{i}")
    for name, cases in CASES.items()
    for i, (inputs, attributes) in enumerate(cases)
]
IN_PLACE = [case for case in EVERY_CASE if VOCABULARY[str(case.values[0])].aliases]
OPTIONAL = [
    case for case in EVERY_CASE if any(o.optional for o in VOCABULARY[str(case.values[0])].outputs)
]


@pytest.mark.parametrize("name", VOCABULARY)
def test_every_operation_has_a_kernel_for_plain_tensors(name: str) -> None:
    operation = VOCABULARY[name]
    inputs = (TensorSpec((2, 3), "float32"),) * len(operation.inputs)
    outputs = (TensorSpec((2, 3), "float32"),) * len(operation.outputs)
    place = Place("machine")
    (candidate,) = plugin.kernels(Request(operation, inputs, outputs, {}, place))
    assert {*candidate.input_layouts, *candidate.output_layouts} <= {PLAIN}
    assert candidate.kernel == f"numpy {name}"


def test_a_word_of_another_plugin_is_left_to_it() -> None:
    word = Operation("fold", "", (), (), lambda shapes, attributes: ())
    assert list(plugin.kernels(Request(word, (), (), {}, Place("machine")))) == []


@pytest.mark.parametrize("name", [name for name in KERNELS if name in VOCABULARY])
def test_kernels_take_operands_and_attributes_of_their_operation_only(name: str) -> None:
    operation = VOCABULARY[name]
    parameters = inspect.signature(KERNELS[name]).parameters.values()
    by_position = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    by_name = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert by_position == [operand.name for operand in operation.inputs]
    assert by_name <= set(operation.attributes)


def test_every_differentiable_operation_is_differentiated_here() -> None:
    assert set(CASES) == set(DIFFERENTIABLE)


@pytest.mark.parametrize(("name", "inputs", "attributes"), EVERY_CASE)
def test_gradients_are_those_of_central_differences(
    apply: Apply, name: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    """The objective is the sum of each output times some weights, which are thus its gradients."""
    operation = VOCABULARY[name]
    updated = sum(operand.updated for operand in operation.inputs)
    outputs = as_tuple(apply(name, *inputs, **attributes))[updated:]
    weights = {o.name: real(*y.shape) for o, y in zip(operation.outputs, outputs, strict=True)}
    known: dict[str, Any] = {f"d{output}": dy for output, dy in weights.items()}
    known |= {o.name: x for o, x in zip(operation.inputs, inputs, strict=False)}
    known |= {o.name: y for o, y in zip(operation.outputs, outputs, strict=True)}
    for rule in operation.gradients:

        def objective(changed: list[Any], used: tuple[str, ...] = rule.operands) -> float:
            results = as_tuple(apply(name, *changed, **attributes))[updated:]
            named = zip((o.name for o in operation.outputs), results, strict=True)
            return float(sum((weights[o] * y).sum() for o, y in named if f"d{o}" in used))

        positions = [
            i
            for i in range(len(inputs))
            if operation.inputs[min(i, len(operation.inputs) - 1)].name in rule.of
        ]
        given = dict(operation.attributes) | attributes
        given["shape"] = inputs[positions[0]].shape
        given["shapes"] = tuple(inputs[i].shape for i in positions if inputs[i] is not None)
        backward = VOCABULARY[rule.operation]
        declared = backward.attributes
        operands = [known[operand] for operand in rule.operands]
        if not backward.inputs[-1].variadic:
            operands += [None] * (len(backward.inputs) - len(operands))
        given = {key: value for key, value in given.items() if key in declared}
        gradients = as_tuple(apply(rule.operation, *operands, **given))
        in_place = as_tuple(apply(rule.operation, *operands, in_place=True, **given))
        for i, gradient, same in zip(positions, gradients, in_place, strict=False):
            assert np.array_equal(gradient, same)
            if inputs[i] is not None:
                expected = central_differences(objective, inputs, i)
                assert gradient.shape == expected.shape
                error = np.abs(gradient - expected).max() / np.abs(expected).max()
                assert error < 1e-6, f"input {i}"


def as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def central_differences(
    objective: Callable[[list[Any]], float], inputs: list[Any], position: int, step: float = 1e-5
) -> np.ndarray:
    expected = np.zeros(inputs[position].shape)
    for index in np.ndindex(expected.shape):
        sides = []
        for change in (step, -step):
            changed: list[Any] = [None if x is None else x.copy() for x in inputs]
            changed[position][index] += change
            sides.append(objective(changed))
        expected[index] = (sides[0] - sides[1]) / (2 * step)
    return expected


@pytest.mark.parametrize(("name", "inputs", "attributes"), EVERY_CASE)
def test_float32_results_are_the_rounded_float64_results(
    apply: Apply, name: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    single = [x.astype(np.float32) if x is not None and x.dtype.kind == "f" else x for x in inputs]
    double = [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in single]
    got = as_tuple(apply(name, *single, **attributes))
    exact = as_tuple(apply(name, *double, **attributes))
    for a, b in zip(got, exact, strict=True):
        assert a.dtype == (np.float32 if b.dtype.kind == "f" else b.dtype)
        assert np.array_equal(a, b.astype(a.dtype))


@pytest.mark.parametrize(("name", "inputs", "attributes"), IN_PLACE)
def test_results_in_place_are_the_same(
    apply: Apply, name: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    first, second = (
        as_tuple(apply(name, *inputs, in_place=shared, **attributes)) for shared in (False, True)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("name", "inputs", "attributes"), OPTIONAL)
def test_absent_outputs_are_not_needed(
    apply: Apply, name: str, inputs: list[Any], attributes: dict[str, Any]
) -> None:
    optional = [o.name for o in VOCABULARY[name].outputs if o.optional]
    whole = apply(name, *inputs, **attributes)
    without = apply(name, *inputs, absent=optional, **attributes)
    kept = len(whole) - len(optional)
    assert all(np.array_equal(a, b) for a, b in zip(without[:kept], whole[:kept], strict=True))
    assert without[kept:] == (None,) * len(optional)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (PLAIN, Layout("NHWC", (0, 2, 3, 1))),
        (Layout("NHWC", (0, 2, 3, 1)), PLAIN),
        (PLAIN, Layout("NCHW8c", blocks=((1, 8),))),
        (Layout("NCHW8c", blocks=((1, 8),)), Layout("RCNB", (2, 3, 1, 0))),
        (Layout("OIHW4i4o", blocks=((1, 4), (0, 4))), PLAIN),
        (PLAIN, PLAIN),
    ],
    ids=lambda layout: layout.name,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_reorder_goes_between_any_two_layouts(source: Layout, target: Layout, dtype: str) -> None:
    logical = RNG.integers(0, 200, (2, 11, 3, 5)).astype(dtype)
    x = TensorSpec(logical.shape, dtype, source)
    y = TensorSpec(logical.shape, dtype, target)
    request = Request(VOCABULARY["reorder"], (x,), (y,), {}, Place("machine"))
    (candidate,) = plugin.kernels(request)
    assert (candidate.input_layouts, candidate.output_layouts) == ((source,), (target,))
    out = np.full(y.physical, 99, dtype)
    candidate.bind([source.pack(logical)], [out], None)()
    assert np.array_equal(target.unpack(out, logical.shape), logical)
    assert out.sum() == logical.sum(), "padding is zero"
