"""Test scores of a top whose layer type computes them from the rows of all batches."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import PluginError


def median(toy: ModuleType, score: Callable[..., Any], **more: Any) -> Any:
    """A plugin with a layer type that passes scores on, and computes its own with ``score``."""

    def build(layer: Any, bottoms: Any, graph: Any) -> Any:
        return [graph.apply("relu", bottoms[0])]

    kind = SimpleNamespace(name="Median", parameters={}, build=build, score=score, **more)
    return toy.plugin("median", layer_types=lambda: [kind])


def of_all(layer: Any, batches: Any) -> Any:
    rows = np.concatenate(batches)
    return {"": float(np.median(rows)), ".most": rows.max(), ".of": [len(batches), *rows.shape]}


def definition(toy: ModuleType, batch: int = 4) -> Any:
    return toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=batch),
        toy.layer("ip", "InnerProduct", "data", "ip", outputs=3),
        toy.layer("median", "Median", "ip", "median"),
        toy.layer("other", "InnerProduct", "data", "other", outputs=1),
        phase="test",
    )


def with_tests(toy: ModuleType) -> Any:
    train = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=8),
        toy.layer("ip", "InnerProduct", "data", "ip", outputs=3),
        toy.layer("other", "InnerProduct", "data", "other", outputs=1),
        toy.layer("loss", "SoftmaxLoss", "ip label", "loss"),
    )
    return toy.solver(train, definition(toy), test_iterations=(7,), test_interval=5, max_iterations=1)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_it_is_of_all_batches_however_many_workers_share_them(toy: ModuleType, workers: int) -> None:
    machine = toy.machine(workers) if workers > 1 else toy.machine()
    plugins = [toy.toy(), median(toy, of_all), "training", "reference"]
    with demitasse.compose(machine, plugins) as runtime:
        trainer = runtime.trainer(with_tests(toy), precision="f64")
        scores = trainer.test()
        learnt = {name: [np.array(each) for each in p] for name, p in trainer.net.params.items()}
    with demitasse.compose(toy.machine(), plugins) as runtime:
        net = runtime.net(definition(toy), precision="f64")
        for name, arrays in learnt.items():
            for mine, array in zip(net.params[name], arrays, strict=True):
                mine[...] = array
        parts = [net.forward()["median"] for _ in range(7)]
        rows = np.concatenate(parts)
        told = net.test(7)
    assert list(scores) == ["label", "median", "median.most", "median.of", "other"]
    assert scores["median.of"] == [7, 28, 3]
    assert told["median"] == np.median(rows) and told["median.most"] == rows.max()
    assert scores["median"] == told["median"] and scores["median.most"] == told["median.most"]
    assert np.shape(scores["other"]) == (4, 1)  # the mean of each, as usual


def test_it_is_given_the_rows_that_were_found(toy: ModuleType) -> None:
    """For a top with more planned rows, and for one with three axes."""
    seen: list[Any] = []

    def score(layer: Any, batches: Any) -> Any:
        seen.append([batch.shape for batch in batches])
        return {}

    def found(planned: Any) -> Any:
        return planned[None, :1]

    plugins = [toy.toy(), median(toy, score, found=found), "training", "reference"]
    with demitasse.compose(toy.machine(), plugins) as runtime:
        assert list(runtime.net(definition(toy)).test(2)) == ["label", "other"]
    assert seen == [[(1, 3), (1, 3)]]


@pytest.mark.parametrize(
    ("score", "told"),
    [
        (lambda layer, batches: {}["tile"], "raised KeyError in score: 'tile'"),
        (lambda layer, batches: 3, "raised TypeError in score: .*'int' object is not iterable"),
        (lambda batches: {}, r"raised TypeError in score: .*takes 1 positional argument"),
    ],
)
def test_one_that_breaks_its_contract_is_named(toy: ModuleType, score: Any, told: str) -> None:
    plugins = [toy.toy(), median(toy, score), "training", "reference"]
    with demitasse.compose(toy.machine(), plugins) as runtime:
        net = runtime.net(definition(toy))
        with pytest.raises(PluginError, match=rf"toy.net: layer 'median' \(Median\): .*{told}"):
            net.test(2)
