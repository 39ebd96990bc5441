"""Functions that a script registers to be called around each layer of a net."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Callback = Callable[[int], Any]


class Callbacks:
    """Callbacks, grouped by when they are called. Each receives the index of a layer."""

    def __init__(self) -> None:
        self._calls: dict[str, list[Callback]] = {}

    def before_forward(self, call: Callback) -> None:
        """Register a function to call before each layer's forward pass."""
        self._add("before_forward", call)

    def after_forward(self, call: Callback) -> None:
        """Register a function to call after each layer's forward pass."""
        self._add("after_forward", call)

    def before_backward(self, call: Callback) -> None:
        """Register a function to call before each layer's backward pass."""
        self._add("before_backward", call)

    def after_backward(self, call: Callback) -> None:
        """Register a function to call after each layer's backward pass."""
        self._add("after_backward", call)

    def called(self, way: str) -> bool:
        """Return whether a callback is registered for a direction, ``forward`` or ``backward``."""
        return any(place.endswith(way) for place in self._calls)

    def around_each(self, way: str, numbers: Iterable[int], run: Callable[[int, int], Any]) -> None:
        """Run layers one by one, with the callbacks before and after each of them."""
        for number in numbers:
            for call in self._calls.get(f"before_{way}", ()):
                call(number)
            run(number, number)
            for call in self._calls.get(f"after_{way}", ()):
                call(number)

    def _add(self, place: str, call: Callback) -> None:
        self._calls.setdefault(place, []).append(call)
