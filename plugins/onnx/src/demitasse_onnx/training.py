"""A model in the form that a trainer takes: its inputs are samples, and its output is
followed by a loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from demitasse import Layer, Location, ModelError, NetDefinition, Runtime, Solver, unknown
from demitasse_onnx.call import Call

LOSSES = ("softmax_loss", "sigmoid_cross_entropy_loss", "half_squared_distance")
"""Operations that compare an output with its target."""


def onnx_solver(
    runtime: Runtime,
    model: str | Path,
    *,
    batch: int,
    rate: float,
    iterations: int,
    loss: str = "softmax_loss",
    output: str | None = None,
    label: str = "label",
    momentum: float = 0.0,
    decay: float = 0.0,
    seed: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Solver:
    """Return a solver for ``runtime.trainer(solver, data={"train": {...}})``. The data are arrays of
    samples, by the names of the model's inputs, and the target of ``output`` (by default the first one),
    by the name ``label``.

    Training starts from the model's own weights, with stochastic gradient descent at a fixed ``rate``.
    Raise ModelError if ``loss`` is not one of LOSSES, or for an output or label that the model cannot
    have.
    """
    if loss not in LOSSES:
        raise ModelError(unknown("loss", loss, LOSSES, str(model)))
    if batch < 1 or iterations < 0:
        raise ModelError(
            f"{model}: batch {batch} and iterations {iterations} must be whole numbers, 1 or more"
        )
    net = runtime.read(model).net("train", overrides)
    net = _with_loss(net, str(model), batch, loss, output, label)
    return Solver(
        train=net,
        tests=(),
        update="momentum_update",
        update_attributes={"momentum": momentum, "decay": decay},
        rate=lambda iteration: rate,
        max_iterations=iterations,
        snapshot_last=False,
        seed=seed,
        location=Location(str(model)),
    )


def _with_loss(
    net: NetDefinition, where: str, batch: int, loss: str, output: str | None, label: str
) -> NetDefinition:
    """Return the net between a layer of samples and a layer of its loss."""
    read = {name for layer in net.layers for name in layer.bottoms if name not in layer.tops}
    inputs = [layer for layer in net.layers if _operator(layer, where) == "Input"]
    rest = [layer for layer in net.layers if layer not in inputs]
    made = [name for layer in rest for name in layer.tops if name not in read]
    chosen = output or (made[0] if made else "")
    if chosen not in made:
        raise ModelError(unknown("output", chosen, made, where))
    if label in {name for layer in net.layers for name in layer.tops}:
        raise ModelError(f"{where}: the label {label!r} has the name of a blob; choose another name")
    opset = net.layers[0].parameters.opset
    fields = (*(name for layer in inputs for name in layer.tops), label)
    samples = Call("Samples", opset, {"batch": batch})
    compared = Call("Loss", opset, {"word": loss}, (0, 1))
    layers = (
        Layer("samples", "onnx", (), fields, samples, net.location),
        *rest,
        Layer("loss", "onnx", (chosen, label), ("loss",), compared, net.location, (1.0,)),
    )
    return replace(net, layers=layers)


def _operator(layer: Layer, where: str) -> str:
    if not isinstance(layer.parameters, Call):
        raise ModelError(f"{where}: is not an ONNX model; other nets are trained by a solver file")
    return layer.parameters.operator
