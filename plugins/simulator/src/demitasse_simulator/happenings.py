"""What happens in a simulated step: what a resource does, what is handled together, and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from demitasse_simulator.rates import Costed


@dataclass(frozen=True)
class Happening:
    """An activity of a resource, from ``start`` on for ``seconds``; ``source`` tells where its time
    comes from."""

    resource: str
    name: str
    phase: str
    start: float
    seconds: float
    source: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stop(self) -> float:
        return self.start + self.seconds


@dataclass
class Round:
    """Buckets whose gradients a synchronisation handles together, and its stages before and after their
    update. Stages are (resource, name, seconds) and run one after the other; a resource does one stage
    at a time. ``there`` has the buckets whose gradients are final."""

    buckets: Sequence[int]
    before: Sequence[tuple[str, str, float]]
    after: Sequence[tuple[str, str, float]]
    there: set[int] = field(default_factory=set)


@dataclass
class Message:
    """A collective between nodes for some ``buckets``. ``goal`` is its goal, or the seconds of an
    exchange. It can start at the moment ``start``, and the worker waits for it at the moment ``wait``.
    ``until`` is the time at which it ends, once it has started."""

    goal: str | float
    buckets: Sequence[int]
    start: Any
    wait: Any
    until: float | None = None


class Update(Protocol):
    """The cost of the solver's update of a number of elements, and of measuring gradients before it."""

    def __call__(self, elements: int, layer: str = "") -> Costed:
        """Return the cost of an update; with ``layer``, that of a part of this layer's gradient."""

    def measure(self, elements: int) -> Costed:
        """Return the cost of the sums of squares of parameters and gradients."""
