"""Errors of a third-party plugin are reported in a simulation as in a run: with its name."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from demitasse import Candidate, PluginError, compose


def simulated(toy: ModuleType, stranger: Any, net: Any) -> Any:
    plugins = [stranger, "reference", "training", "snapshots", "simulator", toy.toy()]
    with compose(toy.machine(), plugins) as runtime:
        return runtime.simulate(toy.solver(net))


def test_a_kernel_with_a_time_that_is_none_is_refused(toy: ModuleType) -> None:
    odd = Candidate("odd", lambda *arrays: list, seconds="1 s")  # type: ignore[arg-type]

    def kernels(request: Any) -> list[Candidate]:
        return [odd] if request.operation.name == "inner_product" else []

    with pytest.raises(
        PluginError, match=r"plugin 'stranger', kernel 'odd' of inner_product: seconds = "
    ):
        simulated(toy, toy.plugin("stranger", kernels=kernels), toy.classifier())


def test_a_layer_type_that_fails_is_not_the_simulators(toy: ModuleType) -> None:
    def build(*given: Any) -> Any:
        return {}["tile"]

    kind = SimpleNamespace(name="Odd", parameters={}, build=build)
    stranger = toy.plugin("stranger", layer_types=lambda: [kind])
    net = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=4),
        toy.layer("odd", "Odd", "data", "odd"),
        toy.layer("loss", "SoftmaxLoss", "odd label", "loss"),
    )
    told = r"layer 'odd' \(Odd\): SimpleNamespace of types: raised KeyError in build: 'tile'"
    with pytest.raises(PluginError, match=told):
        simulated(toy, stranger, net)
