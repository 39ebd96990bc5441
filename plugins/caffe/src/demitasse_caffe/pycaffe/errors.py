"""Errors that scripts catch by the kind that Caffe's own module raises: each stays one of the family."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from demitasse import DemitasseError

Error = TypeVar("Error", bound=DemitasseError)


def also(error: Error, kind: type[Exception]) -> Error:
    """The error, which ``except kind`` catches, too, where Python can make one thing of both."""
    with suppress(TypeError):  # of kinds with data of their own, such as OSError
        error.__class__ = _both(type(error), kind)
    return error


def as_raised(error: Error) -> Error:
    """The error, which is caught by the kind of its cause, too: what a layer in Python raises reaches
    the script in Caffe."""
    cause = error.__cause__
    return also(error, type(cause)) if isinstance(cause, Exception) else error


def _both(family: type[Error], kind: type[Exception]) -> type[Error]:
    if issubclass(family, kind):
        return family
    # The text is the family's: a KeyError shows its own in quotation marks.
    own = {"__module__": family.__module__, "__str__": Exception.__str__}
    return type(family.__name__, (family, kind), own)
