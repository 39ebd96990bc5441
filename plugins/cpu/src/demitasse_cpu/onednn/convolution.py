"""oneDNN's convolutions in one to three dimensions. Activations have their channels innermost or, where
that pays, are blocked; weights have the layout that oneDNN prefers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Request, TensorSpec, Work
from demitasse_cpu.kernels.requests import aligned, flat, parts_for, spec
from demitasse_cpu.kernels.work import spread
from demitasse_cpu.native import in_order
from demitasse_cpu.onednn.functions import Function, followed_by_each, function_behind
from demitasse_cpu.onednn.inner_product import Product
from demitasse_cpu.onednn.library import (
    ADDEND,
    BIAS,
    CONVOLUTION_DIRECT,
    DIFF_BIAS,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
    FORWARD_TRAINING,
    SRC,
    WEIGHTS,
    Library,
    UnimplementedError,
    extents,
    library,
)
from demitasse_cpu.onednn.memory import any_form, described, layout_of
from demitasse_cpu.onednn.primitive import Primitive
from demitasse_cpu.onednn.weights import Weights, weights_of

_BY_CHANNELS = {
    3: Layout("NWC", (0, 2, 1)),
    4: Layout("NHWC", (0, 2, 3, 1)),
    5: Layout("NDHWC", (0, 2, 3, 4, 1)),
}
BLOCKED = Layout("nChw16c", blocks=((1, 16),)), Layout("nChw8c", blocks=((1, 8),))
"""The blocked layouts for which oneDNN has kernels, on a processor with AVX-512 and on one without. On
the latter, the gradient of 64 x 32 x 3 x 3 weights at every other pixel of 416 x 416 takes 15 ms with
blocks and 59 ms with innermost channels."""

_NEAR_BYTES = 2**21  # of results that are still in the caches when they are read again
_FEW_CHANNELS = 4
_LONGEST_ROW = 28  # of results; they stay in oneDNN's registers
_VECTOR = 16  # no processor's vectors have more numbers
_MOST = 2**36
_LONGEST = 2**31 - 1  # the longest stride that oneDNN supports
_MANY_WEIGHTS = 2**22  # too many for the caches


@dataclass(frozen=True)
class _Convolution:
    """A request's sizes and attributes, in the order in which oneDNN takes them."""

    lib: Library
    threads: int
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    groups: int
    stored: str
    window: tuple[Any, ...]
    pointwise: bool

    @property
    def grouped(self) -> tuple[int, ...]:
        """The shape of the weights, with groups as the first dimension if there are several."""
        if self.groups == 1:
            return self.w
        return (self.groups, self.w[0] // self.groups, *self.w[1:])

    @property
    def is_product(self) -> bool:
        """Whether each result depends on a single pixel, and each pixel has its own result."""
        return self.groups == 1 and set(self.w[2:]) == {1} and self.pointwise

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel of the results depends on its own channel of the image only."""
        return len(self.w) == 4 and self.w[1] == 1 and self.w[0] == self.groups > 1

    def some(self, near: int) -> _Convolution:
        """Return the same convolution of fewer images: as many as divide their number evenly and have at
        most ``near`` bytes of results, but at least one."""
        images, *rest = self.y
        size = prod(rest) * (2 if self.stored == "bfloat16" else 4)
        most = max(1, near // size)
        some = next(n for n in range(min(images, most), 0, -1) if images % n == 0)
        return replace(self, x=(some, *self.x[1:]), y=(some, *rest))

    def weights_of(self, primitive: Primitive, argument: int = WEIGHTS) -> Weights:
        """Return how a primitive's weights, or their gradient, reach it. Raises UnimplementedError."""
        stored = self.stored if argument == WEIGHTS else "float32"
        return weights_of(primitive, argument, self.w, self.groups, stored)

    def forward(
        self,
        x: Layout,
        y: Layout,
        bias: bool,
        function: Function | None = None,
        added: bool = False,
    ) -> Primitive:
        lib = self.lib
        result = described(lib, self.y, self.stored, y)
        return Primitive(
            lib,
            self.threads,
            "convolution_forward",
            lib.engine,
            FORWARD_TRAINING,
            CONVOLUTION_DIRECT,
            described(lib, self.x, self.stored, x),
            any_form(lib, self.grouped, self.stored),
            described(lib, (self.w[0],), "float32", PLAIN) if bias else None,
            result,
            *self.window,
            addend=result if added else None,
            function=function,
        )

    def backward(self, name: str, x: Layout, y: Layout, bias: bool = False) -> Primitive:
        lib, hint = self.lib, self.forward(x, y, False)
        data = described(lib, self.x, self.stored, x)
        gradient = described(lib, self.y, self.stored, y)
        if name == "convolution_backward_data":
            given: list[Any] = [data, any_form(lib, self.grouped, self.stored), gradient]
        else:
            biases = described(lib, (self.w[0],), "float32", PLAIN) if bias else None
            given = [data, any_form(lib, self.grouped, "float32"), biases, gradient]
        common = lib.engine, CONVOLUTION_DIRECT, *given, *self.window, hint.hint
        made = Primitive(lib, self.threads, name, *common)
        if self.is_depthwise and "dw" not in made.name:
            # oneDNN would treat groups of one channel as groups of many: 34 ms for what takes 0.4 ms in
            # our loops.
            raise UnimplementedError(f"oneDNN {name}: not for a group per channel")
        return made


def forward(request: Request) -> Iterable[Candidate]:
    """Yield candidates for a convolution, optionally followed by a function of its result."""
    x, w, b = (*request.inputs, None)[:3]
    convolution = _convolution(request, spec(x).shape, spec(w).shape, spec(request.outputs[0]).shape)
    if convolution is None:
        return
    function = function_behind("convolution", request)
    for layout in _layouts(spec(x)):
        try:
            primitive = convolution.forward(layout, layout, b is not None, function)
            weights = convolution.weights_of(primitive)
        except UnimplementedError:
            continue
        kept = _stored(layout, convolution.stored)
        yield _candidate(primitive, [SRC, WEIGHTS, BIAS][: len(request.inputs)], [DST], weights, kept)
    arguments = [SRC, WEIGHTS, BIAS][: len(request.inputs)], [DST]
    yield from _of_pixels(convolution, "inner_product_forward", *arguments, b is not None, function)


def forward_and_sum(request: Request) -> Iterable[Candidate]:
    """Yield a candidate for a convolution of one tap to whose result a tensor is added, optionally with
    a ReLU. For more taps, Winograd's kernels are often faster, even though they do not add."""
    x, w, b, *others = request.inputs
    shapes = [spec(each).shape for each in (x, w, request.outputs[0])]
    convolution = _convolution(request, *shapes)
    if convolution is None or len(others) > 1 or {*convolution.w[2:], convolution.groups} != {1}:
        return
    function, layout = function_behind("convolution", request), _BY_CHANNELS[len(shapes[0])]
    part = convolution.some(_NEAR_BYTES)
    whole = part.y == convolution.y
    try:
        primitive = part.forward(layout, layout, b is not None, function if whole else None, whole)
        weights = convolution.weights_of(primitive)
    except UnimplementedError:
        return
    kept = _stored(layout, convolution.stored)
    added = _candidate(primitive, [SRC, WEIGHTS, BIAS, ADDEND], [DST], weights, kept)
    yield added if whole else _in_turn(request, part, primitive, added)


def _in_turn(request: Request, part: _Convolution, primitive: Primitive, alone: Candidate) -> Candidate:
    """Return a candidate that computes a few images at a time, so that their results are still in the
    caches when the other tensor is added. oneDNN would add it tile by tile and wait for each tile (16 x
    256 x 56 x 56 in bfloat16 from 64 channels, two cores: 8.3 ms, and 4.9 ms without the sum)."""
    least = 0.0 if request.operation.name.endswith("_relu") else -inf
    size = prod(part.y)
    parts = parts_for(request, size, size)

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import elementwise as loops

        (x, w, b, other), (y,), stages = sources, targets, list[Work]()
        for first in range(0, len(y), part.y[0]):
            some = slice(first, first + part.y[0])
            arrays = {SRC: x[some], WEIGHTS: w, BIAS: b, DST: y[some]}
            stages.append(primitive.bind(arrays, workspace))
            mine = flat(y[some])
            terms = (mine, flat(other[some]), mine, 1.0, 1.0, least)
            stages.append(spread(loops.scaled_sum, terms, size, parts))
        return in_order(stages)

    return replace(alone, kernel=f"{alone.kernel}+numba loop", bind=bind)


def backward_data(request: Request) -> Iterable[Candidate]:
    """Yield candidates for the gradient of a convolution's input."""
    dy, w = map(spec, request.inputs)
    convolution = _convolution(request, spec(request.outputs[0]).shape, w.shape, dy.shape)
    if convolution is None:
        return
    for layout in _layouts(dy):
        try:
            primitive = convolution.backward("convolution_backward_data", layout, layout)
            weights = convolution.weights_of(primitive)
        except UnimplementedError:
            continue
        kept = _stored(layout, convolution.stored)
        yield _candidate(primitive, [DIFF_DST, WEIGHTS], [DIFF_SRC], weights, kept)
    yield from _of_pixels(convolution, "inner_product_backward_data", [DIFF_DST, WEIGHTS], [DIFF_SRC])


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Yield candidates for the gradients of a convolution's weights and biases."""
    dy, x = map(spec, request.inputs)
    dw, db = (*request.outputs, None)[:2]
    convolution = _convolution(request, x.shape, spec(dw).shape, dy.shape)
    if convolution is None:
        return
    stride = request.attributes["stride"][-1]
    if request.precision == "bf16" and stride > 1 and (dy.shape[-1] == 1 or stride > x.shape[-1]):
        return  # oneDNN's kernel reads past the end of such an x, and makes NaN of what it finds there
    nhwc, few = _BY_CHANNELS[len(x.shape)], x.shape[1] <= _FEW_CHANNELS and x.layout == PLAIN
    for given, taken in ((nhwc, nhwc), *((PLAIN if few else each, each) for each in BLOCKED)):
        try:
            primitive = convolution.backward(
                "convolution_backward_weights", given, taken, db is not None
            )
            weights = convolution.weights_of(primitive, DIFF_WEIGHTS)
        except UnimplementedError:
            continue
        if _goes_astray(primitive.name, given, request):
            continue
        stored = convolution.stored
        outputs = [DIFF_WEIGHTS, DIFF_BIAS][: len(request.outputs)]
        layouts = [_stored(taken, stored), _stored(given, stored)]
        yield _candidate(primitive, [DIFF_DST, SRC], outputs, weights, *layouts)
        if taken in BLOCKED:
            break
    if convolution.is_product:
        yield from _as_product(convolution, request)


def _goes_astray(kernel: str, layout: Layout, request: Request) -> bool:
    """Return whether oneDNN's kernel for the gradient of weights, with x in ``layout``, goes out of
    bounds for this request: wrong sums, NaN, other arrays' memory, or a call that never returns. These
    cases were found in oneDNN 3.2 with randomly drawn shapes."""
    dy, x = map(spec, request.inputs)
    given, kernels = request.attributes, spec(request.outputs[0]).shape[2:]
    if kernel.startswith("jit_1x1"):
        return skips_of_few_channels(request, x)
    if not kernel.startswith(("jit:", "jit_bf16:")):
        return False
    if len(kernels) == 3:
        # Cases in which no window lies entirely in x along the depth or the height.
        axes = zip(x.shape[2:4], kernels, given["stride"], given["pad"], given["dilation"], strict=False)
        for extent, taps, stride, pad, dilation in axes:
            first = -pad % stride  # where the first window that begins within x begins
            if first + dilation * (taps - 1) + 1 > extent:
                return True
    if not kernel.startswith("jit_bf16:"):
        return False
    channels = x.shape[1] // given["groups"]
    partial = channels % _VECTOR > 0 and x.shape[1] > min(channels, _VECTOR) and layout not in BLOCKED
    return given["dilation"][-1] > 1 and dy.shape[-1] > _LONGEST_ROW and partial


def skips_of_few_channels(request: Request, x: TensorSpec) -> bool:
    """Return whether a convolution skips pixels of an image with fewer channels than a vector has
    numbers."""
    given = request.attributes
    return bool(max(given["stride"]) > 1 and x.shape[1] // given["groups"] < _VECTOR)


def _of_pixels(
    convolution: _Convolution,
    name: str,
    inputs: Sequence[int],
    outputs: Sequence[int],
    bias: bool = False,
    function: Function | None = None,
) -> Iterator[Candidate]:
    """Yield the product of the pixels and the weights, for a convolution with one tap at every pixel and
    very many weights. With 4096 x 4096 weights and 16 x 16 pixels (the second such layer of FCN),
    oneDNN's convolution took 155 ms and this product 52 ms."""
    if not convolution.is_product or prod(convolution.w) < _MANY_WEIGHTS:
        return
    (samples, channels, *image), made, stored = convolution.x, convolution.w[0], convolution.stored
    about = (convolution.lib, convolution.threads, samples * prod(image), channels, made, stored)
    try:
        primitive = Product(*about).made(name, None, bias, function)
    except UnimplementedError:
        return
    flat_form = layout_of(convolution.lib, primitive.descriptor(WEIGHTS), (made, channels), stored)
    if flat_form is None:
        return
    taps = tuple(range(2, len(convolution.w)))
    order = (*flat_form.order, *taps) if flat_form.order else ()
    weights = _stored(replace(flat_form, name=f"{flat_form.name} of pixels", order=order), stored)
    images = _stored(_BY_CHANNELS[len(convolution.x)], stored)
    layouts = {WEIGHTS: weights, BIAS: PLAIN}

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        arrays = dict(zip((*inputs, *outputs), (*sources, *targets), strict=True))
        return primitive.bind(arrays, workspace)

    yield Candidate(
        f"oneDNN {primitive.name}, of pixels",
        bind,
        tuple(layouts.get(argument, images) for argument in inputs),
        (images,),
        primitive.workspace,
        in_place=False,
    )


def _as_product(convolution: _Convolution, request: Request) -> Iterator[Candidate]:
    """Yield dw as one matrix product, for a convolution with one tap at every pixel: an image in NHWC is
    then a matrix of pixels."""
    (samples, inputs, *image), outputs = convolution.x, convolution.w[0]
    rows, about = samples * prod(image), (convolution.lib, convolution.threads)
    product = Product(*about, rows, inputs, outputs, convolution.stored)
    bias = len(request.outputs) > 1 and request.outputs[1] is not None
    try:
        primitive = product.made("inner_product_backward_weights", PLAIN, bias)
    except UnimplementedError:
        return
    arguments = (DIFF_DST, SRC, DIFF_WEIGHTS, DIFF_BIAS)[: 2 + len(request.outputs)]

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        return primitive.bind(dict(zip(arguments, (*sources, *targets), strict=True)), workspace)

    layout = _stored(_BY_CHANNELS[len(convolution.x)], convolution.stored)
    name, given = f"oneDNN {primitive.name}, of pixels", (layout, layout)
    outward = (PLAIN,) * len(request.outputs)
    yield Candidate(name, bind, given, outward, primitive.workspace, in_place=False)


def _convolution(
    request: Request, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...]
) -> _Convolution | None:
    lib, given = library(), request.attributes
    kinds = {operand.dtype for operand in (*request.inputs, *request.outputs) if operand is not None}
    if lib is None or kinds != {"float32"} or len(x) not in _BY_CHANNELS or request.place.simulated:
        return None
    if max(map(prod, (x, w, y))) > _MOST:
        return None  # more than memory can hold, which the plan will report; oneDNN would only fail
    if max(*given["stride"], *given["dilation"]) > _LONGEST:
        return None
    pads = []
    for d in range(len(x) - 2):  # pixels left over after the last window count as negative padding
        reach = given["dilation"][d] * (w[2 + d] - 1) + 1
        pads.append((y[2 + d] - 1) * given["stride"][d] + reach - x[2 + d] - given["pad"][d])
    window = (
        extents(*given["stride"]),
        extents(*(d - 1 for d in given["dilation"])),
        extents(*given["pad"]),
        extents(*pads),
    )
    stored = "bfloat16" if request.precision == "bf16" else "float32"
    pointwise = not any(given["pad"]) and set(given["stride"]) == {1}
    about = given["groups"], stored, window, pointwise
    return _Convolution(lib, request.place.threads, x, w, y, *about)


def _layouts(x: TensorSpec) -> Iterator[Layout]:
    """Yield the layouts of the activations that are worth trying, the usual one first."""
    yield _BY_CHANNELS[len(x.shape)]
    if (blocked := replace(x.layout, stored="")) in BLOCKED:
        yield blocked


def _stored(layout: Layout, stored: str) -> Layout:
    if stored != "bfloat16":
        return layout
    return replace(layout, name=f"{layout.name} bf16", stored=stored)


def _candidate(
    primitive: Primitive,
    inputs: Sequence[int],
    outputs: Sequence[int],
    weights: Weights,
    first: Layout,
    second: Layout | None = None,
) -> Candidate:
    """Return a primitive as a candidate. ``first`` is the layout of the first activation among the
    operands and ``second`` that of the others. If no layout describes the primitive's weights, they are
    reordered on the way."""
    kinds = {WEIGHTS: weights.layout, DIFF_WEIGHTS: weights.layout, BIAS: PLAIN, DIFF_BIAS: PLAIN}
    activations = iter((first, *[second or first] * 2))
    taken = tuple(kinds[n] if n in kinds else next(activations) for n in inputs)
    given = tuple(kinds[n] if n in kinds else next(activations) for n in outputs)
    packed = aligned(weights.packed)

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        arrays = dict(zip((*inputs, *outputs), (*sources, *targets), strict=True))
        if not weights.packed:
            return primitive.bind(arrays, workspace)
        plain = arrays[weights.argument]
        room = workspace[:packed]
        arrays[weights.argument] = room
        work = primitive.bind(arrays, workspace[packed:] if primitive.workspace else None)
        moving = weights.moving(plain, room)
        return in_order([work, moving] if weights.argument == DIFF_WEIGHTS else [moving, work])

    workspace = packed + aligned(primitive.workspace)
    name = f"oneDNN {primitive.name}"
    return Candidate(name, bind, taken, given, workspace, in_place=False)


FACTORIES = {
    "convolution": forward,
    **dict.fromkeys(followed_by_each("convolution"), forward),
    "convolution_sum": forward_and_sum,
    "convolution_sum_relu": forward_and_sum,
    "convolution_backward_data": backward_data,
    "convolution_backward_weights": backward_weights,
}
