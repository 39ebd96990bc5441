"""Gradient rules are checked when the vocabulary takes an operation, and errors name what is valid."""

from __future__ import annotations

import pytest

from demitasse import PluginError
from demitasse.operations import VOCABULARY, Operation, define, extend, same_as


def softcap(rule: str) -> Operation:
    return define("activation", "softcap", "y = tanh(x)", "x b?", "y", same_as("x"), gradients=[rule])


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
        extend(VOCABULARY, [softcap(rule), BACKWARD], "softcap")
    words = str(caught.value)
    assert words.startswith(f"plugin 'softcap': operation 'softcap', gradient '{rule}': {told}")


@pytest.mark.parametrize("rule", ["x softcap_backward(dy, y)", "x = softcap_backward dy", "softcap", ""])
def test_a_text_that_is_no_rule_is_refused(rule: str) -> None:
    with pytest.raises(
        PluginError, match=r"operation 'softcap': gradient .* is no rule .valid: as 'x w ="
    ):
        softcap(rule)


def test_a_right_rule_is_taken_as_it_is_written() -> None:
    words = extend(VOCABULARY, [softcap("x = softcap_backward(dy, y)"), BACKWARD], "softcap")
    (rule,) = words["softcap"].gradients
    assert (rule.of, rule.operation, rule.operands) == (("x",), "softcap_backward", ("dy", "y"))
    assert str(rule) == "x = softcap_backward(dy, y)"
