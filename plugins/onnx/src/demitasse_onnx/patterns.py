"""Groups of nodes that are one function: gates that older versions of ONNX, or exporters, spell out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import onnx

Pattern = str | float | tuple[Any, ...]
"""``"x"`` is the argument, a number a constant with one element, and a tuple an operator with its
inputs. A mapping at its end lists the operator's attributes; all others must be absent."""

_SUM = ("Add", ("Erf", ("Div", "x", math.sqrt(2))), 1.0)
_SUM_BY_FACTOR = ("Add", ("Erf", ("Mul", "x", math.sqrt(0.5))), 1.0)
_RAMP = ("Clip", ("Add", "x", 3.0), 0.0, 6.0)

_PATTERNS: tuple[tuple[Pattern, str, Mapping[str, Any]], ...] = (
    (("Mul", "x", ("Sigmoid", "x")), "Swish", {}),
    (("Mul", "x", ("HardSigmoid", "x", {"alpha": 1 / 6, "beta": 0.5})), "HardSwish", {}),
    (("Mul", "x", ("HardSigmoid", "x", {"alpha": 1 / 6})), "HardSwish", {}),
    (("Mul", "x", ("Div", _RAMP, 6.0)), "HardSwish", {}),
    (("Mul", "x", ("Mul", _RAMP, 1 / 6)), "HardSwish", {}),
    (("Div", ("Mul", "x", _RAMP), 6.0), "HardSwish", {}),
    (("Mul", ("Mul", "x", _RAMP), 1 / 6), "HardSwish", {}),
    (("Div", _RAMP, 6.0), "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    (("Mul", _RAMP, 1 / 6), "HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    *(
        (form, "Gelu", {})
        for total in (_SUM, _SUM_BY_FACTOR)
        for form in (
            ("Mul", ("Mul", "x", total), 0.5),
            ("Mul", ("Mul", "x", 0.5), total),
            ("Mul", "x", ("Mul", total, 0.5)),
        )
    ),
)
_EITHER_WAY = ("Add", "Mul")


def written_as_one(
    graph: onnx.GraphProto, number: Callable[[str], float | None]
) -> list[onnx.NodeProto]:
    """Return a graph's nodes, with the last node of each group that forms one function replaced by that
    function. ``number`` returns the value of a name that is a constant with one number. The other nodes
    of the group are no longer needed, unless something else reads their results."""
    makers = {name: node for node in graph.node for name in node.output if name}
    return [_as_one(node, _Search(makers, number)) for node in graph.node]


def _as_one(node: onnx.NodeProto, search: _Search) -> onnx.NodeProto:
    if node.domain not in ("", "ai.onnx") or node.op_type not in ("Div", "Mul"):
        return node
    for pattern, operator, attributes in _PATTERNS:
        if x := search.argument(node, pattern):
            return onnx.helper.make_node(operator, [x], list(node.output), name=node.name, **attributes)
    return node


class _Search:
    """Matches what a node computes against a pattern."""

    def __init__(
        self, makers: Mapping[str, onnx.NodeProto], number: Callable[[str], float | None]
    ) -> None:
        self._makers, self._number = makers, number

    def argument(self, node: onnx.NodeProto, pattern: Pattern) -> str:
        """Return the name that stands for x, or "" if the pattern does not match."""
        return self._node(node, pattern, "") or ""

    def _node(self, node: onnx.NodeProto | None, pattern: Any, x: str) -> str | None:
        operator, *parts = pattern
        if node is None or node.op_type != operator or node.domain not in ("", "ai.onnx"):
            return None
        given = {each.name: each.f for each in node.attribute}
        inputs: list[str | float] = [*node.input]
        if operator == "Clip" and "min" in given and "max" in given:
            inputs += [given.pop("min"), given.pop("max")]
        wanted = parts.pop() if isinstance(parts[-1], Mapping) else {}
        if set(given) != set(wanted) or any(not _near(given[name], wanted[name]) for name in wanted):
            return None
        orders = [inputs, inputs[::-1]] if operator in _EITHER_WAY else [inputs]
        for order in orders:
            if (found := self._all(order, parts, x)) is not None:
                return found
        return None

    def _all(self, inputs: list[str | float], parts: list[Any], x: str) -> str | None:
        if len(inputs) != len(parts):
            return None
        for given, part in zip(inputs, parts, strict=True):
            found = self._value(given, part, x)
            if found is None:
                return None
            x = found
        return x

    def _value(self, given: str | float, part: Any, x: str) -> str | None:
        """Return the name that stands for x after one more part, or None if that part does not match."""
        if isinstance(part, float):
            value = given if isinstance(given, float) else self._number(given)
            return x if value is not None and _near(value, part) else None
        if not isinstance(given, str):
            return None
        if part == "x":
            return given if x in ("", given) else None
        return self._node(self._makers.get(given), part, x)


def _near(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=1e-6)
