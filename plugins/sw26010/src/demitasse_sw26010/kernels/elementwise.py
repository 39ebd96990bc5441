"""Operations that stream: activations, dropout, sums, joins, fills, updates, changes of layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType

from demitasse import PLAIN, Candidate, Request, random_key
from demitasse_sw26010.kernels.convolution import RCNB
from demitasse_sw26010.kernels.program import (
    Place,
    candidate_of,
    elements,
    given,
    is_single,
    part,
    program_candidate,
)
from demitasse_sw26010.model.ldm import LdmBuffer

CHUNK = 64 * 1024
"""The numbers of a stretch: 4 KiB on each CPE, and another 4 KiB on their way."""

X, Z = LdmBuffer("x", (CHUNK,), copies=2), LdmBuffer("z", (CHUNK,), copies=2)
RELU, RELU_BACKWARD, SCALED, ACCUMULATE, MASKED = range(5)
Factory = Callable[[Request], Iterable[Candidate]]


def _unary(what: int, second: Place, target: Place, number: Callable[[Request], float]) -> Factory:
    """Return the factory of an operation on each element of one or two tensors. It keeps a layout that
    all share."""

    def offer(request: Request) -> Iterable[Candidate]:
        x = given(request.inputs[0])
        floats = request.inputs[:1] if what == MASKED else request.inputs
        if not is_single(*floats, *request.outputs):
            return ()
        # A mask keeps its layout: only single precision is transformed.
        like = given(request.inputs[1]) if what == MASKED else x
        layout = like.layout if prod(x.physical) == prod(x.shape) and not like.layout.stored else PLAIN
        places = (("in", 0), second, target)
        return (
            program_candidate(
                request,
                request.operation.name,
                ("elementwise", "unary"),
                (X, Z),
                places,
                (elements(x), what, float(number(request))),
                layouts=((layout,) * len(request.inputs), (layout,) * len(request.outputs)),
            ),
        )

    return offer


def dropout(request: Request) -> Iterable[Candidate]:
    """Return the kernel of dropout, with the same mask as in every backend."""
    x = given(request.inputs[0])
    if not is_single(x):
        return ()
    key = random_key(request.attributes["seed"], request.attributes["stream"])
    places = (("in", 0), ("in", 1), ("in", 2), ("out", 0), ("out", 1))
    numbers = (key, x.shape[0], prod(x.shape[1:]), float(request.attributes["ratio"]))
    loop = ("elementwise", "dropout")
    return (program_candidate(request, "dropout", loop, (X,), places, numbers),)


def total(request: Request) -> Iterable[Candidate]:
    """Return the kernel of a sum, one term after the other."""
    if not is_single(*request.inputs):
        return ()
    size, count = elements(request.outputs[0]), len(request.inputs)
    factors = request.attributes["coefficients"] or (1.0,) * count
    parts = [
        part(
            request,
            "sum",
            ("elementwise", "add_scaled"),
            (X, Z),
            (("in", i), ("out", 0)),
            (size, float(factors[i]), i == 0),
        )
        for i in range(count)
    ]
    return (candidate_of("sum", parts, in_place=False),)


def total_backward(request: Request) -> Iterable[Candidate]:
    """Return the kernel of a sum's gradient: a scaled copy for each term."""
    if not is_single(*request.inputs):
        return ()
    size, count = elements(request.inputs[0]), len(request.outputs)
    factors = request.attributes["coefficients"] or (1.0,) * count
    parts = [
        part(
            request,
            "sum_backward",
            ("elementwise", "unary"),
            (X, Z),
            (("in", 0), ("in", 1), ("out", i)),
            (size, SCALED, float(factors[i])),
        )
        for i in range(count)
        if request.outputs[i] is not None
    ]
    return (candidate_of("sum_backward", parts, in_place=False),)


def concat(request: Request) -> Iterable[Candidate]:
    """Return the kernel that copies each tensor's rows to their places."""
    shapes = [given(x).shape for x in request.inputs]
    whole = given(request.outputs[0]).shape
    pieces = [(("in", i), ("out", 0)) for i in range(len(shapes))]
    return blocks(request, shapes, whole, pieces, join=True)


def concat_backward(request: Request) -> Iterable[Candidate]:
    """Return the kernel that copies the rows of each part from their places."""
    shapes = [tuple(shape) for shape in request.attributes["shapes"]]
    whole = given(request.inputs[0]).shape
    pieces = [(("in", 0), ("out", i)) for i in range(len(shapes))]
    return blocks(request, shapes, whole, pieces, join=False)


