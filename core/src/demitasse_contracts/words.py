"""Checks of a word that a plugin adds to the vocabulary: operands, aliases and gradient rules."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse import PluginError, unknown
from demitasse.operations import Gradient, Operation

TYPES = ("real", "bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
TYPES += ("float16", "float32", "float64")
"""The element types that operands may have."""


def check_word(word: Operation, words: Mapping[str, Operation], plugin: str) -> None:
    """Raise PluginError if operands could not be passed to any kernel, if an alias or a gradient rule
    has a name that its operations lack, or if a rule has too few or too many names."""
    where = f"plugin {plugin!r}: operation {word.name!r}"
    names = [operand.name for operand in (*word.inputs, *word.outputs)]
    for name in names:
        if names.count(name) > 1:
            raise PluginError(f"{where}: operand {name!r} is defined twice; give each its own name")
    for side in (word.inputs, word.outputs):
        for operand in side:
            if operand.variadic and operand is not side[-1]:
                raise PluginError(f"{where}: operand *{operand.name} comes before another; put it last")
            if operand.dtype is not None and operand.dtype not in TYPES:
                at = f"{where}, operand {operand.name!r}"
                raise PluginError(unknown("element type", operand.dtype, TYPES, at))
    for pair in word.aliases:
        sides = ("output", word.outputs), ("input", word.inputs)
        for name, (kind, operands) in zip(pair, sides, strict=True):
            known = [operand.name for operand in operands]
            if name not in known:
                raise PluginError(unknown(kind, name, known, f"{where}, alias '{' = '.join(pair)}'"))
    for rule in word.gradients:
        _check_rule(rule, word, words, f"{where}, gradient '{rule}'")


def _check_rule(rule: Gradient, word: Operation, words: Mapping[str, Operation], where: str) -> None:
    if rule.operation not in words:
        raise PluginError(unknown("operation", rule.operation, words, where))
    backward, outputs = words[rule.operation], [operand.name for operand in word.outputs]
    inputs = [operand.name for operand in word.inputs]
    given = ("operand", rule.operands, backward.inputs, [*inputs, *outputs, *(f"d{n}" for n in outputs)])
    for kind, names, side, valid in (("input", rule.of, backward.outputs, inputs), given):
        for name in names:
            if name not in valid:
                raise PluginError(unknown(kind, name, valid, where))
        needed = [o for o in side if not (o.optional or o.variadic)]
        if len(names) < len(needed) or (len(names) > len(side) and not side[-1].variadic):
            has = f"{'takes' if kind == 'operand' else 'gives'} {', '.join(o.name for o in side)}"
            raise PluginError(f"{where}: {rule.operation} {has}, not {', '.join(names) or 'nothing'}")
