"""Finding the rate, among a description's rates of operations, by which an operation is costed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from demitasse import Quantity, Rate, RatedOperation, Request


class OperationRates:
    """The rates of operations in a level's ``sustained``; empty if it has none."""

    def __init__(self, sustained: Quantity | None) -> None:
        given: Mapping[str, Quantity] = sustained.operations if isinstance(sustained, Rate) else {}
        self._rates = {RatedOperation.parse(name): rate for name, rate in given.items()}
        self._found: dict[tuple[str, tuple[int, ...]], RatedOperation | None] = {}

    def __getitem__(self, which: RatedOperation) -> Quantity:
        return self._rates[which]

    def find(self, request: Request) -> RatedOperation | None:
        """Return the most specific rate for a request; None if no rate applies. Candidates are the rates
        whose names the operation's name begins with. Among these it prefers, in this order: the longest
        name; the smallest limit on channels that is large enough; the window of its filters, else any
        window, else the window with the nearest number of points."""
        about = request.operation.name, _filters(request)
        if about not in self._found:
            self._found[about] = self._nearest(*about)
        return self._found[about]

    def _nearest(self, operation: str, filters: tuple[int, ...]) -> RatedOperation | None:
        _, channels, *window = filters or (0, 0)

        def fits(rated: RatedOperation) -> bool:
            particular = rated.window or rated.channels is not None
            enough = rated.channels is None or channels <= rated.channels
            return _begins(operation, rated) and (not particular or (bool(window) and enough))

        def distance(rated: RatedOperation) -> tuple[float, ...]:
            if rated.window == tuple(window):
                apart = 0.0
            elif not rated.window:
                apart = 1e-9
            else:
                apart = abs(math.log(math.prod(rated.window) / math.prod(window))) + 1e-6
            return -len(rated.operation), rated.channels or math.inf, apart

        return min(filter(fits, self._rates), key=distance, default=None)

    def unknown(self, vocabulary: Mapping[str, object]) -> list[RatedOperation]:
        """Return the rates that apply to no operation of the vocabulary."""
        return [each for each in self._rates if not any(_begins(name, each) for name in vocabulary)]


def _begins(operation: str, rated: RatedOperation) -> bool:
    return f"{operation}_".startswith(f"{rated.operation}_")


def _filters(request: Request) -> tuple[int, ...]:
    """Return the shape of an operation's filters: of its input ``w``, or of the weights of which its
    output ``dw`` is the gradient. Empty if it has no filters."""
    for operand, spec in zip(request.operation.inputs, request.inputs, strict=False):
        if operand.name == "w" and spec is not None:
            return spec.shape if len(spec.shape) > 2 else ()
    if any(operand.name == "dw" for operand in request.operation.outputs):
        shape: tuple[int, ...] = tuple(request.attributes.get("shape") or ())
        return shape if len(shape) > 2 else ()
    return ()
