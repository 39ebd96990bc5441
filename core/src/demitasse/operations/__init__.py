"""The vocabulary that layer types and kernels share: operations as data, in families.

A layer type emits operations; a kernel computes one; neither knows the other. Tensors are described
in logical NCHW order, samples first; layouts are the plan's affair. A plugin adds words with the
``operations`` hook. Source of the shapes: Caffe's layer definitions, so that its files keep meaning
what they meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from demitasse.errors import PluginError, unknown
from demitasse.operations import (
    activation,
    batch_normalization,
    convolution,
    elementwise,
    inner_product,
    loss,
    memory,
    normalization,
    pooling,
    update,
)
from demitasse.operations.record import REQUIRED as REQUIRED
from demitasse.operations.record import Attributes as Attributes
from demitasse.operations.record import Gradient as Gradient
from demitasse.operations.record import Operand as Operand
from demitasse.operations.record import Operation as Operation
from demitasse.operations.record import Shape as Shape
from demitasse.operations.record import Shapes as Shapes
from demitasse.operations.record import count as count
from demitasse.operations.record import define as define
from demitasse.operations.record import nothing as nothing
from demitasse.operations.record import per_element as per_element
from demitasse.operations.record import same_as as same_as
from demitasse.operations.record import shape_attribute as shape_attribute


def extend(
    base: Mapping[str, Operation], additions: Iterable[Operation], plugin: str = "core"
) -> Mapping[str, Operation]:
    """A vocabulary with ``additions``; PluginError when a name is taken or a gradient's rule is none."""
    words, added = dict(base), list(additions)
    for word in added:
        if word.name in words:
            taken = f"the vocabulary already has (family {words[word.name].family!r})"
            raise PluginError(f"plugin {plugin!r}: operation {word.name!r} {taken}; name it otherwise")
        words[word.name] = word
    for word in added:
        for rule in word.gradients:
            _check(rule, word, words, f"plugin {plugin!r}: operation {word.name!r}, gradient '{rule}'")
    return MappingProxyType(words)


def _check(rule: Gradient, word: Operation, words: Mapping[str, Operation], where: str) -> None:
    """Raise PluginError for names that the operations do not have, and for too few or many of them."""
    if rule.operation not in words:
        raise PluginError(unknown("operation", rule.operation, words, where))
    backward, outputs = words[rule.operation], [operand.name for operand in word.outputs]
    inputs = [operand.name for operand in word.inputs]
    given = ("operand", rule.operands, backward.inputs, [*inputs, *outputs, *(f"d{n}" for n in outputs)])
    for kind, names, side, valid in (("input", rule.of, backward.outputs, inputs), given):
        for name in names:
            if name not in valid:
                raise PluginError(unknown(kind, name, valid, where))
        needed = [o for o in side if kind == "operand" and not (o.optional or o.variadic)]
        if len(names) < len(needed) or (len(names) > len(side) and not side[-1].variadic):
            has = f"{'takes' if kind == 'operand' else 'gives'} {', '.join(o.name for o in side)}"
            raise PluginError(f"{where}: {rule.operation} {has}, not {', '.join(names) or 'nothing'}")


_FAMILIES = (
    *(activation, batch_normalization, convolution, elementwise, inner_product, loss),
    *(memory, normalization, pooling, update),
)
VOCABULARY: Mapping[str, Operation] = extend(
    {}, (operation for family in _FAMILIES for operation in family.OPERATIONS)
)
