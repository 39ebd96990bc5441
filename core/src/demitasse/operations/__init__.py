"""The vocabulary that layer types and kernels share: operations as data, in families.

A layer type emits operations, a kernel computes one, and neither knows the other. Tensors are described
in logical NCHW order, samples first; the plan decides on layouts. A plugin adds operations with the
``operations`` hook. The shapes follow Caffe's layer definitions, so that its files keep their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from demitasse.errors import PluginError
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
from demitasse.operations.record import define_function as define_function
from demitasse.operations.record import nothing as nothing
from demitasse.operations.record import per_element as per_element
from demitasse.operations.record import same_as as same_as
from demitasse.operations.record import shape_attribute as shape_attribute


def extend(
    base: Mapping[str, Operation], additions: Iterable[Operation], plugin: str = "core"
) -> Mapping[str, Operation]:
    """Return the vocabulary ``base`` with ``additions``. Raises PluginError if a name is taken."""
    words = dict(base)
    for word in additions:
        if word.name in words:
            taken = f"is already in the vocabulary (family {words[word.name].family!r})"
            raise PluginError(f"plugin {plugin!r}: operation {word.name!r} {taken}; choose another name")
        words[word.name] = word
    return MappingProxyType(words)


_FAMILIES = (
    *(activation, batch_normalization, convolution, elementwise, inner_product, loss),
    *(memory, normalization, pooling, update),
)
VOCABULARY: Mapping[str, Operation] = extend(
    {}, (operation for family in _FAMILIES for operation in family.OPERATIONS)
)
