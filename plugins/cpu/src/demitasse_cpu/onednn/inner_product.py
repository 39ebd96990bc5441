"""oneDNN's inner products: plain activations in two dimensions, and weights in the layout that it
prefers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, PlanError, Request, Work
from demitasse_cpu.kernels.requests import aligned, spec
from demitasse_cpu.kernels.work import ready
from demitasse_cpu.native import in_order
from demitasse_cpu.onednn.functions import Function, followed_by_each, function_behind
from demitasse_cpu.onednn.library import (
    BIAS,
    DIFF_BIAS,
    DIFF_DST,
    DIFF_SRC,
    DIFF_WEIGHTS,
    DST,
    FORWARD_TRAINING,
    SRC,
    WEIGHTS,
    Library,
    library,
)
from demitasse_cpu.onednn.memory import any_form, described, layout_of
from demitasse_cpu.onednn.primitive import Primitive

_BAND_BYTES = 2**21


@dataclass(frozen=True)
class Product:
    """A request's numbers: samples, inputs and outputs, the stored type of the activations, and whether
    the plan's weights are ``turned``, that is, (inputs, outputs) where oneDNN's are (outputs,
    inputs)."""

    lib: Library
    threads: int
    rows: int
    inputs: int
    outputs: int
    stored: str
    turned: bool = False

    def seen(self, layout: Layout) -> Layout:
        """Return the layout of oneDNN's weights for a layout of the plan's, or the other way round."""
        if not self.turned:
            return layout
        order = tuple(1 - d for d in layout.order or (0, 1))
        blocks = tuple((1 - d, size) for d, size in layout.blocks)
        name = layout.name.translate(str.maketrans("abAB", "baBA"))
        return replace(layout, name=name, order=order if order != (0, 1) else (), blocks=blocks)

    @property
    def plain(self) -> Layout:
        return replace(PLAIN, name="bf16", stored=self.stored) if self.stored != "float32" else PLAIN

    def weights(self, layout: Layout | None, stored: str) -> Any:
        """Return the descriptor of weights in a layout; None lets oneDNN choose the layout."""
        shape = (self.outputs, self.inputs)
        return (
            any_form(self.lib, shape, stored)
            if layout is None
            else described(self.lib, shape, stored, replace(layout, stored=""))
        )

    def made(
        self, name: str, layout: Layout | None, bias: bool, function: Function | None = None
    ) -> Primitive:
        """Return the primitive of a pass, with weights in ``layout`` or, for None, in the one that
        oneDNN prefers."""
        lib = self.lib
        x = described(lib, (self.rows, self.inputs), self.stored, PLAIN)
        y = described(lib, (self.rows, self.outputs), self.stored, PLAIN)
        biases = described(lib, (self.outputs,), "float32", PLAIN) if bias else None
        if name == "inner_product_forward":
            given = [FORWARD_TRAINING, x, self.weights(layout, self.stored), biases, y]
            return Primitive(lib, self.threads, name, lib.engine, *given, function=function)
        hint = self.made("inner_product_forward", None, False)
        if name == "inner_product_backward_data":
            given = [x, self.weights(layout, self.stored), y, hint.hint]
        else:
            given = [x, self.weights(layout, "float32"), biases, y, hint.hint]
        return Primitive(lib, self.threads, name, lib.engine, *given)


def forward(request: Request) -> Iterable[Candidate]:
    """Yield candidates for an inner product, optionally followed by a function of its result."""
    x, w, b = (*request.inputs, None)[:3]
    function = function_behind("inner_product", request)
    for product in _products(request, spec(x).shape, spec(w).shape):
        order = [SRC, WEIGHTS, BIAS][: len(request.inputs)], [DST]
        given = [None, *_settled(product.seen(spec(w).layout))]
        name = "inner_product_forward"
        offered = list(_offers(product, name, order, given, b is not None, function))
        yield from offered
        if offered and request.fixed:
            return  # weights are copied once, so in 16 bits half as many bytes are read each time


def backward_data(request: Request) -> Iterable[Candidate]:
    """Yield candidates for the gradient of an inner product's input."""
    _, w = map(spec, request.inputs)
    for product in _products(request, spec(request.outputs[0]).shape, w.shape):
        order = [DIFF_DST, WEIGHTS], [DIFF_SRC]
        given = [product.seen(w.layout), None]
        yield from _offers(product, "inner_product_backward_data", order, given)


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Yield candidates for the gradients of an inner product's weights and biases."""
    _, x = map(spec, request.inputs)
    dw, db = (*request.outputs, None)[:2]
    for product in _products(request, x.shape, spec(dw).shape):
        order = [DIFF_DST, SRC], [DIFF_WEIGHTS, DIFF_BIAS][: len(request.outputs)]
        given = [product.seen(spec(dw).layout), None]
        yield from _offers(product, "inner_product_backward_weights", order, given, db is not None)


