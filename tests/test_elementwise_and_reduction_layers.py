"""Layers that are functions of elements, of several blobs, or of rows: against formulas, and their
gradients against slopes of a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse

PLUGINS = ("reference", "cpu")
Formula = Callable[..., np.ndarray]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def standardized(x: np.ndarray, axis: int, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    over = tuple(range(axis, x.ndim))
    return (x - x.mean(over, keepdims=True)) / (x.std(over, keepdims=True) + epsilon), x.std(over)


FUNCTIONS = {
    "AbsVal": "",
    "BNLL": "",
    "Clip": "clip_param { min: -0.5 max: 0.75 }",
    "ELU": "elu_param { alpha: 0.7 }",
    "ELU below": "elu_param { alpha: -0.7 }",
    "Exp": "",
    "Exp of 2": "exp_param { base: 2 scale: 0.5 shift: -1 }",
    "Log": "log_param { scale: 0.1 shift: 3 }",
    "Log of 10": "log_param { base: 10 scale: -0.1 shift: 3 }",
    "Power": "power_param { power: 3 scale: 0.5 shift: 1 }",
    "Power half": "power_param { power: 0.5 scale: 0.1 shift: 3 }",
    "Power scaled": "power_param { scale: -2 }",
    "Power shifted": "power_param { scale: -2 shift: 1 }",
    "Power none": "power_param { power: 0 }",
    "PReLU": "",
    "PReLU filled": "prelu_param { filler { type: 'gaussian' std: 1 } }",
    "PReLU shared": "prelu_param { channel_shared: true }",
    "ReLU": "",
    "ReLU leaking": "relu_param { negative_slope: 0.3 }",
    "ReLU folded": "relu_param { negative_slope: -0.3 }",
    "Sigmoid": "",
    "Swish": "swish_param { beta: 1.5 }",
    "TanH": "",
}

FORMULAS: dict[str, Formula] = {
    "AbsVal": np.abs,
    "BNLL": lambda x: np.logaddexp(x, 0),
    "Clip": lambda x: np.clip(x, -0.5, 0.75),
    "ELU": lambda x: np.where(x > 0, x, 0.7 * np.expm1(np.minimum(x, 0))),
    "ELU below": lambda x: np.where(x > 0, x, -0.7 * np.expm1(np.minimum(x, 0))),
    "Exp": np.exp,
    "Exp of 2": lambda x: 2 ** (0.5 * x - 1),
    "Log": lambda x: np.log(0.1 * x + 3),
    "Log of 10": lambda x: np.log10(-0.1 * x + 3),
    "Power": lambda x: (0.5 * x + 1) ** 3,
    "Power half": lambda x: np.sqrt(0.1 * x + 3),
    "Power scaled": lambda x: -2 * x,
    "Power shifted": lambda x: 1 - 2 * x,
    "Power none": np.ones_like,
    "PReLU": lambda x: np.where(x > 0, x, 0.25 * x),
    "PReLU shared": lambda x: np.where(x > 0, x, 0.25 * x),
    "ReLU": lambda x: np.maximum(x, 0),
    "ReLU leaking": lambda x: np.where(x > 0, x, 0.3 * x),
    "ReLU folded": lambda x: np.where(x > 0, x, -0.3 * x),
    "Sigmoid": sigmoid,
    "Swish": lambda x: x * sigmoid(1.5 * x),
    "TanH": np.tanh,
    "Threshold": lambda x: (x > 0.2) * 1.0,
}
THRESHOLD = {"Threshold": "threshold_param { threshold: 0.2 }"}


def layer(name: str, bottom: str, top: str) -> str:
    kind, parameters = name.split()[0], (FUNCTIONS | THRESHOLD)[name]
    return f'layer {{ name: "it" type: "{kind}" bottom: "{bottom}" top: "{top}" {parameters} }}'


def compose(kernels: str) -> demitasse.Runtime:
    plugins = ["caffe", "datasets", "training", "snapshots", kernels, "reference"]
    return demitasse.compose(plugins=list(dict.fromkeys(plugins)))


def net(shape: Sequence[int], layer: str) -> str:
    extents = " ".join(f"dim: {extent}" for extent in shape)
    return (
        f'layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ {extents} }} }} }}\n'
        f'layer {{ name: "it" bottom: "x" {layer} }}'
    )


@pytest.mark.parametrize("top", ["y", "x"])
@pytest.mark.parametrize(
    ("kernels", "precision", "within"),
    [("reference", "f64", 1e-12), ("cpu", "f32", 1e-5), ("cpu", "bf16", 2e-2)],
)
def test_layers_compute_their_formulas_also_in_place(
    tmp_path: Path, kernels: str, precision: str, within: float, top: str
) -> None:
    x = np.random.default_rng(4).standard_normal((3, 4, 5, 6))
    with compose(kernels) as runtime:
        for name, formula in FORMULAS.items():
            shape = "".join(f"dim: {extent} " for extent in x.shape)
            path = tmp_path / "net.prototxt"
            path.write_text(
                f'layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ {shape} }} }} }}\n'
                + layer(name, "x", top)
            )
            y = runtime.net(path, precision=precision).forward(x=x)[top]
            at_edge = (name == "Threshold") & (np.abs(x - 0.2) < 1e-3)
            np.testing.assert_allclose(
                np.where(at_edge, 0, y), np.where(at_edge, 0, formula(x)), rtol=within, atol=within
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
def test_layers_of_rows_compute_their_formulas(
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


NET = """
layer {
  name: "data" type: "Data" top: "data" top: "label" data_param { source: "given" batch_size: 3 }
}
layer {
  name: "before" type: "Convolution" bottom: "data" top: "before"
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } }
}
LAYERS
layer {
  name: "after" type: "InnerProduct" bottom: "TOP" top: "after"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "after" bottom: "label" }
