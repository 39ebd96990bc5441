"""Functions of one element, products and maxima of several tensors, and ReLUs with learned slopes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from demitasse import Candidate, Request
from demitasse_sw26010.kernels.elementwise import X, Z
from demitasse_sw26010.kernels.program import (
    Part,
    candidate_of,
    elements,
    given,
    is_single,
    part,
    program_candidate,
)

Factory = Callable[[Request], Iterable[Candidate]]

PLAIN_CYCLES, EXPONENTIAL_CYCLES, POWER_CYCLES = 1.0, 60.0, 120.0
"""The cycles for one element: a few instructions of the vector pipeline; an exponential or a logarithm
(as in softmax); and both of them."""

FUNCTIONS: Mapping[str, tuple[float, tuple[str, ...]]] = MappingProxyType(
    {
        "absolute": (PLAIN_CYCLES, ()),
        "softplus": (2 * EXPONENTIAL_CYCLES, ()),
        "clip": (PLAIN_CYCLES, ("least", "most")),
        "elu": (EXPONENTIAL_CYCLES, ("alpha",)),
        "exponential": (EXPONENTIAL_CYCLES, ("scale", "shift")),
        "logarithm": (EXPONENTIAL_CYCLES, ("factor", "scale", "shift")),
        "power": (POWER_CYCLES, ("power", "scale", "shift")),
        "sigmoid": (EXPONENTIAL_CYCLES, ()),
        "swish": (EXPONENTIAL_CYCLES, ("beta",)),
        "tanh": (EXPONENTIAL_CYCLES, ()),
        "greater": (PLAIN_CYCLES, ("threshold",)),
    }
)
"""For each function, in the order of loops/functions.py, the cycles for an element and the attributes
that it reads."""

CHEAP_SLOPES = ("elu", "exponential", "sigmoid", "tanh")
"""The functions whose gradients are computed from y, without another exponential."""


def _function(what: int, name: str, backward: bool) -> Factory:
    cycles, names = FUNCTIONS[name]
    cycles = PLAIN_CYCLES if backward and name in CHEAP_SLOPES else cycles

    def offer(request: Request) -> Iterable[Candidate]:
        if not is_single(*request.inputs):
            return ()
        numbers = tuple(float(request.attributes[each]) for each in names) or (0.0,)
        size = elements(request.inputs[0])
        inputs = (("in", 0), ("in", 1)) if backward else (("in", 0),)
        return (
            program_candidate(
                request,
                request.operation.name,
                ("functions", "function_backward" if backward else "function"),
                (X, Z),
                (*inputs, ("out", 0)),
                (size, what, cycles, numbers),
            ),
        )

    return offer


def product(request: Request) -> Iterable[Candidate]:
    """Return the kernel of a product, one factor after the other."""
    if not is_single(*request.inputs):
        return ()
    size = elements(request.outputs[0])
    return (
        candidate_of("product", _factors(request, range(len(request.inputs)), 0, size), in_place=False),
    )


def product_backward(request: Request) -> Iterable[Candidate]:
    """Return the kernel of a product's gradient: dy times the other factors, or times all of them
    divided by its own."""
    if not is_single(*request.inputs):
        return ()
    size, count = elements(request.inputs[0]), len(request.inputs) - 1
    parts = list[Part]()
    for i, output in enumerate(request.outputs):
        if output is None:
            continue
        others = [j + 1 for j in range(count) if j != i]
        divides = bool(request.attributes["by_division"])
        parts += _factors(request, [0, *range(1, count + 1)] if divides else [0, *others], i, size)
        if divides:
            numbers = (size, False, True)
            parts.append(_times(request, i + 1, i, numbers))
    return (candidate_of("product_backward", parts, in_place=False),)


def _factors(request: Request, factors: Iterable[int], target: int, size: int) -> list[Part]:
    return [
        _times(request, factor, target, (size, number == 0, False))
        for number, factor in enumerate(factors)
    ]


def _times(request: Request, factor: int, target: int, numbers: tuple[Any, ...]) -> Part:
    places = (("in", factor), ("out", target))
    return part(request, request.operation.name, ("functions", "times"), (X, Z), places, numbers)


def maximum(request: Request) -> Iterable[Candidate]:
    """Return the kernel of a maximum: one tensor after the other is compared with the largest so far."""
    if not is_single(*request.inputs):
        return ()
    size = elements(request.outputs[0])
    parts = [
        part(
            request,
            "maximum",
            ("functions", "larger"),
            (X, Z),
            (("in", i), ("out", 0), ("out", 1)),
            (size, i),
        )
        for i in range(len(request.inputs))
    ]
    return (candidate_of("maximum", parts, in_place=False),)


def maximum_backward(request: Request) -> Iterable[Candidate]:
    """Return the kernel of a maximum's gradient: dy for the tensor that was the largest."""
    if not is_single(request.inputs[0]):
        return ()
    size = elements(request.inputs[0])
    parts = [
        part(
            request,
            "maximum_backward",
            ("functions", "chosen"),
            (X, Z),
            (("in", 0), ("in", 1), ("out", i)),
            (size, i),
        )
        for i, output in enumerate(request.outputs)
        if output is not None
    ]
    return (candidate_of("maximum_backward", parts, in_place=False),)


def _sloped(loop: str, inputs: int, outputs: int) -> Factory:
    def offer(request: Request) -> Iterable[Candidate]:
        if not is_single(*request.inputs):
            return ()
        shape = given(request.inputs[0]).shape
        places = (*(("in", i) for i in range(inputs)), *(("out", i) for i in range(outputs)))
        numbers = (shape[0], shape[1], prod(shape[2:]))
        name = request.operation.name
        return (
            program_candidate(
                request, name, ("functions", loop), (X, Z), places, numbers, in_place=False
            ),
        )

    return offer


FACTORIES: Mapping[str, Factory] = MappingProxyType(
    {
        **{name: _function(what, name, False) for what, name in enumerate(FUNCTIONS)},
        **{
            f"{name}_backward": _function(what, name, True)
            for what, name in enumerate(FUNCTIONS)
            if name != "greater"
        },
        "product": product,
        "product_backward": product_backward,
        "maximum": maximum,
        "maximum_backward": maximum_backward,
        "parametric_relu": _sloped("sloped", 2, 1),
        "parametric_relu_backward": _sloped("sloped_backward", 3, 2),
    }
)
