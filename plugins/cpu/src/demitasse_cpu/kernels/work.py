"""From a compiled loop and its arguments to work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from demitasse import Work
from demitasse_cpu.native import Call, at_once
from demitasse_cpu.threads import divide


def ready(loop: Any, *arguments: Any) -> Call:
    """A loop with its arguments, compiled for their types now and not in the first step."""
    return Call(loop, arguments)


def spread(loop: Any, arguments: Sequence[Any], count: int, parts: int) -> Work:
    """A loop, whose last arguments are begin and end, over ``count`` things in ``parts`` ranges."""
    return at_once([ready(loop, *arguments, *part) for part in divide(count, parts)])
