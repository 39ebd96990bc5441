"""Folds a normalisation into the weights of the product before it. Weights are read and written once, in
the tensors' own type; the reference's kernel converts all weights to float64 and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.requests import is_real


def fold_normalization(request: Request) -> Iterable[Candidate]:
    """Yield the only kernel, or none if the operands are not real numbers."""
    if not is_real(*request.inputs, *request.outputs):
        return
    axis, epsilon = int(request.attributes["axis"]), float(request.attributes["epsilon"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        w, b, mean, variance, factor, slope, level = inputs
        made, bias = outputs
        shape = [-1 if i == axis else 1 for i in range(w.ndim)]

        def work() -> None:
            total = np.ones(bias.size) if slope is None else slope.astype(np.float64)
            sums = np.zeros(bias.size) if b is None else b.astype(np.float64)
            with np.errstate(all="ignore"):
                if mean is not None:
                    share = 1 / np.float64(factor[0]) if factor[0] else 0.0
                    total = total / np.sqrt(share * variance + epsilon)
                    sums = sums - share * mean
                np.multiply(w, total.astype(w.dtype).reshape(shape), out=made)
                bias[...] = sums * total + (0.0 if level is None else level)

        return work

    yield Candidate("weights times slopes", bind, in_place=False)


FACTORIES = {"fold_normalization": fold_normalization}
