"""The words that a plan makes of an operation and its result's only reader, and what they compute."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from demitasse.operations import VOCABULARY, Operand, Operation
from demitasse_reference.kernels import KERNELS


def _parts(name: str) -> tuple[str, ...]:
    if name in VOCABULARY:
        return (name,)
    return next(
        (word.name, *_parts(reader))
        for word in VOCABULARY.values()
        for reader in word.fuses
        if name == f"{word.name}_{reader}"
    )


FUSED: Mapping[str, tuple[str, ...]] = {
    name: _parts(name)
    for name in (f"{word.name}_{reader}" for word in VOCABULARY.values() for reader in word.fuses)
}
"""The words of the vocabulary that each fused one is made of, in order."""


def word(name: str) -> Operation:
    """A word of the core's, or a fused one as a plan makes it."""
    first, *readers = FUSED.get(name, (name,))
    more = [operand for reader in readers for operand in _behind(reader)]
    operation = VOCABULARY[first]
    return replace(operation, name=name, inputs=(*operation.inputs, *more))


def _behind(reader: str) -> tuple[Operand, ...]:
    """What a reader takes beside the result that it reads."""
    inputs = VOCABULARY[reader].inputs
    return inputs[-1:] if len(inputs) > 1 or inputs[-1].variadic else ()


def shapes(operation: Operation, inputs: Sequence[Any]) -> dict[str, Any]:
    """The shapes of inputs as the rules of the vocabulary take them; operands may follow a variadic
    one."""
    result: dict[str, Any] = {}
    left = [None if x is None else tuple(x.shape) for x in inputs]
    for behind, operand in zip(reversed(range(len(operation.inputs))), operation.inputs, strict=True):
        if operand.variadic:
            result[operand.name], left = left[: len(left) - behind], left[len(left) - behind :]
        else:
            result[operand.name] = left.pop(0) if left else None
    return result


def composed(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    """By the reference's definitions in float64, one after the other: the inputs that a word updates,
    and its outputs."""
    first, *readers = FUSED.get(name, (name,))
    wide = [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in inputs]
    several = VOCABULARY[first].inputs[-1].variadic
    own = len(wide) - len(readers) + readers.count("relu") if several else len(VOCABULARY[first].inputs)
    results = _results(first, wide[:own], {**VOCABULARY[first].attributes, **attributes})
    at = sum(operand.updated for operand in VOCABULARY[first].inputs)
    others = wide[own:]
    for reader in readers:
        taken, others = (others, []) if _behind(reader) else ([], others)
        (results[at],) = _results(reader, [results[at], *taken], VOCABULARY[reader].attributes)
    return results


def _results(name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    kernel = KERNELS[name]
    used = inspect.signature(kernel).parameters
    with np.errstate(all="ignore"):
        made = kernel(*inputs, **{key: value for key, value in attributes.items() if key in used})
    return list(made) if isinstance(made, tuple) else [made]
