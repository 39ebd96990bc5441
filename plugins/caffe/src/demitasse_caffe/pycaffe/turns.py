"""One thread at a time in a net, as Python's lock has it in Caffe, whose kernels keep it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from demitasse import DemitasseError
from demitasse_caffe.pycaffe.errors import as_raised

F = TypeVar("F", bound=Callable[..., Any])


def in_turn(method: F) -> F:
    """A method of what has a lock, ``turn``, that other threads wait for: kernels and plans are nobody
    else's meanwhile."""

    @wraps(method)
    def alone(self: Any, *arguments: Any, **options: Any) -> Any:
        with self.turn:
            try:
                return method(self, *arguments, **options)
            except DemitasseError as error:
                as_raised(error)
                raise

    return cast("F", alone)
