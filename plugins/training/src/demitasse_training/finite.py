"""Inputs and samples that are not finite, told before a ReLU or the largest of a pool makes an ordinary
number of one: some kernels take a NaN for less than 0."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import numpy as np

from demitasse import Graph, Tensor

_CHUNK = 2**18
"""Numbers that stay in a cache between two looks at them."""

_MULTIPLIES = ("convolution", "deconvolution", "inner_product", "matrix_product")
_BOUNDS = (
    "softmax",
    "exp",
    "sigmoid",
    "tanh",
    "clip",
    "hard",
    "greater",
    "select",
    "largest",
    "maximum",
)
"""Beginnings of the words behind which nothing is infinite, or none reads it as a number."""


_UNKNOWN = ("lpq_loss", "downsample_known", "warp")
"""Beginnings of the words that take NaN for what is not known, as the true flow of a pixel may be."""
_MOVES = (
    "concat",
    "crop",
    "downsample_known",
    "gather",
    "permute",
    "resample",
    "reshape",
    "scale",
    "slice",
    "stop_gradient",
    "sum",
)
"""Beginnings of the words that leave NaN what it is."""

Key: TypeAlias = str | tuple[str, str]
"""An input's name, or the layer and the field of samples."""


class Finite:
    """Which inputs and samples of a net have to be finite numbers."""

    def __init__(self, graph: Graph) -> None:
        self.multiplied, self._unknown = multiplied(graph), may_be_unknown(graph)

    def problem(self, key: Key, array: np.ndarray) -> str:
        """Which number of an array should be finite and is not, in words; empty where none is."""
        return "" if key in self._unknown else not_finite(array, key not in self.multiplied)


def _sources(graph: Graph) -> dict[Tensor, set[Key]]:
    fed = {t: (f.layer, field) for f in graph.feeds for field, t in f.tensors.items()}
    reach: dict[Tensor, set[Key]] = {tensor: {name} for name, tensor in graph.inputs.items()}
    return reach | {tensor: {key} for tensor, key in fed.items()}


def may_be_unknown(graph: Graph) -> Collection[Key]:
    """The inputs and samples of which NaN means that a number is not known: all that reads them, as they
    are or after they were moved, added or scaled, takes it so."""
    reach, served, numbers = _sources(graph), set[Key](), set[Key]()
    for node in graph.nodes:
        name = node.operation.name
        read = {key for tensor in node.inputs if tensor for key in reach.get(tensor, ())}
        if name.startswith(_UNKNOWN):
            served |= read
        elif not name.startswith(_MOVES):
            numbers |= read
        for made in node.outputs if name.startswith(_MOVES) else ():
            if made is not None:
                reach[made] = reach.get(made, set()) | read
    return served - numbers


def multiplied(graph: Graph) -> Collection[Key]:
    """The inputs, and the samples by layer and field, that come to a convolution or a product, whatever
    moves, adds or scales them before: it makes NaN of what is infinite. Elsewhere that may have a
    meaning, as in a mask before a softmax."""
    reach, found = _sources(graph), set[Key]()
    for node in graph.nodes:
        read = {key for tensor in node.inputs if tensor for key in reach.get(tensor, ())}
        if node.operation.name.startswith(_MULTIPLIES):
            found |= read
        elif read and not node.operation.name.startswith(_BOUNDS):
            for made in node.outputs:
                if made is not None:
                    reach[made] = reach.get(made, set()) | read
    return found


def not_finite(array: np.ndarray, infinite: bool = False) -> str:
    """Which number of an array of samples is not finite (or, where ``infinite`` ones are right, NaN), in
    words; empty where none is."""
    if array.dtype.kind != "f" or _is_finite(array):
        return ""
    wrong = np.isnan(array) if infinite else ~np.isfinite(array)
    if not wrong.any():
        return ""
    sample, *place = np.argwhere(wrong)[0].tolist() if array.ndim else [0]
    at = f" at ({', '.join(map(str, place))})" if place else ""
    number = array[(sample, *place)] if array.ndim else array
    return (
        f"sample {sample} has {number:g}{at}; all numbers must be finite, as kernels may turn others "
        f"into ordinary ones"
    )


def _is_finite(array: np.ndarray) -> bool:
    if not array.flags.c_contiguous or array.size <= _CHUNK:
        return bool(np.isfinite(array).all())
    flat = array.reshape(-1)
    return all(np.isfinite(flat[at : at + _CHUNK]).all() for at in range(0, flat.size, _CHUNK))
