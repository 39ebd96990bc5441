"""Turns a compiled loop and its arguments into work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from demitasse import DataError, Work
from demitasse_cpu.native import Call, at_once
from demitasse_cpu.threads import divide


def ready(loop: Any, *arguments: Any, failed: Callable[[], DataError] | None = None) -> Call:
    """Return a loop with its arguments, compiled for their types before the first step. ``failed``
    returns the error to raise if the loop raises WrongError."""
    return Call(loop, arguments, failed)


def spread(loop: Any, arguments: Sequence[Any], count: int, parts: int, unit: int = 1) -> Work:
    """Return work that runs a loop, whose last arguments are begin and end, over ``count`` things in
    ``parts`` ranges, which begin at multiples of ``unit``."""
    ranges = [(unit * a, min(unit * b, count)) for a, b in divide(-(-count // unit), parts)]
    return at_once([ready(loop, *arguments, *part) for part in ranges])
