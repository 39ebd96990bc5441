"""Gradient rules are checked when an operation enters the vocabulary; errors name what is valid."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from demitasse import Level, Machine, PluginError, compose, hookimpl
from demitasse.operations import VOCABULARY, Operation, define, same_as
from demitasse_contracts.words import check_word


def softcap(rule: str) -> Operation:
    return define("activation", "softcap", "y = tanh(x)", "x b?", "y", same_as("x"), gradients=[rule])


def take(*added: Operation) -> Mapping[str, Operation]:
    """Return the vocabulary with a plugin's words, as a runtime has it."""
    given = SimpleNamespace(
        manifest={"name": "softcap", "api": ">=0", "roles": {"operations": {}}},
        operations=hookimpl(lambda: added),
    )
    with compose(Machine("desk", (Level("machine"),), fingerprint="any"), [given]) as runtime:
        return runtime.vocabulary


BACKWARD = define("activation", "softcap_backward", "dx", "dy y", "dx", same_as("dy"))


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        (
            "x = softcap_bakward(dy, y)",
            "unknown operation 'softcap_bakward'; did you mean 'softcap_backward'",
        ),
        ("x1 = softcap_backward(dy, y)", "unknown input 'x1'; did you mean 'x'"),
        ("x = softcap_backward(dz, y)", "unknown operand 'dz'"),
        ("x = softcap_backward(dy, yy)", "unknown operand 'yy'"),
        ("x = softcap_backward(dy)", "softcap_backward takes dy, y, not dy"),
        ("x = softcap_backward(dy, y, x)", "softcap_backward takes dy, y, not dy, y, x"),
        ("x = softcap_backward()", "softcap_backward takes dy, y, not nothing"),
        ("x b = softcap_backward(dy, y)", "softcap_backward gives dx, not x, b"),
    ],
)
def test_a_rule_with_a_wrong_name_is_refused(rule: str, told: str) -> None:
    with pytest.raises(PluginError) as caught:
        take(softcap(rule), BACKWARD)
    words = str(caught.value)
    assert words.startswith(f"plugin 'softcap': operation 'softcap', gradient '{rule}': {told}")


def test_a_rule_names_what_every_output_is_the_gradient_of() -> None:
    """A kernel would be given None for the output that the rule leaves out."""

    def backward(outputs: str) -> Operation:
        return define("activation", "softcap_backward", "dx db", "dy y", outputs, same_as("dy"))

    rule = softcap("x = softcap_backward(dy, y)")
    with pytest.raises(PluginError, match=r"softcap_backward gives dx, db, not x$"):
        take(rule, backward("dx db"))
    assert take(rule, backward("dx db?"))


@pytest.mark.parametrize("rule", ["x softcap_backward(dy, y)", "x = softcap_backward dy", "softcap", ""])
def test_a_text_that_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(
        PluginError, match=r"operation 'softcap': gradient .* is not a rule .valid: like 'x w ="
    ):
        softcap(rule)


def test_a_right_rule_is_taken_as_it_is_written() -> None:
    words = take(softcap("x = softcap_backward(dy, y)"), BACKWARD)
    (rule,) = words["softcap"].gradients
    assert (rule.of, rule.operation, rule.operands) == (("x",), "softcap_backward", ("dy", "y"))
    assert str(rule) == "x = softcap_backward(dy, y)"


@pytest.mark.parametrize("name", sorted(VOCABULARY))
def test_the_cores_own_words_are_right(name: str) -> None:
    check_word(VOCABULARY[name], VOCABULARY, "core")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"aliases": ["yy = x"]}, "alias 'yy = x': unknown output 'yy'; did you mean 'y'? (valid: y)"),
        ({"aliases": ["y = z"]}, "alias 'y = z': unknown input 'z' (valid: x)"),
        ({"inputs": "x x"}, "operand 'x' is defined twice; give each its own name"),
        ({"inputs": "x y"}, "operand 'y' is defined twice; give each its own name"),
        ({"inputs": "*xs x"}, "operand *xs comes before another; put it last"),
        (
            {"outputs": "y mask:unit8"},
            "operand 'mask': unknown element type 'unit8'; did you mean 'uint8'",
        ),
    ],
)
def test_operands_and_aliases_are_checked(given: dict[str, object], told: str) -> None:
    about = {"inputs": "x", "outputs": "y", "shapes": same_as("x"), **given}
    with pytest.raises(PluginError) as caught:
        take(define("activation", "softcap", "", **about))  # type: ignore[arg-type]
    words = str(caught.value).replace(", alias", ": alias").replace(", operand", ": operand")
    assert words.startswith(f"plugin 'softcap': operation 'softcap': {told}")


def test_an_alias_that_is_no_pair_is_refused() -> None:
    with pytest.raises(
        PluginError, match=r"operation 'softcap': alias 'y x' is not a pair .valid: like 'y = x'"
    ):
        define("activation", "softcap", "", "x", "y", same_as("x"), aliases=["y x"])


def test_a_word_of_two_plugins_names_both() -> None:
    def plugin(name: str) -> SimpleNamespace:
        word = define("activation", "softcap", "", "x", "y", same_as("x"))
        manifest = {"name": name, "api": ">=0", "roles": {"operations": {}}}
        return SimpleNamespace(manifest=manifest, operations=hookimpl(lambda: [word]))

    machine = Machine("desk", (Level("machine"),), fingerprint="any")
    with pytest.raises(PluginError) as caught:
        compose(machine, [plugin("cap"), plugin("softcap")])
    both = "plugins 'cap' and 'softcap' both define operation 'softcap'"
    assert str(caught.value) == f"{both}; rename one, or leave one of the plugins out"
