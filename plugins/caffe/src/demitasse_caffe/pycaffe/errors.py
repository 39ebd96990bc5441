"""Errors that scripts can catch by the type that Caffe raises; each remains a DemitasseError."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from demitasse import DemitasseError

Error = TypeVar("Error", bound=DemitasseError)


def also(error: Error, kind: type[Exception]) -> Error:
    """Return the error, changed so that ``except kind`` catches it as well, if Python allows a class
    derived from both types."""
    with suppress(TypeError):  # types with data of their own, such as OSError
        error.__class__ = _both(type(error), kind)
    return error


def as_raised(error: Error) -> Error:
    """Return the error, changed so that the type of its cause catches it as well. In Caffe an exception
    from a Python layer reaches the script unchanged."""
    cause = error.__cause__
    return also(error, type(cause)) if isinstance(cause, Exception) else error


def _both(family: type[Error], kind: type[Exception]) -> type[Error]:
    if issubclass(family, kind):
        return family
    # The text is formatted by Exception: KeyError would put it in quotation marks.
    own = {"__module__": family.__module__, "__str__": Exception.__str__}
    return type(family.__name__, (family, kind), own)
