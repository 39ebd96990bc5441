"""Constants, running totals, the conversion of images to blobs, and changes of layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import PLAIN, Bind, Candidate, Request, TensorSpec, Work
from demitasse_gpu.kernels.launches import (
    REALS,
    THREADS,
    TYPES,
    Source,
    blocks,
    device_of,
    philox_key,
    real_type,
    spec,
    structure,
)
from demitasse_gpu.kernels.layouts import NHWC, NHWC_BF16
from demitasse_gpu.kernels.united import (
    MOST_CONVERSIONS,
    Conversion,
    Conversions,
    converted_with_next,
)

if TYPE_CHECKING:
    from demitasse_gpu.launch import Launch

KERNEL = "CUDA"
_DIMENSIONS = 8
_MOST = 2**31
_CHUNK = 2**13  # elements that a block converts, in a launch over several arrays
_ARRAYS = (
    *(("x", "u8", MOST_CONVERSIONS), ("y", "u8", MOST_CONVERSIONS), ("count", "i8", MOST_CONVERSIONS)),
    *(("chunks", "i4", MOST_CONVERSIONS), ("arrays", "i4"), ("chunk", "i4")),
)
_NARROW = 8  # so few rows or columns (an image's three colours, say) leave most of a tile empty


def fill(request: Request) -> Iterable[Candidate]:
    x = spec(request.inputs[0])
    if x.layout.blocks or x.layout.stored or x.dtype not in TYPES or x.dtype == "bfloat16":
        return ()
    source = Source("reorder.cu", "float32", types=(("FROM", x.dtype), ("TO", x.dtype)))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        value = np.dtype(x.dtype).type(request.attributes["value"])
        return source.flat(device_of(inputs), "set_all", prod(x.shape), inputs[0], value, pack=1)

    return (Candidate(KERNEL, bind, (x.layout,)),)


def accumulate(request: Request) -> Iterable[Candidate]:
    total = spec(request.inputs[0])
    if not (real := real_type(*request.inputs)) or total.layout.stored or total.layout.blocks:
        return ()
    source = Source("elementwise.cu", real)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        return source.flat(device_of(inputs), "accumulate", prod(total.shape), *inputs)

    return (Candidate(KERNEL, bind, (total.layout, total.layout)),)


_IMAGES = (
    *("samples", "channels", "height", "width", "rows", "columns"),
    *("mean_channel", "mean_row", "mean_column", "random", "mirror", "innermost"),
)


_WHOLE = ("uint8", "int8", "int32")
"""The integer types that can be converted to real numbers."""


def image_transform(request: Request) -> Iterable[Candidate]:
    """Return candidates that write images as convolutions read them: channels innermost, and in bfloat16
    if the plan's precision says so."""
    x, mean, iteration, sample = request.inputs
    x, y = spec(x), spec(request.outputs[0])
    served = len(x.shape) == 4 and x.dtype in (*REALS, *_WHOLE) and y.dtype in REALS
    if not served or {spec(iteration).dtype, spec(sample).dtype} != {"uint64"} or prod(x.shape) >= _MOST:
        return ()
    if mean is not None and mean.dtype != y.dtype:
        return ()
    # Indices of maxima are exact only in 32 bits.
    halved = request.precision == "bf16" and y.dtype == "float32" and x.dtype != "int32"
    layout = NHWC_BF16 if halved else NHWC
    source = Source("image_transform.cu", y.dtype, layout.stored, (("FROM", x.dtype),))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        device, given = device_of(inputs), request.attributes
        extents = (1, 1, 1) if mean is None else mean.shape
        steps = [prod(extents[i + 1 :]) if n > 1 else 0 for i, n in enumerate(extents)]
        chance = int(given["random"]), int(given["mirror"] and given["random"])
        if not given["crop"] and not chance[1]:
            chance = 0, 0
        fields = [*((name, "i4") for name in _IMAGES), ("key", "u4"), ("key2", "u4")]
        images = structure(fields, *x.shape, *y.shape[2:], *steps, *chance, 1, *philox_key(request))
        grid = blocks(device, prod(y.shape))
        factor = source.number(given["scale"])
        return source.launch(device, "image_transform", grid, 256, images, *inputs, outputs[0], factor)

    return (Candidate("CUDA, Philox", bind, (PLAIN,) * 4, (layout,), in_place=False),)


