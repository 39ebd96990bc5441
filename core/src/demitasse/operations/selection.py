"""Which kernel computes a request: the first plugin that can, and of its candidates the quickest."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from demitasse.errors import PlanError
from demitasse.operations.kernel import Candidate, Request

Kernels: TypeAlias = Sequence[tuple[str, Callable[..., Iterable[Candidate]]]]
"""(plugin, its kernels hook), preferred first."""


def choose(kernels: Kernels, request: Request, layer: str) -> tuple[str, Candidate, str]:
    """(plugin, candidate, reason): the first plugin in preference that computes the request, and
    its quickest candidate where all say what they cost, else its first. Raises PlanError that names
    the layer, the operation and who was asked."""
    passed: list[str] = []
    for plugin, offer in kernels:
        if candidates := list(offer(request=request)):
            known = all(candidate.seconds is not None for candidate in candidates)
            best = min(candidates, key=lambda c: c.seconds or 0.0) if known else candidates[0]
            return plugin, best, f"not computed by {', '.join(passed)}" if passed else "preferred"
        passed.append(plugin)
    shapes = ", ".join(str(spec) for spec in request.inputs if spec is not None)
    raise PlanError(
        f"layer {layer!r}: no composed plugin computes {request.operation.name} of {shapes} at "
        f"{request.place.level!r} ({request.place.space}); asked: {', '.join(passed) or 'none'}"
    )