"""
LEFT = 'layer { name: "left" type: "TanH" bottom: "before" top: "left" }\n'
RIGHT = 'layer { name: "right" type: "Sigmoid" bottom: "before" top: "right" }\n'
ELTWISE = {
    "PROD": ("left right", "operation: PROD"),
    "PROD of three": ("left right before", "operation: PROD"),
    "PROD divided": ("left right before", "operation: PROD stable_prod_grad: false"),
    "PROD of one twice": ("left left", "operation: PROD"),
    "MAX": ("left right", "operation: MAX"),
    "MAX of three": ("left right before", "operation: MAX"),
    "SUM": ("left right before", "coeff: 0.5 coeff: -1 coeff: 2"),
}


REDUCTIONS = {
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
    for name in FUNCTIONS:
        found[name] = trained(layer(name, "before", "it"))
        found[f"{name} in place"] = trained(layer(name, "before", "before"), "before")
    for name, (bottoms, parameters) in ELTWISE.items():
        for top in ("it", "left"):
            join = 'layer { name: "it" type: "Eltwise" '
            join += " ".join(f'bottom: "{bottom}"' for bottom in bottoms.split())
            join += f' top: "{top}" eltwise_param {{ {parameters} }} }}'
            found[f"Eltwise {name}" + (" in place" if top == "left" else "")] = trained(
                LEFT + RIGHT + join, top
            )
    for name, parameters in REDUCTIONS.items():
        kind = name.split()[0]
        of_rows = f'layer {{ name: "it" type: "{kind}" bottom: "left" top: "it" {parameters} }}'
        found[name] = trained(LEFT + of_rows)
    across = REDUCTIONS["MVN across"]
    in_place = f'layer {{ name: "norm" type: "MVN" bottom: "left" top: "left" {across} }}'
    found["MVN in place"] = trained(LEFT + in_place, "left")
    found["Reduction as a loss"] = trained(
        LEFT + 'layer { name: "sum" type: "Reduction" bottom: "left" top: "sum" loss_weight: 0.1 '
        "reduction_param { operation: SUMSQ } }",
        "left",
    )
    return found


def trained(layers: str, top: str = "it") -> str:
    """A net that learns before and after some layers, the last of which makes ``top``."""
    return NET.replace("LAYERS", layers).replace("TOP", top)


NETS = nets()
H = 1e-6


def trainer(
    runtime: demitasse.Runtime, folder: Path, net: str, rate: float, precision: str = "f64"
) -> Any:
    random = np.random.default_rng(7)
    samples = {"data": random.normal(size=(3, 2, 4, 5)), "label": np.array([2, 0, 1])}
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(
        f'net: "net.prototxt" base_lr: {rate} lr_policy: "fixed" max_iter: 1 random_seed: 5'
    )
    return runtime.trainer(folder / "solver.prototxt", precision=precision, data={"train": samples})


def gradients(
    runtime: demitasse.Runtime, folder: Path, net: str, precision: str
) -> dict[tuple[str, int], np.ndarray]:
    """With a rate of 1 and no momentum, a step moves each parameter by its gradient."""
    moving = trainer(runtime, folder, net, rate=1.0, precision=precision)
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
            # Of two that are nearly equal the other one may be the largest.
            roughly = (0.2 if "MAX" in name else 0.05) * largest
            for precision, within in (("f32", 1e-5 * max(1.0, largest)), ("bf16", roughly)):
                found = gradients(cpu, tmp_path, text, precision)
                for key, gradient in exact.items():
                    error = np.abs(found[key] - gradient).max()
                    assert error < within, (name, precision, key)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ('type: "Exp" exp_param { base: 0 }', "base 0.0 is not positive"),
        ('type: "Log" log_param { base: -2 }', "base -2.0 is not positive"),
        ('type: "Log" log_param { base: 1 }', "no logarithm to base 1"),
        ('type: "Clip" clip_param { min: 0 }', "max"),
        ('type: "Clip"', "min and max"),
        ('type: "Eltwise" bottom: "x" eltwise_param { operation: PROD coeff: 1 coeff: 2 }', "sums"),
        ('type: "Eltwise" bottom: "x" eltwise_param { coeff: 1 }', "1 coeff for 2 bottoms"),
        ('type: "ArgMax" argmax_param { top_k: 0 }', "top_k is 0"),
        ('type: "ArgMax" argmax_param { top_k: 121 }', "121 largest of the 120"),
        ('type: "ArgMax" argmax_param { axis: 1 top_k: 5 }', "5 largest of the 4"),
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


def test_learned_slopes_of_vectors_and_pairs_of_phases(tmp_path: Path) -> None:
    """A PReLU of an inner product: its bottom has two axes."""
    path = tmp_path / "net.prototxt"
    path.write_text(
        'layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'
        'layer { name: "it" type: "PReLU" bottom: "x" top: "x" }'
    )
    with compose("cpu") as runtime:
        net = runtime.net(path)
        net.params["it"][0][:] = [1, -2, 0.5]
        y = net.forward(x=np.array([[-1, -1, -1], [2, 2, 2]]))["x"]
        assert y.tolist() == [[-1, 2, -0.5], [2, 2, 2]]
