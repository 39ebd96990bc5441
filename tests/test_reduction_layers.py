"""Sums over trailing axes, the largest along one, and normalised rows: words against formulas in float64
with both plugins that compute them, and layers against slopes of a loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse import Place, Request, TensorSpec
from demitasse.operations import VOCABULARY, extend
from demitasse_caffe.operations import reduction

WORDS = extend(VOCABULARY, reduction.OPERATIONS, "caffe")
WITHIN = {"float32": 1e-5, "float64": 1e-12}
PLUGINS = ("reference", "cpu")
Formula = Callable[..., np.ndarray]


def hook(plugin: str) -> Callable[[Request], Iterable[Any]]:
    (entry,) = entry_points(group="demitasse.plugins", name=plugin)
    kernels: Callable[[Request], Iterable[Any]] = entry.load().kernels
    return kernels


def compute(
    plugin: str,
    name: str,
    *inputs: np.ndarray,
    in_place: bool = False,
    absent: Sequence[int] = (),
    threads: int = 2,
    **attributes: Any,
) -> list[np.ndarray | None]:
    """What a plugin's kernel makes of plain inputs."""
    operation = WORDS[name]
    complete = {**operation.attributes, **attributes}
    shapes = {o.name: x.shape for o, x in zip(operation.inputs, inputs, strict=True)}
    made = operation.shapes(shapes, complete)
    outputs = [None if i in absent else np.full(s, 77, inputs[0].dtype) for i, s in enumerate(made)]
    request = Request(
        operation,
        tuple(TensorSpec(x.shape, x.dtype.name) for x in inputs),
        tuple(None if y is None else TensorSpec(y.shape, y.dtype.name) for y in outputs),
        complete,
        Place("test", threads=threads),
    )
    (candidate,) = hook(plugin)(request)
    given = [x.copy() for x in inputs]
    if in_place:
        outputs[0] = given[[o.name for o in operation.inputs].index(operation.aliases[0][1])]
    room = np.full(candidate.workspace + 64, 255, np.uint8)
    start = -room.ctypes.data % 64
    work = candidate.bind(given, outputs, room[start : start + candidate.workspace])
    assert plugin != "cpu" or hasattr(work, "join"), "a step of the cpu's kernels runs no Python"
    work()
    return outputs


TOTALS: dict[str, tuple[Formula, Formula]] = {
    "total": (lambda x: x, np.ones_like),
    "absolute_total": (np.abs, np.sign),
    "square_total": (np.square, lambda x: 2 * x),
}


