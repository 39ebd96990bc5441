"""Which kernel computes a request: the fastest candidate of the first plugin that can compute it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from demitasse.errors import PlanError
from demitasse.operations.kernel import Candidate, Request


class Tuner(Protocol):
    """Chooses among candidates by trying them."""

    def pick(self, plugin: str, request: Request, candidates: Sequence[Candidate]) -> tuple[int, str]:
        """Return the position of the fastest candidate, and in a word or two how that is known."""

    def choices(self) -> dict[str, str]:
        """Return what was picked so far, as text to store in a snapshot."""

    def prefer(self, choices: Mapping[str, str]) -> None:
        """From now on, pick what another run's ``choices`` say."""


@dataclass(frozen=True)
class Kernels:
    """What computes at a place: (plugin, its hook ``kernels``), preferred first; a tuner, which tries
    candidates; and a function that raises an error for a wrong candidate."""

    offers: Sequence[tuple[str, Callable[..., Iterable[Candidate]]]]
    tuner: Tuner | None = None
    check: Callable[[Candidate, Request, str], None] = lambda candidate, request, where: None

    def find(self, request: Request) -> tuple[str, list[Candidate]]:
        """Return the first plugin that computes the request and its candidates, or ("", [])."""
        for plugin, offer in self.offers:
            if candidates := list(offer(request=request)):
                return plugin, candidates
        return "", []

    def choose(self, request: Request, layer: str) -> tuple[str, Candidate, str]:
        """Return (plugin, candidate, reason) for the first plugin that computes the request: its fastest
        candidate, if all state their time or a tuner tries them, else its first. Raises PlanError with
        the layer, the operation and the plugins asked; PluginError for a wrong candidate."""
        plugin, candidates = self.find(request)
        asked = [*dict.fromkeys(name for name, _ in self.offers)]
        if not candidates:
            shapes = ", ".join(str(spec) for spec in request.inputs if spec is not None)
            raise PlanError(
                f"layer {layer!r}: no composed plugin computes {request.operation.name} of {shapes} at "
                f"{request.place.level!r} ({request.place.space}); asked: {', '.join(asked) or 'none'}"
            )
        for candidate in candidates:
            self.check(candidate, request, f"layer {layer!r}: plugin {plugin!r}")
        passed = asked[: asked.index(plugin)]
        reason, best = f"not computed by {', '.join(passed)}" if passed else "preferred", 0
        if len(candidates) > 1 and all(candidate.seconds is not None for candidate in candidates):
            best = min(range(len(candidates)), key=lambda i: candidates[i].seconds or 0.0)
        elif len(candidates) > 1 and self.tuner is not None:
            best, reason = self.tuner.pick(plugin, request, candidates)
        return plugin, candidates[best], reason
