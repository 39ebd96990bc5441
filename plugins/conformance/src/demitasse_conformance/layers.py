"""Checks of layers and gradient rules: backward must give the slope of forward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import Machine, compose
from demitasse_conformance.machines import PLAINEST
from demitasse_conformance.nets import SEED, around, starting_values, there_and_back
from demitasse_conformance.promises import hold

NO_GRADIENT = "none has a gradient"
STEP = 1e-5
"""The step by which a number is moved to either side."""
WITHIN = 1e-5
"""The tolerance of a gradient relative to the slope; to this, a hundredth relative to the largest is
added."""
MOST = 60
"""The most elements of an array that are moved; each takes two passes of the net."""


def check_layer(
    plugins: Sequence[Any],
    net: str | Path,
    shape: Sequence[int] | None = None,
    values: Mapping[str, Any] | None = None,
    hw: Machine | str | Path = PLAINEST,
) -> list[str]:
    """Compare the gradients of layers, for each input and each parameter, with the slopes of a random
    weighted sum of all outputs, by central differences in double precision. ``net`` is a prototxt's
    path, or the text of layers that follow a blob ``x`` of ``shape``. ``values`` are values of inputs,
    by name; others are random. A given input is not moved. Return the names of what has a gradient.
    Raises BrokenPromiseError if a gradient is not the slope, and if nothing has a gradient."""
    random = np.random.default_rng(SEED)
    with (
        around(net, shape) as path,
        compose(hw, plugins) as runtime,
        runtime.net(path, **there_and_back("train", "f64")) as made,
    ):
        walk, graph = made.walk, made.graph
        moved = _fill(walk, starting_values(graph, values or {}, "f64"), graph, values or {})
        first = sum(1 for _ in itertools.takewhile(_no_bottoms, made.definition.layers))
        walk.forward()
        weights = {
            name: random.normal(size=walk.data(name).shape)
            for name in graph.outputs
            if walk.diff(name) is not None
        }
        hold(weights, f"of {', '.join(graph.outputs) or 'the outputs'}, {NO_GRADIENT}")
        walk.clear()
        for name, weight in weights.items():
            walk.diff(name)[...] = weight
        walk.backward()
        found = {
            **{name: walk.diff(name) for name in graph.inputs},
            **{f"{layer} {n}": array for (layer, n), array in walk.gradients.items()},
        }
        kept = {name: array.copy() for name, array in found.items() if array is not None}
        kept = {name: array for name, array in kept.items() if name in moved}
        hold(kept, f"of inputs and parameters, {NO_GRADIENT}")

        start = {name: walk.data(name).copy() for name in weights}

        def objective() -> float:
            walk.forward(first)  # minus the start: next to large numbers, a step would be lost
            return float(sum(((walk.data(n) - start[n]) * w).sum() for n, w in weights.items()))

        for name, gradient in kept.items():
            _hold_to_slopes(name, moved[name], gradient, objective, random)
        return sorted(kept)


def _fill(
    walk: Any, starting: Mapping[Any, np.ndarray], graph: Any, given: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Set the values of inputs and parameters; return live views of those that may be moved, by name."""
    moved = {}
    for name, tensor in graph.inputs.items():
        walk.data(name)[...] = starting[tensor]
        if name not in given:
            moved[name] = walk.data(name)
    for parameter in graph.parameters:
        for layer, number in parameter.owners:
            array = walk.params[layer][number]
            array[...] = starting[parameter.tensor].reshape(array.shape)
            if parameter.trainable:
                moved[f"{layer} {number}"] = array
    return moved


def _no_bottoms(layer: Any) -> bool:
    return not layer.bottoms


def _hold_to_slopes(
    name: str,
    array: np.ndarray,
    gradient: np.ndarray,
    objective: Callable[[], float],
    random: np.random.Generator,
) -> None:
    """Compare the gradient of some elements (of all in a small array) with the change of the objective
    for a step to either side."""
    places = list(np.ndindex(array.shape))
    chosen = sorted(random.permutation(len(places))[:MOST])
    largest = float(np.abs(gradient).max(initial=0.0))
    for place in (places[number] for number in chosen):
        before, ends = array[place], []
        for step in (STEP, -STEP):
            array[place] = before + step
            ends.append(objective())
        array[place] = before
        slope = (ends[0] - ends[1]) / (2 * STEP)
        far = abs(float(gradient[place]) - slope)
        hold(
            far <= WITHIN * (abs(slope) + 0.01 * largest + 0.01),
            f"the gradient of {name} at {[*place]} is {gradient[place]:.7g}, the slope is {slope:.7g}",
        )
