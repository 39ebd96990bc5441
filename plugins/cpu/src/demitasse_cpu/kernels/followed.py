"""A product and a function of its result: oneDNN's kernels that do both, and other kernels for the
product with a loop behind them, of which a tuner finds the quickest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from demitasse import PLAIN, Candidate, Request, Work
from demitasse_cpu.kernels import functions
from demitasse_cpu.kernels.requests import spec
from demitasse_cpu.native import in_order

PRODUCTS = ("convolution", "inner_product")

Offer = Callable[[Request], Iterable[Candidate]]


def apart(request: Request) -> tuple[Request, Request] | None:
    """The requests for a product alone and for the function of its result; None where the operation is
    not a product followed by a function that has a loop."""
    name = request.operation.name
    for product in PRODUCTS:
        word = name.removeprefix(f"{product}_")
        if word != name and word in functions.FACTORIES:
            alone, behind = (replace(request.operation, name=each) for each in (product, word))
            made = replace(request, operation=behind, inputs=request.outputs)
            return replace(request, operation=alone), made
    return None


def candidates(
    alone: Request, behind: Request, both: Sequence[Candidate], offer: Offer
) -> list[Candidate]:
    """``both``, oneDNN's for a product and a function, and the others that ``offer`` has for the product
    with the function's loop behind them. None where the product alone would not be oneDNN's first: then
    there is a quicker kernel for it."""
    products = list(offer(alone)) if both else []
    if not products or not _is_onednn(products[0]):
        return []
    others = (_then(each, behind) for each in products if not _is_onednn(each))
    return [*both, *(each for each in others if each is not None)]


def _is_onednn(candidate: Candidate) -> bool:
    return candidate.kernel.startswith("oneDNN ")


def _then(product: Candidate, behind: Request) -> Candidate | None:
    """A product's kernel, and the function in place of its result, as that lies; None where its loop
    would have that lie otherwise."""
    layout = product.output_layouts[0] if product.output_layouts else PLAIN
    made = replace(spec(behind.outputs[0]), layout=layout)
    asked = replace(behind, inputs=(made,), outputs=(made,))
    function = next(iter(functions.FACTORIES[behind.operation.name](asked)), None)
    if function is None or function.output_layouts != (layout,):
        return None

    def bind(sources: Sequence[Any], targets: Sequence[Any], workspace: Any) -> Work:
        return in_order(
            [product.bind(sources, targets, workspace), function.bind(targets, targets, None)]
        )

    return replace(product, kernel=f"{product.kernel}+{function.kernel}", bind=bind)