def spread(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Values of leading axes, shaped to meet x."""
    return np.reshape(values, (*values.shape, *[1] * (x.ndim - values.ndim)))


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("name", TOTALS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_totals_and_their_gradients_are_their_formulas(
    name: str, plugin: str, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple))
    axis, coefficient = data.draw(st.integers(0, len(shape) - 1)), data.draw(st.sampled_from([1, -0.3]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, (term, slope) = random.standard_normal(shape).astype(dtype), TOTALS[name]
    given = {"axis": axis, "coefficient": coefficient}
    exact = x.astype(np.float64)
    (y,) = compute(plugin, name, x, **given)
    wanted = coefficient * term(exact).sum(tuple(range(axis, x.ndim)))
    np.testing.assert_allclose(y, wanted, rtol=WITHIN[dtype], atol=10 * WITHIN[dtype])
    dy = random.standard_normal(shape[:axis]).astype(dtype)
    wanted = coefficient * spread(dy.astype(np.float64), x) * slope(exact)
    if name == "total":
        (dx,) = compute(plugin, "total_backward", dy, shape=shape, **given)
    else:
        in_place = data.draw(st.booleans())
        (dx,) = compute(plugin, f"{name}_backward", dy, x, in_place=in_place, **given)
    np.testing.assert_allclose(dx, wanted, rtol=WITHIN[dtype])


@pytest.mark.parametrize("name", TOTALS)
def test_a_long_row_is_summed_to_the_same_bits_by_any_number_of_threads(name: str) -> None:
    x = np.random.default_rng(1).uniform(0, 1, (2, 700_000)).astype(np.float32)
    one, three = (compute("cpu", name, x, threads=n, axis=0)[0] for n in (1, 3))
    assert one.tobytes() == three.tobytes()
    np.testing.assert_allclose(one, TOTALS[name][0](x.astype(np.float64)).sum(), rtol=1e-6)
    dy = np.full((), 0.5, np.float32)
    inputs = (dy,) if name == "total" else (dy, x)
    more = {"shape": x.shape} if name == "total" else {}
    (dx,) = compute("cpu", f"{name}_backward", *inputs, threads=3, axis=0, **more)
    np.testing.assert_allclose(dx, 0.5 * TOTALS[name][1](x), rtol=1e-6)


@pytest.mark.parametrize("plugin", PLUGINS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_largest_come_in_falling_order_and_of_equals_the_last_first(
    plugin: str, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple))
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, shape[axis]))
    x = np.random.default_rng(data.draw(st.integers(0, 2**32))).integers(-3, 4, shape).astype(dtype)
    given = {"axis": axis, "count": count}
    (places,) = compute(plugin, "largest", x, give="places", **given)
    (values,) = compute(plugin, "largest", x, give="values", **given)
    (both,) = compute(plugin, "largest", x, give="both", **given)
    assert np.array_equal(both, np.stack([places, values], axis))
    rows = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    for row, found, best in zip(
        rows,
        np.moveaxis(places, axis, -1).reshape(-1, count),
        np.moveaxis(values, axis, -1).reshape(-1, count),
        strict=True,
    ):
        pairs = sorted(((value, place) for place, value in enumerate(row)), reverse=True)[:count]
        assert [(value, int(place)) for value, place in zip(best, found, strict=True)] == pairs


def test_the_largest_of_long_rows_are_found_by_parts() -> None:
    x = np.random.default_rng(2).standard_normal((64, 3000)).astype(np.float32)
    (places,) = compute("cpu", "largest", x, count=1500, threads=3)
    assert np.array_equal(places, np.argsort(-x, axis=1)[:, :1500])


def test_more_than_there_are_cannot_be_the_largest() -> None:
    with pytest.raises(ValueError, match="no 4 largest among the 3"):
        WORDS["largest"].shapes({"x": (2, 3)}, {"axis": 1, "count": 4, "give": "places"})


def standardized(x: np.ndarray, axis: int, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    over = tuple(range(axis, x.ndim))
    return (x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + epsilon), x.std(over)


@pytest.mark.parametrize("plugin", PLUGINS)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_rows_are_centred_and_standardized(plugin: str, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(WITHIN)))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple))
    axis, epsilon = data.draw(st.integers(0, len(shape))), data.draw(st.sampled_from([1e-9, 0.5]))
    in_place = data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    x, dy = (random.standard_normal(shape).astype(dtype) for _ in range(2))
    exact, over = x.astype(np.float64), tuple(range(axis, x.ndim))
    (y,) = compute(plugin, "centre", x, axis=axis, in_place=in_place)
    within = WITHIN[dtype]
    np.testing.assert_allclose(y, exact - exact.mean(over, keepdims=True), atol=within)
    wanted, deviation = standardized(exact, axis, epsilon)
    if math.prod(shape[axis:]) == 1 or (deviation < 0.05).any():
        return  # what is left of a constant row is rounding; see below
    y, found = compute(plugin, "standardize", x, axis=axis, epsilon=epsilon, in_place=in_place)
    np.testing.assert_allclose(y, wanted, atol=20 * within)
    np.testing.assert_allclose(found, deviation, rtol=within)
    only, nothing = compute(plugin, "standardize", x, axis=axis, epsilon=epsilon, absent=[1])
    assert nothing is None
    np.testing.assert_array_equal(only, y)
    given = {"axis": axis, "epsilon": epsilon, "in_place": in_place}
    (dx,) = compute(plugin, "standardize_backward", dy, y, found, **given)
    for index in list(np.ndindex(shape))[:: max(1, x.size // 4)]:
        sides = []
        for change in (1e-6, -1e-6):
            moved = exact.copy()
            moved[index] += change
            sides.append((dy * standardized(moved, axis, epsilon)[0]).sum())
        slope = (sides[0] - sides[1]) / 2e-6
        assert dx[index] == pytest.approx(slope, rel=2e-4, abs=2e-4 / deviation.min())


@pytest.mark.parametrize("plugin", PLUGINS)
def test_constant_rows_become_zeros_and_their_gradients_are_numbers(plugin: str) -> None:
    x = np.full((2, 3, 8), 0.1, np.float32) * np.arange(1, 4, dtype=np.float32)[:, None]
    x = x.round(1).astype(np.float32)
    y, deviation = compute(plugin, "standardize", x, axis=2, epsilon=0.5)
    np.testing.assert_allclose(y, 0, atol=1e-6)
    np.testing.assert_allclose(deviation, 0, atol=1e-6)
    dy = np.random.default_rng(3).standard_normal(x.shape).astype(np.float32)
    zeros = np.zeros_like(y), np.zeros_like(deviation)
    (dx,) = compute(plugin, "standardize_backward", dy, *zeros, axis=2, epsilon=0.5)
    np.testing.assert_allclose(dx, 2 * (dy - dy.mean(2, keepdims=True)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_mean_of_large_numbers_does_not_drown_their_deviation(plugin: str) -> None:
    random = np.random.default_rng(4).integers(-64, 64, (2, 200_000)) / 64
    x = (random + 4096).astype(np.float32)
    y, _ = compute(plugin, "standardize", x, axis=1)
    np.testing.assert_allclose(y, standardized(x.astype(np.float64), 1, 1e-9)[0], atol=1e-3)


def compose(kernels: str) -> demitasse.Runtime:
    plugins = ["caffe", "datasets", "training", "snapshots", kernels, "reference"]
    return demitasse.compose(plugins=list(dict.fromkeys(plugins)))


def net(shape: Sequence[int], layer: str) -> str:
    extents = " ".join(f"dim: {extent}" for extent in shape)
    return (
        f'layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ {extents} }} }} }}\n'
        f'layer {{ name: "it" bottom: "x" {layer} }}'
    )


SHAPE = (3, 4, 5, 6)
FORWARD: dict[str, Formula] = {
    'top: "y" type: "Reduction"': lambda x: x.sum(),
    'top: "y" type: "Reduction" reduction_param { axis: 1 coeff: 2 }': lambda x: 2 * x.sum((1, 2, 3)),
    'top: "y" type: "Reduction" reduction_param { operation: ASUM axis: -2 }': lambda x: np.abs(x).sum(
        (2, 3)
    ),
    'top: "y" type: "Reduction" reduction_param { operation: SUMSQ axis: 2 coeff: 0.5 }': lambda x: (
        0.5 * (x * x).sum((2, 3))
    ),
    'top: "y" type: "Reduction" reduction_param { operation: MEAN axis: 1 coeff: 3 }': lambda x: (
        3 * x.mean((1, 2, 3))
    ),
    'top: "x" type: "MVN"': lambda x: standardized(x, 2, 1e-9)[0],
    'top: "y" type: "MVN" mvn_param { across_channels: true eps: 0.1 }': lambda x: standardized(
        x, 1, 0.1
    )[0],
    'top: "y" type: "MVN" mvn_param { normalize_variance: false }': lambda x: (
        x - x.mean((2, 3), keepdims=True)
    ),
}


@pytest.mark.parametrize(
    ("kernels", "precision", "within"),
    [("reference", "f64", 1e-12), ("cpu", "f32", 1e-5), ("cpu", "bf16", 3e-2)],
)
def test_layers_compute_their_formulas(
    tmp_path: Path, kernels: str, precision: str, within: float
) -> None:
    x = np.random.default_rng(5).standard_normal(SHAPE)
    with compose(kernels) as runtime:
        for layer, formula in FORWARD.items():
            path = tmp_path / "net.prototxt"
            path.write_text(net(SHAPE, layer))
            (y,) = runtime.net(path, precision=precision).forward(x=x).values()
            assert np.shape(y) == np.shape(formula(x)), layer
            np.testing.assert_allclose(y, formula(x), rtol=within, atol=within * 5, err_msg=layer)


def test_arg_max_gives_places_or_values_in_the_shapes_that_caffe_has(tmp_path: Path) -> None:
    x = np.random.default_rng(6).permutation(360).reshape(SHAPE).astype(np.float32)
    rows = x.reshape(3, -1)
    order = np.argsort(-rows, axis=1)
    cases = {
        "": order[:, :1].reshape(3, 1, 1, 1),
        "top_k: 5": order[:, :5].reshape(3, 1, 5, 1),
        "top_k: 2 out_max_val: true": np.stack(
            [order[:, :2], np.take_along_axis(rows, order[:, :2], 1)], 1
        ).reshape(3, 2, 2, 1),
        "axis: 1": x.argmax(1, keepdims=True),
        "axis: -1 top_k: 3": np.argsort(-x, axis=3)[..., :3],
        "axis: 2 top_k: 4 out_max_val: true": -np.sort(-x, axis=2)[:, :, :4],
    }
    path = tmp_path / "net.prototxt"
    for kernels, precision in (("reference", "f32"), ("cpu", "f32"), ("cpu", "bf16")):
        with compose(kernels) as runtime:
            for parameters, wanted in cases.items():
                path.write_text(net(SHAPE, f'top: "y" type: "ArgMax" argmax_param {{ {parameters} }}'))
                y = runtime.net(path, precision=precision).forward(x=x)["y"]
                # A place above 256 has more bits than bfloat16, and is not stored so.
                np.testing.assert_array_equal(y, wanted, err_msg=parameters)


@pytest.mark.parametrize(("shape", "wanted"), [((4,), (4, 1, 1)), ((4, 7), (4, 1, 1))])
def test_arg_max_of_few_axes_makes_three(
    tmp_path: Path, shape: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(net(shape, 'top: "y" type: "ArgMax"'))
    x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
    with compose("cpu") as runtime:
        y = runtime.net(path).forward(x=x)["y"]
    assert np.array_equal(y, x.reshape(4, -1).argmax(1).reshape(wanted))


def test_normalised_rows_of_few_axes_have_four(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(net((3, 8), 'top: "x" type: "MVN" mvn_param { across_channels: true }'))
    x = np.random.default_rng(8).standard_normal((3, 8))
    with compose("cpu") as runtime:
        y = runtime.net(path, precision="f64").forward(x=x)["x"]
    np.testing.assert_allclose(y, standardized(x, 1, 1e-9)[0].reshape(3, 8, 1, 1), rtol=1e-12)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ('type: "ArgMax" argmax_param { top_k: 0 }', "top_k is 0"),
        ('type: "ArgMax" argmax_param { top_k: 121 }', "121 largest among the 120"),
        ('type: "ArgMax" argmax_param { axis: 1 top_k: 5 }', "5 largest among the 4"),
        ('type: "ArgMax" argmax_param { axis: 4 }', "axis 4 is not one of the 4 axes"),
        ('type: "Reduction" reduction_param { axis: -5 }', "axis -5 is not one of the 4 axes"),
    ],
)
def test_what_caffe_refuses_is_refused_with_the_layer_and_the_reason(
    tmp_path: Path, layer: str, message: str
) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(net(SHAPE, f'top: "y" {layer}'))
    with (
        compose("reference") as runtime,
        pytest.raises(demitasse.DemitasseError, match=f"net.prototxt.*{message}"),
    ):
        runtime.net(path)


TRAINED = """
layer {
  name: "data" type: "Data" top: "data" top: "label" data_param { source: "given" batch_size: 3 }
}
layer {
  name: "before" type: "Convolution" bottom: "data" top: "before"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } }
}
layer { name: "bend" type: "TanH" bottom: "before" top: "bent" }
LAYERS
layer {
  name: "after" type: "InnerProduct" bottom: "it" top: "after"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "after" bottom: "label" }
