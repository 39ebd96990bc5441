"""Parameters that layers share by name."""

from __future__ import annotations

from typing import Any

import pytest

from demitasse import ModelError

INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'


def inner(name: str, *params: str) -> str:
    written = " ".join(f"param {{ {param} }}" for param in params)
    return (
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "x" top: "{name}" {written} '
        f"inner_product_param {{ num_output: 4 }} }}\n"
    )


def test_a_multiplier_that_a_later_layer_alone_says_is_the_first_ones(read: Any, recorder: Any) -> None:
    later = 'name: "w" lr_mult: 0.25 decay_mult: 0'
    net = read(INPUT + inner("a", 'name: "w"', 'name: "b" lr_mult: 2') + inner("b", later, 'name: "b"'))
    for phase in ("train", "test"):
        graph = recorder(phase)
        graph.expand(net.net(phase))
        weight, bias = graph.parameters[:2]
        assert (weight.rate, weight.decay, bias.rate, bias.decay) == (0.25, 0.0, 2.0, 1.0)


def test_what_other_layers_of_a_phase_say_alone_does_not_count(read: Any, recorder: Any) -> None:
    tested = inner("b", 'name: "w" lr_mult: 0').replace("layer {", "layer { include { phase: TEST }")
    net = read(INPUT + inner("a", 'name: "w"') + tested)
    rates = {}
    for phase in ("train", "test"):
        graph = recorder(phase)
        graph.expand(net.net(phase))
        rates[phase] = graph.parameters[0].rate
    assert rates == {"train": 1.0, "test": 0.0}


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        (
            "lr_mult: 1",
            "lr_mult: 2",
            r":3: layer 'b': lr_mult 2 for parameter 'w', which it shares with layer 'a' "
            r"\(.*net\.prototxt:2\), where it is 1; a shared parameter has one$",
        ),
        ("decay_mult: 0", "decay_mult: 0.1", r"layer 'b': decay_mult 0\.1 .* where it is 0;"),
    ],
)
def test_two_multipliers_of_one_parameter_are_refused_with_both_layers(
    read: Any, first: str, later: str, message: str
) -> None:
    net = read(INPUT + inner("a", f'name: "w" {first}') + inner("b", f'name: "w" {later}'))
    with pytest.raises(ModelError, match=message):
        net.net("train")


def test_the_same_multipliers_said_twice_are_one(read: Any) -> None:
    said = 'name: "w" lr_mult: 0.1 decay_mult: 0'
    assert len(read(INPUT + inner("a", said) + inner("b", said)).net("train").layers) == 3


def test_a_layers_own_two_parameters_of_one_name_are_told_as_that(read: Any) -> None:
    text = INPUT + inner("a", 'name: "a" lr_mult: 1', 'name: "a" lr_mult: 2')
    told = (
        r":2: layer 'a': lr_mult 2 for parameter 'a', which it shares with its own parameter 0, of the"
    )
    with pytest.raises(ModelError, match=told):
        read(text).net("train")