def _settled(layout: Layout) -> list[Layout]:
    """Return the layout that weights already have, if it is worth trying beside oneDNN's own. A plain
    layout is not: it was the fastest for no layer of the measured nets, and the first call of a kernel
    for it takes 20 to 50 ms, because it is a matrix product that is generated then."""
    return [layout] if layout != PLAIN else []


def has_pairs(request: Request) -> bool:
    """Return whether the products of a bf16 plan are best made from pairs of bfloat16 with AVX512-BF16.
    This is the case if oneDNN has kernels for that and none for a matrix unit of the processor."""
    return _kernel(request).endswith("avx512_core_bf16")


def has_matrix_unit(request: Request) -> bool:
    """Return whether the products are best made by the processor's matrix unit (AMX), because oneDNN
    uses it. By then oneDNN has asked the operating system for permission to use the unit."""
    return _kernel(request).endswith("avx512_core_amx")


def knows_pairs(request: Request) -> bool:
    """Return whether the processor has AVX512-BF16, as processors with a matrix unit also have. The
    matrix unit does not speed up work that is bound by memory."""
    return has_pairs(request) or has_matrix_unit(request)


def _kernel(request: Request) -> str:
    """Return oneDNN's name of its kernel for a bf16 plan's products, or "" if our loops cannot do the
    same."""
    lib = library()
    if lib is None or request.precision != "bf16" or request.place.simulated:
        return ""
    # For another processor, LLVM might lack the instruction and would end the process.
    ours = not {"NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"} & set(os.environ)
    return bfloat16_kernel(lib) if ours and _takes_bfloat() else ""


@cache
def _takes_bfloat() -> bool:
    """Return whether LLVM's functions for products of pairs take bfloat. They do from LLVM 16 on, which
    came with llvmlite 0.45. In older versions they take integers, and reject our loops."""
    major, minor = version("llvmlite").split(".")[:2]
    return (int(major), int(minor)) >= (0, 45)


@cache
def bfloat16_kernel(lib: Library) -> str:
    """Return oneDNN's name of its product of bfloat16 numbers on this processor, or "" if it has
    none."""
    try:
        return Product(lib, 1, 64, 64, 64, "bfloat16").made("inner_product_forward", None, False).name
    except PlanError:
        return ""


def gradient_layout(request: Request, rows: int, inputs: int, outputs: int) -> Layout | None:
    """Return the layout in which oneDNN prefers the gradient of a bf16 plan's weights, or None if no
    layout describes it."""
    lib = library()
    if lib is None:
        return None
    product = Product(lib, request.place.threads, rows, inputs, outputs, "bfloat16")
    try:
        primitive = product.made("inner_product_backward_weights", None, False)
    except PlanError:
        return None
    return layout_of(lib, primitive.descriptor(DIFF_WEIGHTS), (outputs, inputs), "float32")


def _products(request: Request, x: tuple[int, ...], w: tuple[int, ...]) -> Iterator[Product]:
    """Yield the product in the plan's precision and, in a bf16 plan, also in float32, which reads the
    weights as they are. With few samples, the copy of the weights in 16 bits takes longer than the
    product."""
    lib, given = library(), request.attributes
    kinds = {operand.dtype for operand in (*request.inputs, *request.outputs) if operand is not None}
    if lib is None or kinds != {"float32"} or request.place.simulated:
        return
    turned, rows = bool(given["transpose"]), prod(x[: given["axis"]])
    outputs, inputs = reversed(w) if turned else w
    for stored in ("bfloat16", "float32") if request.precision == "bf16" else ("float32",):
        yield Product(lib, request.place.threads, rows, inputs, outputs, stored, turned)


