"""One thread at a time in a net. In Caffe Python's global lock ensures it, because its
kernels keep the lock."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from demitasse import DemitasseError
from demitasse_caffe.pycaffe.errors import as_raised

F = TypeVar("F", bound=Callable[..., Any])


def in_turn(method: F) -> F:
    """Decorate a method so that it holds the lock ``self.turn`` while it runs. No other thread can use
    the kernels and plans meanwhile."""

    @wraps(method)
    def alone(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.turn:
            try:
                return method(self, *arguments, **options)
            except DemitasseError as error:
                as_raised(error)
                raise

    return cast("F", alone)
