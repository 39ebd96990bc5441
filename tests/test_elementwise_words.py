"""Functions of one element, learned slopes, and products and largest of several: words against formulas
in float64, and the cpu plugin's kernels against the reference's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from agreement import WORDS
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from word_results import PLUGINS, WITHIN, compute

from demitasse import PLAIN, Layout
from demitasse_caffe.operations import elementwise

NHWC = Layout("NHWC", (0, 2, 3, 1))
BLOCKED = Layout("NCHW8c", blocks=((1, 8),))
Formula = Callable[..., np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def powered(x: np.ndarray, power: float, scale: float, shift: float) -> np.ndarray:
    return (scale * x + shift) ** power


FUNCTIONS: dict[str, list[tuple[dict[str, float], Formula, Formula]]] = {
    "leaky_relu": [
        (
            {"negative_slope": s},
            lambda x, s=s: np.where(x > 0, x, s * x),
            lambda x, s=s: np.where(x > 0, 1, s),
        )
        for s in (-0.5, -2.0, 0.0, 0.25)
    ],
    "absolute": [({}, np.abs, np.sign)],
    "softplus": [({}, lambda x: np.log1p(np.exp(x)), sigmoid)],
    "clip": [
        (
            {"least": -0.75, "most": 0.5},
            lambda x: np.clip(x, -0.75, 0.5),
            lambda x: ((x >= -0.75) & (x <= 0.5)) * 1.0,
        )
    ],
    "elu": [
        (
            {"alpha": a},
            lambda x, a=a: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
            lambda x, a=a: np.where(x > 0, 1, a * np.exp(np.minimum(x, 0))),
        )
        for a in (1.0, 0.3, 0.0)
    ],
    "exponential": [
        (
            {"scale": a, "shift": b},
            lambda x, a=a, b=b: np.exp(a * x + b),
            lambda x, a=a, b=b: a * np.exp(a * x + b),
        )
        for a, b in ((1.0, 0.0), (-0.5, 1.5), (np.log(10.0), -1.0))
    ],
    "logarithm": [
        (
            {"factor": c, "scale": a, "shift": b},
            lambda x, c=c, a=a, b=b: c * np.log(a * x + b),
            lambda x, c=c, a=a, b=b: c * a / (a * x + b),
        )
        for c, a, b in ((1.0, 1.0, 9.0), (1 / np.log(2.0), 0.5, 20.0))
    ],
    "power": [
        (
            {"power": p, "scale": a, "shift": b},
            lambda x, p=p, a=a, b=b: powered(x, p, a, b),
            lambda x, p=p, a=a, b=b: p * a * powered(x, p - 1, a, b) if p * a else 0 * x,
        )
        for p, a, b in (
            *((0.0, 1.0, 0.5), (1.0, -2.0, 0.5), (2.0, 0.5, 0.25), (3.0, -1.0, 0.5), (-2.0, 1.0, 9.0)),
            *((0.5, 1.0, 9.0), (-0.75, 0.5, 9.0), (2.5, 0.0, 3.0), (1.0, 0.5, 0.0)),
            *((-0.5, 0.5, 9.0), (1.5, 1.0, 9.0), (3.5, 0.5, 9.0), (-3.5, 1.0, 9.0), (-1.0, -1.0, 9.0)),
        )
    ],
    "sigmoid": [({}, sigmoid, lambda x: sigmoid(x) * (1 - sigmoid(x)))],
    "swish": [
        (
            {"beta": b},
            lambda x, b=b: x * sigmoid(b * x),
            lambda x, b=b: sigmoid(b * x) + b * x * sigmoid(b * x) * (1 - sigmoid(b * x)),
        )
        for b in (1.0, -0.5, 3.0)
    ],
    "tanh": [({}, np.tanh, lambda x: 1 - np.tanh(x) ** 2)],
    "greater": [({"threshold": 0.3}, lambda x: (x > 0.3) * 1.0, lambda x: 0 * x)],
}
EVERY = [
    pytest.param(name, *row, id=f"{name} {row[0]}" if row[0] else name)
    for name, rows in FUNCTIONS.items()
    for row in rows
]


def test_every_function_of_one_element_has_a_formula() -> None:
    ours = {word.name for word in elementwise.OPERATIONS if not word.name.endswith("_backward")}
    assert set(FUNCTIONS) == ours - {"parametric_relu", "product", "maximum"}


@pytest.mark.parametrize("dtype", sorted(WITHIN))
@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize(("name", "attributes", "formula", "slope"), EVERY)
def test_functions_and_gradients_are_their_formulas(
    plugin: str, dtype: str, name: str, attributes: dict[str, float], formula: Formula, slope: Formula
) -> None:
    random = np.random.default_rng(1)
    x, dy = ((2 * random.standard_normal((3, 50, 7, 11))).astype(dtype) for _ in range(2))
    exact = x.astype(np.float64)
    for in_place in (False, True):
        (y,) = compute(plugin, name, x, in_place=in_place, **attributes)
        np.testing.assert_allclose(y, formula(exact), rtol=WITHIN[dtype], atol=1e-7)
        for rule in WORDS[name].gradients:
            backward, read = rule.operation, {"x": x, "y": y}[rule.operands[1]]
            given = {k: v for k, v in attributes.items() if k in WORDS[backward].attributes}
            (dx,) = compute(plugin, backward, dy, read, in_place=in_place, **given)
            np.testing.assert_allclose(dx, dy * slope(exact), rtol=2 * WITHIN[dtype], atol=2e-6)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "greater"])
@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_cpu_agrees_in_any_shape_layout_and_precision(name: str, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple))
    attributes, *_ = data.draw(st.sampled_from(FUNCTIONS[name]))
    precision = data.draw(st.sampled_from(["f32", "bf16"]))
    layout = data.draw(st.sampled_from([PLAIN, NHWC, BLOCKED])) if len(shape) == 4 else PLAIN
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    bf16 = Layout("bf16", stored="bfloat16")
    # Numbers that bfloat16 has, so that only results are rounded.
    x, dy = (bf16.unpack(bf16.pack(random.standard_normal(shape)), shape) for _ in range(2))
    within = {"f32": 1e-5, "bf16": 2**-8}[precision]
    backward = WORDS[name].gradients[0].operation
    given = {k: v for k, v in attributes.items() if k in WORDS[backward].attributes}
    for word, inputs, numbers in ((name, [x], attributes), (backward, [dy, x], given)):
        (wanted,) = compute("reference", word, *inputs, **numbers)
        (got,) = compute("cpu", word, *inputs, layout=layout, precision=precision, **numbers)
        np.testing.assert_allclose(got, wanted, rtol=within, atol=1e-6)


@pytest.mark.parametrize("dtype", sorted(WITHIN))
@pytest.mark.parametrize("plugin", PLUGINS)
def test_extreme_arguments_give_what_the_functions_tend_to(plugin: str, dtype: str) -> None:
    def at(name: str, *x: float, **attributes: float) -> list[float]:
        with np.errstate(all="ignore"):
            (y,) = compute(plugin, name, np.array(x, dtype), **attributes)
        return y.tolist()

    inf, nan = np.inf, np.nan
    assert at("exponential", inf, -inf, 1e4, -1e4, 0) == [inf, 0, inf, 0, 1]
    assert at("logarithm", inf, 0, 1) == [inf, -inf, 0]
    assert at("sigmoid", inf, -inf, 1e4, -1e4, 0) == [1, 0, 1, 0, 0.5]
    assert at("sigmoid", 100, -100) == pytest.approx([1, np.exp(-100.0)], rel=1e-5, abs=1e-45)
    assert at("softplus", 1e4, -1e4, inf, -inf) == [1e4, 0, inf, 0]
    assert at("softplus", 60, -60) == pytest.approx([60, np.exp(-60.0)], rel=1e-5)
    assert at("swish", 1e4, -1e4, 0) == [1e4, 0, 0]
    assert at("tanh", inf, -inf, 50, -50, 0) == [1, -1, 1, -1, 0]
    assert at("tanh", 1e-6, -3e-4) == pytest.approx([1e-6, -3e-4], rel=1e-6)
    assert at("elu", inf, -inf, -1e4) == [inf, -1, -1]
    assert at("elu", -1e-6) == pytest.approx([-1e-6], rel=1e-5)
    assert at("power", 0, -3, inf, nan, power=0.0) == [1] * 4
    assert at("power", 0, -3, inf, nan, power=2.0, scale=0.0, shift=3.0) == [9] * 4
    assert at("power", 0, 0, power=-1.0)[0] == inf
    assert at("power", -2, -2, power=3.0) == pytest.approx([-8, -8], rel=1e-6)
    assert at("power", 1, scale=0.0, shift=1e200, power=2.0) == [inf]
    assert at("power", 1, scale=0.0, shift=-1e200, power=3.0) == [-inf]
    for name in FUNCTIONS:
        if name not in ("clip", "greater", "power"):
            assert np.isnan(at(name, nan)).all(), name
    for exponent in (0.5, -0.5, 1.5, -1.5, 3.5, -3.5):
        assert np.isnan(at("power", -2.0, power=exponent)).all()
        limits = [inf, 0] if exponent > 0 else [0, inf]
        assert at("power", inf, 0.0, power=exponent) == limits
    for name, x in (("logarithm", -1.0), ("power", -2.0)):
        assert np.isnan(at(name, x, **({"power": 0.5} if name == "power" else {}))).all()
    denormal = np.nextafter(np.array(0, dtype), np.array(1, dtype)) * 8
    assert at("logarithm", denormal) == pytest.approx([np.log(float(denormal))], rel=1e-6)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_gradients_of_extreme_arguments_are_numbers(plugin: str) -> None:
    one = np.ones(6, np.float32)
    x = np.array([100, -100, 1e4, -1e4, np.inf, -np.inf], np.float32)
    slopes = {"softplus": [1, 0, 1, 0, 1, 0], "clip": [0] * 6, "absolute": [1, -1, 1, -1, 1, -1]}
    for name, wanted in slopes.items():
        (dx,) = compute(plugin, f"{name}_backward", one, x)
        np.testing.assert_allclose(dx, wanted, atol=1e-30)
    (dx,) = compute(plugin, "swish_backward", one[:4], x[:4])
    np.testing.assert_allclose(dx, [1, 0, 1, 0], atol=1e-30)
    (dx,) = compute(plugin, "power_backward", one[:3], np.array([0, 1, -1], np.float32), power=3.0)
    np.testing.assert_allclose(dx, [0, 3, 3], rtol=1e-6)


def planes(w: np.ndarray, rank: int) -> np.ndarray:
    return w.reshape(-1, *[1] * (rank - 2)) if w.ndim else w


@pytest.mark.parametrize("plugin", PLUGINS)
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_learned_slopes_and_their_gradients_are_their_formulas(plugin: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=5).map(tuple))
    options: dict[str, Any] = {}
    if plugin == "cpu" and len(shape) == 4:
        options["layout"] = data.draw(st.sampled_from([PLAIN, NHWC, BLOCKED]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, dy = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    w = random.standard_normal(data.draw(st.sampled_from([(), shape[1:2]]))).astype(dtype)
    exact, dy64, w64 = (a.astype(np.float64) for a in (x, dy, w))
    factor = np.where(exact > 0, 1, planes(w64, x.ndim))
    (y,) = compute(plugin, "parametric_relu", x, w, **options)
    np.testing.assert_allclose(y, exact * factor, rtol=WITHIN[dtype])
    axes = (0, *range(2, x.ndim)) if w.ndim else tuple(range(x.ndim))
    wanted = [dy64 * factor, np.where(exact > 0, 0, dy64 * exact).sum(axes)]
    in_place = data.draw(st.booleans())
    absent = data.draw(st.sampled_from([(), (1,)] if in_place else [(), (0,), (1,)]))
    got = compute(
        plugin, "parametric_relu_backward", dy, x, w, in_place=in_place, absent=absent, **options
    )
    for i, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        assert (ours is None) == (i in absent)
        if ours is not None:
            np.testing.assert_allclose(ours, theirs, rtol=WITHIN[dtype], atol=WITHIN[dtype])


def test_slopes_agree_where_activations_are_stored_as_bfloat16() -> None:
    random = np.random.default_rng(2)
    x, dy = (random.integers(-64, 64, (4, 24, 9, 9)).astype(np.float32) / 32 for _ in range(2))
    for w in (random.standard_normal(24).astype(np.float32), np.full((), 0.25, np.float32)):
        for layout in (PLAIN, NHWC):
            for word, inputs in (("", [x, w]), ("_backward", [dy, x, w])):
                wanted = compute("reference", f"parametric_relu{word}", *inputs)
                got = compute("cpu", f"parametric_relu{word}", *inputs, layout=layout, precision="bf16")
                for ours, theirs in zip(got, wanted, strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("plugin", PLUGINS)
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_products_and_their_gradients_are_their_formulas(plugin: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple))
    count, by_division = data.draw(st.integers(2, 5)), data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    xs = [random.uniform(0.5, 2, shape).astype(dtype) for _ in range(count)]
    dy = random.standard_normal(shape).astype(dtype)
    for in_place in (False, True):
        (y,) = compute(plugin, "product", *xs, in_place=in_place)
        np.testing.assert_allclose(y, np.prod(np.float64(xs), 0), rtol=WITHIN[dtype])
    given = {"by_division": by_division, "shapes": (shape,) * count}
    absent = data.draw(st.sampled_from([(), (0,), (count - 1,)]))
    gradients = compute(plugin, "product_backward", dy, *xs, absent=absent, **given)
    for i, dx in enumerate(gradients):
        if i not in absent:
            others = np.prod(np.float64(xs[:i] + xs[i + 1 :]), 0)
            np.testing.assert_allclose(dx, dy * others, rtol=WITHIN[dtype])


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_gradient_of_a_product_with_a_zero_is_there_unless_divided(plugin: str) -> None:
    dy, a, b = np.ones(3, np.float32), np.array([0, 2, 3], np.float32), np.array([5, 0, 4], np.float32)
    shapes = ((3,), (3,))
    stable = compute(plugin, "product_backward", dy, a, b, shapes=shapes)
    assert [dx.tolist() for dx in stable] == [[5, 0, 4], [0, 2, 3]]
    divided = compute(plugin, "product_backward", dy, a, b, shapes=shapes, by_division=True)
    assert np.isnan(divided[0][0])
    assert np.isnan(divided[1][1])
    assert divided[0][2] == 4


@pytest.mark.parametrize("plugin", PLUGINS)
@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_of_equals_the_largest_is_the_one_that_caffe_takes(plugin: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple))
    count = data.draw(st.integers(2, 5))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    xs = [random.integers(-2, 3, shape).astype(dtype) for _ in range(count)]
    dy = random.standard_normal(shape).astype(dtype)
    y, argmax = compute(plugin, "maximum", *xs)
    gradients = compute(plugin, "maximum_backward", dy, argmax, shapes=(shape,) * count)
    again, nothing = compute(plugin, "maximum", *xs, in_place=count == 2, absent=[1])
    assert nothing is None
    assert np.array_equal(again, y)
    for index in np.ndindex(*shape):
        values = [float(x[index]) for x in xs]
        # Two are compared first, and the first has to be above the second to win.
        best = 0 if values[0] > values[1] else 1
        for i in range(2, count):
            best = i if values[i] > values[best] else best
        assert y[index] == values[best]
        assert argmax[index] == best
        assert [dx[index] for dx in gradients] == [dy[index] if i == best else 0 for i in range(count)]


@pytest.mark.parametrize("layout", [PLAIN, NHWC, BLOCKED])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_products_and_largest_agree_where_stored_as_bfloat16(count: int, layout: Layout) -> None:
    random = np.random.default_rng(3)
    shape = (3, 5, 6, 7)
    xs = [random.integers(-64, 64, shape).astype(np.float32) / 32 for _ in range(count)]
    dy = random.integers(-64, 64, shape).astype(np.float32) / 32
    given = {"shapes": (shape,) * count}
    (_, argmax) = compute("reference", "maximum", *xs)
    cases: list[tuple[str, list[np.ndarray], dict[str, Any]]] = [
        ("product", xs, {}),
        ("product_backward", [dy, *xs], given),
        ("maximum", xs, {}),
        ("maximum_backward", [dy, argmax], given),
    ]
    for word, inputs, attributes in cases:
        wanted = compute("reference", word, *inputs, **attributes)
        got = compute("cpu", word, *inputs, layout=layout, precision="bf16", **attributes)
        for ours, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2**-8)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(3, 2\)"):
        WORDS["product"].shapes({"xs": [(2, 3), (3, 2)]}, {})
    with pytest.raises(ValueError, match=r"slopes \(4,\) do not fit x \(2, 3\)"):
        WORDS["parametric_relu"].shapes({"x": (2, 3), "w": (4,)}, {})


def test_every_pair_of_words_that_may_share_memory_is_declared_for_one_shape_only() -> None:
    for word, (output, source) in itertools.chain.from_iterable(
        itertools.product([w], w.aliases) for w in elementwise.OPERATIONS
    ):
        shapes = {o.name: [(2, 3)] * 2 if o.variadic else (2, 3) for o in word.inputs}
        shapes |= {"w": (3,)} if "w" in shapes else {}
        names = [o.name for o in word.outputs]
        made = word.shapes(shapes, {**word.attributes, "shapes": ((2, 3),)})
        theirs = shapes[source][0] if isinstance(shapes[source], list) else shapes[source]
        assert made[names.index(output)] == theirs, word.name
