"""The common start of all contenders: the same weights, and samples from the same random numbers."""

from __future__ import annotations

from math import prod, sqrt

import numpy as np

from bench.layers import Layer, Net

Arrays = dict[str, np.ndarray]


def weights(net: Net, seed: int = 1) -> Arrays:
    """Return parameters as ``layer.number`` in Caffe's order and, for batch_norm, ``layer.mean`` and
    ``.variance``.

    Weights are normal with variance 2 / inputs (He et al. 2015), and a hundredth of it before a loss, so
    that losses start near the logarithm of the number of classes and fall steadily; biases are 0, scales
    1. A running variance of 2 keeps the sums of a residual net small in inference.
    """
    random = np.random.default_rng(seed)
    ends = {layer.bottoms[0] for layer in net.layers if layer.kind in ("softmax_loss", "softmax")}
    arrays: Arrays = {}
    for layer in net.layers:
        for number, shape in enumerate(layer.parameters):
            arrays[f"{layer.name}.{number}"] = _parameter(
                layer, number, shape, layer.top in ends, random
            )
        if layer.kind == "batch_norm":
            arrays[f"{layer.name}.mean"] = np.zeros(layer.shape[0], np.float32)
            arrays[f"{layer.name}.variance"] = np.full(layer.shape[0], 2.0, np.float32)
    return arrays


def _parameter(
    layer: Layer, number: int, shape: tuple[int, ...], is_last: bool, random: np.random.Generator
) -> np.ndarray:
    if number:
        return np.zeros(shape, np.float32)
    if layer.kind in ("batch_norm", "prelu"):
        return np.full(shape, 1.0 if layer.kind == "batch_norm" else 0.25, np.float32)
    scale = sqrt((0.02 if is_last else 2) / prod(shape[1:]))
    return random.standard_normal(shape, np.float32) * np.float32(scale)


def samples(net: Net, batch: int, seed: int = 2) -> Arrays:
    """Return a batch of ``data``, normally distributed and NCHW, and ``label``."""
    random = np.random.default_rng(seed)
    data = random.standard_normal((batch, *net.image), np.float32)
    return {"data": data, "label": random.integers(0, net.classes, batch).astype(np.float32)}
