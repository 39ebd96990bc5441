"""oneDNN's inner products: plain activations of two dimensions, weights as it likes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, PlanError, Request, Work
from demitasse_cpu.kernels.requests import spec
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


@dataclass(frozen=True)
class Product:
    """A request's numbers: samples, inputs and outputs, and the form of the activations."""

    lib: Library
    threads: int
    rows: int
    inputs: int
    outputs: int
    stored: str

    @property
    def plain(self) -> Layout:
        return replace(PLAIN, name="bf16", stored=self.stored) if self.stored != "float32" else PLAIN

    def weights(self, layout: Layout | None, stored: str) -> Any:
        """The descriptor of weights in a layout; None lets oneDNN choose."""
        shape = (self.outputs, self.inputs)
        return (
            any_form(self.lib, shape, stored)
            if layout is None
            else described(self.lib, shape, stored, replace(layout, stored=""))
        )

    def made(self, name: str, layout: Layout | None, bias: bool, relu: bool = False) -> Primitive:
        """A pass's primitive, with weights in a layout or, for None, as oneDNN likes them."""
        lib = self.lib
        x = described(lib, (self.rows, self.inputs), self.stored, PLAIN)
        y = described(lib, (self.rows, self.outputs), self.stored, PLAIN)
        biases = described(lib, (self.outputs,), "float32", PLAIN) if bias else None
        if name == "inner_product_forward":
            given = [FORWARD_TRAINING, x, self.weights(layout, self.stored), biases, y]
            return Primitive(lib, self.threads, name, lib.engine, *given, relu=relu)
        hint = self.made("inner_product_forward", None, False)
        if name == "inner_product_backward_data":
            given = [x, self.weights(layout, self.stored), y, hint.hint]
        else:
            given = [x, self.weights(layout, "float32"), biases, y, hint.hint]
        return Primitive(lib, self.threads, name, lib.engine, *given)


def forward(request: Request) -> Iterable[Candidate]:
    """Candidates for an inner product, or one with ReLU."""
    x, w, b = (*request.inputs, None)[:3]
    product = _product(request, spec(x).shape, spec(w).shape)
    relu = request.operation.name.endswith("_relu")
    if product is not None:
        order = [SRC, WEIGHTS, BIAS][: len(request.inputs)], [DST]
        given = [None, spec(w).layout]
        yield from _offers(product, "inner_product_forward", order, given, b is not None, relu)


def backward_data(request: Request) -> Iterable[Candidate]:
    """Candidates for the gradient of an inner product's input."""
    _, w = map(spec, request.inputs)
    product = _product(request, spec(request.outputs[0]).shape, w.shape)
    if product is not None:
        order = [DIFF_DST, WEIGHTS], [DIFF_SRC]
        given = [w.layout, None]
        yield from _offers(product, "inner_product_backward_data", order, given)


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Candidates for the gradients of an inner product's weights and biases."""
    _, x = map(spec, request.inputs)
    dw, db = (*request.outputs, None)[:2]
    product = _product(request, x.shape, spec(dw).shape)
    if product is not None:
        order = [DIFF_DST, SRC], [DIFF_WEIGHTS, DIFF_BIAS][: len(request.outputs)]
        given = [spec(dw).layout, None]
        yield from _offers(product, "inner_product_backward_weights", order, given, db is not None)


def _product(request: Request, x: tuple[int, ...], w: tuple[int, ...]) -> Product | None:
    lib, given = library(), request.attributes
    kinds = {operand.dtype for operand in (*request.inputs, *request.outputs) if operand is not None}
    if lib is None or kinds != {"float32"} or given["transpose"] or request.place.simulated:
        return None
    stored = "bfloat16" if request.precision == "bf16" else "float32"
    return Product(lib, request.place.threads, prod(x[: given["axis"]]), w[1], w[0], stored)


def _offers(
    product: Product,
    name: str,
    order: tuple[list[int], list[int]],
    layouts: list[Layout | None],
    bias: bool = False,
    relu: bool = False,
) -> Iterator[Candidate]:
    """A candidate for each form of the weights, those that oneDNN has a fast kernel for."""
    seen: list[Layout] = []
    argument = DIFF_WEIGHTS if DIFF_WEIGHTS in order[1] else WEIGHTS
    stored = "float32" if argument == DIFF_WEIGHTS else product.stored
    for wanted in layouts:
        try:
            primitive = product.made(name, wanted, bias, relu)
        except PlanError:
            continue  # there is none, or another plugin's layout has no tag
        shape = (product.outputs, product.inputs)
        layout = layout_of(product.lib, primitive.descriptor(argument), shape, stored)
        if layout is None or layout in seen:
            continue
        seen.append(layout)
        kept = replace(layout, stored=stored) if stored != "float32" else layout
        yield _candidate(product, primitive, *order, kept)


def _candidate(
    product: Product, primitive: Primitive, inputs: list[int], outputs: list[int], weights: Layout
) -> Candidate:
    kinds = {WEIGHTS: weights, DIFF_WEIGHTS: weights, BIAS: PLAIN, DIFF_BIAS: PLAIN}

    def bind(sources: Any, targets: Any, workspace: Any) -> Work:
        arrays = dict(zip((*inputs, *outputs), (*sources, *targets), strict=True))
        return primitive.bind(arrays, workspace)

    return Candidate(
        f"oneDNN {primitive.name}",
        bind,
        tuple(kinds.get(n, product.plain) for n in inputs),
        tuple(kinds.get(n, product.plain) for n in outputs),
        primitive.workspace,
        in_place=False,
    )


FACTORIES = {
    "inner_product": forward,
    "inner_product_relu": forward,
    "inner_product_backward_data": backward_data,
    "inner_product_backward_weights": backward_weights,
}