def blocks(
    request: Request,
    shapes: Sequence[tuple[int, ...]],
    whole: tuple[int, ...],
    pieces: Sequence[tuple[Place, Place]],
    join: bool,
) -> Iterable[Candidate]:
    """Return the kernel that copies rows of parts into a whole or, unless they ``join``, out of it.
    ``pieces`` say from where to where."""
    if not is_single(*request.inputs, *request.outputs):
        return ()
    axis = request.attributes["axis"]
    rows, across = prod(whole[:axis]), prod(whole[axis:])
    at, parts = 0, []
    for shape, (source, target) in zip(shapes, pieces, strict=True):
        columns = prod(shape[axis:])
        places = (0, columns, at, across) if join else (at, across, 0, columns)
        at += columns
        if target[0] == "out" and request.outputs[target[1]] is None:
            continue
        numbers = (rows, columns, *places)
        name, loop = request.operation.name, ("elementwise", "copy_blocks")
        parts.append(part(request, name, loop, (X,), (source, target), numbers))
    return (candidate_of(request.operation.name, parts, in_place=False),)


def fill(request: Request) -> Iterable[Candidate]:
    """Return the kernel of a fill, which streams out."""
    x = given(request.inputs[0])
    if not is_single(x):
        return ()
    numbers = (elements(x), float(request.attributes["value"]))
    return (program_candidate(request, "fill", ("elementwise", "fill"), (), (("in", 0),), numbers),)


def momentum_update(request: Request) -> Iterable[Candidate]:
    """Return the kernel of the solver's update, on the CPEs."""
    if not is_single(*request.inputs[:3]):
        return ()
    about = request.attributes
    segments = tuple(int(bound) for s in about["segments"] for bound in s[:2])
    multipliers = tuple(float(factor) for s in about["segments"] for factor in s[2:])
    ldm = tuple(LdmBuffer(name, (CHUNK,), copies=2) for name in ("parameter", "gradient", "history"))
    places = tuple(("in", i) for i in range(5))
    absolute = about["regularization"] == "L1"
    numbers = (segments, multipliers, float(about["momentum"]), float(about["decay"]), absolute)
    loop = ("elementwise", "momentum_update")
    return (program_candidate(request, "momentum_update", loop, ldm, places, numbers),)


def reorder(request: Request) -> Iterable[Candidate]:
    """Return the kernel that moves the batch from first to last or back: channel by channel, a matrix of
    (batch, places) is transposed."""
    x, y = given(request.inputs[0]), given(request.outputs[0])
    layouts = x.layout, y.layout
    if not is_single(x) or len(x.shape) != 4 or {*layouts} != {PLAIN, RCNB}:
        return ()
    batch, channels, rows, columns = x.shape
    inwards = y.layout == RCNB
    wide = min(batch, 128)
    ldm = (LdmBuffer("block", (64 * min(columns, 64) * wide,)),)
    numbers = (batch, channels, rows * columns, columns, min(columns, 64), wide, inwards)
    return (
        program_candidate(
            request,
            "tensor transformation",
            ("elementwise", "transform"),
            ldm,
            (("in", 0), ("out", 0)),
            numbers,
            layouts=((x.layout,), (y.layout,)),
            in_place=False,
        ),
    )


def _slope(request: Request) -> float:
    return float(request.attributes["negative_slope"])


FACTORIES: Mapping[str, Factory] = MappingProxyType(
    {
        "relu": _unary(RELU, ("in", 1), ("out", 0), _slope),
        "leaky_relu": _unary(RELU, ("in", 1), ("out", 0), _slope),
        "relu_backward": _unary(RELU_BACKWARD, ("in", 1), ("out", 0), _slope),
        "dropout": dropout,
        "dropout_backward": _unary(
            MASKED, ("in", 1), ("out", 0), lambda request: 1.0 / (1.0 - request.attributes["ratio"])
        ),
        "accumulate": _unary(ACCUMULATE, ("in", 1), ("in", 0), lambda request: 1.0),
        "sum": total,
        "sum_backward": total_backward,
        "concat": concat,
        "concat_backward": concat_backward,
        "fill": fill,
        "momentum_update": momentum_update,
        "reorder": reorder,
    }
)
