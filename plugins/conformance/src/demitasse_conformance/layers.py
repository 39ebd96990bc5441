"""Layers and gradient rules: backward is the slope of forward."""

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
"""How far a number is moved to either side."""
WITHIN = 1e-5
"""How far a gradient may be from the slope, of it; and, of the largest, a hundredth of that."""
MOST = 60
"""Elements of an array that are moved, each with two passes of the net."""


def check_layer(
    plugins: Sequence[Any],
    net: str | Path,
    shape: Sequence[int] | None = None,
    values: Mapping[str, Any] | None = None,
    hw: Machine | str | Path = PLAINEST,
) -> list[str]:
    """Hold the gradients of layers, of each input and each parameter, to the slopes of a random weighted
    sum of all outputs by central differences in double precision. ``net`` is a prototxt's path, or the
    text of layers behind a blob ``x`` of ``shape``; ``values`` are of inputs by name, else random; an
    input that is given is not moved. Returns the names of what has a gradient. Raises
    BrokenPromiseError for one that is not the slope, and where nothing has one."""
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
            walk.forward(first)  # less what was: of large numbers little would be left of a step
            return float(sum(((walk.data(n) - start[n]) * w).sum() for n, w in weights.items()))

        for name, gradient in kept.items():
            _hold_to_slopes(name, moved[name], gradient, objective, random)
        return sorted(kept)


def _fill(
    walk: Any, starting: Mapping[Any, np.ndarray], graph: Any, given: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Give inputs and parameters their values; live views of those that may be moved, by name."""
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
    """Compare the gradient of some elements, the whole of a small array, with what a step to either side
    makes of the objective."""
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