def _offers(
    product: Product,
    name: str,
    order: tuple[list[int], list[int]],
    layouts: list[Layout | None],
    bias: bool = False,
    function: Function | None = None,
) -> Iterator[Candidate]:
    """Yield a candidate for each of the ``layouts`` of the weights for which oneDNN has a fast
    kernel."""
    seen: list[Layout] = []
    argument = DIFF_WEIGHTS if DIFF_WEIGHTS in order[1] else WEIGHTS
    stored = "float32" if argument == DIFF_WEIGHTS else product.stored
    for wanted in layouts:
        try:
            primitive = product.made(name, wanted, bias, function)
        except PlanError:
            continue  # no such kernel, or another plugin's layout that has no tag
        shape = (product.outputs, product.inputs)
        layout = layout_of(product.lib, primitive.descriptor(argument), shape, stored)
        if layout is None or layout in seen:
            continue
        seen.append(layout)
        kept = replace(layout, stored=stored) if stored != "float32" else layout
        yield _candidate(product, primitive, *order, kept, bias)


def _candidate(
    product: Product,
    primitive: Primitive,
    inputs: list[int],
    outputs: list[int],
    weights: Layout,
    bias: bool,
) -> Candidate:
    lying = product.seen(weights)
    kinds = {WEIGHTS: lying, DIFF_WEIGHTS: lying, BIAS: PLAIN, DIFF_BIAS: PLAIN}

    def bind(sources: Any, targets: Any, workspace: Any) -> Work:
        arrays = dict(zip((*inputs, *outputs), (*sources, *targets), strict=True))
        return primitive.bind(arrays, workspace)

    whole = Candidate(
        f"oneDNN {primitive.name}",
        bind,
        tuple(kinds.get(n, product.plain) for n in inputs),
        tuple(kinds.get(n, product.plain) for n in outputs),
        primitive.workspace,
        in_place=False,
    )
    parts = _parts(product, weights) if DIFF_WEIGHTS in outputs else 1
    return whole if parts == 1 else _in_parts(product, weights, parts, whole, bias)


def _parts(product: Product, weights: Layout) -> int:
    """Return the number of equal bands of outputs, in whole blocks, into which to cut a gradient so that
    a band stays in the caches until it is used."""
    if weights.order not in ((), (0, 1)):
        return 1
    block = prod(size for d, size in weights.blocks if d == 0)
    bands, wide = -(-product.outputs // block), product.inputs * block * 4
    if product.outputs % block or bands * wide < 4 * _BAND_BYTES:
        return 1
    return next((n for n in range(bands * wide // _BAND_BYTES, 1, -1) if bands % n == 0), 1)


def _in_parts(product: Product, weights: Layout, parts: int, whole: Candidate, bias: bool) -> Candidate:
    """Return a candidate that can also compute the gradient of the weights in bands of outputs. Each is
    the same product of some columns of dy, which are gathered first."""
    band = replace(product, outputs=product.outputs // parts)
    try:
        primitive = band.made("inner_product_backward_weights", weights, bias)
    except PlanError:
        return whole
    width = band.outputs
    copied = aligned(product.rows * width * (4 if product.stored == "float32" else 2))

    def bind_part(number: int, sources: Any, targets: Any, workspace: Any) -> Work:
        from demitasse_cpu.loops import reorder as loops

        (dy, x), (dw, db) = sources, (*targets, None)[:2]
        columns = workspace[:copied].view(dy.dtype)[: product.rows * width].reshape(product.rows, width)
        gather = ready(loops.columns, dy.reshape(product.rows, -1), number * width, columns)
        arrays = {DIFF_DST: columns, SRC: x, DIFF_WEIGHTS: dw}
        if db is not None:
            arrays[DIFF_BIAS] = db[number * width : (number + 1) * width]
        scratch = workspace[copied:] if primitive.workspace else None
        return in_order([gather, primitive.bind(arrays, scratch)])

    room = max(whole.workspace, copied + primitive.workspace)
    return replace(whole, workspace=room, parts=parts, bind_part=bind_part)


FACTORIES = {
    "inner_product": forward,
    **dict.fromkeys(followed_by_each("inner_product"), forward),
    "inner_product_backward_data": backward_data,
    "inner_product_backward_weights": backward_weights,
}
