"""Windows over images: as columns of a matrix, pooled at random, and unpooled to where the maxima
were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Candidate, DataError, Request, TensorSpec, Work
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, philox_key, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import in_order

if TYPE_CHECKING:
    from demitasse_cpu.loops.spatial import Columns, Windows

KERNEL = "numba loop over windows"
_PHILOX = 8
_CELL = 64  # bytes of a cache line, so that each number has its own


def im2col(request: Request) -> Iterable[Candidate]:
    return _columns(request, spec(request.inputs[0]), spec(request.outputs[0]), "columns")


def col2im(request: Request) -> Iterable[Candidate]:
    return _columns(request, spec(request.outputs[0]), spec(request.inputs[0]), "added_columns")


def _columns(request: Request, image: TensorSpec, table: TensorSpec, loop: str) -> Iterable[Candidate]:
    if not is_real(image, table) or len(image.shape) > 5:
        return ()
    planes = image.shape[0] * image.shape[1]
    parts = parts_for(request, planes, prod(table.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import spatial as loops

        arguments = (_geometry(request, image, table), flat(inputs[0]), flat(outputs[0]))
        return spread(getattr(loops, loop), arguments, planes, parts)

    return (Candidate(KERNEL, bind, in_place=False),)


def _geometry(request: Request, image: TensorSpec, table: TensorSpec) -> Columns:
    from demitasse_cpu.loops.spatial import Columns

    def three(numbers: Sequence[int], missing: int) -> tuple[int, int, int]:
        deep, down, across = [missing] * (3 - len(numbers)) + [int(n) for n in numbers]
        return deep, down, across

    given = request.attributes
    return Columns(
        extents=three(image.shape[2:], 1),
        outputs=three(table.shape[2:], 1),
        kernel=three(given["kernel"], 1),
        stride=three(given["stride"], 1),
        pad=three(given["pad"], 0),
        dilation=three(given["dilation"], 1),
    )


def stochastic(request: Request) -> Iterable[Candidate]:
    x, iteration, sample = map(spec, request.inputs)
    y, choice = (*request.outputs, None)[:2]
    if not is_real(x, y) or len(x.shape) != 4 or {iteration.dtype, sample.dtype} != {"uint64"}:
        return ()
    planes = x.shape[0] * x.shape[1]
    parts = parts_for(request, planes, _work(request, spec(y)) + _PHILOX * prod(spec(y).shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import spatial as loops

        kept = flat(outputs[1]) if choice is not None else np.empty(0, np.int32)
        buffers = (flat(inputs[0]), flat(outputs[0]), kept, choice is not None)
        numbers = (*map(flat, inputs[1:]), philox_key(request.attributes), x.shape[1])
        arguments = (_windows(request, x, spec(y)), *buffers, *numbers)
        return spread(loops.stochastic, arguments, planes, parts)

    layouts = (PLAIN,) * len(request.outputs)
    return (Candidate(f"{KERNEL}, Philox", bind, output_layouts=layouts, in_place=False),)


def self_weighted(request: Request) -> Iterable[Candidate]:
    return _weighted(request, "self_weighted", spec(request.inputs[0]), spec(request.outputs[0]))


def self_weighted_backward(request: Request) -> Iterable[Candidate]:
    dy, x, _ = map(spec, request.inputs)
    return _weighted(request, "self_weighted_backward", x, dy)


def _weighted(request: Request, loop: str, x: TensorSpec, y: TensorSpec) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs) or len(x.shape) != 4:
        return ()
    planes = x.shape[0] * x.shape[1]
    parts = parts_for(request, planes, _work(request, y))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import spatial as loops

        arguments = (_windows(request, x, y), *map(flat, inputs), flat(outputs[0]))
        return spread(getattr(loops, loop), arguments, planes, parts)

    return (Candidate(KERNEL, bind, in_place=False),)


def unpooling(request: Request) -> Iterable[Candidate]:
    x, place = map(spec, request.inputs)
    y = spec(request.outputs[0])
    if not is_real(x, y) or place.dtype not in ("int32", x.dtype):
        return ()
    planes, (height, width) = x.shape[0] * x.shape[1], y.shape[2:]
    parts = parts_for(request, planes, prod(x.shape) + prod(y.shape))
    source = str(request.attributes["source"])

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import spatial as loops
        from demitasse_cpu.loops.indexing import first_wrong

        places = flat(inputs[1])
        wrong = workspace.view("int64")[:1]

        def failed() -> DataError:
            return DataError(
                f"{source}: {places[wrong[0]]:g} is not a place in {height} x {width} "
                f"(valid: whole numbers from 0 to {height * width - 1})"
            )

        check = ready(first_wrong, places, height * width, wrong, failed=failed)
        arguments = (flat(inputs[0]), places, flat(outputs[0]), planes)
        return in_order([check, spread(loops.unpooled, arguments, planes, parts)])

    return (Candidate("numba loop over planes", bind, (PLAIN, PLAIN), (PLAIN,), _CELL, in_place=False),)


def unpooling_backward(request: Request) -> Iterable[Candidate]:
    dy, place = map(spec, request.inputs)
    if not is_real(dy, request.outputs[0]) or place.dtype not in ("int32", dy.dtype):
        return ()
    planes = dy.shape[0] * dy.shape[1]
    parts = parts_for(request, planes, 2 * prod(place.shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import spatial as loops

        return spread(loops.taken, (*map(flat, inputs), flat(outputs[0]), planes), planes, parts)

    return (Candidate("numba loop over planes", bind, (PLAIN, PLAIN), (PLAIN,), in_place=False),)


FACTORIES = {
    "im2col": im2col,
    "col2im": col2im,
    "pooling_stochastic": stochastic,
    "pooling_self_weighted": self_weighted,
    "pooling_self_weighted_backward": self_weighted_backward,
    "unpooling": unpooling,
    "unpooling_backward": unpooling_backward,
}


def _work(request: Request, y: TensorSpec) -> int:
    return 2 * prod(y.shape) * int(prod(request.attributes["kernel"]))


def _windows(request: Request, x: TensorSpec, y: TensorSpec) -> Windows:
    from demitasse_cpu.loops.spatial import Windows

    pairs = (request.attributes[name] for name in ("kernel", "stride", "pad"))
    return Windows(*x.shape[2:], *y.shape[2:], *(int(number) for pair in pairs for number in pair))
