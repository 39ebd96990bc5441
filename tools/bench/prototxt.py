"""Prototxt files of a net, for Demitasse: to train, to run forward, and the solver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.layers import Layer, Net

TYPES = {
    "convolution": "Convolution",
    "inner_product": "InnerProduct",
    "relu": "ReLU",
    "relu6": "ReLU6",
    "leaky_relu": "ReLU",
    "prelu": "PReLU",
    "elu": "ELU",
    "sigmoid": "Sigmoid",
    "tanh": "TanH",
    "flat": "Flatten",
    "max_pool": "Pooling",
    "average_pool": "Pooling",
    "lrn": "LRN",
    "dropout": "Dropout",
    "add": "Eltwise",
    "product": "Eltwise",
    "maximum": "Eltwise",
    "concat": "Concat",
    "softmax": "Softmax",
}


def write(net: Net, folder: Path) -> Path:
    """Write ``train.prototxt``, ``deploy.prototxt`` and ``solver.prototxt``; return the solver's
    path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.prototxt").write_text(train(net), encoding="utf-8")
    (folder / "deploy.prototxt").write_text(deploy(net), encoding="utf-8")
    path = folder / "solver.prototxt"
    path.write_text(solver(net), encoding="utf-8")
    return path


def train(net: Net) -> str:
    """Return the net with its data and losses; its samples are given as arrays (``data=``)."""
    data = message(
        "data",
        "Data",
        (),
        ("data", "label"),
        f'data_param {{ source: "synthetic" batch_size: {net.batch} }}',
    )
    return "\n".join([f'name: "{net.name}"', data, *map(text, net.layers), ""])


def deploy(net: Net) -> str:
    """Return the net from an Input with the net's batch size to the probabilities."""
    extents = " ".join(f"dim: {extent}" for extent in (net.batch, *net.image))
    data = message("data", "Input", (), ("data",), f"input_param {{ shape {{ {extents} }} }}")
    return "\n".join([f'name: "{net.name}"', data, *map(text, net.deploy().layers), ""])


def solver(net: Net) -> str:
    return (
        f'net: "train.prototxt"\nbase_lr: {net.rate}\nlr_policy: "fixed"\nmomentum: 0.9\n'
        f"weight_decay: {net.decay}\nmax_iter: 1000000\nrandom_seed: 1\n"
    )


def message(
    name: str, kind: str, bottoms: tuple[str, ...], tops: tuple[str, ...], numbers: str = ""
) -> str:
    """Return one layer's text."""
    blobs = [f'bottom: "{bottom}"' for bottom in bottoms] + [f'top: "{top}"' for top in tops]
    parts = [f'name: "{name}"', f'type: "{kind}"', *blobs, *([numbers] if numbers else [])]
    return "layer { " + " ".join(parts) + " }"


def text(layer: Layer) -> str:
    """Return a layer's text; two layers for batch_norm, as in Caffe."""
    tops = (layer.top,)
    if layer.kind == "batch_norm":
        statistics = message(layer.name, "BatchNorm", layer.bottoms, tops, numbers(layer))
        if not layer.numbers["scale"]:
            return statistics
        shift = message(layer.numbers["scale"], "Scale", tops, tops, "scale_param { bias_term: true }")
        return statistics + "\n" + shift
    if layer.kind == "softmax_loss":
        weight = f"loss_weight: {layer.numbers['weight']}"
        return message(layer.name, "SoftmaxWithLoss", (*layer.bottoms, "label"), tops, weight)
    return message(layer.name, TYPES[layer.kind], layer.bottoms, tops, numbers(layer))


def numbers(layer: Layer) -> str:
    """Return the parameters of a layer's type."""
    n = layer.numbers
    match layer.kind:
        case "convolution":
            bias = "" if n["bias"] else " bias_term: false"
            return (
                f"convolution_param {{ num_output: {layer.shape[0]} {_window(n)}"
                f"{_both('dilation', n['dilation'])} group: {n['groups']}{bias} }}"
            )
        case "inner_product":
            bias = "" if n["bias"] else " bias_term: false"
            return f"inner_product_param {{ num_output: {layer.shape[0]}{bias} }}"
        case "max_pool" | "average_pool":
            pool = "MAX" if layer.kind == "max_pool" else "AVE"
            rounding = "" if n["up"] else " round_mode: FLOOR"
            return f"pooling_param {{ pool: {pool} {_window(n)}{rounding} }}"
        case "lrn":
            return f"lrn_param {{ local_size: {n['size']} alpha: {n['alpha']} beta: {n['beta']} }}"
        case "dropout":
            return f"dropout_param {{ dropout_ratio: {n['ratio']} }}"
        case "batch_norm":
            return f"batch_norm_param {{ eps: {n['epsilon']} moving_average_fraction: {n['keep']} }}"
        case "leaky_relu":
            return f"relu_param {{ negative_slope: {n['slope']} }}"
        case "elu":
            return f"elu_param {{ alpha: {n['alpha']} }}"
        case "product" | "maximum":
            return f"eltwise_param {{ operation: {'PROD' if layer.kind == 'product' else 'MAX'} }}"
    return ""


def _window(n: Mapping[str, Any]) -> str:
    """Return the fields of a window, with separate rows and columns."""
    rows = [f"kernel_h: {n['kernel'][0]} kernel_w: {n['kernel'][1]}"]
    rows += [f"{name}_h: {n[name][0]} {name}_w: {n[name][1]}" for name in ("stride", "pad")]
    return " ".join(rows)


def _both(name: str, extents: tuple[int, int]) -> str:
    """Return a repeated field, unless it is 1 and 1."""
    return "" if extents == (1, 1) else "".join(f" {name}: {extent}" for extent in extents)
