"""Layer types, shape rules, fillers and samples that break their contract are named in errors."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from demitasse import Candidate, DataSpec, Field, PluginError
from demitasse.operations import Operation, define, same_as

Make = Callable[..., Any]


def fail(*given: Any) -> Any:
    return {}["tile"]


def word(shapes: Callable[..., Any], **more: Any) -> Operation:
    return define("activation", "odd", "y = x", inputs="x", outputs="y", shapes=shapes, **more)


def odd(toy: ModuleType, build: Callable[..., Any], *words: Operation) -> Any:
    """A plugin with a layer type Odd and an operation that any plugin can compute."""

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        return lambda: np.copyto(outputs[0], inputs[0])

    return toy.plugin(
        "stranger",
        operations=lambda: words,
        layer_types=lambda: [SimpleNamespace(name="Odd", parameters={}, build=build)],
        kernels=lambda request: [Candidate("copy", bind)] if request.operation.name == "odd" else [],
    )


def net(toy: ModuleType) -> Any:
    return toy.net(
        toy.layer("data", "Input", "", "data", shape=(2, 8)),
        toy.layer("odd", "Odd", "data", "odd"),
        phase="test",
    )


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (fail, "SimpleNamespace of types: raised KeyError in build: 'tile'"),
        (lambda layer: [], "SimpleNamespace of types: raised TypeError in build: "),
        (
            lambda layer, bottoms, graph: [graph.apply("relu", 3)],
            "operation 'relu' is given 3 (valid: a ",
        ),
        (
            lambda layer, bottoms, graph: [graph.parameter(8, fail)],
            "a parameter of shape 8 (valid: a tuple of whole numbers, 0 or more)",
        ),
    ],
)
def test_what_a_build_does_names_the_layer(
    toy: ModuleType, runtime: Make, build: Callable[..., Any], told: str
) -> None:
    with pytest.raises(PluginError) as caught:
        runtime(plugins=[odd(toy, build)]).net(net(toy))
    assert f"layer 'odd' (Odd): {told}" in str(caught.value)


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        (fail, "operation 'odd': raised KeyError in its shape rule: 'tile'"),
        (same_as("z"), "operation 'odd': raised KeyError in its shape rule: 'z'"),
        (
            lambda shapes, given: shapes["x"],
            "the shape rule of operation 'odd' returned (2, 8) (valid: for each",
        ),
        (
            lambda shapes, given: None,
            "the shape rule of operation 'odd' returned None (valid: for each output",
        ),
        (
            lambda shapes, given: [(2.0, 8)],
            "the shape rule of operation 'odd' returned [(2.0, 8)] (valid: for",
        ),
        (
            lambda shapes, given: [(2, -8)],
            "the shape rule of operation 'odd' returned [(2, -8)] (valid: for",
        ),
        (
            lambda shapes, given: [(2,), (8,)],
            "the shape rule of operation 'odd' returned 2 shapes, for y",
        ),
        (lambda shapes, given: [], "the shape rule of operation 'odd' returned 0 shapes, for y"),
    ],
)
def test_what_a_shape_rule_gives_is_checked(
    toy: ModuleType, runtime: Make, shapes: Callable[..., Any], told: str
) -> None:
    def build(layer: Any, bottoms: Any, graph: Any) -> Any:
        return [graph.apply("odd", bottoms[0])]

    with pytest.raises(PluginError) as caught:
        runtime(plugins=[odd(toy, build, word(shapes))]).net(net(toy))
    assert f"layer 'odd' (Odd): {told}" in str(caught.value)


ROWS = DataSpec("rows")
REALS = "(valid: a function of a shape and a demitasse.RandomStream)"


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (lambda graph: graph.parameter((8,), "xavier"), f"a parameter's filler is 'xavier' {REALS}"),
        (lambda graph: graph.input("z", "8x8"), "an input of shape '8x8' (valid: a tuple of whole"),
        (
            lambda graph: graph.scalar("iterations"),
            "unknown scalar 'iterations'; did you mean 'iteration'?",
        ),
        (lambda graph: graph.source(ROWS, "all", {"data": "real"}), "a batch of 'all' (valid: a whole"),
        (lambda graph: graph.source(ROWS, 2, ["data"]), "the samples' fields are ['data'] (valid: a ta"),
        (
            lambda graph: graph.source(ROWS, 2, {"data": "reel"}),
            "field 'data': unknown element type 'reel'; did you mean 'real'?",
        ),
    ],
)
def test_what_a_layer_asks_a_graph_for_is_checked(
    toy: ModuleType, runtime: Make, build: Callable[..., Any], told: str
) -> None:
    strange = odd(toy, lambda layer, bottoms, graph: build(graph))
    with pytest.raises(PluginError) as caught:
        runtime(plugins=[strange]).net(net(toy))
    assert f"layer 'odd' (Odd): {told}" in str(caught.value)


@pytest.mark.parametrize("made", ["x", 1j])
def test_a_filler_that_makes_no_real_numbers_names_the_layer(
    toy: ModuleType, runtime: Make, made: Any
) -> None:
    def build(layer: Any, bottoms: Any, graph: Any) -> Any:
        weights = graph.parameter((8, 8), lambda shape, random: np.full(shape, made))
        return [graph.apply("inner_product", bottoms[0], weights, None)]

    with pytest.raises(
        PluginError, match=r"'odd': .* parameter 0 made elements of .* \(valid: real num"
    ):
        runtime(plugins=[odd(toy, build)]).net(net(toy))


@pytest.mark.parametrize("flops", [fail, lambda shapes, given: "many"])
def test_a_count_of_flops_that_is_none_names_the_operation(
    toy: ModuleType, runtime: Make, flops: Callable[..., Any]
) -> None:
    def build(layer: Any, bottoms: Any, graph: Any) -> Any:
        return [graph.apply("odd", bottoms[0])]

    with pytest.raises(PluginError, match=r"operation 'odd': raised .*Error counting flops: "):
        runtime(plugins=[odd(toy, build, word(same_as("x"), flops=flops))]).net(net(toy))


def test_a_filler_that_fails_names_the_layer_and_the_parameter(toy: ModuleType, runtime: Make) -> None:
    def build(layer: Any, bottoms: Any, graph: Any) -> Any:
        return [graph.apply("inner_product", bottoms[0], graph.parameter((8, 8), fail), None)]

    with pytest.raises(
        PluginError, match=r"layer 'odd': fail of .*: raised KeyError filling parameter 0"
    ):
        runtime(plugins=[odd(toy, build)]).net(net(toy))


def wrong(toy: ModuleType, **given: Any) -> Any:
    source = toy.ArraySource(toy.images())
    for name, value in given.items():
        setattr(source, name, value)
    return toy.plugin(
        "stranger", roles={"data_source": {"priority": 9}}, data_source=lambda spec: source
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"fields": {"data": ((8,), "float32")}},
            "field 'data' is ((8,), 'float32') (valid: a demitasse.Fi",
        ),
        ({"fields": {"data": Field(8, "float32")}}, "field 'data' is Field(shape=8, "),  # type: ignore[arg-type]
        (
            {"fields": {"data": Field((8,), "flaot32")}},
            "field 'data' is Field(shape=(8,), dtype='flaot32')",
        ),
        ({"size": "60"}, "size = '60' (valid: how many samples it has, 1 or more)"),
        ({"size": 0}, "size = 0 (valid: how many samples it has, 1 or more)"),
        ({"fields": ["data"]}, "fields = ['data'] (valid: a table of demitasse.Field by name)"),
        ({"stream": fail}, "raised KeyError opening a stream: 'tile'"),
        ({"stream": lambda first: None}, "raised TypeError opening a stream: "),
        (
            {"stream": lambda *given: None},
            "stream returned None, without read and cursor and close (valid: ",
        ),
    ],
)
def test_samples_that_break_the_contract_name_the_layer_and_who_made_them(
    toy: ModuleType, runtime: Make, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(PluginError) as caught:
        runtime(plugins=[wrong(toy, **given)]).trainer(toy.solver(toy.classifier())).step(1)
    assert f": ArraySource of toy: {told}" in str(caught.value)
    assert "layer 'samples'" in str(caught.value)


@pytest.mark.parametrize("part", ["stream", "source"])
def test_samples_that_fail_as_they_are_closed_name_who_made_them(
    toy: ModuleType, runtime: Make, part: str
) -> None:
    source = toy.ArraySource(toy.images())
    opened = source.stream

    def stream(*given: Any) -> Any:
        made = opened(*given)
        made.close = fail
        return made

    if part == "stream":
        source.stream = stream
    else:
        source.close = fail
    given = toy.plugin(
        "stranger", roles={"data_source": {"priority": 9}}, data_source=lambda spec: source
    )
    made = runtime(plugins=[given])
    trainer = made.trainer(toy.solver(toy.classifier()))
    trainer.step(1)
    who = "ArraySource" if part == "source" else type(opened(0, 1, 1)).__name__
    with pytest.raises(PluginError, match=f"{who} of toy: raised KeyError in close: 'tile'"):
        made.close() if part == "source" else trainer.close()
    source.stream, source.close = opened, list
