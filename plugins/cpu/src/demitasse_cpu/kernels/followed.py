"""A product followed by a function of its result: oneDNN's kernels that compute both, and other kernels
for the product followed by a loop. A tuner finds the fastest."""

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
    """Return the requests for a product alone and for the function of its result, or None if the
    operation is not a product followed by a function that has a loop."""
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
    """Return ``both``, which are oneDNN's candidates for a product and a function, and the other kernels
    that ``offer`` has for the product, each followed by the function's loop. Return none if oneDNN's is
    not the first for the product alone, because a faster kernel then exists for it."""
    products = list(offer(alone)) if both else []
    if not products or not _is_onednn(products[0]):
        return []
    others = (_then(each, behind) for each in products if not _is_onednn(each))
    return [*both, *(each for each in others if each is not None)]


def _is_onednn(candidate: Candidate) -> bool:
    return candidate.kernel.startswith("oneDNN ")


def _then(product: Candidate, behind: Request) -> Candidate | None:
    """Return a product's kernel followed by the function in place, in the layout of the product's
    result, or None if the function's loop needs another layout."""
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
