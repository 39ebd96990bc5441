"""Inner products forward and both backward passes: a matrix product, tried both as it is and
transposed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_sw26010.kernels.convolution import GEMM, TILE_K, TILE_M, TILE_N
from demitasse_sw26010.kernels.program import Place, given, is_single, program_candidate, up
from demitasse_sw26010.model.ldm import LdmBuffer

LINE = LdmBuffer("line", (64 * 256,))
Sizes = tuple[int, int]


def _offers(
    request: Request,
    a: Sizes,
    b: Sizes,
    y: Sizes,
    flags: tuple[bool, bool],
    operands: Sequence[Place],
    loop: str = "matrix_product",
    more: Sequence[int] = (),
) -> Iterable[Candidate]:
    """Yield the product in both forms, with the result's rows on tiles of 256, or its columns."""
    lines = (LINE,) if loop == "matrix_product" else (LINE, LdmBuffer("sums", (64 * 16,), "float64"))
    for turned in (False, True):
        rows, columns = (TILE_N, TILE_M) if turned else (TILE_M, TILE_N)
        a_tile = (TILE_K, rows) if flags[0] else (rows, TILE_K)
        b_tile = (columns, TILE_K) if flags[1] else (TILE_K, columns)
        sizes = [
            (*size, up(size[0], tile[0]), up(size[1], tile[1]))
            for size, tile in ((a, a_tile), (b, b_tile), (y, (rows, columns)))
        ]
        yield program_candidate(
            request,
            "gemm, turned" if turned else "gemm",
            ("inner_product", loop),
            (*GEMM, *lines),
            operands,
            (*sizes, *flags, turned, *more),
            workspace=4 * sum(size[2] * size[3] for size in sizes),
            in_place=False,
        )


def forward(request: Request) -> Iterable[Candidate]:
    """Return the kernels of Y = X W^T + b."""
    x, w = given(request.inputs[0]), given(request.inputs[1])
    if not is_single(*request.inputs):
        return ()
    axis, turned = request.attributes["axis"], request.attributes["transpose"]
    rows, inputs = prod(x.shape[:axis]), prod(x.shape[axis:])
    outputs = w.shape[1] if turned else w.shape[0]
    operands = (("in", 0), ("in", 1), ("in", 2), ("out", 0))
    sizes = (rows, inputs), (w.shape[0], w.shape[1]), (rows, outputs)
    return _offers(request, *sizes, (False, not turned), operands)


def backward_data(request: Request) -> Iterable[Candidate]:
    """Return the kernels of dX = dY W."""
    dy, w = given(request.inputs[0]), given(request.inputs[1])
    if not is_single(*request.inputs):
        return ()
    rows, outputs = prod(dy.shape[:-1]), dy.shape[-1]
    turned = request.attributes["transpose"]
    inputs = w.shape[0] if turned else w.shape[1]
    operands = (("in", 0), ("in", 1), ("in", 2), ("out", 0))
    sizes = (rows, outputs), (w.shape[0], w.shape[1]), (rows, inputs)
    return _offers(request, *sizes, (False, turned), operands)


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Return the kernels of dW = dY^T X, or X^T dY for transposed weights, and of db."""
    dy, x, dw = given(request.inputs[0]), given(request.inputs[1]), given(request.outputs[0])
    if not is_single(*request.inputs):
        return ()
    axis = request.attributes["axis"]
    rows, inputs, outputs = prod(x.shape[:axis]), prod(x.shape[axis:]), dy.shape[-1]
    first, second = (("in", 0), outputs), (("in", 1), inputs)
    if request.attributes["transpose"]:
        first, second = second, first
    operands = (first[0], second[0], ("in", 2), ("out", 0), ("in", 0), ("out", 1))
    sizes = (rows, first[1]), (rows, second[1]), (dw.shape[0], dw.shape[1])
    more = (rows, outputs)
    return _offers(request, *sizes, (True, False), operands, "weights_gradient", more)


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        "inner_product": forward,
        "inner_product_backward_data": backward_data,
        "inner_product_backward_weights": backward_weights,
    }
)
