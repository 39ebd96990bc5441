"""Inner products: one matrix product of the BLAS library that NumPy brings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.requests import is_real
from demitasse_cpu.threads import in_order

KERNEL = "BLAS matrix product"


def forward(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        x, w, b = (*inputs, None)[:3]
        x, y = _matrix(x, request), _matrix(outputs[0], request)
        product = partial(np.matmul, x, w if _transposed(request) else w.T, out=y)
        if b is None:
            return product
        return in_order([product, partial(np.add, y, b, out=y)])

    return (Candidate(KERNEL, bind, in_place=False),)


def backward_data(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        dy, w = inputs
        dy, dx = _matrix(dy, request), _matrix(outputs[0], request)
        return partial(np.matmul, dy, w.T if _transposed(request) else w, out=dx)

    return (Candidate(KERNEL, bind, in_place=False),)


def backward_weights(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        dy, x = (_matrix(array, request) for array in inputs)
        dw, db = (*outputs, None)[:2]
        factors = (x.T, dy) if _transposed(request) else (dy.T, x)
        product = partial(np.matmul, *factors, out=dw)
        if db is None:
            return product
        return in_order([product, partial(np.add.reduce, dy, axis=0, out=db)])

    return (Candidate(KERNEL, bind, in_place=False),)


FACTORIES = {
    "inner_product": forward,
    "inner_product_backward_data": backward_data,
    "inner_product_backward_weights": backward_weights,
}


def _matrix(array: Any, request: Request) -> Any:
    """A tensor flattened before the operation's axis and from it on."""
    axis = request.attributes["axis"]
    return array.reshape(prod(array.shape[:axis]), -1)


def _transposed(request: Request) -> bool:
    return bool(request.attributes["transpose"])
