"""Einstein summation: products of operands whose axes have letters, summed over letters that
the result lacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Tensor, shortened
from demitasse_onnx.call import Call, Operands, Operator, constant_of
from demitasse_onnx.operators.product import products_of_pairs
from demitasse_onnx.operators.shape import permuted

_MORE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Letters for the axes that an ellipsis stands for."""


def _arrays(call: Call, attributes: Mapping[str, Any]) -> Sequence[np.ndarray]:
    return [
        constant_of(call, position, "an operand")
        for position, operand in enumerate(call.operands)
        if isinstance(operand, np.ndarray)
    ]


def _letters(equation: Any, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of the axes of each operand, and those of the result. Raise ValueError."""
    told = f"equation {shortened(equation, quoted=True)}"
    left, arrow, right = str(equation).replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{told} has {len(terms)} operands, but the node has {len(ranks)}")
    unused = [letter for letter in _MORE if letter not in left]
    beyond = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    most = max((count for count, term in zip(beyond, terms, strict=True) if "..." in term), default=0)
    if most > len(unused):
        raise ValueError(f"{told} has too many axes")
    broad = "".join(unused[:most])
    named = []
    for term, count in zip(terms, beyond, strict=True):
        named.append(term.replace("...", broad[most - count :] if count > 0 else ""))
    counts = {letter: "".join(named).count(letter) for letter in sorted("".join(named))}
    once = "".join(letter for letter, n in counts.items() if n == 1 and letter not in broad)
    result = right.replace("...", broad) if arrow else broad + once
    for term, rank in zip([*named, result], [*ranks, len(result)], strict=True):
        if len(term) != rank or len(set(term)) != rank or not all(map(str.isalpha, term)):
            raise ValueError(
                f"{told} does not fit axes {list(ranks)}, or has a letter twice in one term"
            )
    if not set(result) <= set("".join(named)):
        raise ValueError(f"{told} has a letter in its result that no operand has")
    return named, result


def _summed(given: Operands, x: Tensor, letters: str, kept: str) -> tuple[Tensor, str]:
    """Return x summed over the axes that are not kept."""
    rest = "".join(letter for letter in letters if letter in kept)
    gone = [letters.index(letter) for letter in letters if letter not in kept]
    if not gone:
        return x, letters
    order = (*(letters.index(letter) for letter in rest), *gone)
    return given.apply("total", permuted(given, x, order), axis=len(rest)), rest


def _multiplied(
    given: Operands, a: Tensor, first: str, b: Tensor, second: str, kept: str
) -> tuple[Tensor, str]:
    """Return the product of two operands, summed over the letters of both that are not kept."""
    a, first = _summed(given, a, first, kept + second)
    b, second = _summed(given, b, second, kept + first)
    sizes = dict(zip(first, a.shape, strict=True))
    for letter, extent in zip(second, b.shape, strict=True):
        if sizes.setdefault(letter, extent) != extent:
            raise ValueError(f"axis {letter!r} is {sizes[letter]} long in {a!r}, but {extent} in {b!r}")
    pairs = "".join(letter for letter in first if letter in second and letter in kept)
    inner = "".join(letter for letter in first if letter in second and letter not in kept)
    rows = "".join(letter for letter in first if letter not in second)
    columns = "".join(letter for letter in second if letter not in first)
    count = [math.prod(sizes[each] for each in part) for part in (pairs, rows, inner, columns)]
    a = permuted(given, a, tuple(first.index(each) for each in pairs + rows + inner))
    b = permuted(given, b, tuple(second.index(each) for each in pairs + inner + columns))
    a = given.apply("reshape", a, shape=(count[0], count[1], count[2]))
    b = given.apply("reshape", b, shape=(count[0], count[2], count[3]))
    y = products_of_pairs(given, a, b)[0]
    letters = pairs + rows + columns
    return given.apply("reshape", y, shape=tuple(sizes[each] for each in letters)), letters


def _einsum(given: Operands) -> Sequence[Tensor]:
    """Multiply the operands one after the other. Constants of the file are learned."""
    learned, xs = iter(given.learned), []
    for position, operand in enumerate(given.call.operands):
        xs.append(next(learned) if isinstance(operand, np.ndarray) else given.tensor(position))
    terms, result = _letters(given["equation"], [len(x.shape) for x in xs])
    y, letters = xs[0], terms[0]
    for place, (x, term) in enumerate(zip(xs[1:], terms[1:], strict=True), 2):
        y, letters = _multiplied(given, y, letters, x, term, result + "".join(terms[place:]))
    y, letters = _summed(given, y, letters, result)
    return [permuted(given, y, tuple(letters.index(letter) for letter in result))]


OPERATORS = (Operator("Einsum", _einsum, {"equation": None}, _arrays),)
