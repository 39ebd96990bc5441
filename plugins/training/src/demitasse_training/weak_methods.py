"""Methods that can be passed on without keeping their object alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a bound method that does not keep its object alive. Without a reference cycle, the object's
    memory is freed as soon as it is dropped; otherwise only when Python next collects cycles, which low
    memory does not trigger."""
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        return found()(*arguments)  # type: ignore[misc]

    return call
