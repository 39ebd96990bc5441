"""Finding inputs and samples that are not finite, before a ReLU or a max pooling turns them into
ordinary numbers: some kernels treat NaN as less than 0."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import numpy as np

from demitasse import Graph, Tensor

_CHUNK = 2**18
"""How many numbers are checked at a time, so that they stay in a cache."""

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
"""Name prefixes of operations whose results are finite, or that do not read infinities as numbers."""


_UNKNOWN = ("lpq_loss", "downsample_known", "warp")
"""Name prefixes of operations to which NaN means unknown, such as the true flow of a pixel."""
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
"""Name prefixes of operations that pass NaN on unchanged."""

Key: TypeAlias = str | tuple[str, str]
"""An input's name, or the layer and the field of samples."""


class Finite:
    """Knows which inputs and samples of a net must be finite."""

    def __init__(self, graph: Graph) -> None:
        self.multiplied, self._unknown = multiplied(graph), may_be_unknown(graph)

    def problem(self, key: Key, array: np.ndarray) -> str:
        """Name a number of an array that should be finite and is not; empty if there is none."""
        return "" if key in self._unknown else not_finite(array, key not in self.multiplied)


def _sources(graph: Graph) -> dict[Tensor, set[Key]]:
    fed = {t: (f.layer, field) for f in graph.feeds for field, t in f.tensors.items()}
    reach: dict[Tensor, set[Key]] = {tensor: {name} for name, tensor in graph.inputs.items()}
    return reach | {tensor: {key} for tensor, key in fed.items()}


def may_be_unknown(graph: Graph) -> Collection[Key]:
    """Return the inputs and samples in which NaN means an unknown number, because everything that reads
    them, directly or after they were moved, added or scaled, treats it so."""
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
    """Return the inputs, and the samples by layer and field, that reach a convolution or a product,
    whatever moves, adds or scales them before: it turns infinities into NaN. Elsewhere, infinities may
    have a meaning, as in a mask before a softmax."""
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
    """Name a number in an array of samples that is not finite (or, if ``infinite`` ones are valid, that
    is NaN); empty if there is none."""
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
