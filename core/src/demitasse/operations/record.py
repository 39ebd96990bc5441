"""The record of an operation, which layer types emit and kernels implement."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from demitasse.errors import PluginError

Shape = tuple[int, ...]
Shapes = Mapping[str, Any]
Attributes = Mapping[str, Any]


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""Stands for the default of an attribute that has no default."""


@dataclass(frozen=True)
class Operand:
    """One input or output by name. An ``optional`` operand may be absent (None); an optional output that
    nobody reads is not computed. A ``variadic`` operand, which must be the last, stands for any number
    of tensors. An ``updated`` input is read and written in place. ``dtype`` fixes the element type:
    ``real`` is the plan's precision, None the type of the first input."""

    name: str
    optional: bool = False
    variadic: bool = False
    updated: bool = False
    dtype: str | None = None


@dataclass(frozen=True)
class Gradient:
    """How the gradients of some inputs are computed: an operation and its operands. ``of`` names inputs
    of the forward operation; the outputs of ``operation`` are their gradients, in that order.
    ``operands`` name inputs and outputs of the forward operation; ``d<output>`` is the gradient that
    arrives at an output. The backward operation receives the forward one's attributes that it declares
    and, if it declares them, ``shape`` (of the first input in ``of``), ``shapes`` (of all of them) and
    ``wanted`` (for each, whether its gradient is needed). For a variadic output all gradients are
    passed, zeros where none arrives."""

    of: tuple[str, ...]
    operation: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{' '.join(self.of)} = {self.operation}({', '.join(self.operands)})"


@dataclass(frozen=True)
class Operation:
    """One word of the vocabulary, named after the mathematics. ``shapes`` takes the input shapes by
    operand name (a list for a variadic operand, None for an absent one) and the attributes, and returns
    the output shapes; if they do not fit, it raises ValueError with the reason. ``flops`` takes the same
    and the output shapes; None counts one per output element. ``aliases`` lists (output, input) pairs
    that may share memory if nothing reads the input afterwards. ``fuses`` names operations that a kernel
    may do as well: if one, with default attributes, is the only reader of the first output, the plan
    asks for ``<name>_<its name>``, with its other inputs behind these. An operation that fuses any may
    also take in a ``function``, which computes each output element from one element; its attributes join
    the others. A ``view`` has no kernel: its output is its input's memory in another shape."""

    name: str
    summary: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    shapes: Callable[[Shapes, Attributes], Sequence[Shape]]
    flops: Callable[[Shapes, Attributes], float] | None = None
    attributes: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    gradients: tuple[Gradient, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    fuses: tuple[str, ...] = ()
    view: bool = False
    family: str = ""
    function: bool = False


def define(
    family: str,
    name: str,
    summary: str,
    inputs: str,
    outputs: str,
    shapes: Callable[[Shapes, Attributes], Sequence[Shape]],
    flops: Callable[[Shapes, Attributes], float] | None = None,
    attributes: Mapping[str, Any] | None = None,
    gradients: Sequence[str] = (),
    aliases: Sequence[str] = (),
    fuses: Sequence[str] = (),
    view: bool = False,
    function: bool = False,
) -> Operation:
    """Return an operation from a short notation. Operands: ``x w b?`` (optional), ``*xs`` (variadic),
    ``p!`` (updated), ``mask:uint8`` (type). Gradients: ``w b = backward(dy, x)``. Aliases: ``y = x``."""
    rules = tuple(_gradient(name, text) for text in gradients)
    pairs = tuple(_pair(name, text) for text in aliases)
    given = MappingProxyType(dict(attributes or {}))
    about = rules, pairs, tuple(fuses), view, family, function
    return Operation(name, summary, _operands(inputs), _operands(outputs), shapes, flops, given, *about)


def define_function(
    name: str,
    formula: str,
    gradient: str,
    reads: str,
    flops: float,
    attributes: Mapping[str, Any] | None = None,
) -> tuple[Operation, Operation]:
    """Return a function of one element, ``y = formula``, and its gradient, ``dx = gradient``, which
    reads dy and ``reads`` (x or y). Each takes ``flops`` operations per element."""
    return (
        define("elementwise", name, f"y = {formula}", "x", "y", same_as("x"), per_element("x", flops),
               attributes, [f"x = {name}_backward(dy, {reads})"], ["y = x"], function=True),
        define("elementwise", f"{name}_backward", f"dx = {gradient}", f"dy {reads}", "dx",
               same_as("dy"), per_element("dy", flops), attributes, aliases=["dx = dy"]),
    )  # fmt: skip


def _gradient(operation: str, text: str) -> Gradient:
    rule = re.fullmatch(r"([\w ]+) = (\w+)\(([\w, ]*)\)", text)
    if rule is None:
        valid = "valid: like 'x w = some_backward(dy, x)'"
        raise PluginError(f"operation {operation!r}: gradient {text!r} is not a rule ({valid})")
    return Gradient(tuple(rule[1].split()), rule[2], tuple(re.findall(r"\w+", rule[3])))


def _pair(operation: str, text: str) -> tuple[str, str]:
    pair = re.fullmatch(r"(\w+) = (\w+)", text)
    if pair is None:
        raise PluginError(f"operation {operation!r}: alias {text!r} is not a pair (valid: like 'y = x')")
    return pair[1], pair[2]


def _operands(text: str) -> tuple[Operand, ...]:
    words = [word.partition(":") for word in text.split()]
    return tuple(
        Operand(name.strip("*?!"), "?" in name, name[0] == "*", "!" in name, dtype or None)
        for name, _, dtype in words
    )


def same_as(name: str) -> Callable[[Shapes, Attributes], Sequence[Shape]]:
    """Return the shape rule of an operation whose only output has the shape of input ``name``."""
    return lambda shapes, attributes: (shapes[name],)


def shape_attribute(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    """The shape rule of a backward operation whose output is as large as a forward input."""
    return (attributes["shape"],)


def nothing(shapes: Shapes, attributes: Attributes) -> Sequence[Shape]:
    """The shape rule of an operation that only updates its inputs."""
    return ()


def per_element(name: str, times: float = 1.0) -> Callable[[Shapes, Attributes], float]:
    """Return a flop count of ``times`` for each element of operand ``name``."""
    return lambda shapes, attributes: times * count(shapes[name])


def count(shape: Shape) -> int:
    """Return the number of elements of a shape."""
    return math.prod(shape)
