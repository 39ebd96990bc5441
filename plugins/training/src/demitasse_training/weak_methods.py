"""Methods that are handed on without keeping their object alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method that does not keep its object alive. Without a cycle the object's memory is freed
    as soon as it is dropped, instead of when Python next collects cycles, which low memory does not
    trigger."""
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        return found()(*arguments)  # type: ignore[misc]

    return call
