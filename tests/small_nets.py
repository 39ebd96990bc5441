"""Nets and machines that several tests write down: a net below inputs, two products, some workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import demitasse
from demitasse import Weights

TWO_PRODUCTS = """
name: "two products"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "given" batch_size: 8 } }
layer { name: "one" type: "InnerProduct" bottom: "data" top: "one"
        inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "two" type: "InnerProduct" bottom: "one" top: "two"
        inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.5 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "two" bottom: "label" }
"""
WORKERS = """
schema = 1
name = "{count} workers"
[[level]]
name = "worker"
count = {count}
workers = "threads"
cores = {count}
sync = {{ plugin = "reference" }}
"""


def inputs(**shapes: Sequence[int]) -> str:
    """Input layers of the given shapes, each with a blob of its name."""
    text = ""
    for name, shape in shapes.items():
        dims = " ".join(f"dim: {extent}" for extent in shape)
        text += f'layer {{ name: "{name}" type: "Input" top: "{name}" '
        text += f"input_param {{ shape {{ {dims} }} }} }}\n"
    return text


def net_of(runtime: demitasse.Runtime, folder: Path, text: str, **options: Any) -> Any:
    """A net by the text of its file."""
    (folder / "net.prototxt").write_text(text)
    return runtime.net(folder / "net.prototxt", **options)


def net_below(
    runtime: demitasse.Runtime,
    folder: Path,
    layers: str,
    precision: str = "f32",
    **shapes: Sequence[int],
) -> Any:
    """A net of some layers below inputs of the given shapes."""
    (folder / "net.prototxt").write_text(inputs(**shapes) + layers)
    return runtime.net(folder / "net.prototxt", precision=precision)


def random_weights(net: Any, seed: int = 0) -> Weights:
    """Numbers that keep the size of activations, for each parameter by what its layer does with it."""
    dice = np.random.default_rng(seed)
    kinds = {layer.name: layer.type for layer in net.definition.layers}
    weights = Weights()
    for name, arrays in net.params.items():
        made = []
        for number, array in enumerate(arrays):
            shape = np.shape(array)
            if kinds[name] == "BatchNorm":
                value = (dice.normal(0, 0.2, shape), dice.uniform(0.5, 1.5, shape), np.ones(shape))[
                    number
                ]
            elif kinds[name] == "Scale" and number == 0:
                value = dice.uniform(0.5, 1.5, shape)
            elif kinds[name] == "PReLU":
                value = dice.uniform(0.1, 0.4, shape)
            elif len(shape) > 1:
                value = dice.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
            else:
                value = dice.normal(0, 0.1, shape)
            made.append(value.astype(np.float32))
        weights.parameters[name] = made
    return weights