"""
LAYERS = {
    "Reduction SUM": "reduction_param { axis: 2 coeff: 0.3 }",
    "Reduction ASUM": "reduction_param { operation: ASUM axis: 2 coeff: -1 }",
    "Reduction SUMSQ": "reduction_param { operation: SUMSQ axis: 3 }",
    "Reduction MEAN": "reduction_param { operation: MEAN axis: -1 coeff: 4 }",
    "MVN": "",
    "MVN across": "mvn_param { across_channels: true eps: 0.2 }",
    "MVN centred": "mvn_param { normalize_variance: false across_channels: true }",
}


def nets() -> dict[str, str]:
    found = {}
    for name, parameters in LAYERS.items():
        kind = name.split()[0]
        layer = f'layer {{ name: "it" type: "{kind}" bottom: "bent" top: "it" {parameters} }}'
        found[name] = TRAINED.replace("LAYERS", layer)
    layer = LAYERS["MVN across"]
    layers = f"""layer {{ name: "norm" type: "MVN" bottom: "bent" top: "bent" {layer} }}
        layer {{ name: "it" type: "Split" bottom: "bent" top: "it" }}"""
    found["MVN in place"] = TRAINED.replace("LAYERS", layers)
    found["Reduction as a loss"] = TRAINED.replace(
        "LAYERS",
        'layer { name: "sum" type: "Reduction" bottom: "bent" top: "sum" loss_weight: 0.1 '
        "reduction_param { operation: SUMSQ } }\n"
        'layer { name: "it" type: "Split" bottom: "bent" top: "it" }',
    )
    return found


NETS = nets()
H = 1e-6


def trainer(
    runtime: demitasse.Runtime, folder: Path, text: str, rate: float, precision: str = "f64"
) -> Any:
    random = np.random.default_rng(7)
    samples = {"data": random.normal(size=(3, 2, 4, 5)), "label": np.array([2, 0, 1])}
    (folder / "net.prototxt").write_text(text)
    (folder / "solver.prototxt").write_text(
        f'net: "net.prototxt" base_lr: {rate} lr_policy: "fixed" max_iter: 1 random_seed: 5'
    )
    return runtime.trainer(folder / "solver.prototxt", precision=precision, data={"train": samples})


def gradients(
    runtime: demitasse.Runtime, folder: Path, text: str, precision: str
) -> dict[tuple[str, int], np.ndarray]:
    """With a rate of 1 and no momentum, a step moves each parameter by its gradient."""
    moving = trainer(runtime, folder, text, rate=1.0, precision=precision)
    before = {(k, i): a.copy() for k, v in moving.net.params.items() for i, a in enumerate(v)}
    moving.step()
    return {(k, i): before[k, i] - moving.net.params[k][i] for k, i in before}


def slope(standing: Any, array: np.ndarray, where: Any) -> float:
    """The slope of the loss in one parameter, by differences."""
    kept, losses = array[where], []
    for change in (H, -H):
        array[where] = kept + change
        standing.iteration = 0
        losses.append(standing.step().loss)
    array[where] = kept
    return float(losses[0] - losses[1]) / (2 * H)


@pytest.mark.parametrize("kernels", PLUGINS)
@pytest.mark.parametrize("name", NETS)
def test_the_gradient_is_the_slope_of_the_loss(tmp_path: Path, name: str, kernels: str) -> None:
    with compose(kernels) as runtime:
        found = gradients(runtime, tmp_path, NETS[name], "f64")
        standing = trainer(runtime, tmp_path, NETS[name], rate=0.0)
        checked = 0
        for (owner, number), gradient in found.items():
            array = standing.net.params[owner][number]
            places = [np.unravel_index(i, array.shape) for i in range(array.size)]
            for where in places[:: max(1, array.size // 6)]:
                expected = slope(standing, array, where)
                assert gradient[where] == pytest.approx(expected, rel=1e-5, abs=3e-9), (owner, where)
                checked += 1
        assert checked >= 16


def test_gradients_in_f32_and_bf16_are_those_in_f64(tmp_path: Path) -> None:
    with compose("cpu") as cpu, compose("reference") as reference:
        for name, text in NETS.items():
            exact = gradients(reference, tmp_path, text, "f64")
            largest = max(np.abs(gradient).max() for gradient in exact.values())
            for precision, within in (("f32", 1e-5), ("bf16", 0.05)):
                found = gradients(cpu, tmp_path, text, precision)
                for key, gradient in exact.items():
                    error = np.abs(found[key] - gradient).max()
                    assert error < within * largest, (name, precision, key)