def reorder(request: Request) -> Iterable[Candidate]:
    """Return candidates that convert between any two orders, and between the stored types."""
    x, y = spec(request.inputs[0]), spec(request.outputs[0])
    if x.layout.blocks or y.layout.blocks or len(x.shape) > _DIMENSIONS or prod(x.shape) == 0:
        return ()
    if x.stored not in TYPES or y.stored not in TYPES or x.dtype == "bfloat16":
        return ()
    bind = _transposition(x, y) or _permutation(x, y)
    return (Candidate(KERNEL, bind, (x.layout,), (y.layout,), in_place=False),)


def _source(x: TensorSpec, y: TensorSpec) -> Source:
    whole = {x.stored, y.stored} == {"int32", "uint16"}
    types = (("FROM", x.stored), ("TO", y.stored))
    real = "float64" if x.dtype == "float64" else "float32"
    return Source("reorder.cu", real, types=types, macros=("WHOLE_NUMBERS",) if whole else ())


def _outer(s: TensorSpec) -> list[int]:
    """Return the dimensions that determine where elements lie, outermost first."""
    order = s.layout.order or tuple(range(len(s.shape)))
    return [d for d in order if s.shape[d] > 1]


def _transposition(x: TensorSpec, y: TensorSpec) -> Bind | None:
    """Return a transposition of matrices, if the change is one: between planes and channels innermost,
    for example."""
    before, after = _outer(x), _outer(y)
    if before == after:
        return None
    # The leading dimensions that stay count matrices; of the others, a head and a tail swap.
    lead = 0
    while before[lead] == after[lead]:
        lead += 1
    cut = before.index(after[lead])
    if before[cut:] + before[lead:cut] != after[lead:]:
        return None
    matrices = prod(x.shape[d] for d in before[:lead])
    rows, columns = (prod(x.shape[d] for d in part) for part in (before[lead:cut], before[cut:]))
    if min(rows, columns) < _NARROW or rows > 32 * 65535:
        return None

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        device, source = device_of(inputs), _source(x, y)
        wide, high = -(-columns // 32), -(-rows // 32)
        grid = wide, high, min(matrices, 65535)
        arguments = (inputs[0], outputs[0], matrices, rows, columns)
        return source.launch(device, "transpose", grid, (32, 8), *arguments)

    return bind


def _permutation(x: TensorSpec, y: TensorSpec) -> Bind:
    before, after = _outer(x), _outer(y)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        device, source, count = device_of(inputs), _source(x, y), prod(x.shape)
        if before == after:
            launch = source.flat(device, "convert", count, inputs[0], outputs[0])
            launch.told = Conversions(source, (Conversion.of(inputs[0], outputs[0]),))
            launch.with_next = converted_with_next(launch.told, _together)
            return launch
        extents, steps = list[int](), list[int]()
        for i, d in enumerate(after):
            place = before.index(d)
            if i and place and before[place - 1] == after[i - 1]:  # one dimension as far as memory goes
                extents[-1] *= x.shape[d]
                steps[-1] //= x.shape[d]
            else:
                extents.append(x.shape[d])
                steps.append(prod(x.shape[e] for e in before[place + 1 :]))
        fields = (("rank", "i4"), ("extents", "u4", _DIMENSIONS), ("steps", "i8", _DIMENSIONS))
        padded = [[*given, *[1] * _DIMENSIONS][:_DIMENSIONS] for given in (extents, steps)]
        permutation = structure(fields, len(extents), *padded)
        arguments = (inputs[0], outputs[0], permutation)
        return source.flat(device, "permute", count, *arguments, pack=1)

    return bind


def _together(of: Conversions, more: Conversions) -> Launch:
    """Return one launch that converts the arrays of both. The arrays are added to the table of the
    first, as there may be a hundred of them."""
    import numpy as np

    arrays, known = of.arrays + more.arrays, 0 if of.table is None else len(of.arrays)
    table = np.zeros((), _table_type()) if of.table is None else of.table.copy()
    chunks = int(table["chunks"][known - 1]) if known else 0
    for number, each in enumerate(arrays[known:], known):
        chunks += -(-each.x.size // _CHUNK)
        row = {"x": each.x.address, "y": each.y.address, "count": each.x.size, "chunks": chunks}
        for name, value in row.items():
            table[name][number] = value
    table["arrays"], table["chunk"] = len(arrays), _CHUNK
    launch = of.source.launch(arrays[0].x.device, "convert_arrays", chunks, THREADS, table[()])
    launch.told = told = Conversions(of.source, arrays, table)
    launch.with_next = converted_with_next(told, _together)
    return launch


@cache
def _table_type() -> Any:
    import numpy as np

    return np.dtype([*_ARRAYS], align=True)


FACTORIES = {
    "fill": fill,
    "accumulate": accumulate,
    "image_transform": image_transform,
    "reorder": reorder,
}
